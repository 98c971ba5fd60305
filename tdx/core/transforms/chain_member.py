"""Membership of a transform in a chain."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from tensordict import TensorDictBase
from torch import nn

from tdx.foundation.errors import ChainError
from tdx.foundation.patches import without_hooks

if TYPE_CHECKING:
    from tdx.core.envs import EnvBase

_UNSET = object()


class ChainMember(nn.Module):
    """A module that is part of at most one chain, and notifies the chain of changes.

    The stages after a module may have another batch size or device than those before it.

    A chain derives specs and programs from its members. It must derive them again after an
    assignment to an attribute that a constructor declares, after a state was loaded and after a
    cast.
    """

    _episode_memory: ClassVar[tuple[str, ...]] = ()
    """Names of the dicts that hold entries of the running episode: created empty, never cloned."""

    def __init__(self) -> None:
        super().__init__()
        self._container_ref: weakref.ref[nn.Module] | None = None
        self.__dict__.update({name: {} for name in self._episode_memory})

    @property
    def _owner(self) -> Any:
        """``Compose``, ``TransformedEnv`` or buffer that directly holds this module."""
        return None if self._container_ref is None else self._container_ref()

    @property
    def container(self) -> nn.Module | None:
        """The ``TransformedEnv`` whose chain contains this module, else its ``Compose``."""
        owner = self._owner
        outer = getattr(owner, "container", None)
        return owner if outer is None else outer

    @property
    def parent(self) -> EnvBase | None:
        """Copy of the env up to this module: the base env with the upstream stages.

        ``None`` outside an env.
        """
        before = getattr(self._owner, "_env_before", None)
        return None if before is None else before(self)

    _is_copy: bool = False
    """True if it is a chain that :meth:`clone` returned."""

    def set_container(self, container: nn.Module) -> None:
        """Add this module to a chain.

        A stage of a copy of a chain that is not used itself leaves that copy.

        Raises:
            ChainError: It is already part of a chain.
        """
        owner: Any = self._owner
        is_spare = getattr(owner, "_is_copy", False) and owner._container_ref is None
        if owner is not None and not is_spare:
            raise ChainError(
                f"this instance of {type(self).__name__} is already part of a chain",
                hint="put transform.clone() into the second place",
            )
        if is_spare:
            owner._set_stages([stage for stage in owner if stage is not self])
        self._container_ref = weakref.ref(container)

    def reset_parent(self) -> None:
        """Remove this module from its chain."""
        self._container_ref = None

    def clone(self) -> Self:
        """Return a copy for another chain that shares parameters and buffers.

        It does not share the state of the running episode.
        """
        copied = type(self).__new__(type(self))
        copied.__dict__.update(without_hooks(self.__dict__))
        for name in ("_parameters", "_buffers", "_modules"):
            copied.__dict__[name] = self.__dict__[name].copy()
        copied.__dict__.update({name: {} for name in self._episode_memory})
        copied._container_ref = None
        return copied

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_container_ref": None}

    def _notify_changed(self) -> None:
        """Tell the chain that what it derived from this module is outdated."""
        reference = self.__dict__.get("_container_ref")
        owner = None if reference is None else reference()
        changed: Callable[[], None] | None = getattr(owner, "_chain_changed", None)
        if changed is not None:
            changed()

    def _follow_device(self, device: torch.device | None) -> None:
        """Move parameters and buffers to the device of the upstream env.

        They stay where they are if its entries are on several devices (``None``).
        """
        if device is None:
            return
        held: list[Any] = [*self._parameters.values(), *self._buffers.values()]
        if self._modules:
            held = [*self.parameters(), *self.buffers()]
        if any(tensor is not None and tensor.device != device for tensor in held):
            self.to(device)

    def _bind_in_env(self) -> None:
        """Read what the constructor left open from the specs of the env, if there is one."""
        specs = getattr(self.container, "_specs", None)
        if specs is not None:
            specs.part("full_done_spec")

    # Batch size and device

    _mixes_rows: ClassVar[bool] = False
    """True if the values of a row depend on the other rows of the batch."""

    _changes_batch: bool = False
    """True if downstream stages have another batch size or device than upstream ones."""

    def _to_outer_batch(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Return the input of a step as downstream stages see it."""
        return tensordict

    def _to_inner_batch(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Return the input of a reset as upstream stages see it."""
        return tensordict

    def transform_env_batch_size(self, batch_size: torch.Size) -> torch.Size:
        """Return the env's batch size after this transform."""
        return batch_size

    def transform_env_device(self, device: torch.device | None) -> torch.device | None:
        """Return the env's device after this transform; ``None`` if its entries differ."""
        return device

    def __setattr__(self, name: str, value: Any) -> None:
        if self.__dict__.get("_container_ref") is None:
            super().__setattr__(name, value)
            return
        kind: type = type(self)
        new = name in _declared_arguments(kind) and self.__dict__.get(name, _UNSET) is not value
        super().__setattr__(name, value)
        if new:
            self._notify_changed()

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        self._notify_changed()

    def _apply(self, *args: Any, **kwargs: Any) -> Self:
        moved: Self = super()._apply(*args, **kwargs)  # type: ignore[no-untyped-call]
        self._notify_changed()
        return moved


@cache
def _declared_arguments(kind: type) -> frozenset[str]:
    """Return the names of the arguments of the constructors of a class and its bases."""
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    names = set()
    for base in kind.__mro__:
        if issubclass(base, ChainMember) and "__init__" in base.__dict__:
            parameters = inspect.signature(base.__dict__["__init__"]).parameters.values()
            names |= {parameter.name for parameter in parameters if parameter.kind not in variadic}
    return frozenset(names - {"self"})
