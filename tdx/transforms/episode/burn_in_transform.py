"""Warm up recurrent states on the first steps of stored sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from tdx.core.recurrent_mode import set_recurrent_mode
from tdx.core.transforms import StoredDataTransform, TimeBehavior
from tdx.core.transforms.episodes import require_time_order
from tdx.core.transforms.spec_maps import normalize_keys
from tdx.core.transforms.validation import check_integer
from tdx.foundation.errors import ArgumentError
from tdx.foundation.keys import (
    NestedKey,
    format_key,
    join_keys,
    normalize_key,
    split_key,
    unique_keys,
)


class BurnInTransform(StoredDataTransform):
    """Run recurrent modules over the first steps of each sequence, and return the other steps.

    The states after these steps are written to the first remaining step, without a gradient.
    The transform is for the data of a replay buffer, not for an env. Recurrent modules run in
    recurrent mode. The modules are not part of the parameters of this transform.

    Args:
        modules: Modules over TensorDicts ``[*B, T]`` that process whole sequences.
        burn_in: Number of steps to run over and to remove.
        out_keys: States to write; by default all keys that a module writes under ``next``.

    Raises:
        ArgumentError: ``modules`` is not a sequence of modules with in-keys and out-keys,
            ``burn_in`` is not an integer of at least 0, or a state is not written by the modules.
            In ``forward``, the sequences are not longer than ``burn_in``.
        KeyNotFoundError: An in-key of a module is missing (in ``forward``).
        ChainError: The transform is put into an env.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tensordict.nn import TensorDictModule
        >>> from tdx import BurnInTransform
        >>> adding = TensorDictModule(
        ...     lambda value, state: state[:, :1] + value.cumsum(1),
        ...     in_keys=["value", "state"], out_keys=[("next", "state")],
        ... )
        >>> stored = TensorDict(
        ...     value=torch.ones(2, 5, 1), state=torch.zeros(2, 5, 1), batch_size=[2, 5]
        ... )
        >>> sample = BurnInTransform([adding], burn_in=3)(stored)
        >>> sample.shape, sample["state"][0].flatten()
        (torch.Size([2, 2]), tensor([3., 0.]))
    """

    _is_verified = True
    ENV_ERR = "it maps stored sequences and cannot be part of an env"

    time_behavior = TimeBehavior.CONTROL

    def __init__(
        self,
        modules: Sequence[nn.Module],
        burn_in: int,
        out_keys: Sequence[NestedKey] | None = None,
    ) -> None:
        given: Any = (modules,) if isinstance(modules, nn.Module) else modules
        if not isinstance(given, Sequence) or not given:
            raise ArgumentError(
                f"modules must be a list of modules, got {modules!r}", hint="for example [gru]"
            )
        recurrent: tuple[Any, ...] = tuple(given)
        for module in recurrent:
            if not all(hasattr(module, name) for name in ("in_keys", "out_keys", "parameters")):
                raise ArgumentError(
                    f"{type(module).__name__} has no in_keys, out_keys and parameters",
                    hint="wrap it: TensorDictModule(module, in_keys=..., out_keys=...)",
                )
        check_integer(burn_in, "burn_in", 0, "for example burn_in=10")
        # States are the keys that modules write under "next", without "next".
        written = (split_key(key) for module in recurrent for key in module.out_keys)
        known = unique_keys(normalize_key(k[1:]) for k in written if k[0] == "next" and k[1:])
        states = known if out_keys is None else normalize_keys(out_keys, "out_keys")
        unknown = [format_key(key) for key in states if key not in known]
        if unknown or not states:
            raise ArgumentError(
                f"the modules write no state {' and no state '.join(unknown)}".rstrip(),
                hint='a state is an out-key under "next", such as ("next", "hidden")',
            )
        super().__init__()
        self._in_keys, self._out_keys = _external_keys(recurrent), states
        # A tuple, so that they are not registered as submodules.
        self._recurrent = recurrent
        self.burn_in = burn_in

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Return the steps after the burn-in, with the states after it.

        Args:
            tensordict: Sequences ``[*B, T]``, in time order along the last dim; not changed.

        Returns:
            TensorDict ``[*B, T - burn_in]``.
        """
        if self.burn_in == 0:
            return tensordict
        require_time_order(tensordict)
        steps = tensordict.shape[-1] if tensordict.ndim else 0
        if steps <= self.burn_in:
            raise ArgumentError(
                f"the sequences have {steps} steps, but burn_in={self.burn_in} removes that many",
                hint="sample longer sequences of shape [*B, T]",
            )
        for key in self.in_keys:
            if tensordict.get(key, None) is None:
                raise self._missing_key(key, tensordict)
        warm: TensorDictBase = tensordict[..., : self.burn_in].clone(False)
        with torch.no_grad(), set_recurrent_mode(True):
            for module in self._recurrent:
                parameter = next(module.parameters(), None)
                warm = module(warm if parameter is None else warm.to(parameter.device))
        if warm.device != tensordict.device:
            warm = warm.to(tensordict.device or "cpu")
        rest: TensorDictBase = tensordict[..., self.burn_in :].clone(False)
        for key in self.out_keys:
            state = warm.get(join_keys("next", key)).select(tensordict.ndim - 1, -1)
            starts = self._starts(rest, key)
            known = rest.get(key, None)
            rest.set(key, _with_first_state(known, state.detach(), rest.batch_size, starts))
        return rest

    def _starts(self, rest: TensorDictBase, key: NestedKey) -> Tensor | None:
        """Return the flag of the module of a state that marks the start of an episode."""
        for module in self._recurrent:
            keys: list[NestedKey] = getattr(module, "in_keys", [])
            flag = rest.get(keys[-1], None) if key in keys else None
            if isinstance(flag, Tensor) and flag.dtype is torch.bool:
                return flag
        return None

    def __repr__(self) -> str:
        keys = ", ".join(repr(format_key(key)) for key in self.out_keys)
        return f"BurnInTransform(burn_in={self.burn_in}, keys=[{keys}])"


def _with_first_state(
    known: Tensor | None, state: Tensor, batch_size: torch.Size, starts: Tensor | None
) -> Tensor:
    """Return the states of the remaining steps ``[*B, T, ...]``, the first one ``state``.

    It is kept where an episode starts. Unknown states are zeros after the first step, which are
    never read.
    """
    dim = len(batch_size) - 1
    if known is None:
        known = state.new_zeros(*batch_size, *state.shape[dim:])
    if starts is not None:
        first = starts.select(dim, 0).reshape(*batch_size[:-1], *[1] * (state.ndim - dim))
        state = torch.where(first, known.select(dim, 0).to(state), state)
    rest = known.narrow(dim, 1, batch_size[-1] - 1)
    return torch.cat((state.unsqueeze(dim).to(known), rest), dim)


def _external_keys(modules: Sequence[Any]) -> list[NestedKey]:
    """Return the keys that a module reads and no earlier one writes."""
    read: list[NestedKey] = []
    written: set[NestedKey] = set()
    for module in modules:
        read += [normalize_key(key) for key in module.in_keys if normalize_key(key) not in written]
        written.update(normalize_key(key) for key in module.out_keys)
    return unique_keys(read)
