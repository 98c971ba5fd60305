"""The policy that acts in a rollout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from tdx.envs import EnvBase
    from tdx.pipeline import Pipeline

_POLICIES = ("random", "zero", "sequence:", "mlp:", "module:")


def complete_policy(incomplete: str) -> list[str]:
    """Complete the kind of a policy; the shell completes the file after it."""
    return [name for name in _POLICIES if name.startswith(incomplete)]


PolicyName = Annotated[
    str | None,
    typer.Option(
        "--policy",
        metavar="POLICY",
        autocompletion=complete_policy,
        help="random, zero, sequence:FILE (actions in .npy, .json or a dump), mlp:FILE (weights in "
        ".safetensors), or with --allow-code module:FILE (a saved TensorDictModule, TorchScript or "
        "torch.export) and module:name.",
    ),
]


def acting(
    typed: str | None, pipeline: Pipeline, env: EnvBase, steps: int, *, allow_code: bool
) -> Any:
    """The policy that acts, as what gives the actions of that many steps.

    Args:
        typed: Value of ``--policy``. ``None``: the policy of the pipeline, else random actions.
        pipeline: The pipeline.
        env: The env with its chain.
        steps: Number of actions needed.
        allow_code: Whether it may be code.

    Returns:
        What ``env.rollout`` takes; ``None`` for random actions.

    Raises:
        TdxError: There is no such policy, it does not fit the env, or is code.
    """
    from tdx.rollouts.policies.policy import (
        PolicyRequest,
        check_action_count,
        check_policy,
        load_policy,
    )

    policy = load_policy(PolicyRequest.of(pipeline, typed, allow_code), env)
    check_policy(policy, env)
    check_action_count(policy, steps)
    return policy.start_at(0)
