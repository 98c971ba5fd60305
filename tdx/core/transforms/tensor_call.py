"""A transform called with tensors in the place of a TensorDict."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tensordict import TensorDict, TensorDictBase

from tdx.core.transforms.key_pairs import missing_key
from tdx.errors import ArgumentError
from tdx.keys import NestedKey, split_key
from tdx.tensordicts import read


def called_with_tensors(
    function: Callable[[TensorDictBase], TensorDictBase],
    in_keys: Sequence[NestedKey],
    out_keys: Sequence[NestedKey],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Any:
    """Call a function over a TensorDict with tensors.

    Args:
        function: what to call.
        in_keys: the keys of the tensors in ``args``, in order; names of ``kwargs`` are these with
            ``_`` between the parts of nested ones.
        out_keys: the keys of what is returned.
        args: tensors ``[*B, ...]`` by place.
        kwargs: tensors by name.

    Returns:
        the value of each out-key; of one alone, without a tuple around it.

    Raises:
        ArgumentError: there are more tensors than in-keys, or one of another name.
        KeyNotFoundError: an in-key is not given, or an out-key is not written.
    """
    names = {"_".join(split_key(key)): key for key in in_keys}
    given = dict(zip(names.values(), args, strict=False))
    odd = [name for name in kwargs if name not in names]
    if len(args) > len(names) or odd:
        what = f"no argument {odd[0]!r}" if odd else f"{len(names)} tensors, got {len(args)}"
        hint = f"its arguments are {', '.join(names)}" if names else "call it with a TensorDict"
        raise ArgumentError(f"it takes {what}", hint=hint)
    given |= {names[name]: value for name, value in kwargs.items()}
    absent = [key for key in in_keys if key not in given]
    if absent:
        raise missing_key(absent[0], list(given), "the call")
    result = function(TensorDict(given).auto_batch_size_())
    for key in out_keys:
        if read(result, key) is None:
            known = list(result.keys(True, True))
            raise missing_key(key, known, "what the transform makes of these tensors")
    values = tuple(read(result, key) for key in out_keys)
    return values[0] if len(values) == 1 else values
