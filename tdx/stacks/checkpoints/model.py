"""A policy checkpoint as plain data: its configuration and its two processors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from tdx.foundation.array_files import Array

Json = str | int | float | bool | None | list["Json"] | dict[str, "Json"]
"""Values of any dtype; NumPy has no type for arithmetic on them."""
SampleEntries = Mapping[str, object]
"""A sample by key: arrays, and text such as the task."""

HUB_PREFIX = "lerobot:"
"""What the id of a repository on the Hugging Face Hub begins with."""
Role = Literal["preprocessor", "postprocessor"]
ABSOLUTE_ACTIONS = "groot_absolute_actions"
"""Step of a postprocessor that adds the state of the robot, before the preprocessor changed it."""
VIDEO = "VIDEO"
"""Kind of a feature of image bytes ``[..., H, W, C]``."""
IDENTITY = "IDENTITY"
"""Mode of a feature that is not normalized."""
_SETTINGS = ("n_obs_steps", "chunk_size", "horizon", "n_action_steps")
ROLES: tuple[Role, Role] = ("preprocessor", "postprocessor")


@dataclass(frozen=True, slots=True)
class Feature:
    """An input or output of a policy."""

    kind: str  # STATE, ACTION, VISUAL, ENV or another kind of the library.
    shape: tuple[int, ...]  # Of one sample, without a batch dimension; images are (C, H, W).

    def __str__(self) -> str:
        return f"{self.kind} [{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class PolicyConfig:
    """What ``config.json`` declares about a policy."""

    policy: str | None  # Its type, such as act, if it is named.
    inputs: Mapping[str, Feature]  # After the preprocessor.
    outputs: Mapping[str, Feature]  # Before the postprocessor.
    modes: Mapping[str, str]  # Normalization mode by kind of feature.
    values: Mapping[str, Json]  # All other settings.

    def integer(self, name: str) -> int | None:
        """Return a setting that is an integer; ``None`` if it is missing or something else."""
        value = self.values.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a processor."""

    index: int  # In its processor, from 0 for the step that runs first.
    name: str  # In the library's registry, or the dotted path of a class.
    is_class: bool = False  # The name is a class: code, which is not imported.
    config: Mapping[str, Json] = field(default_factory=dict)
    # Tensors by name, such as observation.state.mean.
    state: Mapping[str, Array] = field(default_factory=dict)
    state_file: str | None = None  # File that they come from.

    @property
    def short_name(self) -> str:
        """The name without ``_processor`` and without the module of a class."""
        return self.name.rpartition(".")[2].removesuffix("_processor")

    @property
    def features(self) -> Mapping[str, Feature]:
        """Features that the step declares; empty for most steps."""
        declared = self.config.get("features")
        return parse_features(declared) if isinstance(declared, dict) else {}

    @property
    def modes(self) -> Mapping[str, str]:
        """Normalization mode by kind of feature; empty for other steps than normalizers."""
        declared = self.config.get("norm_map")
        if not isinstance(declared, dict):
            return {}
        return {kind: mode for kind, mode in declared.items() if isinstance(mode, str)}

    def mode_of(self, key: str, feature: Feature) -> str:
        """Return how the step normalizes a feature, ``IDENTITY`` if it does not."""
        single = self.config.get("feature_modes")
        mode = single.get(key) if isinstance(single, dict) else None
        return mode if isinstance(mode, str) else self.modes.get(feature.kind, IDENTITY)

    def key_of(self, key: str, feature: Feature) -> str:
        """Return the key of a feature in samples: LeRobot has one for all actions."""
        has_one_action = self.name in ("normalizer_processor", "unnormalizer_processor")
        return "action" if feature.kind == "ACTION" and has_one_action else key

    def possible_modes(self, key: str, feature: Feature) -> tuple[str, ...]:
        """Return the modes of a feature if the code that chooses one is not in the checkpoint."""
        declared = self.config.get("possible_modes")
        modes = declared.get(feature.kind) if isinstance(declared, dict) else None
        single = self.config.get("feature_modes")
        if not isinstance(modes, list) or (isinstance(single, dict) and key in single):
            return (self.mode_of(key, feature),)
        return tuple(mode for mode in modes if isinstance(mode, str))

    @property
    def statistics(self) -> Mapping[str, Mapping[str, Array]]:
        """Statistics by feature and name."""
        nested: dict[str, dict[str, Array]] = {}
        for name, array in self.state.items():
            feature, _, statistic = name.rpartition(".")
            nested.setdefault(feature, {})[statistic] = array
        return nested


