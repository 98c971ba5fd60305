"""Hold two sides against each other."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher

from tdx.inspection.diff.report import DiffReport, EnvChange, StageChange
from tdx.inspection.diff.sides import DiffSide
from tdx.inspection.diff.values import compare_values
from tdx.inspection.spec_report import compare_leaves
from tdx.pipeline import EnvConfig, Pipeline, RolloutConfig, StageConfig, format_stage, format_value
from tdx.pipeline.arguments import name_arguments
from tdx.pipeline.values import Value


def compare(a: DiffSide, b: DiffSide, *, steps: int | None = None, seed: int = 0) -> DiffReport:
    """What differs between two sides.

    Args:
        a: the first side.
        b: the second.
        steps: compare the values of rollouts of that many steps too.
        seed: the seed of both rollouts.

    Example:
        >>> from tdx.inspection.diff import PipelineSide
        >>> one, other = (
        ...     PipelineSide(stage, Pipeline.of("Pendulum-v1", stage))
        ...     for stage in ("StepCounter", "StepCounter(max_steps=9)")
        ... )
        >>> report = compare(one, other)
        >>> report.same, report.stages[0].status
        (False, 'changed')
    """
    (env_a, chain_a), (env_b, chain_b) = a.specs(), b.specs()
    report = DiffReport(
        a=a.name,
        b=b.name,
        env=tuple(_settings(a.pipeline, b.pipeline)),
        stages=tuple(align(a.pipeline.transforms, b.pipeline.transforms)),
        env_specs=compare_leaves(env_a, env_b),
        chain_specs=compare_leaves(chain_a, chain_b),
    )
    if steps is None:
        return report
    values = compare_values(a.rollout(steps, seed), b.rollout(steps, seed))
    return dataclasses.replace(report, steps=steps, seed=seed, values=values)


def _settings(a: Pipeline, b: Pipeline) -> Iterator[EnvChange]:
    pairs = ((a.env, b.env, EnvConfig), (a.rollout, b.rollout, RolloutConfig))
    for one, other, kind in pairs:
        for field in dataclasses.fields(kind):
            yield from _setting(field.name, getattr(one, field.name), getattr(other, field.name))
    yield from _setting("policy", a.policy, b.policy)


def _setting(name: str, one: Value, other: Value) -> Iterator[EnvChange]:
    if repr(one) != repr(other):
        yield EnvChange(name, format_value(one), format_value(other))


def align(a: Sequence[StageConfig], b: Sequence[StageConfig]) -> list[StageChange]:
    """Pair the stages of two chains: equal ones first, then those of one name.

    What is in both chains at another place has moved.
    """
    found: list[StageChange] = []
    matcher = SequenceMatcher(None, list(map(_meaning, a)), list(map(_meaning, b)), autojunk=False)
    for tag, a_start, a_end, b_start, b_end in matcher.get_opcodes():
        if tag == "equal":
            pairs = zip(range(a_start, a_end), range(b_start, b_end), strict=True)
            found += [_pair("same", a, b, i, j) for i, j in pairs]
        else:
            found += _unequal(a, b, range(a_start, a_end), range(b_start, b_end))
    return _with_moves(found, a, b)


def _unequal(
    a: Sequence[StageConfig], b: Sequence[StageConfig], left: range, right: range
) -> Iterator[StageChange]:
    """A stretch where the chains differ: stages of one name are one stage that has changed."""
    names = [a[index].name for index in left], [b[index].name for index in right]
    moved = {_meaning(each) for each in a} & {_meaning(each) for each in b}
    for tag, i1, i2, j1, j2 in SequenceMatcher(None, *names, autojunk=False).get_opcodes():
        for i, j in zip(left[i1:i2], right[j1:j2], strict=False) if tag == "equal" else ():
            if {_meaning(a[i]), _meaning(b[j])} & moved:
                yield _pair("removed", a, b, i, None)
                yield _pair("added", a, b, None, j)
            else:
                yield _pair("changed", a, b, i, j)
        if tag != "equal":
            yield from (_pair("removed", a, b, i, None) for i in left[i1:i2])
            yield from (_pair("added", a, b, None, j) for j in right[j1:j2])


def _with_moves(
    changes: Sequence[StageChange], a: Sequence[StageConfig], b: Sequence[StageConfig]
) -> list[StageChange]:
    """Removed here and added there, with equal arguments, is one move."""
    gone: dict[str, list[int]] = {}
    for change in changes:
        if change.status == "removed" and change.a_index is not None:
            gone.setdefault(_meaning(a[change.a_index]), []).append(change.a_index)
    result, moved = [], set()
    for change in changes:
        if change.status == "added" and change.b_index is not None:
            origins = gone.get(_meaning(b[change.b_index]))
            if origins:
                origin = origins.pop(0)
                moved.add(origin)
                result.append(_pair("moved", a, b, origin, change.b_index))
                continue
        result.append(change)
    return [each for each in result if each.status != "removed" or each.a_index not in moved]


def _pair(
    status: str,
    a: Sequence[StageConfig],
    b: Sequence[StageConfig],
    i: int | None,
    j: int | None,
) -> StageChange:
    one, other = None if i is None else a[i], None if j is None else b[j]
    arguments = tuple(_arguments(one, other)) if one and other else ()
    texts = [None if stage is None else format_stage(stage) for stage in (one, other)]
    return StageChange(status, i, j, texts[0], texts[1], arguments)  # type: ignore[arg-type]


def _arguments(one: StageConfig, other: StageConfig) -> Iterator[EnvChange]:
    first, second = name_arguments(one), name_arguments(other)
    known = dict.fromkeys([*first.kwargs, *second.kwargs])
    for name in known:
        sides = [
            format_value(stage.kwargs[name]) if name in stage.kwargs else "default"
            for stage in (first, second)
        ]
        if sides[0] != sides[1]:
            yield EnvChange(name, *sides)
    if repr(first.args) != repr(second.args):
        yield EnvChange("positional", format_value(first.args), format_value(second.args))


def _meaning(stage: StageConfig) -> str:
    """What tells two stages apart: not how their arguments are given."""
    full = name_arguments(stage)
    return repr((full.name, full.args, sorted(full.kwargs.items(), key=lambda item: item[0])))
