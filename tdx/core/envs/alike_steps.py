"""Steps that differ from the first of their rollout, and so cannot be stored as one block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from tdx.errors import EnvError, Where
from tdx.keys import NestedKey, normalize_key, split_key
from tdx.tensordicts import read

_HINT = (
    "fix the env: each step must return the same keys, shapes and dtypes; or keep steps that "
    "differ with rollout(..., return_contiguous=False)"
)

Form = tuple[torch.Size, torch.dtype] | None
"""Shape and dtype of an entry; ``None``: it is no tensor."""


class AlikeSteps:
    """Compares the steps of a rollout with its first one.

    Only plain TensorDicts are compared: steps that are stacked from unlike rows may differ.
    """

    def __init__(self) -> None:
        self._forms: dict[NestedKey, Form] | None = None
        self._groups: list[tuple[tuple[str, ...], frozenset[str]]] = []

    def first_unlike(self, steps: Sequence[TensorDictBase]) -> tuple[int, EnvError] | None:
        """Find the first step with other keys, shapes or dtypes.

        Args:
            steps: The next steps of the rollout, of shape ``[*B]`` each.

        Returns:
            Its index in ``steps``, and the error to raise, which names the key. ``None``: all
            are alike.
        """
        for index, step in enumerate(steps):
            error = self.error_of(step)
            if error is not None:
                return index, error
        return None

    def error_of(self, step: TensorDictBase) -> EnvError | None:
        """The error for a step that differs from the first one; ``None`` if it does not."""
        if type(step) is not TensorDict:
            return None
        if self._forms is None:
            self._forms = _forms_of(step, ())
            self._groups = list(_groups_of(step, ()))
            return None
        return None if self._is_alike(step) else _difference(self._forms, _forms_of(step, ()))

    def _is_alike(self, step: TensorDictBase) -> bool:
        assert self._forms is not None
        try:
            return all(
                (step if not path else step._get_tuple(path, None)).keys() == names
                for path, names in self._groups
            ) and all(
                form is None or _is_of_form(read(step, key), form)
                for key, form in self._forms.items()
            )
        except (AttributeError, RuntimeError, ValueError):
            # A group has become a tensor, or is missing.
            return False


def _is_of_form(value: Any, form: tuple[torch.Size, torch.dtype]) -> bool:
    return isinstance(value, Tensor) and value.shape == form[0] and value.dtype is form[1]


def _forms_of(tensordict: TensorDictBase, path: tuple[str, ...]) -> dict[NestedKey, Form]:
    found: dict[NestedKey, Form] = {}
    for name in tensordict.keys():
        value, here = tensordict._get_str(name, None), (*path, name)
        if isinstance(value, Tensor):
            found[normalize_key(here)] = (value.shape, value.dtype)
        elif type(value) is TensorDict:
            found |= _forms_of(value, here)
        else:
            found[normalize_key(here)] = None
    return found


def _groups_of(
    tensordict: TensorDictBase, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], frozenset[str]]]:
    yield path, frozenset(tensordict.keys())
    for name in tensordict.keys():
        value = tensordict._get_str(name, None)
        if type(value) is TensorDict:
            yield from _groups_of(value, (*path, name))


def _difference(first: dict[NestedKey, Form], other: dict[NestedKey, Form]) -> EnvError | None:
    for key in [*first, *(key for key in other if key not in first)]:
        if key not in other:
            return _unlike(key, "it is missing; the steps before have it")
        if key not in first:
            return _unlike(key, "the steps before lack it")
        before, now = first[key], other[key]
        if before == now:
            continue
        if before is None or now is None:
            return _unlike(key, "it changes between a tensor and another object")
        if before[0] != now[0]:
            there, wanted = tuple(now[0]), tuple(before[0])
            return _unlike(key, f"its shape is {there}, in the steps before {wanted}")
        return _unlike(key, f"its dtype is {now[1]}, in the steps before {before[1]}")
    return None


def _unlike(key: NestedKey, message: str) -> EnvError:
    parts = split_key(key)
    plain = normalize_key(parts[1:] if parts[0] == "next" and parts[1:] else parts)
    return EnvError(message, hint=_HINT, where=Where(key=plain))


def unlike_reset(key: NestedKey, begun: Tensor, before: Tensor) -> EnvError:
    """The error for an entry of a reset that differs from that of the step before it."""
    now, wanted = (f"{each.dtype} {tuple(each.shape)}" for each in (begun, before))
    return _unlike(key, f"reset returned {now}, the steps before it {wanted}")
