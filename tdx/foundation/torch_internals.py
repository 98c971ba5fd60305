"""Private parts of torch, and what each of them buys; no other module uses them.

``tests/foundation/test_private_parts.py`` fails with the name of the part if a release of torch
changes one. Attributes that ``torch.nn.Module`` leaves to its subclasses, such as ``_apply``, are
not meant. :func:`unravel_positions` and :func:`broadcast_shapes` replace public functions that
import slowly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from operator import attrgetter

import numpy as np
import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import TreeSpec, tree_flatten, tree_map, tree_unflatten

__all__ = [
    "OpOverload",
    "TorchDispatchMode",
    "TreeSpec",
    "argument_names",
    "broadcast_shapes",
    "by_device",
    "exporting",
    "forward_hooks",
    "has_hooks",
    "in_place_count",
    "is_exporting",
    "is_profiler_enabled",
    "tree_flatten",
    "tree_map",
    "tree_unflatten",
    "unravel_positions",
    "unwrap_function_level",
    "version_of",
]
# The trees are those of users' samples: only this module knows which containers torch.utils.data,
# torch.vmap and torch.compile take apart, registered ones included. `OpOverload` tells the nodes of
# an exported graph that call an operator, `TorchDispatchMode` sees the operators that a program
# calls; torch documents both, but has no public name for them.


def argument_names(operator: OpOverload) -> list[str]:
    """Return the names of the arguments of an operator, which positional ones lack in a call."""
    return [argument.name for argument in operator._schema.arguments]


version_of = attrgetter("_version")
"""Returns how often a tensor was written in place; a tensor of the inference mode has no counter.

The alternative is a copy of every tensor before each call that may write to it.
"""


def in_place_count(value: object) -> int | None:
    """Return how often a tensor was written in place; ``None`` if torch does not count it."""
    if not isinstance(value, Tensor) or value.is_inference():
        return None
    return value._version


_exporting: ContextVar[bool] = ContextVar("exporting", default=False)


@contextmanager
def exporting() -> Iterator[None]:
    """Let :func:`is_exporting` return True, for tracers that torch does not call an export."""
    token = _exporting.set(True)
    try:
        yield
    finally:
        _exporting.reset(token)


def is_exporting() -> bool:
    """Return True while a graph is traced to be exported: values must not decide anything."""
    # Before torch 2.7, it does not tell an export from a compilation.
    tracing = getattr(torch.compiler, "is_exporting", None)
    return _exporting.get() or (tracing is not None and bool(tracing()))


def forward_hooks(module: nn.Module) -> tuple[Mapping[int, object], Mapping[int, object]]:
    """Return the hooks of a call, before and after ``forward``; both follow later changes.

    Without hooks, ``forward`` can be called directly, or a kernel in its place.
    """
    return module._forward_pre_hooks, module._forward_hooks


def has_hooks(module: nn.Module) -> bool:
    """Return True if a call of a module runs anything but ``forward``."""
    backward = module._backward_hooks, module._backward_pre_hooks
    return any((*forward_hooks(module), *backward))


def is_profiler_enabled() -> bool:
    """Return True if a profiler of torch is running; a second one would end it."""
    return bool(torch._C._autograd._profiler_enabled())


def broadcast_shapes(*shapes: Sequence[int]) -> torch.Size:
    """Return the shape to which shapes broadcast; ValueError if they do not.

    ``torch.broadcast_shapes`` imports SymPy and ``torch.distributed`` in its first call, which
    takes almost a second.
    """
    return torch.Size(np.broadcast_shapes(*map(tuple, shapes)))


def unravel_positions(positions: Tensor, shape: Sequence[int]) -> tuple[Tensor, ...]:
    """Return the coordinates of flat positions, int64 ``[N]``, in an array.

    ``torch.unravel_index`` does the same, but imports SymPy, which takes a second.
    """
    places = []
    for size in reversed(shape):
        places.append(positions % size)
        positions = positions // size
    return tuple(reversed(places))


Grouped = dict[tuple[torch.device, torch.dtype], tuple[list[list[Tensor | None]], list[int]]]


def by_device(
    device_of: Callable[[Tensor], torch.device],
) -> tuple[object, str, Callable[..., Grouped]]:
    """Return a replacement of the function that groups tensors by device and dtype.

    Optimizers and the clipping of gradients use it. It is written in C++, so that no mode sees it.
    The result is the owner of the function, its name, and the replacement, which asks ``device_of``
    for the device of a tensor on the host.
    """
    name = "_group_tensors_by_device_and_dtype"
    original = getattr(torch._C, name)

    def group(lists: list[list[Tensor | None]], with_indices: bool = False) -> Grouped:
        result: Grouped = {}
        for (device, dtype), (tensors, indices) in original(lists, True).items():
            for place, first in enumerate(tensors[0]):
                assert first is not None
                key = (device_of(first) if device.type == "cpu" else device, dtype)
                groups, places = result.setdefault(key, ([[] for _ in tensors], []))
                for group, members in zip(groups, tensors, strict=True):
                    # Lists without tensors are empty.
                    group.extend(members[place : place + 1])
                if with_indices:
                    places.append(indices[place])
        return result

    return torch._C, name, group


def unwrap_function_level(tensor: Tensor) -> Tensor:
    """Return the tensor that holds the memory of an argument within ``vmap`` or ``grad``.

    The argument itself has no storage.
    """
    functions = torch._C._functorch
    while functions.is_functorch_wrapped_tensor(tensor):
        tensor = functions.get_unwrapped(tensor)
    return tensor


def import_compiler() -> None:
    """Import torch's compiler, which takes a second; the modes of torch need it."""
    import torch._dynamo  # noqa: F401
