"""Checkpoint folders as LeRobot saves them: a policy of the type ACT with one camera."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

STATE, IMAGE, ACTION = "observation.state", "observation.images.top", "action"
JOINTS = 6
MODES = {"STATE": "MEAN_STD", "ACTION": "MEAN_STD", "VISUAL": "MEAN_STD"}
INPUTS = {
    STATE: {"type": "STATE", "shape": [JOINTS]},
    IMAGE: {"type": "VISUAL", "shape": [3, 96, 96]},
}
OUTPUTS = {ACTION: {"type": "ACTION", "shape": [JOINTS]}}

Arrays = dict[str, np.ndarray[Any, Any]]


def statistics(data: np.ndarray[Any, Any]) -> Arrays:
    """Return the statistics of rows of a dataset."""
    quantiles = {f"q{n:02}": np.quantile(data, n / 100, axis=0) for n in (1, 10, 50, 90, 99)}
    named = {"mean": data.mean(0), "std": data.std(0), "min": data.min(0), "max": data.max(0)}
    return {name: value.astype(np.float32) for name, value in (named | quantiles).items()}


def stock_statistics() -> dict[str, Arrays]:
    """Return true statistics of a small dataset."""
    rng = np.random.default_rng(0)
    states = rng.normal(1, 3, (500, JOINTS))
    pixels = rng.random((200, 3, 4, 4))
    image = {
        "mean": pixels.mean((0, 2, 3)),
        "std": pixels.std((0, 2, 3)),
        "min": pixels.min((0, 2, 3)),
        "max": pixels.max((0, 2, 3)),
    }
    return {
        STATE: statistics(states),
        ACTION: statistics(states * 2 + rng.normal(0, 0.1, states.shape)),
        IMAGE: {name: v.astype(np.float32)[:, None, None] for name, v in image.items()},
    }


class Folder:
    """A checkpoint that tests damage before it is written.

    Args:
        policy: Type of the policy.
    """

    def __init__(self, policy: str = "act") -> None:
        self.statistics = {"before": stock_statistics(), "after": stock_statistics()}
        self.config: dict[str, Any] = {
            "type": policy,
            "n_obs_steps": 1,
            "chunk_size": 100,
            "n_action_steps": 100,
            "input_features": copy.deepcopy(INPUTS),
            "output_features": copy.deepcopy(OUTPUTS),
            "normalization_mapping": dict(MODES),
        }
        self.before: list[dict[str, Any]] = [
            {"registry_name": "rename_observations_processor", "config": {"rename_map": {}}},
            {"registry_name": "to_batch_processor", "config": {}},
            {"registry_name": "device_processor", "config": {"device": "cpu", "float_dtype": None}},
            normalizer("normalizer_processor", INPUTS | OUTPUTS),
        ]
        self.after: list[dict[str, Any]] = [
            normalizer("unnormalizer_processor", OUTPUTS),
            {"registry_name": "device_processor", "config": {"device": "cpu", "float_dtype": None}},
        ]

    @property
    def normalizer(self) -> dict[str, Any]:
        """Arguments of the normalizer."""
        return self._find("normalizer_processor", self.before)["config"]

    @property
    def unnormalizer(self) -> dict[str, Any]:
        """Arguments of the unnormalizer."""
        return self._find("unnormalizer_processor", self.after)["config"]

    @property
    def both(self) -> list[dict[str, Arrays]]:
        """Statistics of both processors."""
        return list(self.statistics.values())

    def set_mode(self, kind: str, mode: str) -> None:
        """Normalize a kind of feature in another way, everywhere."""
        for modes in (
            self.config["normalization_mapping"],
            self.normalizer["norm_map"],
            self.unnormalizer["norm_map"],
        ):
            modes[kind] = mode

    def insert(self, index: int, name: str, **config: Any) -> None:
        """Insert a step into the preprocessor."""
        self.before.insert(index, {"registry_name": name, "config": config})

    def write(self, path: Path) -> Path:
        """Write the folder, and return it."""
        path.mkdir(parents=True, exist_ok=True)
        self._write_processor(path, "policy_preprocessor", self.before, self.statistics["before"])
        self._write_processor(path, "policy_postprocessor", self.after, self.statistics["after"])
        (path / "config.json").write_text(json.dumps(self.config))
        return path

    def _find(self, name: str, steps: list[dict[str, Any]]) -> dict[str, Any]:
        return next(step for step in steps if step.get("registry_name") == name)

    def _write_processor(
        self,
        path: Path,
        name: str,
        steps: list[dict[str, Any]],
        tensors: Mapping[str, Arrays],
    ) -> None:
        written = []
        for index, step in enumerate(steps):
            written.append(step)
            registered = step.get("registry_name", "")
            if registered.endswith("normalizer_processor") and tensors:
                file = f"{name}_step_{index}_{registered}.safetensors"
                flat = {f"{k}.{s}": v for k, named in tensors.items() for s, v in named.items()}
                save_file(flat, path / file)
                written[-1] = {**step, "state_file": file}
        document = {"name": name, "steps": written}
        (path / f"{name}.json").write_text(json.dumps(document, indent=2))


def normalizer(name: str, features: Mapping[str, Any]) -> dict[str, Any]:
    """Return a normalizer or unnormalizer step."""
    config = {"eps": 1e-8, "features": copy.deepcopy(dict(features)), "norm_map": dict(MODES)}
    return {"registry_name": name, "config": config}
