"""Replace the env inside a stack: its stages run on recorded results, of any library.

A stack whose env inside can be replaced runs its stages on recorded inputs: its env need not be
deterministic, and is not stepped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tdx.foundation.keys import NestedKey
from tdx.foundation.patches import Patches
from tdx.stacks.observe.events import Method
from tdx.stacks.observe.levels import Levels, Original, RowEntries, Slot

AnswerCall = Callable[[Sequence[int], Method, Callable[[], RowEntries]], RowEntries]
"""Returns the result of a call of the env inside: observation, and for a step reward and flags. Its
arguments are the sub-envs that are called (``[0]`` for a single env), the method, and a function
that calls the env itself."""


@contextmanager
def replaced_env(levels: Levels, answer: AnswerCall) -> Iterator[None]:
    """Answer the calls of the env inside a stack in a block."""

    def replacement(slot: Slot, original: Original) -> Original:
        rows = range(levels.num_rows) if slot.form.is_batch else (slot.row,)
        is_half = slot.method == "step_wait"
        method: Method = "step" if is_half else slot.method

        def send(*args: object, **kwargs: object) -> None:
            sent[slot.row] = partial(original, *args, **kwargs)

        def call(*args: object, **kwargs: object) -> object:
            live: Any = None

            def run() -> RowEntries:
                nonlocal live
                if is_half:
                    sent[slot.row]()
                live = original(*args, **kwargs)
                return levels.base_entries(slot, live)

            return levels.base_result(slot, answer(rows, method, run), live)

        return send if slot.method == "step_async" else call

    sent: dict[int, Callable[[], object]] = {}
    with Patches() as patches:
        for slot in list(levels.slots()):
            # The own `step` of a VecEnv calls both halves.
            if slot.level < 0 and not (slot.form.protocol == "vec_env" and slot.method == "step"):
                original = getattr(slot.owner, slot.name)
                patches.put(slot.owner, slot.name, replacement(slot, original))
        yield


def base_key(key: NestedKey) -> NestedKey:
    """Return the key of an entry without the ``observation`` that groups those of a ``Dict``.

    Example:
        >>> base_key(("observation", "image")), base_key("observation")
        ('image', 'observation')
    """
    if isinstance(key, tuple) and len(key) > 1 and key[0] == "observation":
        return key[1] if len(key) == 2 else key[1:]
    return key


def fit(value: Tensor | None, shape: Sequence[int]) -> Tensor:
    """Return a value in another shape: cut or filled with zeros where it differs."""
    size = torch.Size(shape)
    if value is None:
        return torch.zeros(size)
    if value.shape == size:
        return value
    if value.numel() == size.numel():
        return value.reshape(size)
    flat = value.reshape(-1)[: size.numel()]
    missing = size.numel() - flat.numel()
    return torch.cat([flat, flat.new_zeros(missing)]).reshape(size)
