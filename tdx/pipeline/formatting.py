"""Write stages and values back as the text of ``--t``; the inverse of the grammar."""

from __future__ import annotations

import math
from collections.abc import Mapping

from tdx.pipeline.model import StageConfig
from tdx.pipeline.values import Call, CodeReference, Dtype, Value


def format_stage(stage: StageConfig) -> str:
    """The text of ``--t`` for a stage.

    Example:
        >>> format_stage(StageConfig("CatFrames", (4,), {"in_keys": ("pixels",)}))
        'CatFrames(4, in_keys=["pixels"])'
        >>> format_stage(StageConfig("RewardSum"))
        'RewardSum'
    """
    arguments = format_arguments(stage.args, stage.kwargs)
    return f"{stage.name}({arguments})" if arguments else stage.name


def format_arguments(args: tuple[Value, ...], kwargs: Mapping[str, Value]) -> str:
    """What stands between the brackets; a list that is itself an argument gets square ones."""
    positional = [format_argument(value) for value in args]
    named = [f"{name}={format_argument(value)}" for name, value in kwargs.items()]
    return ", ".join([*positional, *named])


def format_argument(value: Value) -> str:
    """A value where it is an argument of a transform."""
    if isinstance(value, tuple):
        return f"[{', '.join(format_value(item) for item in value)}]"
    return format_value(value)


def format_value(value: Value) -> str:
    """A value inside another one.

    Example:
        >>> format_value({"hidden": Call("Unbounded", (), {"shape": (3,)})})
        '{"hidden": Unbounded(shape=(3,))}'
    """
    if isinstance(value, str):
        return quote(value)
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, tuple):
        items = ", ".join(format_value(item) for item in value)
        return f"({items},)" if len(value) == 1 else f"({items})"
    if isinstance(value, Mapping):
        pairs = (f"{format_value(key)}: {format_value(item)}" for key, item in value.items())
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, Dtype):
        return f"torch.{value.name}"
    if isinstance(value, Call):
        named = (f"{name}={format_value(item)}" for name, item in value.kwargs.items())
        return f"{value.name}({', '.join([*map(format_value, value.args), *named])})"
    if isinstance(value, CodeReference):
        return quote(str(value))
    return repr(value)


def shortened(text: str, width: int = 60) -> str:
    """The beginning of a text that is too long for a message.

    Example:
        >>> shortened("0123456789", 8)
        '01234...'
    """
    return text if len(text) <= width else f"{text[: width - 3]}..."


def quote(text: str) -> str:
    """A string literal, in double quotes where that needs no escape."""
    literal = repr(text)
    if literal[0] == '"' or '"' in text:
        return literal
    return f'"{literal[1:-1]}"'


def _number(value: float) -> str:
    if math.isnan(value):
        return "nan"
    return repr(value)
