"""Why worker processes of an env cannot run whole chunks of its rollouts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tdx.core.chain import PlannedStage, declares
from tdx.core.envs.env_base import EnvBase
from tdx.core.transformed_env import TransformedEnv


def why_stepwise(of_workers: str, env: EnvBase, stages: Sequence[PlannedStage]) -> str:
    """Return why the workers of an env get each step from this process; empty if they need not.

    Args:
        of_workers: Reason that the workers give, if there is one.
        env: The env with its chain.
        stages: The stages in order.
    """
    return of_workers or next(_reasons(env, stages), "")


def _reasons(env: EnvBase, stages: Sequence[PlannedStage]) -> Iterator[str]:
    if isinstance(env, TransformedEnv) and env.compiler is not None:
        yield "the chain is compiled"
    for planned in stages:
        stage: Any = planned.stage
        where = f"stage {planned.index} ({planned.name})"
        if planned.chunk_form is None:
            yield f"{where} has to see the steps of all rows one by one"
        elif stage._mixes_rows:
            yield f"{where} passes values from one row to the others"
        elif not declares(type(stage), "_is_verified"):
            yield f"{where} may pass values from one row to the others"
        elif stage._changes_batch:
            yield f"{where} changes the batch size or the device"
