"""Policies that act for some rows of a batch, in one of several processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from tdx.core.envs.env_base import EnvBase
from tdx.core.envs.policies import ActionCheck
from tdx.core.planned.copies import pack, unpack
from tdx.core.planned.keyed_policy import KeyedPolicy
from tdx.errors import ArgumentError, TdxError, summarize_error
from tdx.keys import NestedKey

_HINT = "the rollout requests each step from the workers"


def check_policy_copy(
    data: bytes,
    tensors: Sequence[Tensor],
    env: EnvBase,
    root: Mapping[NestedKey, Tensor],
    groups: Sequence[range],
) -> None:
    """Check that a copy of a policy acts for each row alone, and remembers nothing.

    Args:
        data: Pickle of the :class:`KeyedPolicy`.
        tensors: Its tensors.
        env: The env that it acts in.
        root: Root entries, ``[*B, ...]``.
        groups: Rows of each process.

    Raises:
        ArgumentError: The action of a row depends on other rows or on earlier calls.
    """
    state = torch.get_rng_state()
    copies = [each.detach().clone() for each in tensors]
    policy: KeyedPolicy = unpack(data, copies)
    packed = pack(policy, "the policy")[0]
    given = {key: root[key].detach().clone() for key in policy.reads if key in root}
    if len(given) < len(policy.reads):
        raise ArgumentError("the policy reads entries that a reset does not return", hint=_HINT)
    # Other values in the other rows.
    others = {
        key: torch.zeros_like(value) if value.any() else torch.ones_like(value)
        for key, value in given.items()
    }
    try:
        with torch.no_grad():
            whole = policy.act({key: value.clone() for key, value in given.items()})
            after = torch.get_rng_state()
            ActionCheck(env)(whole.get)
            for rows in groups:
                torch.set_rng_state(state)
                act = act_for_rows(policy, rows, others)
                found = act({k: v[rows.start : rows.stop].clone() for k, v in given.items()})
                same = all(torch.equal(found[k], whole[k][rows.start : rows.stop]) for k in whole)
                if not same or not torch.equal(torch.get_rng_state(), after):
                    raise ArgumentError(
                        "the action that the policy takes for a row depends on the other rows, or "
                        "on random numbers of its own",
                        hint=_HINT,
                    )
    except TdxError:
        raise
    except Exception as error:
        # The rollout raises it again, and names the step.
        raise ArgumentError(f"the policy raised {summarize_error(error)}", hint=_HINT) from error
    finally:
        torch.set_rng_state(state)
    is_unchanged = all(map(torch.equal, copies, tensors))
    if not is_unchanged or pack(policy, "the policy")[0] != packed:
        raise ArgumentError("the policy changes when it acts", hint=_HINT)


def act_for_rows(
    policy: KeyedPolicy, rows: range, batch: Mapping[NestedKey, Tensor]
) -> Callable[[Mapping[NestedKey, Tensor]], dict[NestedKey, Tensor]]:
    """Return a policy as a function of some rows, which it is called with as part of the batch.

    Kernels may round in another way for another number of rows, and a policy draws random numbers
    for the whole batch.

    Args:
        policy: The policy for the batch.
        rows: The rows.
        batch: Entries of the batch, ``[n, ...]``, which complete the rows.
    """
    start, stop, act_for_all = rows.start, rows.stop, policy.act
    given = {key: value.clone() for key, value in batch.items()}
    places = [(key, value[start:stop]) for key, value in given.items()]
    memory = [(value.data_ptr(), value.data_ptr() + value.nbytes) for value in given.values()]

    def act(root: Mapping[NestedKey, Tensor]) -> dict[NestedKey, Tensor]:
        for key, place in places:
            place.copy_(root[key])
        written = {}
        for key, value in act_for_all(given).items():
            address = value.data_ptr()
            # A policy may return a part of its input, which the next step overwrites.
            is_input = any(first <= address < end for first, end in memory)
            written[key] = (value.clone() if is_input else value)[start:stop]
        return written

    return act
