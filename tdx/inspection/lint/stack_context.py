"""Input of the lint rules for stacks: what their stages did in steps; loads no torch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Literal, TypeVar

from tdx.compare.statistics import find_statistics, is_changed
from tdx.foundation.keys import NestedKey

if TYPE_CHECKING:
    from torch import Tensor

    from tdx.core import StepTrace, ValueVersion
    from tdx.core.tracing import StageTrace
    from tdx.inspection.value_stats import ValueViolation
    from tdx.specs.leaf import LeafSpec
    from tdx.stacks import Stack, StackState, StageInfo


@dataclass(frozen=True, slots=True)
class StageCall:
    """A stage in one direction of one reset or step, as a fact gets it.

    Args:
        context: The stack; its specs are known, its state after the steps is not.
        trace: The whole reset or step.
        stage: What the stage wrote, dropped and declared to read in this direction.
        before: What it got: the versions before it. Valid during the call.
        steps_inside: Number of steps of the level inside; of its resets and steps in a reset.
    """

    context: StackContext
    trace: StepTrace
    stage: StageTrace
    before: Mapping[NestedKey, ValueVersion]
    steps_inside: int

    def tensors(self) -> Iterator[tuple[NestedKey, Tensor, Tensor]]:
        """Yield the tensors that it wrote and also got: key, and value before and after it."""
        from torch import Tensor

        for key, version in self.stage.written.items():
            old = self.before[key].value if key in self.before else None
            if isinstance(old, Tensor) and isinstance(version.value, Tensor):
                yield key, old, version.value


class Fact(ABC):
    """What a rule reads of the steps of one stage, collected from the stream of traces.

    The module of a rule declares its facts, and the rule names them in ``facts``; rules get them
    with :meth:`StackContext.fact`. The constructor takes no arguments.
    """

    @abstractmethod
    def add(self, call: StageCall) -> None:
        """Add one call of the stage; the inverse of a step comes before its forward part."""


class Changes(Fact):
    """What a stage changed; always collected.

    ``written`` has the keys by direction, ``drops`` is True if it removed any, and ``acts`` if it
    made other calls of the level inside than the one that it received.
    """

    def __init__(self) -> None:
        self.written: dict[str, dict[NestedKey, None]] = {"forward": {}, "inverse": {}}
        self.drops = False
        self.acts = False

    def add(self, call: StageCall) -> None:
        """See :class:`Fact`."""
        from tdx.core.tracing.passages import is_same

        stage, before = call.stage, call.before
        for key, version in stage.written.items():
            if key not in before or not is_same(before[key].value, version.value):
                self.written[stage.direction][key] = None
        if stage.direction == "forward":
            self.acts = self.acts or call.steps_inside != 1
            known = call.context.leaves[max(stage.index, 0)]
            self.drops = self.drops or any(key in known for key in stage.dropped)


F = TypeVar("F", bound=Fact)


@dataclass
class StackContext:
    """Input of the rules.

    Args:
        stack: The stack.
        evaluation: True if the env is used for evaluation, not for training.
        leaves: Specs before the chain and after each stage.
        facts: What was collected of each stage in the steps, -1 for the env inside.
        failures: Facts that could not be collected, with what they raised.
        before: State of each stage before the steps.
        after: State of each stage after the steps.
        steps: Number of steps; 0 if one of them raised.
        goal: Number of steps to make if they do not take too long.
        violations: Values outside of their spec.
        declared: Indices of the stages whose effect the rules for pipelines decide.
    """

    subject: ClassVar[Literal["stack"]] = "stack"

    stack: Stack
    evaluation: bool = False
    leaves: Sequence[Mapping[NestedKey, LeafSpec]] = ()
    facts: dict[int, Mapping[type[Fact], Fact]] = field(default_factory=dict)
    failures: dict[type[Fact], Exception] = field(default_factory=dict)
    before: StackState = field(default_factory=dict)
    after: StackState = field(default_factory=dict)
    steps: int = 0
    goal: int = 0
    violations: Sequence[ValueViolation] = ()
    declared: Collection[int] = ()
    _known_stages: tuple[int, Sequence[StageInfo]] | None = None

    @property
    def stages(self) -> Sequence[StageInfo]:
        """Stages of the stack, innermost first, as they are after the steps so far."""
        known = self._known_stages
        if known is None or known[0] != self.steps:
            known = self._known_stages = self.steps, self.stack.stages
        return known[1]

    @property
    def batch_dims(self) -> int:
        """Number of dims of a batch: 0 for a single env, 1 for a vector env."""
        env = self.stack.chain_env
        if env is not None:
            return env.ndim
        flags = [leaf for name in ("done", "terminated") if (leaf := self.leaves[0].get(name))]
        return len(flags[0].shape) if flags else 0

    @cached_property
    def observations(self) -> frozenset[NestedKey]:
        """Keys that are an observation after the env or any stage."""
        leaves = (leaf for level in self.leaves for leaf in level.values())
        return frozenset(leaf.key for leaf in leaves if leaf.part == "observation")

    def fact(self, kind: type[F], index: int) -> F:
        """Return what was collected of a stage.

        Args:
            kind: The fact; the rule names it in ``facts``.
            index: Index of the stage; -1 for the env inside.

        Raises:
            LookupError: No rule that applies names the fact.
            Exception: What the fact raised when it was collected.
        """
        if kind in self.failures:
            raise self.failures[kind]
        known = self.facts.get(index)
        if known is None:
            # The stage was not called.
            return kind()
        if kind not in known:
            raise LookupError(f"{kind.__name__} is not among the facts of the rule")
        fact = known[kind]
        assert isinstance(fact, kind)
        return fact

    def changes(self, stage: StageInfo) -> Changes:
        """Return which keys a stage changed."""
        return self.fact(Changes, stage.index)

    def writes(self, stage: StageInfo, group: str) -> bool:
        """Return True if a stage wrote a key, or one of the group of this name."""
        keys = [key for part in self.changes(stage).written.values() for key in part]
        return any(key == group or (isinstance(key, tuple) and key[0] == group) for key in keys)

    def is_normalizer(self, stage: StageInfo) -> bool:
        """Return True if a stage keeps a running mean and variance."""
        return bool(self.statistics(stage))

    def learns(self, stage: StageInfo) -> bool:
        """Return True if the running statistics of a stage changed in the steps."""
        before, after = (part.get(stage.index, {}) for part in (self.before, self.after))
        return any(is_changed(before.get(name), after[name]) for name in self.statistics(stage))

    def statistics(self, stage: StageInfo) -> set[str]:
        """Return the names of the running mean and variance, in the names of any library."""
        return find_statistics(self.after.get(stage.index, {}), running=True)

    def counted(self, stage: StageInfo) -> float | None:
        """Return how many values the running statistics of a stage counted; ``None`` if unknown."""
        before, after = (part.get(stage.index, {}) for part in (self.before, self.after))
        name = next((name for name in after if name.endswith(".count")), None)
        if name is None or name not in before:
            return None
        return float(after[name].sum() - before[name].sum())

    def is_stack_of_frames(self, stage: StageInfo) -> bool:
        """Return True if a stage stacks observations of several steps."""
        named = any(name in stage.arguments for name in ("stack_size", "num_stack", "n_stack"))
        return named or any(part in stage.name.casefold() for part in ("framestack", "catframes"))

    def changed_observations(self, stage: StageInfo) -> list[NestedKey]:
        """Return the observations that a stage changes."""
        changed = self.changes(stage).written["forward"]
        specs = self.leaves[stage.index + 1]
        return [key for key in changed if key in specs and specs[key].part == "observation"]

    def spec(self, index: int, key: NestedKey) -> LeafSpec | None:
        """Return the spec of a key after a stage; -1 for the env inside."""
        return self.leaves[index + 1].get(key) if index + 1 < len(self.leaves) else None


def step_limit(stage: StageInfo) -> int | None:
    """Return the number of steps after which a stage truncates an episode; ``None`` if none."""
    limit = stage.arguments.get("max_episode_steps")
    return limit if isinstance(limit, int) else None


def fit_line(points: Sequence[tuple[float, float]], tolerance: float) -> tuple[float, float] | None:
    """Return factor and offset of the line through points of different x; ``None`` without one."""
    low, high = min(points), max(points)
    factor = (high[1] - low[1]) / (high[0] - low[0])
    offset = low[1] - factor * low[0]
    limit = tolerance * max(abs(low[1]), abs(high[1]), 1e-3)
    is_line = all(abs(factor * x + offset - y) <= limit for x, y in points)
    return (factor, offset) if is_line else None
