"""How an env class holds its specs: locked when constructed, and read through attributes."""

from __future__ import annotations

from abc import ABCMeta
from collections.abc import Callable
from inspect import signature
from typing import Any, Generic, Protocol, Self, TypeVar, overload

import torch

from tdx.core.envs.env_specs import EnvSpecs, only_key
from tdx.foundation.keys import NestedKey
from tdx.specs import Composite, TensorSpec


class EnvMeta(ABCMeta):
    """Metaclass of envs: locks the specs once an env is constructed.

    A constructor may set specs before or after ``super().__init__()``, and change them in place.
    With the keyword argument ``spec_locked=False`` they stay unlocked afterwards. With
    ``auto_reset=True`` the env becomes an :class:`~tdx.core.auto_reset.AutoResetEnv`, unless
    its constructor has an argument of that name; ``auto_reset_replace`` is its ``replace``.
    """

    def __call__(cls, *args: Any, spec_locked: bool = True, **kwargs: Any) -> Any:
        """Create an env and lock its specs."""
        own: Any = cls.__init__  # type: ignore[misc]
        is_taken = "auto_reset" in kwargs and "auto_reset" in signature(own).parameters
        auto_reset = not is_taken and kwargs.pop("auto_reset", False)
        replace = is_taken or kwargs.pop("auto_reset_replace", True)
        env = super().__call__(*args, **kwargs)
        if isinstance(env, cls) and spec_locked:
            env.env_specs.lock()
        return env.services.create_auto_reset(env, replace) if auto_reset else env


class _SpecOwner(Protocol):
    """An env, as far as the attributes below are concerned."""

    @property
    def env_specs(self) -> EnvSpecs: ...


_T = TypeVar("_T")


class SpecsAttribute(Generic[_T]):
    """Read-only attribute of an env that its :class:`EnvSpecs` computes."""

    def __init__(self, read: Callable[[EnvSpecs], _T], doc: str) -> None:
        self.read, self.__doc__ = read, doc

    @overload
    def __get__(self, env: None, kind: type) -> Self: ...

    @overload
    def __get__(self, env: _SpecOwner, kind: type) -> _T: ...

    def __get__(self, env: _SpecOwner | None, kind: type) -> Self | _T:
        return self if env is None else self.read(env.env_specs)

    def __set__(self, env: _SpecOwner, value: Any) -> None:
        raise AttributeError("this attribute follows from the specs and cannot be set")


class BatchSize(SpecsAttribute[torch.Size]):
    """Attribute for the batch size; set before the specs."""

    def __init__(self) -> None:
        doc = "Number of envs that run at once, ``[*B]``; empty for a single env."
        super().__init__(lambda specs: specs.placed().batch_size, doc)

    def __set__(self, env: _SpecOwner, value: torch.Size | tuple[int, ...] | list[int]) -> None:
        env.env_specs.set_batch_size(torch.Size(value))


class FullSpec(SpecsAttribute[Composite]):
    """Attribute for a part of the specs as a composite."""

    def __init__(self, part: str, doc: str) -> None:
        super().__init__(lambda specs: specs.part(part), doc)
        self.part = part

    def __set__(self, env: _SpecOwner, value: TensorSpec) -> None:
        env.env_specs.set_part(self.part, value)


class LeafSpecAttribute(SpecsAttribute[TensorSpec]):
    """Attribute for the only leaf of a part; for the composite if there is more than one leaf."""

    def __init__(self, part: str, doc: str) -> None:
        super().__init__(lambda specs: specs.leaf(part), doc)
        self.part = part

    def __set__(self, env: _SpecOwner, value: TensorSpec) -> None:
        env.env_specs.set_part(self.part, value)


class LeafKeys(SpecsAttribute[list[NestedKey]]):
    """Attribute for the keys of the leaves of a part."""

    def __init__(self, part: str, doc: str) -> None:
        super().__init__(lambda specs: specs.keys(part), doc)


class OnlyKey(SpecsAttribute[NestedKey]):
    """Attribute for the only key of a part; raises a ``KeyNotFoundError`` if there are others."""

    def __init__(self, part: str, kind: str) -> None:
        doc = f"Key of the {kind}; a ``KeyNotFoundError`` if there is not exactly one."
        super().__init__(lambda specs: only_key(specs.keys(part), kind), doc)


class UnbatchedSpec(SpecsAttribute[Any]):
    """Attribute for a spec of a single env, without batch dims.

    An assigned spec is expanded to the batch size.
    """

    def __init__(self, name: str) -> None:
        super().__init__(lambda specs: None, f"``{name}`` of a single env, without batch dims.")
        self.name = name

    def __get__(self, env: Any, kind: type) -> Any:
        if env is None:
            return self
        spec = getattr(env, self.name)
        return spec[(0,) * env.ndim] if env.ndim else spec

    def __set__(self, env: Any, value: TensorSpec) -> None:
        setattr(env, self.name, value.expand(*env.batch_size, *value.shape))


class SpecLock(SpecsAttribute[bool]):
    """Attribute that is True if the specs cannot be changed in place."""

    def __init__(self) -> None:
        doc = "True if the specs cannot be changed in place; may be assigned."
        super().__init__(lambda specs: specs.is_locked, doc)

    def __set__(self, env: _SpecOwner, value: bool) -> None:
        env.env_specs.lock() if value else env.env_specs.unlock()
