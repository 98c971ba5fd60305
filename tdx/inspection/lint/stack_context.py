"""Input of the lint rules for stacks: what their stages did in steps; loads no torch."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

from tdx.compare.states import find_statistics, is_changed
from tdx.foundation.keys import NestedKey

if TYPE_CHECKING:
    from torch import Tensor

    from tdx.inspection.value_stats import ValueViolation
    from tdx.specs.leaf import LeafSpec
    from tdx.stacks import Stack, StageInfo

MIN_PAIRS = 5
"""Rewards that are compared before a stage counts as one that scales them."""
MIN_SAMPLES = 10
"""Observations that are compared before the effect of a stage on them counts as known."""
_STATISTICS = (
    *({"mean", "var"}, {"loc", "var"}, {"sum", "ssq"}, {"statistics"}),
    *({"mean", "std"}, {"mean", "m2"}, {"mu", "sigma"}, {"mean", "s"}),
)
"""Parts of the names of running statistics, in lower case: of Gymnasium, TorchRL, tdx, and usual
ones."""
State = Mapping[int, Mapping[str, "Tensor"]]


@dataclass(slots=True)
class ValueRange:
    """Smallest and largest value of a key in all steps.

    Args:
        low: Smallest value.
        high: Largest value.
        dtype: Such as ``float32``.
    """

    low: float
    high: float
    dtype: str

    def add(self, other: ValueRange) -> None:
        """Include the values of another range."""
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)


@dataclass
class StageFacts:
    """What one stage did in the steps of a check.

    Args:
        writes: Keys that it changed, by direction.
        reads: Keys that it declares to read. Empty: not declared.
        drops: True if it removed a key that its input has.
        rewards: Reward before and after it, of each step of the first sub-env.
        hidden_truncation: Number of steps in which it cleared ``truncated``.
        overwritten: Keys that it returned in the memory of their value of the previous step.
        ranges: Ranges of the observations that it changed, before and after it.
        actions: Action before and after it, of each step, first element of the first sub-env.
        samples: First elements of each observation before and after it, of each reset and step.
        shapes: Shapes of the values that it wrote last.
        inner_steps: How often it stepped the level inside, in each step.
    """

    writes: dict[str, dict[NestedKey, None]] = field(
        default_factory=lambda: {"forward": {}, "inverse": {}}
    )
    reads: dict[NestedKey, None] = field(default_factory=dict)
    drops: bool = False
    rewards: list[tuple[float, float]] = field(default_factory=list)
    hidden_truncation: int = 0
    overwritten: dict[NestedKey, None] = field(default_factory=dict)
    ranges: dict[NestedKey, tuple[ValueRange, ValueRange]] = field(default_factory=dict)
    actions: list[tuple[float, float]] = field(default_factory=list)
    samples: dict[NestedKey, list[tuple[list[float], list[float]]]] = field(default_factory=dict)
    shapes: dict[NestedKey, tuple[int, ...]] = field(default_factory=dict)
    inner_steps: list[int] = field(default_factory=list)

    @property
    def frame_skip(self) -> int:
        """Number of steps of the level inside that one of its own usually makes."""
        return max(set(self.inner_steps), key=self.inner_steps.count, default=1)

    def observation_lines(self, key: NestedKey) -> dict[int, tuple[float, float]]:
        """Return factor and offset by which it maps elements of an observation.

        Elements that do not vary are left out. Empty: not every other element is mapped linearly.
        """
        lines: dict[int, tuple[float, float]] = {}
        samples = self.samples.get(key, [])
        if len(samples) < MIN_SAMPLES:
            return {}
        for element in range(len(samples[0][0])):
            points = sorted((before[element], after[element]) for before, after in samples)
            low, high = points[0], points[-1]
            size = high[0] - low[0]
            if size <= 1e-3 * max(abs(low[0]), abs(high[0]), 1e-3):
                continue
            factor = (high[1] - low[1]) / size
            offset = low[1] - factor * low[0]
            limit = 1e-3 * max(abs(low[1]), abs(high[1]), 1e-3)
            if any(abs(factor * before + offset - after) > limit for before, after in points):
                return {}
            lines[element] = factor, offset
        return lines

    def standardizes(self, key: NestedKey) -> bool:
        """Return True if it subtracts the mean of all values so far and divides by their spread."""
        samples = self.samples.get(key, [])
        if len(samples) < MIN_SAMPLES:
            return False
        tested, error, change = 0, 0.0, 0.0
        for element in range(len(samples[0][0])):
            seen: list[float] = []
            for before, after in samples:
                seen.append(before[element])
                mean = sum(seen) / len(seen)
                deviation = (sum((value - mean) ** 2 for value in seen) / len(seen)) ** 0.5
                # Implementations differ in the first steps: epsilon, initial count, n - 1.
                if len(seen) > len(samples) // 2 and deviation > 1e-6:
                    tested += 1
                    error += abs(after[element] - (before[element] - mean) / deviation)
                    change += abs(after[element] - before[element])
        # A stage that follows a normalization, and only casts or clips, changes next to nothing.
        return tested >= MIN_SAMPLES // 2 and error < min(0.1 * tested, 0.4 * change)

    @property
    def clips_reward(self) -> bool:
        """True if it moved some rewards to the ends of a range, or to their sign."""
        changed = [(before, after) for before, after in self.rewards if before != after]
        if len({before for before, _ in changed}) < 2:
            return False
        if all(after == (before > 0) - (before < 0) for before, after in self.rewards):
            return True
        low, high = (end(after for _, after in self.rewards) for end in (min, max))
        is_clamp = all(after == min(max(before, low), high) for before, after in self.rewards)
        return is_clamp and low < high

    @property
    def action_line(self) -> tuple[float, float] | None:
        """Factor and offset by which it maps actions; ``None`` if it does not map them linearly."""
        low, high = min(self.actions, default=(0.0, 0.0)), max(self.actions, default=(0.0, 0.0))
        if len(self.actions) < MIN_PAIRS or high[0] - low[0] < 1e-3:
            return None
        factor = (high[1] - low[1]) / (high[0] - low[0])
        offset = low[1] - factor * low[0]
        limit = 1e-4 * max(abs(low[1]), abs(high[1]), 1e-3)
        if any(abs(factor * before + offset - after) > limit for before, after in self.actions):
            return None
        return factor, offset

    @property
    def scales_reward(self) -> bool:
        """True if it multiplied every reward by the same factor other than 1."""
        factors = [after / before for before, after in self.rewards if abs(before) > 1e-6]
        if len(factors) < MIN_PAIRS:
            return False
        if len({abs(before) for before, _ in self.rewards}) < 2:
            # Clipping a constant reward looks like a factor.
            return False
        low, high = min(factors), max(factors)
        return abs(high - low) <= 1e-5 * abs(high) and abs(high - 1) > 1e-6


@dataclass
class StackContext:
    """Input of the rules.

    Args:
        stack: The stack.
        evaluation: True if the env is used for evaluation, not for training.
        leaves: Specs before the chain and after each stage.
        facts: What each stage did in the steps.
        before: State of each stage before the steps.
        after: State of each stage after the steps.
        steps: Number of steps; 0 if one of them raised.
        row_steps: Number of steps of all sub-envs.
        reset_rows: Number of them that only reset a sub-env.
        violations: Values outside of their spec.
        declared: Indices of the stages whose effect the rules for pipelines decide.
    """

    subject: ClassVar[Literal["stack"]] = "stack"

    stack: Stack
    evaluation: bool = False
    leaves: Sequence[Mapping[NestedKey, LeafSpec]] = ()
    facts: dict[int, StageFacts] = field(default_factory=dict)
    before: State = field(default_factory=dict)
    after: State = field(default_factory=dict)
    steps: int = 0
    row_steps: int = 0
    reset_rows: int = 0
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

    def facts_of(self, stage: StageInfo) -> StageFacts:
        """Return what a stage did."""
        return self.facts.get(stage.index, StageFacts())

    def writes(self, stage: StageInfo, group: str) -> bool:
        """Return True if a stage wrote a key, or one of the group of this name."""
        facts = self.facts_of(stage)
        keys = [key for part in facts.writes.values() for key in part]
        return any(key == group or (isinstance(key, tuple) and key[0] == group) for key in keys)

    def is_normalizer(self, stage: StageInfo) -> bool:
        """Return True if a stage keeps a running mean and variance."""
        return bool(self.statistics(stage))

    def scales_reward(self, stage: StageInfo) -> bool:
        """Return True if a stage multiplies the reward by a constant."""
        return self.facts_of(stage).scales_reward

    def learns(self, stage: StageInfo) -> bool:
        """Return True if the running statistics of a stage changed in the steps."""
        statistics = self.statistics(stage)
        return any(name in statistics for name in self.changed_state(stage))

    def statistics(self, stage: StageInfo) -> set[str]:
        """Return the names of the running mean and variance, in the names of any library."""
        return find_statistics(self.after.get(stage.index, {}), _STATISTICS)

    def changed_state(self, stage: StageInfo) -> Iterator[str]:
        """Yield the names of the state that changed in the steps."""
        before = self.before.get(stage.index, {})
        for name, value in self.after.get(stage.index, {}).items():
            if is_changed(before.get(name), value):
                yield name

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
        changed = self.facts_of(stage).writes["forward"]
        specs = self.leaves[stage.index + 1]
        return [key for key in changed if key in specs and specs[key].part == "observation"]

    def spec(self, index: int, key: NestedKey) -> LeafSpec | None:
        """Return the spec of a key after a stage; -1 for the env inside."""
        return self.leaves[index + 1].get(key) if index + 1 < len(self.leaves) else None


def step_limit(stage: StageInfo) -> int | None:
    """Return the number of steps after which a stage truncates an episode; ``None`` if none."""
    limit = stage.arguments.get("max_episode_steps")
    return limit if isinstance(limit, int) else None
