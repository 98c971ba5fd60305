"""Compare two pipelines: stages, specs, and the values of seeded rollouts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from types import NoneType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from tdx.foundation.keys import format_key, normalize_key
from tdx.foundation.serialization import Entries, Result
from tdx.inspection.spec_report import KeyChange, compare_leaves, unwrap_env
from tdx.pipeline import EnvConfig, Pipeline, RolloutConfig, StageConfig, format_stage, format_value
from tdx.pipeline.arguments import name_arguments
from tdx.pipeline.values import Value
from tdx.specs.leaf import LeafSpec, composite_leaves
from tdx.stacks.native import seed_run
from tdx.stacks.stack import StageInfo, format_argument

if TYPE_CHECKING:
    from tensordict import TensorDictBase
    from torch import Tensor

    from tdx.core import TransformedEnv
    from tdx.envs import EnvBase


StageStatus = Literal["same", "changed", "moved", "added", "removed"]
ValueStatus = Literal["same", "different", "shape", "only_a", "only_b"]
Leaves = tuple[LeafSpec, ...]


@dataclass(frozen=True, slots=True)
class SettingChange(Result):
    """A setting or argument that differs.

    Args:
        name: Name of the setting.
        a: Value on the first side, as text.
        b: Value on the second side.
    """

    name: str
    a: str
    b: str


@dataclass(frozen=True, slots=True)
class StageChange(Result):
    """A stage on both sides.

    Args:
        status: Kind of change.
        a_index: Index on the first side; ``None`` if it is missing there.
        b_index: Index on the second side.
        a: The stage as the text of ``--t``.
        b: The same on the second side.
        arguments: Arguments that differ.
    """

    status: StageStatus
    a_index: int | None
    b_index: int | None
    a: str | None
    b: str | None
    arguments: tuple[SettingChange, ...] = ()


@dataclass(frozen=True, slots=True)
class ValueChange(Result):
    """Values of one key in both rollouts.

    Args:
        key: The key, with dots between its parts.
        status: Result of the comparison.
        largest: Largest absolute difference; ``None`` if it cannot be computed.
        first_step: First step at which they differ, from 0.
        note: Both shapes or dtypes, if they differ.
    """

    key: str
    status: ValueStatus
    largest: float | None = None
    first_step: int | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class DiffReport(Result):
    """Differences between two sides.

    Args:
        a: Name of the first side.
        b: Name of the second side.
        env: Settings that differ.
        stages: Every stage in the order of the second side; removed ones keep their position.
        env_specs: Specs of the envs without their chains.
        chain_specs: Specs of the envs with their chains.
        steps: Number of compared steps; ``None`` if values were not compared.
        seed: Seed of the rollouts.
        values: Every key of the rollouts.
    """

    json_entries: ClassVar[Entries] = (
        *("a", "b", "same", "env", "stages", "env_specs", "chain_specs"),
        *("steps", "seed", "values"),
    )

    a: str
    b: str
    env: tuple[SettingChange, ...]
    stages: tuple[StageChange, ...]
    env_specs: tuple[KeyChange, ...]
    chain_specs: tuple[KeyChange, ...]
    steps: int | None = None
    seed: int | None = None
    values: tuple[ValueChange, ...] = ()

    @property
    def same(self) -> bool:
        """True if nothing differs."""
        specs = (*self.env_specs, *self.chain_specs)
        return (
            not self.env
            and all(stage.status == "same" for stage in self.stages)
            and all(change.change == "same" for change in specs)
            and all(value.status == "same" for value in self.values)
        )


class DiffSide(Protocol):
    """One side of a comparison: a pipeline, or a dump with a manifest and shards."""

    @property
    def name(self) -> str:
        """Name of the side."""

    @property
    def pipeline(self) -> Pipeline:
        """Its env and chain as data."""

    @property
    def stages(self) -> Sequence[StageConfig]:
        """Its stages: those of the pipeline, or of the env that its factory returns."""

    def specs(self) -> tuple[Leaves, Leaves]:
        """Return the specs before and after the chain."""

    def rollout(self, steps: int, seed: int) -> TensorDictBase:
        """Return a rollout ``[*B, T]``."""

    def close(self) -> None:
        """Release its resources."""


class PipelineSide:
    """A pipeline as one side of a comparison.

    Args:
        name: Name of the side.
        pipeline: The pipeline.
        allow_code: Allow importing the Python objects that it names.

    Raises:
        TdxError: The pipeline cannot be built.
    """

    def __init__(self, name: str, pipeline: Pipeline, allow_code: bool = False) -> None:
        from tdx.stacks.building import build_env, build_stack

        self.name = name
        self.pipeline = pipeline
        self.stages: Sequence[StageConfig] = pipeline.transforms
        if pipeline.is_factory:
            stack = build_stack(pipeline, allow_code)
            self.stages = [_stage_config(stage) for stage in stack.stages]
            self._env: TransformedEnv = build_env(pipeline, allow_code, stack.as_env())
        else:
            self._env = build_env(pipeline, allow_code)

    def specs(self) -> tuple[Leaves, Leaves]:
        """Return the specs before and after the chain."""
        base = unwrap_env(self._env)
        before = composite_leaves(base.input_spec, base.output_spec)
        return before, composite_leaves(self._env.input_spec, self._env.output_spec)

    def rollout(self, steps: int, seed: int) -> TensorDictBase:
        """Return a rollout ``[*B, T]`` with random actions.

        The actions of a step depend only on the seed, the step and the action spec, so both sides
        take the same actions if their action specs agree.
        """
        from tdx.inspection.diff import run_seeded_rollout

        return run_seeded_rollout(self._env, steps, seed)

    def close(self) -> None:
        """Close the env."""
        self._env.close()


def _stage_config(stage: StageInfo) -> StageConfig:
    """Return a stage of a stack as a stage of a pipeline; objects become text."""
    kwargs: dict[str, Value] = {
        name: value if isinstance(value, str | int | float | NoneType) else format_argument(value)
        for name, value in stage.arguments.items()
    }
    return StageConfig(stage.name, (), kwargs)


def compare_pipelines(
    a: DiffSide, b: DiffSide, *, steps: int | None = None, seed: int = 0
) -> DiffReport:
    """Compare two sides.

    Args:
        a: First side.
        b: Second side.
        steps: Length of the rollouts to compare. ``None``: do not compare values.
        seed: Seed of both rollouts.

    Example:
        >>> from tdx.inspection.diff import PipelineSide
        >>> one, other = (
        ...     PipelineSide(stage, Pipeline.of("Pendulum-v1", stage))
        ...     for stage in ("StepCounter", "StepCounter(max_steps=9)")
        ... )
        >>> report = compare_pipelines(one, other)
        >>> report.same, report.stages[0].status
        (False, 'changed')
    """
    (env_a, chain_a), (env_b, chain_b) = a.specs(), b.specs()
    report = DiffReport(
        a=a.name,
        b=b.name,
        env=tuple(_compare_settings(a.pipeline, b.pipeline)),
        stages=tuple(align_stages(a.stages, b.stages)),
        env_specs=compare_leaves(env_a, env_b),
        chain_specs=compare_leaves(chain_a, chain_b),
    )
    if steps is None:
        return report
    values = compare_values(a.rollout(steps, seed), b.rollout(steps, seed))
    return dataclasses.replace(report, steps=steps, seed=seed, values=values)


def _compare_settings(a: Pipeline, b: Pipeline) -> Iterator[SettingChange]:
    pairs = ((a.env, b.env, EnvConfig), (a.rollout, b.rollout, RolloutConfig))
    for one, other, kind in pairs:
        for field in dataclasses.fields(kind):
            yield from _compare_setting(
                field.name, getattr(one, field.name), getattr(other, field.name)
            )
    yield from _compare_setting("policy", a.policy, b.policy)


def _compare_setting(name: str, one: Value, other: Value) -> Iterator[SettingChange]:
    if repr(one) != repr(other):
        sides = [each if isinstance(each, str) else format_value(each) for each in (one, other)]
        yield SettingChange(name, *sides)


def align_stages(a: Sequence[StageConfig], b: Sequence[StageConfig]) -> list[StageChange]:
    """Pair the stages of two chains: equal ones first, then those with equal names.

    A stage that is in both chains at different positions has moved.
    """
    found: list[StageChange] = []
    matcher = SequenceMatcher(
        None, list(map(_identity_text, a)), list(map(_identity_text, b)), autojunk=False
    )
    for tag, a_start, a_end, b_start, b_end in matcher.get_opcodes():
        if tag == "equal":
            pairs = zip(range(a_start, a_end), range(b_start, b_end), strict=True)
            found += [_stage_change("same", a, b, i, j) for i, j in pairs]
        else:
            found += _match_by_name(a, b, range(a_start, a_end), range(b_start, b_end))
    return _merge_moves(found, a, b)


def _match_by_name(
    a: Sequence[StageConfig], b: Sequence[StageConfig], a_range: range, b_range: range
) -> Iterator[StageChange]:
    """Pair the stages of two unequal sections; stages with equal names have changed."""
    names = [a[index].name for index in a_range], [b[index].name for index in b_range]
    moved = {_identity_text(each) for each in a} & {_identity_text(each) for each in b}
    for tag, i1, i2, j1, j2 in SequenceMatcher(None, *names, autojunk=False).get_opcodes():
        for i, j in zip(a_range[i1:i2], b_range[j1:j2], strict=False) if tag == "equal" else ():
            if {_identity_text(a[i]), _identity_text(b[j])} & moved:
                yield _stage_change("removed", a, b, i, None)
                yield _stage_change("added", a, b, None, j)
            else:
                yield _stage_change("changed", a, b, i, j)
        if tag != "equal":
            yield from (_stage_change("removed", a, b, i, None) for i in a_range[i1:i2])
            yield from (_stage_change("added", a, b, None, j) for j in b_range[j1:j2])


def _merge_moves(
    changes: Sequence[StageChange], a: Sequence[StageConfig], b: Sequence[StageConfig]
) -> list[StageChange]:
    """Combine the removal and addition of an equal stage to a move."""
    removed_at: dict[str, list[int]] = {}
    for change in changes:
        if change.status == "removed" and change.a_index is not None:
            removed_at.setdefault(_identity_text(a[change.a_index]), []).append(change.a_index)
    result, moved = [], set()
    for change in changes:
        if change.status == "added" and change.b_index is not None:
            origins = removed_at.get(_identity_text(b[change.b_index]))
            if origins:
                origin = origins.pop(0)
                moved.add(origin)
                result.append(_stage_change("moved", a, b, origin, change.b_index))
                continue
        result.append(change)
    return [each for each in result if each.status != "removed" or each.a_index not in moved]


def _stage_change(
    status: str,
    a: Sequence[StageConfig],
    b: Sequence[StageConfig],
    i: int | None,
    j: int | None,
) -> StageChange:
    one, other = None if i is None else a[i], None if j is None else b[j]
    arguments = tuple(_compare_arguments(one, other)) if one and other else ()
    texts = [None if stage is None else format_stage(stage) for stage in (one, other)]
    return StageChange(status, i, j, texts[0], texts[1], arguments)  # type: ignore[arg-type]


def _compare_arguments(one: StageConfig, other: StageConfig) -> Iterator[SettingChange]:
    first, second = name_arguments(one), name_arguments(other)
    known = dict.fromkeys([*first.kwargs, *second.kwargs])
    for name in known:
        sides = [
            format_value(stage.kwargs[name]) if name in stage.kwargs else "default"
            for stage in (first, second)
        ]
        if sides[0] != sides[1]:
            yield SettingChange(name, *sides)
    if repr(first.args) != repr(second.args):
        yield SettingChange("positional", format_value(first.args), format_value(second.args))


def _identity_text(stage: StageConfig) -> str:
    """Return a text that is equal for stages with equal arguments, however they are passed."""
    full = name_arguments(stage)
    return repr((full.name, full.args, sorted(full.kwargs.items(), key=lambda item: item[0])))


def compare_values(a: TensorDictBase, b: TensorDictBase) -> tuple[ValueChange, ...]:
    """Compare every key of two rollouts ``[*B, T]``.

    NaN equals NaN.
    """
    one, other = _rollout_leaves(a), _rollout_leaves(b)
    keys = list(dict.fromkeys([*one, *other]))
    return tuple(_compare_entry(key, one.get(key), other.get(key), a.ndim - 1) for key in keys)


def _rollout_leaves(tensordict: TensorDictBase) -> dict[str, Any]:
    keys = map(normalize_key, tensordict.keys(True, True))
    return {format_key(key): tensordict.get(key) for key in keys}


def _compare_entry(key: str, a: Any, b: Any, time_dim: int) -> ValueChange:
    import torch

    if a is None or b is None:
        return ValueChange(key, "only_b" if a is None else "only_a")
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return ValueChange(key, "same" if _to_python(a) == _to_python(b) else "different")
    if a.shape != b.shape:
        return ValueChange(key, "shape", note=f"{list(a.shape)} and {list(b.shape)}")
    note = "" if a.dtype == b.dtype else f"{_dtype(a)} and {_dtype(b)}"
    return _compare_tensors(key, a, b.to(a.device), time_dim, note)


def _compare_tensors(key: str, a: Tensor, b: Tensor, time_dim: int, note: str) -> ValueChange:
    import torch

    kind = torch.promote_types(a.dtype, b.dtype)
    a, b = a.to(kind), b.to(kind)
    unequal = a != b
    if kind.is_floating_point or kind.is_complex:
        unequal &= ~(a.isnan() & b.isnan())
    if not bool(unequal.any()):
        return ValueChange(key, "different" if note else "same", 0.0, note=note)
    times = unequal.movedim(time_dim, 0).flatten(1).any(1).nonzero()
    wide = torch.complex128 if kind.is_complex else torch.float64
    gaps = (a.to(wide) - b.to(wide)).abs()[unequal]
    return ValueChange(key, "different", float(gaps.max()), int(times[0]), note)


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _to_python(value: Any) -> Any:
    listed = getattr(value, "tolist", None)
    return listed() if listed is not None else value


def run_seeded_rollout(env: EnvBase, steps: int, seed: int) -> TensorDictBase:
    """Return a rollout ``[*B, T]`` with random actions that continues after the end of an episode.

    Args:
        env: Env; it is seeded and reset.
        steps: Number of steps.
        seed: Seed of the env and of the actions. The actions of a step depend only on the seed, the
            step and the action spec.

    Example:
        >>> from tdx import PendulumEnv
        >>> one, other = (run_seeded_rollout(PendulumEnv(), 3, seed=0) for _ in range(2))
        >>> bool((one["next", "reward"] == other["next", "reward"]).all())
        True
    """
    with seed_run(env, seed):
        result: TensorDictBase = env.rollout(
            steps, make_seeded_policy(env, seed), break_when_any_done=False
        )
    return result


def make_seeded_policy(env: EnvBase, seed: int) -> Callable[[TensorDictBase], TensorDictBase]:
    """Return a random policy whose actions depend only on the seed and the step."""
    import torch

    step = 0

    def policy(tensordict: TensorDictBase) -> TensorDictBase:
        nonlocal step
        torch.manual_seed(seed * 1_000_003 + step)
        step += 1
        return env.rand_action(tensordict)

    return policy
