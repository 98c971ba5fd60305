"""Carry the noise of state-dependent exploration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tdx.core.transforms import TimeBehavior
from tdx.foundation.errors import ArgumentError
from tdx.specs import Composite, Unbounded
from tdx.transforms.episode.tensordict_primer import TensorDictPrimer


class gSDENoise(TensorDictPrimer):  # noqa: N801 - the name that policies of TorchRL expect
    """Draw the noise of generalized state-dependent exploration (gSDE) at every reset.

    A gSDE policy multiplies its features by one noise matrix for a whole episode. The matrix is
    the entry ``_eps_gSDE`` of shape ``[*B, action_dim, state_dim]``, drawn from a standard normal
    distribution, where the gSDE modules of TorchRL read it. Without both sizes it is one zero,
    which tells these modules to draw it.

    Args:
        state_dim: Number of features of the policy.
        action_dim: Number of actions.
        shape: Batch dims of the entry; by default those of the env.
        **kwargs: Further arguments of :class:`TensorDictPrimer`, such as ``reset_key``.

    Raises:
        ArgumentError: Only one of the sizes is given.

    Example:
        >>> from tdx import GymEnv, TransformedEnv, gSDENoise
        >>> env = TransformedEnv(GymEnv("Pendulum-v1"), gSDENoise(state_dim=3, action_dim=1))
        >>> env.rollout(5)["_eps_gSDE"].shape
        torch.Size([5, 1, 3])
    """

    _is_verified = True

    time_behavior = TimeBehavior.CONTROL

    def __init__(
        self,
        state_dim: int | None = None,
        action_dim: int | None = None,
        shape: Sequence[int] | None = None,
        **kwargs: Any,
    ) -> None:
        if (state_dim is None) != (action_dim is None):
            raise ArgumentError(
                f"state_dim={state_dim} and action_dim={action_dim} must both be given, or neither",
                hint="for example state_dim=3, action_dim=1",
            )
        batch = () if shape is None else tuple(shape)
        sizes = (1,) if state_dim is None or action_dim is None else (action_dim, state_dim)
        noise = Composite({"_eps_gSDE": Unbounded((*batch, *sizes))}, shape=batch)
        super().__init__(noise, random=state_dim is not None, **kwargs)
        self.state_dim = state_dim
        self.action_dim = action_dim
