"""The keys of a transform."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Self

from torch import nn

from tdx.core.transforms.key_pairs import key_list, paired
from tdx.keys import NestedKey

_UNSET = object()


class TransformKeys(nn.Module):
    """In-keys and out-keys, forward and inverse; see :class:`Transform`.

    Setting an attribute that is named after an argument of the constructor, loading a state dict
    or casting changes what the transform declares, so its chain then computes the specs anew.
    """

    def __init__(
        self,
        in_keys: Sequence[NestedKey] | None = None,
        out_keys: Sequence[NestedKey] | None = None,
        in_keys_inv: Sequence[NestedKey] | None = None,
        out_keys_inv: Sequence[NestedKey] | None = None,
    ) -> None:
        super().__init__()
        self._container_ref: weakref.ref[nn.Module] | None = None
        self._missing_tolerance = False
        self._set_keys(in_keys, in_keys if out_keys is None else out_keys)
        self._set_inverse_keys(in_keys_inv, in_keys_inv if out_keys_inv is None else out_keys_inv)

    def __setattr__(self, name: str, value: Any) -> None:
        if self.__dict__.get("_container_ref") is None:
            super().__setattr__(name, value)
            return
        kind: type = type(self)
        new = name in _declaration(kind) and self.__dict__.get(name, _UNSET) is not value
        super().__setattr__(name, value)
        if new:
            self._changed()

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        self._changed()

    def _apply(self, *args: Any, **kwargs: Any) -> Self:
        moved: Self = super()._apply(*args, **kwargs)  # type: ignore[no-untyped-call]
        self._changed()
        return moved

    def _changed(self) -> None:
        """Tell the chain that what it derived from this transform holds no longer."""
        reference = self.__dict__.get("_container_ref")
        owner = None if reference is None else reference()
        changed: Callable[[], None] | None = getattr(owner, "_chain_changed", None)
        if changed is not None:
            changed()

    def _set_keys(
        self, in_keys: Sequence[NestedKey] | None, out_keys: Sequence[NestedKey] | None
    ) -> None:
        self._in_keys = key_list(in_keys, "in_keys")
        self._out_keys = key_list(out_keys, "out_keys")
        self._pairs = paired(self._in_keys, self._out_keys, "in_keys and out_keys")

    def _set_inverse_keys(
        self, in_keys_inv: Sequence[NestedKey] | None, out_keys_inv: Sequence[NestedKey] | None
    ) -> None:
        self._in_keys_inv = key_list(in_keys_inv, "in_keys_inv")
        self._out_keys_inv = key_list(out_keys_inv, "out_keys_inv")
        self._inverse_pairs = paired(
            self._in_keys_inv, self._out_keys_inv, "in_keys_inv and out_keys_inv"
        )

    def _keys_were_set(self) -> None:
        """Keep to the keys that somebody has set, instead of finding them in the specs."""

    @property
    def in_keys(self) -> list[NestedKey]:
        """The keys read from the env's output."""
        return self._in_keys

    @in_keys.setter
    def in_keys(self, value: Sequence[NestedKey] | None) -> None:
        same = self._in_keys == self._out_keys
        self._set_keys(value, value if same else self._out_keys)
        self._keys_were_set()

    @property
    def out_keys(self) -> list[NestedKey]:
        """The keys written, one for each in-key."""
        return self._out_keys

    @out_keys.setter
    def out_keys(self, value: Sequence[NestedKey] | None) -> None:
        self._set_keys(self._in_keys, value)
        self._keys_were_set()

    @property
    def in_keys_inv(self) -> list[NestedKey]:
        """The keys that the env is given."""
        return self._in_keys_inv

    @in_keys_inv.setter
    def in_keys_inv(self, value: Sequence[NestedKey] | None) -> None:
        same = self._in_keys_inv == self._out_keys_inv
        self._set_inverse_keys(value, value if same else self._out_keys_inv)
        self._keys_were_set()

    @property
    def out_keys_inv(self) -> list[NestedKey]:
        """The keys that the outside gives, one for each of ``in_keys_inv``."""
        return self._out_keys_inv

    @out_keys_inv.setter
    def out_keys_inv(self, value: Sequence[NestedKey] | None) -> None:
        self._set_inverse_keys(self._in_keys_inv, value)
        self._keys_were_set()

    @property
    def _handed_out(self) -> tuple[NestedKey, ...]:
        """What this writes on the way in that a step's caller gets to see beside the action."""
        return ()

    @property
    def missing_tolerance(self) -> bool:
        """Whether in-keys that are not there are passed over instead of raising."""
        return self._missing_tolerance

    def set_missing_tolerance(self, mode: bool = True) -> None:
        """Say whether in-keys that are not there are passed over."""
        self._missing_tolerance = mode
        self._changed()


@cache
def _declaration(kind: type) -> frozenset[str]:
    """The names of the arguments that the constructors of a class and its bases take."""
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    names = set()
    for base in kind.__mro__:
        if issubclass(base, TransformKeys) and "__init__" in base.__dict__:
            parameters = inspect.signature(base.__dict__["__init__"]).parameters.values()
            names |= {each.name for each in parameters if each.kind not in several}
    return frozenset(names - {"self"})
