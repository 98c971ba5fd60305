"""Membership of a transform in a chain."""

from __future__ import annotations

import inspect
import weakref
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


class ChainOwner:
    """Holds a chain: a ``TransformedEnv``, a ``Compose`` or a replay buffer.

    Its members notify it of changes, and ask it for the env before them.
    """

    first_stage_index: int = 0
    """Index of its first stage, counted from the innermost chain."""

    def chain_changed(self) -> None:
        """Drop what was derived from the chain."""

    def env_before(self, stage: Any) -> EnvBase | None:
        """Return a copy of the env with the stages before a member; ``None`` outside an env."""
        return None


class ChainMember(nn.Module):
    """A module that is part of at most one chain, and notifies the chain of changes.

    The stages after a module may have another batch size or device than those before it.

    A chain derives specs and programs from its members. It must derive them again after an
    assignment to an attribute that a constructor declares, after a state was loaded and after a
    cast.

    The modules that run, plan, trace and measure a chain call the public methods of a stage, its
    hooks (``_step``, ``_reset``, ``_call``, ``_inv_call``, ``_reset_env_preprocess``,
    ``_apply_transform``) and this internal interface, which a user needs only to write a transform
    that is planned:

    - membership: ``owner``, ``notify_changed``, ``episode_memory``, ``constructor_arguments``
    - specs: ``transform_specs``, ``written_keys``, ``exposed_keys``, ``needs_declared_input``
    - batch size and device: ``changes_batch``, ``to_outer_batch``, ``to_inner_batch``,
      ``mixes_rows``, ``follow_env_device``
    - forms: ``make_dict_step``, ``make_chunk_kernel``, ``make_array_kernel``, ``linear_image``,
      ``step_limits``, ``inv_present``, ``steps_env``
    """

    episode_memory: ClassVar[tuple[str, ...]] = ()
    """Names of the dicts that hold entries of the running episode: created empty, never cloned."""

    constructor_arguments: tuple[tuple[Any, ...], dict[str, Any]] | None = None
    """Positional and named arguments that it was created with; ``None`` after unpickling."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        created = super().__new__(cls)
        created.__dict__["constructor_arguments"] = args, kwargs
        return created

    def __init__(self) -> None:
        super().__init__()
        self._container_ref: weakref.ref[nn.Module | ChainOwner] | None = None
        self.__dict__.update({name: {} for name in self.episode_memory})

    @property
    def owner(self) -> Any:
        """``Compose``, ``TransformedEnv`` or buffer that directly holds this module.

        Used by the chain; :attr:`container` is the env around it.
        """
        return None if self._container_ref is None else self._container_ref()

    @property
    def container(self) -> nn.Module | None:
        """The ``TransformedEnv`` whose chain contains this module, else its ``Compose``."""
        owner = self.owner
        outer = getattr(owner, "container", None)
        return owner if outer is None else outer

    @property
    def parent(self) -> EnvBase | None:
        """Copy of the env up to this module: the base env with the upstream stages.

        ``None`` outside an env.
        """
        owner = self.owner
        return owner.env_before(self) if isinstance(owner, ChainOwner) else None

    is_copy: bool = False
    """True if it is a chain that :meth:`clone` returned."""

    def set_container(self, container: nn.Module | ChainOwner) -> None:
        """Add this module to a chain.

        Stages of a detached clone of a chain can be re-parented.

        Raises:
            ChainError: It is already part of a chain.
        """
        owner = self.owner
        is_spare = getattr(owner, "is_copy", False) and owner.owner is None
        if owner is not None and not is_spare:
            raise ChainError(
                f"this instance of {type(self).__name__} is already part of a chain",
                hint="put transform.clone() into the second place",
            )
        if is_spare:
            owner.set_stages([stage for stage in owner if stage is not self])
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
        copied.__dict__.update({name: {} for name in self.episode_memory})
        copied._container_ref = None
        return copied

    def __getstate__(self) -> dict[str, Any]:
        # The arguments may hold what cannot be pickled, such as a lambda that built an attribute.
        return {**self.__dict__, "_container_ref": None, "constructor_arguments": None}

    def notify_changed(self) -> None:
        """Tell the chain that what it derived from this module is outdated."""
        reference = self.__dict__.get("_container_ref")
        owner = None if reference is None else reference()
        if isinstance(owner, ChainOwner):
            owner.chain_changed()

    def follow_env_device(self, device: torch.device | None) -> None:
        """Move parameters and buffers to the device of the upstream env.

        They stay where they are if its entries are on several devices (``None``).
        """
        if device is None:
            return
        held: list[Any] = [*self._parameters.values(), *self._buffers.values()]
        if self._modules:
            held = [*self.parameters(), *self.buffers()]
        if any(tensor is not None and tensor.device != device for tensor in held):
            self.to(device, non_blocking=device.type != "cpu")

    def _bind_in_env(self) -> None:
        """Read what the constructor left open from the specs of the env, if there is one."""
        specs = getattr(self.container, "env_specs", None)
        if specs is not None:
            specs.part("full_done_spec")

    # Batch size and device

    mixes_rows: ClassVar[bool] = False
    """True if the values of a row depend on the other rows of the batch."""

    changes_batch: bool = False
    """True if downstream stages have another batch size or device than upstream ones."""

    def to_outer_batch(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Return the input of a step as downstream stages see it."""
        return tensordict

    def to_inner_batch(self, tensordict: TensorDictBase) -> TensorDictBase:
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
            self.notify_changed()

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        self.notify_changed()

    def _apply(self, *args: Any, **kwargs: Any) -> Self:
        moved: Self = super()._apply(*args, **kwargs)  # type: ignore[no-untyped-call]
        self.notify_changed()
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
