"""Bring recurrent states up to date on the first steps of stored sequences."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from tdx.core.transforms import TimeBehaviour, Transform
from tdx.core.transforms.episodes import refuse_unordered
from tdx.core.transforms.key_pairs import key_list
from tdx.errors import ArgumentError, ChainError
from tdx.keys import NestedKey, format_key, join_keys, normalize_key, split_key, unique_keys


class BurnInTransform(Transform):
    """Run recurrent modules over the first steps of each sequence, and return the rest of it.

    What the modules carry on under ``next`` after those steps is written to the first of the
    remaining steps, without a gradient. It is for the data of a replay buffer, not for an env.
    Recurrent modules are put into recurrent mode for it. The modules are not part of this
    transform's parameters.

    Args:
        modules: modules over a TensorDict ``[*B, T]`` that process whole sequences.
        burn_in: how many steps they are run over; those are not in the result.
        out_keys: the states written; by default every key that a module writes under ``next``.

    Raises:
        ArgumentError: ``modules`` is no sequence of modules with in-keys and out-keys,
            ``burn_in`` no integer of at least 0, or the modules carry no such state on. In
            ``forward``, the sequences are not longer than ``burn_in``.
        KeyNotFoundError: in ``forward``, a module's in-key is not there.
        ChainError: it is put around an env.

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

    time_behaviour = TimeBehaviour.CONTROL

    def __init__(
        self,
        modules: Sequence[nn.Module],
        burn_in: int,
        out_keys: Sequence[NestedKey] | None = None,
    ) -> None:
        checked = _checked_modules(modules)
        if isinstance(burn_in, bool) or not isinstance(burn_in, int) or burn_in < 0:
            raise ArgumentError(
                f"burn_in must be an integer of at least 0, got {burn_in!r}",
                hint="for example burn_in=10",
            )
        carried = _carried(checked)
        states = carried if out_keys is None else key_list(out_keys, "out_keys")
        odd = [format_key(key) for key in states if key not in carried]
        if odd or not states:
            raise ArgumentError(
                f"the modules carry on no {' and no '.join(odd) or 'state'}",
                hint='a state is an out-key under "next", such as ("next", "hidden")',
            )
        super().__init__()
        self._in_keys, self._out_keys = _read_first(checked), states
        # In a tuple they do not become children of this module.
        self._recurrent = checked
        self.burn_in = burn_in

    def transform_env_batch_size(self, batch_size: torch.Size) -> torch.Size:
        """Refuse to be part of an env.

        Raises:
            ChainError: always.
        """
        raise ChainError(
            "BurnInTransform works on stored sequences and cannot be put around an env",
            hint="append it to a replay buffer: buffer.append_transform(...)",
        ).at(transform="BurnInTransform")

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """The steps after the burn-in, with the states that it led to.

        Args:
            tensordict: ``[*B, T]``, in time order along its last dim; left as it is.

        Returns:
            a TensorDict ``[*B, T - burn_in]``.
        """
        if self.burn_in == 0:
            return tensordict
        refuse_unordered(tensordict)
        steps = tensordict.shape[-1] if tensordict.ndim else 0
        if steps <= self.burn_in:
            raise ArgumentError(
                f"the sequences have {steps} steps, the burn-in takes {self.burn_in} of them",
                hint="sample longer sequences of shape [*B, T]",
            )
        for key in self.in_keys:
            if tensordict.get(key, None) is None:
                raise self._missing(key, tensordict)
        burnt = self._burnt(tensordict[..., : self.burn_in].clone(False))
        rest: TensorDictBase = tensordict[..., self.burn_in :].clone(False)
        for key in self.out_keys:
            state = burnt.get(join_keys("next", key)).select(tensordict.ndim - 1, -1)
            rest.set(key, _begun(rest.get(key, None), state.detach(), rest.batch_size))
        return rest

    def _burnt(self, first: TensorDictBase) -> TensorDictBase:
        """The first steps after the modules ran over them, ``[*B, burn_in]``."""
        # Recurrent modules lie above this layer, so their mode is named here and not imported.
        over_time = import_module("tdx.modules").set_recurrent_mode(True)
        device = first.device
        with torch.no_grad(), over_time:
            for module in self._recurrent:
                parameter = next(module.parameters(), None)
                first = module(first if parameter is None else first.to(parameter.device))
        return first if first.device == device else first.to(device or "cpu")

    def __repr__(self) -> str:
        keys = ", ".join(repr(format_key(key)) for key in self.out_keys)
        return f"BurnInTransform(burn_in={self.burn_in}, keys=[{keys}])"


def _begun(known: Tensor | None, state: Tensor, batch_size: torch.Size) -> Tensor:
    """A state over the remaining steps ``[*B, T, ...]`` that begins with ``state`` ``[*B, ...]``.

    Where the data has none it is zero after the first step, as a sequence is run from its start.
    """
    dim = len(batch_size) - 1
    if known is None:
        known = state.new_zeros(*batch_size, *state.shape[dim:])
    rest = known.narrow(dim, 1, batch_size[-1] - 1)
    return torch.cat((state.unsqueeze(dim).to(known), rest), dim)


def _checked_modules(modules: Any) -> tuple[nn.Module, ...]:
    found = (modules,) if isinstance(modules, nn.Module) else modules
    if not isinstance(found, Sequence) or not found:
        raise ArgumentError(
            f"modules must be a list of modules, got {modules!r}", hint="for example [gru]"
        )
    for module in found:
        if not all(hasattr(module, name) for name in ("in_keys", "out_keys", "parameters")):
            raise ArgumentError(
                f"{type(module).__name__} is no module over TensorDicts",
                hint="wrap it: TensorDictModule(module, in_keys=..., out_keys=...)",
            )
    return tuple(found)


def _carried(modules: Sequence[Any]) -> list[NestedKey]:
    """The keys that modules write under ``next``, without that."""
    written = (split_key(key) for module in modules for key in module.out_keys)
    return unique_keys(normalize_key(key[1:]) for key in written if key[0] == "next" and key[1:])


def _read_first(modules: Sequence[Any]) -> list[NestedKey]:
    """What modules read and no earlier one of them writes."""
    read: list[NestedKey] = []
    written: set[NestedKey] = set()
    for module in modules:
        read += [normalize_key(key) for key in module.in_keys if normalize_key(key) not in written]
        written.update(normalize_key(key) for key in module.out_keys)
    return unique_keys(read)
