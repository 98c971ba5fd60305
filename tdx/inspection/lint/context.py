"""Input of lint rules: a pipeline with its specs and the versions of its keys."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from tdx.foundation.keys import NestedKey, normalize_key, split_key
from tdx.inspection.lineage import VersionRecord, VersionTracker
from tdx.pipeline.arguments import bind_stage
from tdx.pipeline.coercion import coerce, parse_or_none
from tdx.pipeline.model import Pipeline
from tdx.pipeline.transform_info import TransformInfo, Type
from tdx.pipeline.values import StageConfig

if TYPE_CHECKING:
    from torch import nn

    from tdx.core import TransformedEnv
    from tdx.core.transforms import Transform
    from tdx.foundation.simulated_cuda import CallKind
    from tdx.specs import Composite, TensorSpec
    from tdx.specs.violations import SpecViolation
    from tdx.stacks.device_calls import DeviceCalls, DeviceLine

_OUTPUT = ("full_observation_spec", "full_reward_spec", "full_done_spec")
ENV = -1
"""Writer index of the env."""
_EXTRA_KEY_ARGUMENTS = ("ref_key", "mask_key")
_NEW_KEYS_ONLY = ("StepCounter", "InitTracker", "RewardSum", "TensorDictPrimer")
_READS_ALL = ("FrameSkipTransform", "NoopResetEnv", "BatchSizeTransform", "BurnInTransform")
StageVersion = VersionRecord[int]
"""Version whose nodes are stage indices."""


@dataclass(frozen=True, slots=True)
class DeviceContext:
    """Input of the lint rules for accelerators.

    Args:
        calls: What a rollout on a simulated device did to it.
        first: Number of the env's own stages, which come before those of the pipeline.
        names: Class names of the stages of the pipeline.
        configs: The stages as the pipeline writes them; empty for a chain that is Python code.
        transfers: Stages that exist to move data between devices; no rule asks for less.
    """

    subject: ClassVar[Literal["device"]] = "device"

    calls: DeviceCalls
    first: int
    names: Sequence[str]
    configs: Sequence[StageConfig] = ()
    transfers: Collection[int] = ()

    def lines(self, *kinds: CallKind) -> Iterator[tuple[int, list[DeviceLine]]]:
        """Yield the stages of the pipeline with lines of a kind that run in most steps."""
        for index in range(len(self.names)):
            if index in self.transfers:
                continue
            lines = [
                line
                for line in self.calls.lines
                if line.stage == self.first + index and line.kind in kinds and line.per_step >= 0.5
            ]
            if lines:
                yield index, lines


@dataclass(frozen=True, slots=True)
class KeySpecs:
    """Specs before or after a stage.

    Args:
        outputs: Specs of the outputs, by key.
        inputs: Specs of the inputs, by key: actions and state.
        actions: Keys in ``inputs`` that are actions.
        rewards: Keys in ``outputs`` that are rewards.
        done_keys: Keys in ``outputs`` that are done flags.
    """

    outputs: Mapping[NestedKey, TensorSpec]
    inputs: Mapping[NestedKey, TensorSpec]
    actions: Collection[NestedKey]
    rewards: Collection[NestedKey]
    done_keys: Collection[NestedKey]

    @classmethod
    def of(cls, input_spec: Composite, output_spec: Composite) -> KeySpecs:
        """Split the parts of an input and an output spec."""
        parts = {name: _leaves(output_spec.get(name, None)) for name in _OUTPUT}
        actions = _leaves(input_spec.get("full_action_spec", None))
        state = _leaves(input_spec.get("full_state_spec", None))
        outputs = {key: spec for part in parts.values() for key, spec in part.items()}
        return cls(
            outputs,
            {**state, **actions},
            tuple(actions),
            tuple(parts["full_reward_spec"]),
            tuple(parts["full_done_spec"]),
        )


def _leaves(spec: Composite | None) -> dict[NestedKey, TensorSpec]:
    if spec is None:
        return {}
    return {normalize_key(key): leaf for key, leaf in spec.items(True, True)}


@dataclass(frozen=True)
class LintStage:
    """One stage of the chain.

    Args:
        index: Index in the chain, from 0.
        config: Its entry in the pipeline.
        info: Declaration of its transform; ``None`` for Python code.
        transform: The transform, if it could be built.
        before: Specs before the stage, if known.
        after: Specs after the stage, if known.
    """

    index: int
    config: StageConfig
    info: TransformInfo | None
    transform: Transform | None = None
    before: KeySpecs | None = None
    after: KeySpecs | None = None

    @property
    def name(self) -> str:
        """Class name of the transform."""
        return self.config.name

    @property
    def is_opaque(self) -> bool:
        """True if the stage may read and write more than its declared keys."""
        return self.info is None or self.name in ("Compose", "TerminateTransform")

    @cached_property
    def arguments(self) -> Mapping[str, Any]:
        """All arguments by name as plain values, including defaults."""
        if self.info is None:
            return dict(self.config.kwargs)
        bound = bind_stage(self.config)
        names = [
            parameter.name for parameter in self.info.parameters if parameter.kind == "positional"
        ]
        defaults = {
            parameter.name: _default(parameter.default, parameter.type)
            for parameter in self.info.parameters
            if parameter.default is not None
        }
        return {**defaults, **dict(zip(names, bound.args, strict=False)), **bound.kwargs}

    @cached_property
    def in_keys(self) -> list[NestedKey]:
        """Output keys of the env that it reads."""
        if self.transform is not None:
            return [normalize_key(key) for key in self.transform.in_keys]
        return self._keys_argument("in_keys") or self._default_keys()

    @cached_property
    def out_keys(self) -> list[NestedKey]:
        """Keys that it writes, one per in-key."""
        if self.transform is not None:
            return [normalize_key(key) for key in self.transform.out_keys]
        return self._keys_argument("out_keys") or self.in_keys

    @cached_property
    def in_keys_inv(self) -> list[NestedKey]:
        """Input keys of the env that it maps."""
        if self.transform is not None:
            return [normalize_key(key) for key in self.transform.in_keys_inv]
        return self._keys_argument("in_keys_inv")

    @property
    def has_in_keys_argument(self) -> bool:
        """True if the pipeline sets ``in_keys``."""
        return self.arguments.get("in_keys") is not None

    def _keys_argument(self, argument: str) -> list[NestedKey]:
        value = self.arguments.get(argument)
        if isinstance(value, str):
            return [value]
        return [normalize_key(key) for key in value] if isinstance(value, list | tuple) else []

    def _default_keys(self) -> list[NestedKey]:
        if self.info is None:
            return []
        if self.info.default_in_keys is not None:
            return list(self.info.default_in_keys)
        return ["reward"] if self.info.category == "reward" else []


@cache
def _default(text: str | None, declared: Type) -> Any:
    """Return the default of a parameter; an editor lints the same stages after each change."""
    value = None if text is None else parse_or_none(text)
    try:
        return coerce(declared, value)
    except Exception:
        return value


@dataclass(frozen=True)
class LintContext:
    """Input of the rules."""

    subject: ClassVar[Literal["pipeline"]] = "pipeline"

    pipeline: Pipeline
    stages: Sequence[LintStage]
    env: TransformedEnv | None = None
    policy: nn.Module | None = None
    spec_violations: Sequence[SpecViolation] = field(default=())

    @cached_property
    def versions(self) -> list[StageVersion]:
        """Versions of all keys in the order in which they are written.

        They follow the specs stage by stage as far as these are known, also through chains that
        cannot be built, which :mod:`tdx.inspection.lineage` does not cover.
        """
        tracker = VersionTracker[int]()
        for stage in self.stages:
            before, after = stage.before, stage.after
            if before is None or after is None:
                continue
            if not tracker.versions:
                for key in before.outputs:
                    tracker.begin(key, ENV)
            for key in _keys_read(stage, tracker.current):
                tracker.read(key, stage.index)
            for key in [key for key in tracker.current if key not in after.outputs]:
                is_renamed = stage.name == "RenameTransform"
                tracker.end(key, stage.index, "renamed" if is_renamed else "dropped")
            new = [key for key in after.outputs if key not in before.outputs]
            out_keys = [] if stage.name in _NEW_KEYS_ONLY else stage.out_keys
            for key in dict.fromkeys([*out_keys, *new]):
                if key in after.outputs:
                    tracker.write(key, stage.index)
        return tracker.versions

    @property
    def last(self) -> KeySpecs | None:
        """Specs after the chain, if known."""
        if self.stages:
            return self.stages[-1].after
        if self.env is None:
            return None
        return KeySpecs.of(self.env.input_spec, self.env.output_spec)

    def stages_named(self, *names: str) -> Iterator[LintStage]:
        """Return the stages with these transforms."""
        return (stage for stage in self.stages if stage.name in names)

    def iter_pairs(
        self, first: Collection[str], then: Collection[str]
    ) -> Iterator[tuple[LintStage, LintStage, NestedKey]]:
        """Yield each stage of ``first`` with every later one of ``then`` that reads its output."""
        for early in self.stages_named(*first):
            followed = set(early.out_keys)
            for late in self.stages[early.index + 1 :]:
                if late.name in then:
                    shared = [key for key in late.in_keys if key in followed]
                    if shared:
                        yield early, late, shared[0]
                renames = zip(late.in_keys, late.out_keys, strict=False)
                followed |= {new for old, new in renames if old in followed}


def _keys_read(stage: LintStage, current: Iterable[NestedKey]) -> Iterator[NestedKey]:
    """Return the current keys that a stage reads; a group stands for all keys in it."""
    if stage.is_opaque or stage.name in _READS_ALL:
        yield from current
        return
    keys = [*stage.in_keys]
    for argument in _EXTRA_KEY_ARGUMENTS:
        value = stage.arguments.get(argument)
        if isinstance(value, str | tuple):
            keys.append(normalize_key(value))
    heads = {split_key(key) for key in keys}
    for key in current:
        parts = (key,) if isinstance(key, str) else key
        if any(parts[:length] in heads for length in range(1, len(parts) + 1)):
            yield key
