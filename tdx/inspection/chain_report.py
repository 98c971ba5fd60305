"""Reports about a stack of any library: its data flow, and everything that it shows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from tdx.inspection.chain import (
    ChainFlow,
    KeyFlow,
    KeyWrite,
    Leaves,
    StageFlow,
    analyze_chain,
)
from tdx.inspection.leaf import INPUT_PARTS, OUTPUT_PARTS, composite_leaves
from tdx.inspection.spec_report import EnvFacts, SpecReport, inspect_spec
from tdx.inspection.values_report import ValuesReport, inspect_values
from tdx.keys import NestedKey
from tdx.serialization import Entries, Entry, Result
from tdx.stacks import StageInfo, open_stack

if TYPE_CHECKING:
    from torch import Tensor

    from tdx.core import StageSpecs, StageTrace, StepTrace
    from tdx.stacks import Stack
    from tdx.stacks.tracer import AnyTracer, OnTrace

OBSERVED_STEPS = 20
"""Number of steps in which the writes of a stage are observed."""


@dataclass(frozen=True, slots=True)
class ChainReport(Result):
    """Data flow of a chain, with facts about the env.

    Args:
        env: Name of the env.
        before: Facts about the env without the chain.
        after: Facts about the env with the chain.
        stages: Data flow of each stage.
        outputs: Specs of the outputs of the env without the chain.
        inputs: Specs of its inputs.
    """

    json_entries: ClassVar[Entries] = ("env", "before", "after", "stages")

    env: str
    before: EnvFacts
    after: EnvFacts
    stages: tuple[StageFlow, ...]
    outputs: Leaves
    inputs: Leaves


def inspect_chain(env: Any, name: str | None = None) -> ChainReport:
    """Report what each stage of a chain reads, writes, drops and renames.

    An env of tdx is not stepped. A stack of another library does not declare its keys: it is reset
    and makes a few random steps.

    Args:
        env: Env of tdx, with or without a chain, or a stack of another library.
        name: Name in the report. Defaults to the name of the env before the chain.

    Raises:
        TdxError: A stage does not accept the specs before it; the error names the stage.

    Example:
        >>> import gymnasium
        >>> env = gymnasium.wrappers.NormalizeObservation(gymnasium.make("Pendulum-v1"))
        >>> stage = inspect_chain(env).stages[-1]
        >>> stage.name, [write.key for write in stage.forward.writes]
        ('NormalizeObservation', ['observation'])
    """
    stack = open_stack(env)
    return report_flow(stack, find_flow(stack), name)


def report_flow(stack: Stack, flow: ChainFlow, name: str | None = None) -> ChainReport:
    """Return the report of the data flow of a stack.

    Args:
        stack: The stack.
        flow: Its data flow.
        name: Name in the report. Defaults to the name of the env before the chain.
    """
    specs = stack.specs()
    before, after = EnvFacts.at(specs[0]), EnvFacts.at(specs[-1])
    outputs, inputs = flow.outputs, flow.inputs
    return ChainReport(name or stack.name, before, after, flow.stages, outputs, inputs)


def find_flow(env: Any, on_trace: OnTrace | None = None) -> ChainFlow:
    """Determine the data flow of an env or a stack; a stack of another library is stepped.

    Args:
        env: Env of tdx or a stack.
        on_trace: Called with the trace of each reset and step.
    """
    stack = open_stack(env)
    observer = FlowObserver(stack)

    def add(trace: StepTrace) -> None:
        observer.add(trace)
        if on_trace is not None:
            on_trace(trace)

    if observer.needs_steps:
        with stack.seeded(0):
            stack.tracer().run(OBSERVED_STEPS, on_step=add)
    return observer.flow()


class FlowObserver:
    """Determines the data flow of a stack from the traces of its steps.

    The transforms of a tdx chain declare their keys, so no steps are needed.

    Args:
        stack: The stack.
    """

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._observed: dict[tuple[int, str], _Observed] = {}
        self.needs_steps = stack.chain_env is None

    def add(self, trace: StepTrace) -> None:
        """Add the trace of a reset or step."""
        for stage in trace.stages:
            if stage.kind == "stage":
                self._observed.setdefault((stage.index, stage.direction), _Observed()).add(stage)

    def flow(self) -> ChainFlow:
        """Return the data flow in the traces, or the declared one."""
        if self._stack.chain_env is not None:
            return analyze_chain(self._stack.chain_env)
        return _build_flow(self._stack, self._observed)


@dataclass
class _Observed:
    """Keys that one stage read, wrote and dropped in one direction."""

    reads: dict[NestedKey, None] = field(default_factory=dict)
    writes: dict[NestedKey, None] = field(default_factory=dict)
    drops: dict[NestedKey, None] = field(default_factory=dict)

    def add(self, stage: StageTrace) -> None:
        self.reads.update(dict.fromkeys(version.key for version in stage.read))
        self.writes.update(dict.fromkeys(stage.written))
        self.drops.update(dict.fromkeys(stage.dropped))


def _build_flow(stack: Stack, observed: dict[tuple[int, str], _Observed]) -> ChainFlow:
    first, *rest = stack.specs()
    outputs, inputs = _leaves(first)
    known = {*outputs}
    stages: list[StageFlow] = []
    before = (outputs, inputs)
    for specs in rest:
        after = _leaves(specs)
        forward = observed.get((specs.index, "forward"), _Observed())
        inverse = observed.get((specs.index, "inverse"), _Observed())
        stages.append(
            StageFlow(
                index=specs.index,
                name=specs.name,
                time_behavior="control",
                forward=_key_flow(forward, before[0], after[0], known),
                # The policy's side comes first: its spec is the one after the stage.
                inverse=_key_flow(inverse, after[1], before[1], {*after[1]}),
                carried=(),
                outputs=after[0],
                inputs=after[1],
            )
        )
        known = {key for key in known if key not in forward.drops} | {*forward.writes, *after[0]}
        before = after
    return ChainFlow(outputs, inputs, tuple(stages))


def _key_flow(
    observed: _Observed, before: Leaves, after: Leaves, known: Iterable[NestedKey]
) -> KeyFlow:
    altered = [key for key, leaf in after.items() if before.get(key) != leaf]
    known = set(known)
    keys = dict.fromkeys([*observed.writes, *altered])
    writes = tuple(
        KeyWrite(
            key,
            key if key in known else None,
            before.get(key),
            after.get(key),
            new=key not in known,
        )
        for key in keys
        if key in after or key in observed.writes
    )
    drops = dict.fromkeys([*observed.drops, *(key for key in before if key not in after)])
    reads = dict.fromkeys([*observed.reads, *(write.key for write in writes if not write.new)])
    return KeyFlow(tuple(reads), writes, tuple(drops))


def _leaves(specs: StageSpecs) -> tuple[Leaves, Leaves]:
    leaves = composite_leaves(specs.input_spec, specs.output_spec)
    return (
        {leaf.key: leaf for leaf in leaves if leaf.part in OUTPUT_PARTS},
        {leaf.key: leaf for leaf in leaves if leaf.part in INPUT_PARTS},
    )


State = Mapping[int, Mapping[str, "Tensor"]]


def _stages_to_data(stages: tuple[StageInfo, ...]) -> list[dict[str, Any]]:
    return [
        {
            "stage": each.index,
            "name": each.name,
            "call": each.call,
            "location": each.location,
            "direction": each.direction,
            "rows": each.rows,
        }
        for each in stages
    ]


def _state_to_data(state: State) -> list[dict[str, Any]]:
    return [
        {"stage": index, "values": {name: value.tolist() for name, value in values.items()}}
        for index, values in state.items()
    ]


@dataclass(frozen=True, slots=True)
class StackReport(Result):
    """What an env and its stages show.

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
    state: State
    values: ValuesReport | None = None
    chain: ChainReport | None = None
    notes: tuple[str, ...] = ()


def inspect(
    env: Any, *, steps: int = 0, seed: int | None = None, policy: Any = None
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
    stack = open_stack(env)
    spec = inspect_spec(stack)
    values = chain = None
    if steps:
        observer = FlowObserver(stack)
        values = inspect_values(stack, steps=steps, seed=seed, policy=policy, on_trace=observer.add)
        if values.error is None:
            chain = report_flow(stack, observer.flow())
    stages, notes = tuple(stack.stages), tuple(stack.notes)
    return StackReport(stack.kind, stack.name, stages, spec, stack.state(), values, chain, notes)


def trace(env: Any, policy: Any = None) -> AnyTracer:
    """Return a tracer of an env of any supported library.

    It resets and steps the env, and records what every stage reads, writes and takes.

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
