"""A chain stage by stage: the keys each reads, writes, drops and renames, and their specs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tdx.inspection.spec_report import EnvFacts
from tdx.inspection.stage_flow import StageFlow, chain_flow

if TYPE_CHECKING:
    from tdx.envs import EnvBase


@dataclass(frozen=True, slots=True)
class ChainReport:
    """What each stage of a chain does.

    Args:
        env: name of the env.
        before: the env without the chain.
        after: the env with it.
        stages: the stages in order.
    """

    env: str
    before: EnvFacts
    after: EnvFacts
    stages: tuple[StageFlow, ...]

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "env": self.env,
            "before": self.before.to_dict(),
            "after": self.after.to_dict(),
            "stages": [stage.to_dict() for stage in self.stages],
        }


def inspect_chain(env: EnvBase, name: str | None = None) -> ChainReport:
    """Say what each stage of an env's chain does; nothing is reset or stepped.

    Args:
        env: the env, transformed or not.
        name: what to call it; by default the class of the innermost env.

    Raises:
        TdxError: a stage cannot take the specs before it; the error names the stage.

    Example:
        >>> from tdx import GymEnv, RewardSum, TransformedEnv
        >>> report = inspect_chain(TransformedEnv(GymEnv("Pendulum-v1"), RewardSum()))
        >>> report.stages[0].forward.reads
        ('reward',)
    """
    from tdx.inspection.spec_report import innermost

    base = innermost(env)
    stages = chain_flow(env).stages
    return ChainReport(name or type(base).__name__, EnvFacts.of(base), EnvFacts.of(env), stages)
