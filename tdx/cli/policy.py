"""The policy that acts in a rollout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from tdx.envs import EnvBase

_POLICIES = ("random", "zero", "sequence:", "module:")


def complete_policy(incomplete: str) -> list[str]:
    """How the name of a policy begins; the shell completes the file behind it."""
    return [name for name in _POLICIES if name.startswith(incomplete)]


PolicyName = Annotated[
    str | None,
    typer.Option(
        "--policy",
        metavar="POLICY",
        autocompletion=complete_policy,
        help="random, zero, sequence:FILE (actions in .npy, .pt, .json or a dump), module:FILE (a "
        "saved TensorDictModule, TorchScript or torch.export), or with --allow-code module:name.",
    ),
]


def acting(name: str, env: EnvBase, steps: int, *, allow_code: bool) -> Any:
    """The policy of this name, as what gives the actions of so many steps.

    Args:
        name: as in ``--policy``.
        env: the env with its chain.
        steps: how many actions are wanted.
        allow_code: whether Python objects may be imported.

    Returns:
        None for random actions.

    Raises:
        TdxError: there is no such policy, or it does not fit the env.
    """
    from tdx.rollouts.policies import check_length, check_policy, named_policy

    policy = named_policy(name, env, allow_code)
    check_policy(policy, env)
    check_length(policy, steps)
    return policy.after(0)
