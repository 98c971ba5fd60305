"""Default specs of an env, and the done flags that complete the declared ones."""

from __future__ import annotations

import torch

from tdx.specs import Categorical, Composite, Unbounded


def complete_done_spec(spec: Composite) -> None:
    """Add ``terminated`` to groups that have only ``done``, and the reverse, in place.

    A group without any entry gets both.
    """
    names = set(spec.keys())
    for name, other in (("done", "terminated"), ("terminated", "done")):
        if name in names and other not in names:
            spec[other] = spec[name].clone()
    for child in spec.values():
        if isinstance(child, Composite):
            complete_done_spec(child)
    if not names:
        flag = Categorical(2, shape=(*spec.shape, 1), dtype=torch.bool, device=spec.device)
        spec["done"], spec["terminated"] = flag, flag.clone()


def default_done_spec(batch_size: torch.Size, device: torch.device) -> Composite:
    """Return ``done``, ``terminated`` and ``truncated`` as bool specs of shape ``[*B, 1]``."""
    flag = Categorical(2, shape=(*batch_size, 1), dtype=torch.bool, device=device)
    return Composite(
        {name: flag.clone() for name in ("done", "terminated", "truncated")},
        shape=batch_size,
        device=device,
    )


def default_output_spec(batch_size: torch.Size, device: torch.device) -> Composite:
    """Return the output spec of an env that declares none: a reward and the done flags."""
    reward = Unbounded(shape=(*batch_size, 1), device=device)
    return Composite(
        full_observation_spec=Composite(shape=batch_size, device=device),
        full_reward_spec=Composite({"reward": reward}, shape=batch_size, device=device),
        full_done_spec=default_done_spec(batch_size, device),
        shape=batch_size,
        device=device,
    )


def default_input_spec(batch_size: torch.Size, device: torch.device) -> Composite:
    """Return the input spec of an env that declares none: no state and no action."""
    return Composite(
        full_state_spec=Composite(shape=batch_size, device=device),
        full_action_spec=Composite(shape=batch_size, device=device),
        shape=batch_size,
        device=device,
    )
