"""Data flow of a stack: the keys that each stage reads, writes, drops and renames.

That of a chain of tdx follows from the keys that stages declare and from the specs before and after
them, without a step. Some stages write keys that no argument lists, such as a counter next to each
done flag. A wrapper of another library declares nothing. What it writes shows in the values before
and after it, so the env is reset and stepped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal, TypedDict

from tdx.foundation.keys import NestedKey, format_key, split_key, unique_keys
from tdx.foundation.serialization import Entries, Entry, Result, key_entry, keys_entry
from tdx.inspection.spec_report import EnvFacts
from tdx.specs.leaf import INPUT_PARTS, OUTPUT_PARTS, LeafSpec, composite_leaves
from tdx.stacks import open_stack

if TYPE_CHECKING:
    from tdx.core import StageSpecs, StageTrace, StepTrace
    from tdx.core.transforms import Transform
    from tdx.envs import EnvBase
    from tdx.stacks import Stack
    from tdx.stacks.tracer import OnTrace

OBSERVED_STEPS = 20
"""Number of steps in which the writes of a stage are observed."""

Direction = Literal["forward", "inverse"]
LeafSpecs = Mapping[NestedKey, LeafSpec]


class Rename(TypedDict):
    """JSON entries of an entry that a stage moves unchanged: its new and its old key."""

    key: str
    source: str


def _format_renames(renames: Iterable[tuple[NestedKey, NestedKey]]) -> list[Rename]:
    return [{"key": format_key(new), "source": format_key(old)} for old, new in renames]


@dataclass(frozen=True, slots=True)
class KeyWrite(Result):
    """Key that a stage writes.

    Args:
        key: The key.
        source: Key that it is computed from; ``None`` if none is declared.
        before: Spec of ``source``.
        after: Spec of ``key`` after the stage; ``None`` if it has none.
        new: True if the key does not exist before the stage.
    """

    json_entries: ClassVar[Entries] = (
        *(key_entry("key"), key_entry("source"), "new"),
        *(Entry(side, without=("key",)) for side in ("before", "after")),
    )

    key: NestedKey
    source: NestedKey | None
    before: LeafSpec | None
    after: LeafSpec | None
    new: bool

    @property
    def differs(self) -> bool:
        """True if the spec of the key differs from that of ``source``."""
        if self.before is None or self.after is None:
            return True
        return bool(self.before.differing_fields(self.after))


@dataclass(frozen=True, slots=True)
class KeyFlow(Result):
    """Keys that a stage handles in one direction.

    Args:
        reads: Keys that it reads.
        writes: Keys that it writes.
        drops: Keys that it removes.
        renames: Old and new key of each entry that it moves unchanged.
    """

    json_entries: ClassVar[Entries] = (
        *(keys_entry("reads"), "writes", keys_entry("drops")),
        Entry("renames", convert=_format_renames),
    )

    reads: tuple[NestedKey, ...] = ()
    writes: tuple[KeyWrite, ...] = ()
    drops: tuple[NestedKey, ...] = ()
    renames: tuple[tuple[NestedKey, NestedKey], ...] = ()

    @property
    def is_empty(self) -> bool:
        """True if the stage does nothing in this direction."""
        return not (self.reads or self.writes or self.drops or self.renames)


@dataclass(frozen=True, slots=True)
class StageFlow(Result):
    """Keys that a stage handles in both directions.

    Args:
        index: Index in the chain, from 0.
        name: Class name of the transform.
        time_behavior: ``pointwise``, ``scan`` or ``control``.
        forward: From the env to the policy.
        inverse: From the policy to the env.
        carried: Keys that a step reads from the previous step.
        outputs: Specs of the outputs after the stage.
        inputs: Specs of the inputs that the stage accepts.
    """

    json_entries: ClassVar[Entries] = (
        *(Entry("stage", "index"), Entry("transform", "name"), "time_behavior"),
        *("forward", "inverse", keys_entry("carried")),
    )

    index: int
    name: str
    time_behavior: str
    forward: KeyFlow
    inverse: KeyFlow
    carried: tuple[NestedKey, ...]
    outputs: LeafSpecs
    inputs: LeafSpecs


@dataclass(frozen=True, slots=True)
class ChainFlow:
    """Data flow of an env with its chain; ``outputs`` and ``inputs`` are those of the base env."""

    outputs: LeafSpecs
    inputs: LeafSpecs
    stages: tuple[StageFlow, ...]


def analyze_chain(env: EnvBase) -> ChainFlow:
    """Determine the data flow of an env from its specs and the keys that its stages declare.

    Example:
        >>> from tdx import GymEnv, RewardSum, TransformedEnv
        >>> (stage,) = analyze_chain(TransformedEnv(GymEnv("Pendulum-v1"), RewardSum())).stages
        >>> stage.forward.reads, [write.key for write in stage.forward.writes], stage.carried
        (('reward',), ['episode_reward'], ('episode_reward',))
    """
    from tdx.core import stage_specs

    first, *rest = stage_specs(env)
    outputs, inputs = _leaves(first)
    stages: list[StageFlow] = []
    before = (outputs, inputs)
    for specs in rest:
        transform, after = specs.transform, _leaves(specs)
        assert transform is not None
        available = {**before[1], **before[0]}
        forward = _key_flow(
            _pair_keys(transform.in_keys, transform.out_keys, before[0]),
            expand_groups(transform.in_keys, available),
            expand_groups(transform.written_keys, after[0]),
            before[0],
            after[0],
            available,
        )
        # State that the stage adds, which it reads from the previous step.
        carried = (
            key
            for key, leaf in after[1].items()
            if leaf.part == "state" and key not in before[1] and key in after[0]
        )
        stages.append(
            StageFlow(
                index=specs.index,
                name=specs.name,
                time_behavior=transform.time_behavior.name.lower(),
                forward=forward,
                inverse=_inverse_flow(transform, before[1], after[1]),
                carried=tuple(carried),
                outputs=after[0],
                inputs=after[1],
            )
        )
        before = after
    return ChainFlow(outputs, inputs, tuple(stages))


def _leaves(specs: StageSpecs) -> tuple[LeafSpecs, LeafSpecs]:
    leaves = composite_leaves(specs.input_spec, specs.output_spec)
    return (
        {leaf.key: leaf for leaf in leaves if leaf.part in OUTPUT_PARTS},
        {leaf.key: leaf for leaf in leaves if leaf.part in INPUT_PARTS},
    )


def _inverse_flow(transform: Transform, inner: LeafSpecs, outer: LeafSpecs) -> KeyFlow:
    """Return the inverse flow: ``outer`` is the policy's side, ``inner`` the env's."""
    if not transform.invertible:
        return KeyFlow()
    pairs = _pair_keys(transform.out_keys_inv, transform.in_keys_inv, outer)
    reads = expand_groups(transform.out_keys_inv, outer)
    declared = expand_groups(transform.in_keys_inv, inner)
    # State that a stage adds or hides is carried between steps, not mapped by the inverse.
    named = {*reads, *declared}
    first = {key: leaf for key, leaf in outer.items() if leaf.part == "action" or key in named}
    last = {key: leaf for key, leaf in inner.items() if leaf.part == "action" or key in named}
    return _key_flow(pairs, reads, declared, first, last, outer)


def _key_flow(
    pairs: Mapping[NestedKey, NestedKey],
    reads: Sequence[NestedKey],
    declared: Sequence[NestedKey],
    before: LeafSpecs,
    after: LeafSpecs,
    available: LeafSpecs,
) -> KeyFlow:
    """Return the flow in one direction; ``pairs`` maps each written key to its source."""
    renames = tuple(
        (old, new)
        for new, old in pairs.items()
        if old in before and old not in after and new in after and new not in before
        if not before[old].differing_fields(after[new])
    )
    moved = {key for pair in renames for key in pair}
    altered = [
        key
        for key, leaf in after.items()
        if key not in before or before[key].differing_fields(leaf)
    ]
    written = [key for key in unique_keys([*declared, *altered]) if key not in moved]
    sources = {key: pairs.get(key, key if key in before else None) for key in written}
    writes = tuple(
        KeyWrite(
            key,
            source,
            available.get(source) if source else None,
            after.get(key),
            key not in available,
        )
        for key, source in sources.items()
    )
    read = [*reads, *(key for key in written if key in before)]
    drops = tuple(key for key in before if key not in after and key not in moved)
    return KeyFlow(tuple(unique_keys(read)), writes, drops, renames)


def _pair_keys(
    sources: Sequence[NestedKey], targets: Sequence[NestedKey], leaves: LeafSpecs
) -> dict[NestedKey, NestedKey]:
    """Map each target key to its source; groups are expanded to their leaves."""
    if len(sources) != len(targets):
        return {}
    sources_by_target: dict[NestedKey, NestedKey] = {}
    for source, target in zip(sources, targets, strict=True):
        length = len(split_key(source))
        for leaf in expand_groups([source], leaves):
            rest = split_key(leaf)[length:]
            sources_by_target[(*split_key(target), *rest) if rest else target] = leaf
    return sources_by_target


def expand_groups(keys: Iterable[NestedKey], leaves: Iterable[NestedKey]) -> list[NestedKey]:
    """Replace groups by their leaves; ignore unknown keys."""
    expanded: list[NestedKey] = []
    for key in keys:
        parts = split_key(key)
        expanded += [leaf for leaf in leaves if split_key(leaf)[: len(parts)] == parts]
    return unique_keys(expanded)


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
    outputs: LeafSpecs
    inputs: LeafSpecs


def inspect_chain(env: object, name: str | None = None) -> ChainReport:
    """Report what each stage of a chain reads, writes, drops and renames.

    An env of tdx is not stepped. A stack of another library does not declare its keys: it is reset
    and makes a few random steps.

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
    """Return the report of the data flow of a stack."""
    specs = stack.specs()
    facts = EnvFacts.at(specs[0]), EnvFacts.at(specs[-1])
    return ChainReport(name or stack.name, *facts, flow.stages, flow.outputs, flow.inputs)


