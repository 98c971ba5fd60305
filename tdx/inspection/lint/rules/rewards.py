"""TDX495: rewards that a stage makes constant."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tdx.inspection.lint.rule import Violation, stack_rule
from tdx.inspection.lint.rules.stacks import EXAMPLE_IMPORTS, ResetRows
from tdx.inspection.lint.stack_context import Fact, StackContext, StageCall

if TYPE_CHECKING:
    from tdx.stacks import StageInfo

_MIN_STEPS = 10
"""Steps that are needed before a constant reward is worth a finding."""


@dataclass
class _Range:
    """Smallest and largest reward of all sub-envs."""

    low: float = math.inf
    high: float = -math.inf

    @property
    def varies(self) -> bool:
        # Above the rounding of a cast to float32.
        return self.high - self.low > 1e-6 * max(abs(self.low), abs(self.high))


@dataclass
class RewardRanges(Fact):
    """Range of the rewards before and after a stage.

    ``steps`` counts the steps in which both are known: the level inside was stepped once.
    """

    steps: int = 0
    before: _Range = field(default_factory=_Range)
    after: _Range = field(default_factory=_Range)
    _rows: ResetRows = field(default_factory=ResetRows)

    def add(self, call: StageCall) -> None:
        """See :class:`Fact`."""
        if call.stage.direction != "forward":
            return
        reset_rows = self._rows.find(call)
        before = call.before.get("reward")
        # Of several steps in one, such as skipped frames, the trace has the last reward only.
        is_single = call.stage.calls == call.steps_inside == 1
        if call.trace.phase != "step" or before is None or not is_single:
            return
        self.steps += 1
        # A stage that does not write the reward passes it on.
        after = call.stage.written.get("reward", before)
        for known, value in ((self.before, before.value), (self.after, after.value)):
            if reset_rows is not None and reset_rows.shape == value.shape:
                value = value[~reset_rows]
            if value.numel():
                known.low = min(known.low, float(value.min()))
                known.high = max(known.high, float(value.max()))


@stack_rule(
    "TDX495",
    "reward is constant after a stage",
    "suggestion",
    why="""
    The reward varied in the steps of the check, and after the stage it was the same in all of them:
    a clip whose range does not contain the rewards, or the sign of rewards that are all negative. A
    policy that gets the same reward for everything it does learns at most how long an episode
    should be.

    Scale the reward into the range first, or choose a range that contains the rewards. The steps of
    the check are few and have random actions: a reward that differs in rare steps only, such as
    that of a goal, is constant in them too.
    """,
    python=f"""{EXAMPLE_IMPORTS}

def wrong():
    # The rewards of Pendulum are negative.
    return wrappers.ClipReward(gym.make("Pendulum-v1", max_episode_steps=20), 0.0, 1.0)


def right():
    env = gym.make("Pendulum-v1", max_episode_steps=20)
    return wrappers.ClipReward(
        wrappers.TransformReward(env, lambda reward: 1.0 + reward / 17.0), 0.0, 1.0
    )
""",
    # A clip before a scaling, or a scale of 0, is the cause that these rules name.
    same_as=("TDX421", "TDX447"),
    facts=(RewardRanges,),
)
def constant_reward(context: StackContext) -> Iterator[Violation]:
    """Find stages whose rewards are all equal, although they got different ones."""
    stages = context.stages
    for stage in stages:
        reward = context.fact(RewardRanges, stage.index)
        is_complete = reward.steps == context.steps >= _MIN_STEPS
        if not is_complete or not reward.before.varies or reward.after.varies:
            continue
        if any(_adds_variation(context, outer) for outer in stages[stage.index + 1 :]):
            continue
        low, high = reward.before.low, reward.before.high
        yield Violation(
            f"the reward is {reward.after.low:.4g} in all {reward.steps} steps after it, and "
            f"{low:.4g} to {high:.4g} before it",
            "let it keep differences between these rewards, or leave it out",
            stage.index,
            "reward",
        )


def _adds_variation(context: StackContext, stage: StageInfo) -> bool:
    """Return True for a stage that computes a reward of its own; statistics that move do not."""
    reward = context.fact(RewardRanges, stage.index)
    return reward.after.varies and not reward.before.varies and not context.is_normalizer(stage)
