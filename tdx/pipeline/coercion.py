"""Convert values of a pipeline to the declared types of arguments."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tdx.foundation.errors import PipelineError
from tdx.pipeline.grammar import parse_stage, parse_value
from tdx.pipeline.transform_info import Type
from tdx.pipeline.values import SPECS, TENSOR, Call, CodeReference, Dtype, Value

_DEVICE = re.compile(r"[a-z]+(:\d+)?")


class MismatchError(Exception):
    """A value does not have the declared type."""

    def __init__(self, type: Type, value: object, depth: int = 0) -> None:
        super().__init__(type, value, depth)
        self.type = type
        self.value = value
        self.depth = depth


def coerce(type: Type, value: Value, depth: int = 0) -> object:
    """Convert a value to a declared type; specs, transforms and dtypes stay plain data.

    Sequences become lists, and keys tuples. Integers become floats, and strings dtypes, specs or
    references, if the type allows only those.

    Raises:
        MismatchError: The value does not have that type.

    Example:
        >>> coerce(Type("keys"), ("pixels", ("agents", "pixels")))
        ['pixels', ('agents', 'pixels')]
        >>> coerce(Type("dtype"), "float32")
        Dtype(name='float32')
    """
    match type.name:
        case "union":
            exact = [option for option in type.items if _is_exact(option, value)]
            deepest = MismatchError(type, value, depth)
            for option in exact or type.items:
                try:
                    return coerce(option, value, depth)
                except MismatchError as mismatch:
                    if mismatch.depth > deepest.depth:
                        deepest = mismatch
            raise deepest
        case "keys" if isinstance(value, str):
            return [value]
        case "keys" | "sequence" if isinstance(value, tuple):
            inner = Type("key") if type.name == "keys" else type.items[0]
            return [coerce(inner, item, depth + 1) for item in value]
        case "dict" if isinstance(value, Mapping):
            return {key: coerce(type.items[0], item, depth + 1) for key, item in value.items()}
        case "keys" | "sequence" | "dict":
            raise MismatchError(type, value, depth)
    result = _coerce_leaf(type, value)
    if result is _NO_MATCH:
        raise MismatchError(type, value, depth)
    return result


def coerce_untyped(value: Value) -> object:
    """Convert a value without a declared type: the outer sequence becomes a list."""
    if isinstance(value, tuple):
        return list(value)
    return dict(value) if isinstance(value, Mapping) else value


class _NoMatch:
    """Sentinel for "does not have this type", as ``None`` is a value."""


_NO_MATCH = _NoMatch()


def _is_exact(type: Type, value: Value) -> bool:
    """True if a union should prefer this type because the value needs no conversion."""
    if isinstance(value, str):
        return type.name == "str" or (type.name == "literal" and value in type.values)
    if isinstance(value, bool):
        return type.name == "bool"
    if isinstance(value, int):
        return type.name == "int"
    return isinstance(value, float) and type.name == "float"


def _coerce_leaf(type: Type, value: Value) -> object:
    """Return a value as a type without inner types; :data:`_NO_MATCH` if it is none."""
    match type.name:
        case "any":
            return coerce_untyped(value)
        case "none":
            matches = value is None
        case "bool":
            matches = isinstance(value, bool)
        case "int":
            matches = isinstance(value, int) and not isinstance(value, bool)
        case "float":
            if isinstance(value, int | float) and not isinstance(value, bool):
                return float(value)
            matches = False
        case "str":
            matches = isinstance(value, str)
        case "literal":
            # 1, 1.0 and True are equal.
            same = (
                option
                for option in type.values
                if option == value and option.__class__ is value.__class__
            )
            return next(same, _NO_MATCH)
        case "key":
            parts = value if isinstance(value, tuple) else (value,)
            matches = parts != () and all(isinstance(part, str) for part in parts)
        case "dtype":
            if isinstance(value, str):
                return Dtype.named(value) or _NO_MATCH
            matches = isinstance(value, Dtype)
        case "device":
            matches = isinstance(value, str) and _DEVICE.fullmatch(value) is not None
        case "tensor":
            if _is_numeric(value):
                return Call(TENSOR, (value,))
            matches = isinstance(value, Call) and value.name == TENSOR
        case "spec":
            if isinstance(value, str):
                value = parse_or_none(value)
            matches = isinstance(value, Call) and value.name in SPECS
        case "transform":
            value = _as_call(value)
            matches = isinstance(value, Call) and value.name not in (*SPECS, TENSOR)
        case "callable":
            reference = CodeReference.of(value) if isinstance(value, str) else None
            return reference or _NO_MATCH
        case _:
            # A type without a name here takes a code reference, or plain data.
            reference = CodeReference.of(value) if isinstance(value, str) else None
            return reference or coerce_untyped(value)
    return value if matches else _NO_MATCH


def _is_numeric(value: Value) -> bool:
    if isinstance(value, tuple):
        return all(_is_numeric(item) for item in value)
    return isinstance(value, int | float)


def _as_call(value: Value) -> Value:
    """Return the transform that a text or an entry of a file names, as a call."""
    if isinstance(value, str):
        try:
            stage = parse_stage(value)
        except PipelineError:
            return None
        return Call(stage.name, stage.args, stage.kwargs)
    if not isinstance(value, Mapping) or len(value) != 1:
        return value
    ((name, arguments),) = value.items()
    if not isinstance(name, str):
        return None
    if isinstance(arguments, Mapping):
        return Call(name, (), {str(key): item for key, item in arguments.items()})
    if isinstance(arguments, tuple):
        return Call(name, arguments)
    return Call(name) if arguments is None else None


def parse_or_none(text: str) -> Value:
    """Parse the text of a value; ``None`` if it is not a literal."""
    try:
        return parse_value(text)
    except PipelineError:
        return None
