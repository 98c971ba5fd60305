"""Read the statistics and modalities that GR00T saves with a checkpoint.

The formats: N1.6 and newer write ``processor_config.json``, with the keys, horizon and way of
normalization of each modality, relative actions, and sizes of images, and ``statistics.json``.
N1.5 writes ``experiment_cfg/metadata.json``, with statistics and shapes, sizes and frames per
second of the cameras, and what numbers are rotations or flags; how they are used is Python code.
Both have one entry for each embodiment.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tdx.foundation.array_files import Array
from tdx.foundation.container import Container
from tdx.foundation.text import count_text
from tdx.stacks.checkpoints.files import parse_mapping, parse_statistics, read_json
from tdx.stacks.checkpoints.groot_images import image_settings
from tdx.stacks.checkpoints.model import (
    ABSOLUTE_ACTIONS,
    VIDEO,
    Calls,
    Checkpoint,
    Feature,
    Json,
    make_checkpoint,
    parse_fps,
    parse_list,
)
from tdx.stacks.checkpoints.poses import JOINTS, POSE_SIZES
from tdx.stacks.checkpoints.scaling import BINARY, SIN_COS

METADATA = "experiment_cfg/metadata.json"
CONFIG, STATISTICS_FILE = "processor_config.json", "statistics.json"
_PLACES = ("", "processor/")
_KINDS = {"state": "STATE", "action": "ACTION"}
_CAMERA = (240, 320)
"""Height and width of drawn images; those of the cameras are not in a checkpoint."""


class GrootFormat:
    """What GR00T saves; see :class:`~tdx.stacks.checkpoints.folder.CheckpointFormat`."""

    title = f"{CONFIG} with {STATISTICS_FILE}, or {METADATA} (GR00T)"

    def names(self, file: str) -> bool:
        """Return False: a checkpoint is named by its folder."""
        return False

    def find(self, folder: Path) -> Sequence[str]:
        """Return the configuration and the statistics, or the metadata of N1.5."""
        for place in _PLACES:
            files = [place + CONFIG, place + STATISTICS_FILE]
            if all((folder / file).is_file() for file in files):
                return files
        return [METADATA] if (folder / METADATA).is_file() else []

    def read(self, container: Container, files: Sequence[str]) -> Checkpoint:
        """Read all embodiments; if there are several, their names begin the keys."""
        if list(files) == [METADATA]:
            return _read_metadata(container)
        return _read_processor(container, *files)


GROOT = GrootFormat()


def _read_metadata(container: Container) -> Checkpoint:
    """Read the metadata of N1.5."""
    document = read_json(container, METADATA)
    features: dict[str, Feature] = {}
    videos: dict[str, Feature] = {}
    state: dict[str, Array] = {}
    single: dict[str, Json] = {}
    rotations: list[str] = []
    rates: set[float | None] = set()
    for tag, value in document.items():
        embodiment = parse_mapping(value, f"{tag!r} of {METADATA}")
        modalities = parse_mapping(embodiment.get("modalities"), f"the modalities of {tag!r}")
        prefix = f"{tag}/" if len(document) > 1 else ""
        declared: dict[str, tuple[int, ...]] = {}
        for name, group in _groups(modalities, "video"):
            camera = parse_mapping(group, f"the camera {name!r} of {tag!r}")
            # Width and height.
            sizes = _integers(camera.get("resolution"))[::-1]
            channels = camera.get("channels")
            rates.add(parse_fps(camera.get("fps")))
            if len(sizes) == 2 and isinstance(channels, int):
                videos[f"{prefix}video.{name}"] = Feature(VIDEO, (1, *sizes, channels))
        for part in _KINDS:
            for name, group in _groups(modalities, part):
                numbers = parse_mapping(group, f"{part}.{name} of {tag!r}")
                declared[f"{part}.{name}"] = _integers(numbers.get("shape"))
                if numbers.get("continuous") is False:
                    # The only mode that its code accepts for them.
                    single[f"{prefix}{part}.{name}"] = BINARY
                if isinstance(rotation := numbers.get("rotation_type"), str):
                    rotations.append(f"{prefix}{part}.{name} ({rotation})")
        known = parse_mapping(embodiment.get("statistics"), f"the statistics of {tag!r}")
        for key, statistics in _statistics(known, tag):
            size = max((array.shape[-1] for array in statistics.values()), default=0)
            declared.setdefault(key, (size,))
            state |= {f"{prefix}{key}.{name}": array for name, array in statistics.items()}
        features |= {
            prefix + key: Feature(_KINDS[key.partition(".")[0]], shape)
            for key, shape in declared.items()
        }
    modes: dict[str, Json] = dict.fromkeys(_KINDS.values(), "MIN_MAX")
    possible: dict[str, Json] = {
        kind: ["MIN_MAX", "QUANTILES", "MEAN_STD"] for kind in _KINDS.values()
    }
    notes = ["how GR00T N1.5 normalizes each key is Python code: MIN_MAX is shown"]
    unread = ["tokens of text and images", "the padding of states and actions to one vector"]
    if videos:
        unread.insert(0, "the crop and the size of images")
    if rotations:
        unread.append(f"other forms of the rotations {', '.join(rotations)}")
    notes.append(
        f"{count_text(len(unread), 'part')} of the preprocessing not run, which only code has: "
        f"{', '.join(unread)}"
    )
    checkpoint = make_checkpoint(
        container.path,
        "GR00T",
        METADATA,
        ("groot_n15_normalize", "groot_n15_unnormalize"),
        features,
        state,
        {"norm_map": modes, "possible_modes": possible, "feature_modes": single},
        tuple(notes),
        videos=videos,
    )
    return replace(checkpoint, fps=rates.pop() if len(rates) == 1 else None)


def _read_processor(container: Container, config_file: str, statistics_file: str) -> Checkpoint:
    """Read the processor of N1.6 and newer."""
    configuration = read_json(container, config_file)
    config_class = configuration.get("processor_class")
    settings = parse_mapping(
        configuration.get("processor_kwargs"), f"processor_kwargs of {config_file}"
    )
    configs = parse_mapping(settings.get("modality_configs"), f"modality_configs of {config_file}")
    document = read_json(container, statistics_file)
    # A fine-tuned checkpoint keeps the configurations of the embodiments that it started from.
    tags = [tag for tag in configs if tag in document] or list(configs)
    features: dict[str, Feature] = {}
    state: dict[str, Array] = {}
    modes: dict[str, Json] = {}
    relative: dict[str, Json] = {}
    videos: dict[str, Feature] = {}
    texts: list[Json] = []
    notes: list[str] = []
    unread = [
        f"tokens of text and images ({settings.get('model_name', 'its model')})",
        "the padding of states and actions to one vector",
    ]
    for tag in tags:
        prefix = f"{tag}/" if len(tags) > 1 else ""
        modalities = parse_mapping(configs[tag], f"{tag!r} of {config_file}")
        known = dict(_statistics(document.get(tag, {}), tag))
        for name, _ in _keys(modalities.get("video")):
            modality = parse_mapping(modalities["video"], f"the videos of {tag!r}")
            frames = len(parse_list(modality.get("delta_indices"))) or 1
            videos[f"{prefix}video.{name}"] = Feature(VIDEO, (frames, *_CAMERA, 3))
        texts += [prefix + name for name, _ in _keys(modalities.get("language"))]
        for part, kind in _KINDS.items():
            if not isinstance(modalities.get(part), dict):
                continue
            modality = parse_mapping(modalities[part], f"{part} of {tag!r}")
            horizon = parse_list(modality.get("delta_indices"))
            lead = (len(horizon),) if part == "action" else ()
            for name, action in _keys(modality):
                key, source = f"{prefix}{part}.{name}", f"{part}.{name}"
                if action.get("rep") == "RELATIVE" and settings.get("use_relative_action") is True:
                    is_pose = action.get("type") == "EEF"
                    layout = action.get("format") if is_pose else action.get("type", JOINTS)
                    state_key = f"{prefix}state.{action.get('state_key') or name}"
                    if layout == JOINTS or layout in POSE_SIZES:
                        relative[key] = [state_key, layout]
                    else:
                        unread.append(f"{key} as an absolute action ({layout!r} is not known)")
                    source = f"relative_action.{name}"
                statistics = known.get(source, {})
                absolute = known.get(f"{part}.{name}", statistics)
                sizes = [array.shape[-1] for array in (absolute or statistics).values()]
                features[key] = Feature(kind, (*lead, max(sizes, default=1)))
                state |= {f"{key}.{s}": array for s, array in statistics.items()}
                modes[key] = _mode(settings, modality, name, is_state=part == "state")
                if source.startswith("relative"):
                    # The range of relative actions is that of each step, never of quantiles.
                    modes[key] = "MEAN_STD" if modes[key] == "MEAN_STD" else "MIN_MAX"
    if len(tags) < len(configs):
        others = ", ".join(tag for tag in configs if tag not in tags)
        notes.append(f"there are no statistics of the embodiments {others}")
    has_exact_resize = config_class != "Gr00tN1d6Processor"
    images = image_settings(settings, has_exact_resize=has_exact_resize) if videos else {}
    before: list[tuple[str, Mapping[str, Json]]] = []
    if images:
        before.append(("groot_images", {"keys": list(videos), **images}))
        notes.append(
            f"the sizes of camera images are not in {config_file}: {_CAMERA[0]} × {_CAMERA[1]} is "
            "shown, unless samples are given"
        )
    elif videos:
        unread.append(f"the images, for which {config_file} has no sizes")
    if texts and settings.get("formalize_language", True) is True:
        before.append(("groot_text", {"keys": texts}))
    after: Calls = [(ABSOLUTE_ACTIONS, {"relative": relative})] if relative else []
    notes.append(f"{count_text(len(unread), 'part')} of the processor not run: {', '.join(unread)}")
    steps: dict[str, Json] = {
        "norm_map": dict.fromkeys(_KINDS.values(), "MIN_MAX"),
        "feature_modes": modes,
        "clip_outliers": settings.get("clip_outliers", True),
    }
    return make_checkpoint(
        container.path,
        "GR00T",
        config_file,
        ("groot_normalize", "groot_unnormalize"),
        features,
        state,
        steps,
        tuple(notes),
        lead=(),
        videos=videos if images else {},
        before=before,
        after=after,
    )


def _groups(value: Mapping[str, Json], part: str) -> Iterator[tuple[str, Json]]:
    groups = value.get(part)
    yield from groups.items() if isinstance(groups, dict) else ()


def _statistics(value: Json, tag: str) -> Iterator[tuple[str, Mapping[str, Array]]]:
    """Yield the statistics of each group of joints, such as ``state.left_arm``."""
    document = parse_mapping(value, f"the statistics of {tag!r}")
    for part in (*_KINDS, "relative_action"):
        for name, group in _groups(document, part):
            yield f"{part}.{name}", parse_statistics(group, f"{part}.{name} of {tag!r}")


def _integers(value: Json) -> tuple[int, ...]:
    return tuple(size for size in parse_list(value) if isinstance(size, int))


def _keys(modality: Json) -> Iterator[tuple[str, Mapping[str, Json]]]:
    """Yield the groups of a modality, and how their actions are represented."""
    if not isinstance(modality, dict):
        return
    configs = parse_list(modality.get("action_configs"))
    for index, name in enumerate(parse_list(modality.get("modality_keys"))):
        own = configs[index] if index < len(configs) else None
        yield str(name), own if isinstance(own, dict) else {}


def _mode(
    settings: Mapping[str, Json], modality: Mapping[str, Json], name: str, *, is_state: bool
) -> str:
    encodes = is_state and settings.get("apply_sincos_state_encoding") is True
    if encodes and name in parse_list(modality.get("sin_cos_embedding_keys")):
        return SIN_COS
    if name in parse_list(modality.get("mean_std_embedding_keys")):
        return "MEAN_STD"
    return "QUANTILES" if settings.get("use_percentiles") is True else "MIN_MAX"