@dataclass(frozen=True, slots=True)
class Processor:
    """Steps that run one after the other."""

    role: Role
    file: str
    steps: tuple[Step, ...]  # In the order in which they run.


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A policy checkpoint without its weights."""

    path: Path
    config: PolicyConfig | None  # None: there is no config.json.
    processors: tuple[Processor, ...]  # The preprocessor first.
    notes: tuple[str, ...] = ()  # What was not read, each a sentence.
    # Dims of an action of the policy before those of its features.
    action_lead: tuple[int, ...] = (1,)
    library: str = "LeRobot"
    fps: float | None = None  # Steps per second of the training, if a file declares it.
    # What the user named it by, such as lerobot:org/name. None: its folder.
    target: str | None = None

    @property
    def name(self) -> str:
        """What the user named it by, for messages."""
        return self.target or str(self.path)

    def file_name(self, processor: Processor) -> str:
        """Return the name of a file in it, for messages."""
        if self.name.startswith(HUB_PREFIX):
            return f"{self.name}/{processor.file}"
        return str(self.path / processor.file)

    @property
    def settings(self) -> Mapping[str, int | float]:
        """What a deployment must do as the training did, outside of the processors."""
        named: dict[str, int | float | None] = {"fps": self.fps}
        if self.config is not None:
            named |= {name: self.config.integer(name) for name in _SETTINGS}
        return {name: value for name, value in named.items() if value is not None and value < 1e9}

    def processor(self, role: Role) -> Processor | None:
        """Return the processor with a role; ``None`` if the checkpoint has none."""
        return next((p for p in self.processors if p.role == role), None)

    @property
    def stages(self) -> tuple[tuple[Processor, Step], ...]:
        """All steps from the robot to the policy: the last one of the postprocessor acts first."""
        stages = [
            (processor, step)
            for processor in self.processors
            for step in (
                processor.steps if processor.role == "preprocessor" else processor.steps[::-1]
            )
        ]
        # Nearest to the robot, whose state it reads; the order is that of actions nevertheless.
        stages.sort(key=lambda stage: stage[1].name != ABSOLUTE_ACTIONS)
        return tuple(stages)


@dataclass(frozen=True, slots=True)
class Trace:
    """A sample before a processor and after each of its steps."""

    samples: tuple[SampleEntries, ...]  # N + 1 samples for N steps.
    skipped: Mapping[int, str]  # Why a step was passed over, by its index.


Calls = Sequence[tuple[str, Mapping[str, Json]]]
"""Names and arguments of steps."""


def make_checkpoint(
    path: Path,
    library: str,
    file: str,
    names: tuple[str, str],
    features: Mapping[str, Feature],
    state: Mapping[str, Array],
    config: Mapping[str, Json],
    notes: tuple[str, ...],
    *,
    lead: tuple[int, ...] = (1,),
    videos: Mapping[str, Feature] = MappingProxyType({}),
    before: Calls = (),
    after: Calls = (),
) -> Checkpoint:
    """Return a checkpoint of a library that saves statistics, and no list of steps.

    ``names`` are those of the steps that normalize and unnormalize, which ``config`` belongs to.
    """
    actions = {key: f for key, f in features.items() if f.kind == "ACTION"}
    inputs = {key: f for key, f in features.items() if f.kind != "ACTION"}

    def scaling(index: int, name: str, own: Mapping[str, Feature]) -> Step:
        listed: dict[str, Json] = {
            key: {"type": f.kind, "shape": list(f.shape)} for key, f in own.items()
        }
        arrays = {n: array for n, array in state.items() if n.rpartition(".")[0] in own}
        return Step(index, name, config={"features": listed, **config}, state=arrays)

    inward = [Step(index, name, config=own) for index, (name, own) in enumerate(before)]
    inward.append(scaling(len(before), names[0], features))
    outward = [Step(index, name, config=own) for index, (name, own) in enumerate(after, start=1)]
    outward.insert(0, scaling(0, names[1], actions))
    return Checkpoint(
        path,
        PolicyConfig(None, {**videos, **inputs}, actions, {}, {}),
        (
            Processor("preprocessor", file, tuple(inward)),
            Processor("postprocessor", file, tuple(outward)),
        ),
        notes,
        lead,
        library,
    )


def parse_list(value: Json) -> list[Json]:
    """Return a list; anything else is an empty one."""
    return value if isinstance(value, list) else []


def parse_fps(value: Json) -> float | None:
    """Return a number of steps per second; ``None`` if it is not one.

    Example:
        >>> parse_fps(30), parse_fps(0), parse_fps("30")
        (30, None, None)
    """
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    # A comparison also excludes a NaN, and an integer that no float can be.
    return value if 0 < value < 1e9 else None


def parse_features(declared: Mapping[str, Json]) -> dict[str, Feature]:
    """Return features from ``{"observation.state": {"type": "STATE", "shape": [6]}}``.

    Malformed entries are left out.

    Example:
        >>> parse_features({"action": {"type": "ACTION", "shape": [6]}, "other": 3})
        {'action': Feature(kind='ACTION', shape=(6,))}
    """
    features = {}
    for key, value in declared.items():
        if not isinstance(value, dict):
            continue
        kind, shape = value.get("type"), value.get("shape")
        if not isinstance(kind, str) or not isinstance(shape, list):
            continue
        sizes = tuple(
            size for size in shape if isinstance(size, int) and not isinstance(size, bool)
        )
        if len(sizes) == len(shape):
            features[key] = Feature(kind, sizes)
    return features
