"""Convert values of a pipeline to the declared types of arguments."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from tdx.foundation.errors import PipelineError
from tdx.pipeline.grammar import parse_stage, parse_value
from tdx.pipeline.transform_info import Type
from tdx.pipeline.values import SPECS, TENSOR, Call, CodeReference, Dtype, Value

_DEVICE = re.compile(r"[a-z]+(:\d+)?")


class MismatchError(Exception):
    """A value does not have the declared type.

    Args:
        type: Declared type.
        value: The value.
        depth: Nesting depth of the value inside the argument.
    """

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
    if type.name == "union":
        return _coerce_union(type, value, depth)
    if type.name in _NESTED:
        return _NESTED[type.name](type, value, depth)
    result = _LEAVES[type.name](type, value)
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


def _coerce_union(type: Type, value: Value, depth: int) -> object:
    exact = [option for option in type.items if _is_exact(option, value)]
    deepest = MismatchError(type, value, depth)
    for option in exact or type.items:
        try:
            return coerce(option, value, depth)
        except MismatchError as mismatch:
            if mismatch.depth > deepest.depth:
                deepest = mismatch
    raise deepest


def _is_exact(type: Type, value: Value) -> bool:
    """True if a union should prefer this type because the value needs no conversion."""
    if isinstance(value, str):
        return type.name == "str" or (type.name == "literal" and value in type.values)
    if isinstance(value, bool):
        return type.name == "bool"
    if isinstance(value, int):
        return type.name == "int"
    return isinstance(value, float) and type.name == "float"


def _any(type: Type, value: Value) -> object:
    return coerce_untyped(value)


def _none(type: Type, value: Value) -> object:
    return None if value is None else _NO_MATCH


def _bool(type: Type, value: Value) -> object:
    return value if isinstance(value, bool) else _NO_MATCH


def _int(type: Type, value: Value) -> object:
    return value if isinstance(value, int) and not isinstance(value, bool) else _NO_MATCH


def _float(type: Type, value: Value) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return _NO_MATCH
    return float(value)


def _str(type: Type, value: Value) -> object:
    return value if isinstance(value, str) else _NO_MATCH


def _literal(type: Type, value: Value) -> object:
    same = (
        option for option in type.values if option == value and _type_of(option) is _type_of(value)
    )
    return next(same, _NO_MATCH)


def _type_of(value: object) -> object:
    return type(value)


def _key(type: Type, value: Value) -> object:
    if isinstance(value, str):
        return value
    if not isinstance(value, tuple) or not value:
        return _NO_MATCH
    return value if all(isinstance(part, str) for part in value) else _NO_MATCH


def _dtype(type: Type, value: Value) -> object:
    if isinstance(value, str):
        return Dtype.named(value) or _NO_MATCH
    return value if isinstance(value, Dtype) else _NO_MATCH


def _device(type: Type, value: Value) -> object:
    return value if isinstance(value, str) and _DEVICE.fullmatch(value) else _NO_MATCH


def _tensor(type: Type, value: Value) -> object:
    if isinstance(value, Call) and value.name == TENSOR:
        return value
    return Call(TENSOR, (value,)) if _is_numeric(value) else _NO_MATCH


def _is_numeric(value: Value) -> bool:
    if isinstance(value, tuple):
        return all(_is_numeric(item) for item in value)
    return isinstance(value, int | float)


def _spec(type: Type, value: Value) -> object:
    if isinstance(value, str):
        value = parse_or_none(parse_value, value)
    return value if isinstance(value, Call) and value.name in SPECS else _NO_MATCH


def _transform(type: Type, value: Value) -> object:
    if isinstance(value, str):
        value = parse_or_none(_stage_call, value)
    elif isinstance(value, Mapping) and len(value) == 1:
        ((name, arguments),) = value.items()
        value = _call_from_entry(name, arguments)
    if not isinstance(value, Call) or value.name in SPECS or value.name == TENSOR:
        return _NO_MATCH
    return value


def _call_from_entry(name: object, arguments: Value) -> Value:
    if not isinstance(name, str):
        return None
    if isinstance(arguments, Mapping):
        return Call(name, (), {str(key): value for key, value in arguments.items()})
    if isinstance(arguments, tuple):
        return Call(name, arguments)
    return Call(name) if arguments is None else None


def _stage_call(text: str) -> Value:
    stage = parse_stage(text)
    return Call(stage.name, stage.args, stage.kwargs)


def parse_or_none(parse: Callable[[str], Value], text: str) -> Value:
    """Return the result of ``parse``; ``None`` if the text cannot be parsed."""
    try:
        return parse(text)
    except PipelineError:
        return None


def _callable(type: Type, value: Value) -> object:
    return (CodeReference.of(value) if isinstance(value, str) else None) or _NO_MATCH


def _other(type: Type, value: Value) -> object:
    """Accept a value of a type without a name: a code reference, or plain data."""
    reference = CodeReference.of(value) if isinstance(value, str) else None
    return reference or coerce_untyped(value)


_LEAVES: Mapping[str, Callable[[Type, Value], object]] = {
    **{"any": _any, "none": _none, "bool": _bool, "int": _int, "float": _float, "str": _str},
    **{"literal": _literal, "key": _key, "dtype": _dtype, "device": _device, "tensor": _tensor},
    **{"spec": _spec, "transform": _transform, "callable": _callable, "other": _other},
}


def _keys(type: Type, value: Value, depth: int) -> object:
    if isinstance(value, str):
        return [value]
    if not isinstance(value, tuple):
        raise MismatchError(type, value, depth)
    return [coerce(Type("key"), item, depth + 1) for item in value]


def _sequence(type: Type, value: Value, depth: int) -> object:
    if not isinstance(value, tuple):
        raise MismatchError(type, value, depth)
    return [coerce(type.items[0], item, depth + 1) for item in value]


def _dict(type: Type, value: Value, depth: int) -> object:
    if not isinstance(value, Mapping):
        raise MismatchError(type, value, depth)
    return {key: coerce(type.items[0], item, depth + 1) for key, item in value.items()}


_NESTED: Mapping[str, Callable[[Type, Value, int], object]] = {
    **{"keys": _keys, "sequence": _sequence, "dict": _dict},
}
