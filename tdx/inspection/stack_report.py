"""Everything that an env of any library shows: stages, specs, values, data flow and state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from tdx.foundation.serialization import Entries, Entry, Result
from tdx.inspection.chain import ChainReport, FlowObserver, report_flow
from tdx.inspection.spec_report import SpecReport, inspect_spec
from tdx.inspection.values_report import ValuesReport, inspect_values
from tdx.stacks import StackState, StageInfo, open_stack

if TYPE_CHECKING:
    from tdx.core.tracing import BaseTracer


def _stages_to_data(stages: tuple[StageInfo, ...]) -> list[dict[str, Any]]:
    names = ("name", "call", "location", "direction", "rows")
    return [
        {"stage": stage.index, **{name: getattr(stage, name) for name in names}} for stage in stages
    ]


def _state_to_data(state: StackState) -> list[dict[str, Any]]:
    return [
        {"stage": index, "values": {name: value.tolist() for name, value in values.items()}}
        for index, values in state.items()
    ]


@dataclass(frozen=True, slots=True)
class StackReport(Result):
    """Specs, values and state of an env and its stages.

    Args:
        kind: Library, such as ``"gymnasium"``.
        env: Name of the env.
        stages: The stages, innermost first.
        spec: Specs before the chain and after each stage.
        state: State of each stage: running statistics, counters, queues.
        values: Values of the steps. ``None``: no steps were made.
        chain: Keys that each stage reads and writes. ``None``: no steps were made.
        notes: What is not shown, each a sentence.
    """

    json_entries: ClassVar[Entries] = (
        *("kind", "env", Entry("stages", convert=_stages_to_data), "spec"),
        *(Entry("state", convert=_state_to_data), "values", "chain", "notes"),
    )

    kind: str
    env: str
    stages: tuple[StageInfo, ...]
    spec: SpecReport
    state: StackState
    values: ValuesReport | None = None
    chain: ChainReport | None = None
    notes: tuple[str, ...] = ()


def inspect(
    env: object, *, steps: int = 0, seed: int | None = None, policy: Any = None
) -> StackReport:
    """Inspect an env of any supported library: its stages, specs, values and state.

    Args:
        env: Env of tdx or of another library, with its wrappers.
        steps: Number of steps to make; with 0 the env is not stepped.
        seed: Seed of the env and of random actions. ``None``: do not seed.
        policy: Selects the actions: a function of a TensorDict for an env of tdx, of an observation
            for other libraries. Defaults to random actions.

    Raises:
        ArgumentError: ``env`` is neither an env nor a stack.
        TdxError: A stage does not accept the specs before it.

    Example:
        >>> import gymnasium, tdx
        >>> env = gymnasium.wrappers.NormalizeObservation(gymnasium.make("Pendulum-v1"))
        >>> report = tdx.inspect(env, steps=5, seed=0)
        >>> report.stages[-1].call, sorted(report.state[3])[1:]
        ('NormalizeObservation(epsilon=1e-08)', ['obs_rms.count', 'obs_rms.mean', 'obs_rms.var'])
        >>> [(change.key, change.stages) for change in report.spec.changes if change.stages]
        [('observation', (3,))]
    """
    with open_stack(env).in_this_process() as stack:
        spec = inspect_spec(stack)
        values = chain = None
        if steps:
            observer = FlowObserver(stack)
            values = inspect_values(
                stack, steps=steps, seed=seed, policy=policy, on_trace=observer.add
            )
            if values.error is None:
                chain = report_flow(stack, observer.flow())
        stages, notes = tuple(stack.stages), tuple(stack.notes)
        state = stack.state()
    return StackReport(stack.kind, stack.name, stages, spec, state, values, chain, notes)


def trace(env: object, policy: Any = None) -> BaseTracer:
    """Return a tracer of an env of any supported library.

    It resets and steps the env, and records what every stage reads and writes, and how
    long it takes.

    Args:
        env: Env of tdx or of another library, with its wrappers.
        policy: Selects the actions: a function of a TensorDict for an env of tdx, of an observation
            for other libraries. Defaults to random actions.

    Returns:
        A :class:`~tdx.Tracer` for an env of tdx, a :class:`~tdx.stacks.StackTracer` for another
        library.

    Raises:
        ArgumentError: ``env`` is neither an env nor a stack.

    Example:
        >>> import gymnasium, tdx
        >>> env = gymnasium.wrappers.NormalizeObservation(gymnasium.make("Pendulum-v1"))
        >>> run = tdx.trace(env).run(3)
        >>> [stage.place for stage in run.last.stages if "observation" in stage.written]
        ['Pendulum-v1', '3 NormalizeObservation']
    """
    return open_stack(env).tracer(policy)
