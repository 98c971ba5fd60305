"""Values in a YAML file: plain YAML, and the text of ``--t`` for what YAML has no form for.

A string that spells a dtype (``torch.float32``) or a call (``Unbounded(shape=(3,))``) is that
dtype or call. A string that starts with ``=`` is read as the text after it, which is how any other
value, and a string that happens to look like a call, is written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from tdx.errors import PipelineError
from tdx.pipeline.formatting import format_value, quote, shortened
from tdx.pipeline.grammar import checked_integer, parse_value
from tdx.pipeline.values import Call, CodeReference, DictKey, Dtype, Value
from tdx.untrusted import MAX_VALUES

_CALL = re.compile(r"(?:[A-Z]\w*|tensor)\(.*\)", re.DOTALL)
_DEEPEST = 50


def decode(node: object) -> Value:
    """The value that a loaded YAML node holds.

    Raises:
        PipelineError: it is something that a pipeline has no use for, such as a date.

    Example:
        >>> decode({"shape": [3], "spec": "Unbounded(shape=(3,))", "text": "='f(x)'"})["text"]
        'f(x)'
    """
    return _Decoder().value(node)


def encode(value: Value) -> object:
    """Plain data for a YAML file; the inverse of :func:`decode`.

    Example:
        >>> encode((("agents", "reward"), Dtype("float32"), "A(b)"))
        [['agents', 'reward'], 'torch.float32', '="A(b)"']
    """
    if isinstance(value, tuple):
        return [encode(item) for item in value]
    if isinstance(value, Mapping):
        return {_encode_key(key): encode(item) for key, item in value.items()}
    if isinstance(value, str):
        return f"={quote(value)}" if _is_text_of_value(value) else value
    if isinstance(value, Dtype):
        return f"torch.{value.name}"
    if isinstance(value, Call):
        text = format_value(value)
        return text if _CALL.fullmatch(text) else f"={text}"
    if isinstance(value, CodeReference):
        return str(value)
    return value


def _encode_key(key: DictKey) -> str | int:
    encoded = encode(key)
    return encoded if isinstance(encoded, str | int) else f"={format_value(key)}"


def _is_text_of_value(text: str) -> bool:
    return (
        text.startswith("=")
        or (text.startswith("torch.") and Dtype.named(text) is not None)
        or _CALL.fullmatch(text) is not None
    )


class _Decoder:
    """Counts what it reads, as a few aliases can make a small file hold millions of values."""

    def __init__(self) -> None:
        self.count = 0

    def value(self, node: object, depth: int = 0) -> Value:
        self.count += 1
        if self.count > MAX_VALUES or depth > _DEEPEST:
            raise PipelineError(
                "there are too many values in here, or one that contains itself",
                hint="look at the aliases (*name); a pipeline needs few values",
            )
        if isinstance(node, str):
            return _from_text(str(node))
        if node is None or isinstance(node, bool):
            return node
        if isinstance(node, int):
            return checked_integer(int(node))
        if isinstance(node, float):
            return float(node)
        if isinstance(node, list | tuple):
            return tuple(self.value(item, depth + 1) for item in node)
        if isinstance(node, Mapping):
            pairs = ((self.key(key), self.value(item, depth + 1)) for key, item in node.items())
            return dict(pairs)
        hint = "put it in quotes to make it a string"
        shown = shortened(str(node))
        raise PipelineError(f"{shown} is a {type(node).__name__}, not a value here", hint=hint)

    def key(self, node: object) -> DictKey:
        key = self.value(node)
        if isinstance(key, str | int) and not isinstance(key, bool):
            return key
        if isinstance(key, tuple):
            return tuple(str(part) for part in key)
        raise PipelineError(f"{shortened(str(key))} cannot be a key", hint="put it in quotes")


def _from_text(text: str) -> Value:
    if not _is_text_of_value(text):
        return text
    return parse_value(text.removeprefix("="))
