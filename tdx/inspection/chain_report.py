"""Report the data flow of a stack of any library.

A transform declares the keys that it reads and writes; a wrapper does not. What it writes shows in
the values before and after it, so the env is reset and stepped.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from tdx.foundation.keys import NestedKey
from tdx.foundation.serialization import Entries, Result
from tdx.inspection.chain import (
    ChainFlow,
    KeyFlow,
    KeyWrite,
    Leaves,
    StageFlow,
    analyze_chain,
)
from tdx.inspection.spec_report import EnvFacts
from tdx.specs.leaf import INPUT_PARTS, OUTPUT_PARTS, composite_leaves
from tdx.stacks import open_stack

if TYPE_CHECKING:
    from tdx.core import StageSpecs, StageTrace, StepTrace
    from tdx.stacks import Stack
    from tdx.stacks.tracer import OnTrace

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


def inspect_chain(env: object, name: str | None = None) -> ChainReport:
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


def find_flow(env: object, on_trace: OnTrace | None = None) -> ChainFlow:
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