def find_flow(env: object, on_trace: OnTrace | None = None) -> ChainFlow:
    """Determine the data flow of an env or a stack; a stack of another library is stepped."""
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
        first, *rest = self._stack.specs()
        outputs, inputs = _leaves(first)
        known = {*outputs}
        stages: list[StageFlow] = []
        before = (outputs, inputs)
        for specs in rest:
            after = _leaves(specs)
            forward = self._observed.get((specs.index, "forward"), _Observed())
            inverse = self._observed.get((specs.index, "inverse"), _Observed())
            stages.append(
                StageFlow(
                    index=specs.index,
                    name=specs.name,
                    time_behavior="control",
                    forward=_observed_flow(forward, before[0], after[0], known),
                    # The policy's side comes first: its spec is the one after the stage.
                    inverse=_observed_flow(inverse, after[1], before[1], {*after[1]}),
                    carried=(),
                    outputs=after[0],
                    inputs=after[1],
                )
            )
            known = {key for key in known if key not in forward.drops}
            known |= {*forward.writes, *after[0]}
            before = after
        return ChainFlow(outputs, inputs, tuple(stages))


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


def _observed_flow(
    observed: _Observed, before: LeafSpecs, after: LeafSpecs, known: set[NestedKey]
) -> KeyFlow:
    altered = [key for key, leaf in after.items() if before.get(key) != leaf]
    writes = tuple(
        KeyWrite(
            key,
            key if key in known else None,
            before.get(key),
            after.get(key),
            new=key not in known,
        )
        for key in dict.fromkeys([*observed.writes, *altered])
    )
    drops = dict.fromkeys([*observed.drops, *(key for key in before if key not in after)])
    reads = dict.fromkeys([*observed.reads, *(write.key for write in writes if not write.new)])
    return KeyFlow(tuple(reads), writes, tuple(drops))
