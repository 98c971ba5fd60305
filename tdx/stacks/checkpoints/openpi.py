"""Read the statistics that openpi saves with a checkpoint.

The format: ``assets/ASSET/norm_stats.json`` has the mean, the standard deviation and two quantiles
of ``state`` and ``actions``. Everything else that openpi does to a sample is Python code.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from tdx.foundation.array_files import Array
from tdx.foundation.container import Container
from tdx.stacks.checkpoints.files import parse_mapping, parse_statistics, read_json
from tdx.stacks.checkpoints.model import Checkpoint, Feature, Json, make_checkpoint

FILE = "norm_stats.json"
NAMES_IN_DATA = {"state": "observation.state", "actions": "action"}
"""Names of its features in datasets."""
_MAX_DEPTH = 4
_KINDS = {"state": "STATE", "actions": "ACTION"}
_CONFIG: Mapping[str, Json] = {
    "norm_map": dict.fromkeys(_KINDS.values(), "MEAN_STD"),
    "possible_modes": {kind: ["MEAN_STD", "QUANTILES"] for kind in _KINDS.values()},
}


class OpenpiFormat:
    """The statistics of openpi; see :class:`~tdx.stacks.checkpoints.folder.CheckpointFormat`."""

    title = "assets/ASSET/norm_stats.json (openpi)"

    def names(self, file: str) -> bool:
        return file == FILE

    def find(self, folder: Path) -> Sequence[str]:
        if (folder / FILE).is_file():
            return [FILE]
        files = []
        assets = folder / "assets"
        for root, folders, names in os.walk(assets):
            if len(Path(root).relative_to(assets).parts) >= _MAX_DEPTH:
                folders.clear()
            if FILE in names:
                files.append((Path(root) / FILE).relative_to(folder).as_posix())
        return sorted(files)

    def read(self, container: Container, files: Sequence[str]) -> Checkpoint:
        """Read the statistics of each asset; if there are several, their names begin the keys."""
        features: dict[str, Feature] = {}
        state: dict[str, Array] = {}
        notes = ["openpi resizes, pads and repacks in Python code, which is not read"]
        for file in files:
            asset = Path(file).parent.as_posix().removeprefix("assets").strip("/")
            document = parse_mapping(read_json(container, file).get("norm_stats"), file)
            for name in dict.fromkeys([*_KINDS, *document]):
                key = f"{asset}/{name}" if len(files) > 1 else name
                if (value := document.get(name)) is None:
                    # It passes openpi's normalizer unchanged.
                    features[key] = Feature(_KINDS[name], (1,))
                    continue
                statistics = parse_statistics(value, f"{name!r} of {file}")
                size, padding = _count_numbers(statistics)
                if padding:
                    notes.append(f"the last {padding} numbers of {key!r} are padding")
                features[key] = Feature(_KINDS.get(name, "STATE"), (size,))
                state |= {f"{key}.{s}": a[..., :size] for s, a in statistics.items()}
        has_quantiles = any(name.endswith(".q01") for name in state)
        if has_quantiles:
            notes.append(
                "whether openpi normalizes by mean and standard deviation (pi0) or by quantiles "
                "(pi05, pi0-FAST) is Python code: MEAN_STD is shown"
            )
        return make_checkpoint(
            container.path,
            "openpi",
            files[0] if len(files) == 1 else f"assets/*/{FILE}",
            ("openpi_normalize", "openpi_unnormalize"),
            features,
            state,
            _CONFIG,
            tuple(notes),
        )


def _count_numbers(statistics: Mapping[str, Array]) -> tuple[int, int]:
    """Return the size of a feature, and the number of zeros that pad it to that of the model."""
    size = max((array.shape[-1] for array in statistics.values()), default=0)
    used = np.zeros(size, bool)
    for array in statistics.values():
        used[: array.shape[-1]] |= (array != 0).reshape(-1, array.shape[-1]).any(0)
    count = int(np.flatnonzero(used)[-1]) + 1 if used.any() else size
    return count, size - count


OPENPI = OpenpiFormat()
