"""JSON Schema of dataclasses, results and typed dicts, from their annotations and docstrings."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from inspect import get_annotations, getattr_static, getdoc, getmodule
from pathlib import PurePath
from typing import Any, NotRequired, get_args, get_origin, get_type_hints, is_typeddict

from tdx.foundation.serialization import Entry, Result
from tdx.pipeline.generate import Schema
from tdx.pipeline.transform_info import markdown, parse_argument_help

_NUMBER: Schema = {
    "description": "JSON has no infinite numbers and no NaN: they are strings.",
    "anyOf": [{"type": "number"}, {"enum": ["inf", "-inf", "nan"]}],
}
_SCALARS: Mapping[object, Schema] = {
    Any: {},
    object: {},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"$ref": "#/$defs/Number"},
    str: {"type": "string"},
    type(None): {"type": "null"},
}


class SchemaBuilder:
    """Builds the schema of types; named types become definitions.

    Example:
        >>> SchemaBuilder().schema_of(tuple[int, ...])
        {'type': 'array', 'items': {'type': 'integer'}}
    """

    def __init__(self) -> None:
        self.definitions: dict[str, Schema] = {"Number": _NUMBER}
        self._kinds: dict[str, Any] = {}

    def schema_of(self, kind: Any) -> Schema:
        """Return the schema of the plain data of a type.

        Raises:
            TypeError: JSON has no representation of the type.
        """
        if kind in _SCALARS:
            return dict(_SCALARS[kind])
        inner = get_args(kind)
        match get_origin(kind):
            case typing.Union | types.UnionType:
                return _any_of([self.schema_of(argument) for argument in inner])
            case typing.Literal:
                return {"enum": list(inner)}
            case origin if isinstance(origin, type):
                return self._container(origin, inner)
        if isinstance(kind, type) and issubclass(kind, Enum):
            return {"enum": [member.value for member in kind]}
        if isinstance(kind, type) and issubclass(kind, PurePath):
            return {"type": "string"}
        if is_typeddict(kind) or (is_dataclass(kind) and isinstance(kind, type)):
            return self._reference(kind)
        if hasattr(kind, "to_dict"):
            return self.schema_of(get_type_hints(kind.to_dict)["return"])
        raise TypeError(f"no JSON Schema for {kind!r}")

    def _container(self, origin: type, inner: tuple[Any, ...]) -> Schema:
        if issubclass(origin, Mapping) and get_origin(inner[0]) is typing.Literal:
            names = get_args(inner[0])
            return closed_object(dict.fromkeys(names, self.schema_of(inner[1])), list(names))
        if issubclass(origin, Mapping):
            return {"type": "object", "additionalProperties": self.schema_of(inner[1])}
        if origin is tuple and inner[-1] is not ...:
            items = [self.schema_of(argument) for argument in inner]
            return {"type": "array", "prefixItems": items, "items": False}
        return {"type": "array", "items": self.schema_of(inner[0])}

    def _reference(self, kind: Any) -> Schema:
        if self._kinds.setdefault(kind.__name__, kind) is not kind:
            raise TypeError(f"two types of one document have the name {kind.__name__}")
        if kind.__name__ not in self.definitions:
            self.definitions[kind.__name__] = {}  # Ends a recursion.
            self.definitions[kind.__name__] = self.object_schema(kind)
        return {"$ref": f"#/$defs/{kind.__name__}"}

    def object_schema(self, kind: Any) -> Schema:
        """Return the schema of a dataclass, result or typed dict, without making a definition."""
        if isinstance(kind, type) and issubclass(kind, Result) and kind.json_entries:
            entries = [Entry(e) if isinstance(e, str) else e for e in kind.json_entries]
            properties, required = self._entries(kind, entries)
        elif is_typeddict(kind):
            # Python does not find NotRequired in annotations that are strings.
            marked = get_type_hints(kind, include_extras=True)
            optional = {n for n, hint in marked.items() if get_origin(hint) is NotRequired}
            hints = get_type_hints(kind)
            properties = {name: self.schema_of(hint) for name, hint in hints.items()}
            required = [name for name in hints if name in kind.__required_keys__ - optional]
        else:
            properties, required = self._fields(kind)
        return closed_object(properties, required)

    def _fields(self, kind: Any) -> tuple[dict[str, Schema], list[str]]:
        hints, helps = get_type_hints(kind), parse_argument_help(getdoc(kind) or "")
        properties = {
            field.name: _described(self.schema_of(hints[field.name]), helps.get(field.name))
            for field in fields(kind)
        }
        return properties, [
            field.name for field in fields(kind) if not field.metadata.get("omit_empty")
        ]

    def _entries(self, kind: type, entries: list[Entry]) -> tuple[dict[str, Schema], list[str]]:
        properties: dict[str, Schema] = {}
        required: list[str] = []
        for entry in entries:
            hint, text = _find_annotation(kind, entry)
            if entry.inline:
                inner, names = self._inline(hint)
                properties |= inner
                required += names
                continue
            schema = self._without(hint, entry.without) if entry.without else self.schema_of(hint)
            if entry.omit_none:
                schema = _without_null(schema)
            properties[entry.name] = _described(schema, text)
            if not (entry.optional or entry.omit_none):
                required.append(entry.name)
        return properties, required

    def _inline(self, hint: Any) -> tuple[dict[str, Schema], list[str]]:
        """Return the properties of a class, or of all classes of a union."""
        options = get_args(hint) if get_origin(hint) in (typing.Union, types.UnionType) else [hint]
        schemas = [self.object_schema(option) for option in options]
        properties = {
            name: value for schema in schemas for name, value in schema["properties"].items()
        }
        shared = [name for name in properties if all(name in s["required"] for s in schemas)]
        return properties, shared

    def add_entries(self, array: Schema | None, added: Schema) -> Schema:
        """Return the schema of the objects in an array, with more entries.

        Without an array, the objects have no other entries.
        """
        items = {"properties": {}, "required": []} if array is None else array["items"]
        if "$ref" in items:
            items = self.definitions.pop(items["$ref"].rpartition("/")[2])
        required = dict.fromkeys([*items["required"], *added["required"]])
        return closed_object({**items["properties"], **added["properties"]}, list(required))

    def _without(self, hint: Any, names: tuple[str, ...]) -> Schema:
        """Return the schema of a class, or of ``None``, without some of its entries."""
        kinds = [option for option in get_args(hint) or (hint,) if option is not type(None)]
        name = f"{kinds[0].__name__}Without{''.join(name.title() for name in names)}"
        schema = self.object_schema(kinds[0])
        kept = {key: value for key, value in schema["properties"].items() if key not in names}
        required = [key for key in schema["required"] if key not in names]
        self.definitions[name] = closed_object(kept, required)
        reference = {"$ref": f"#/$defs/{name}"}
        return reference if len(get_args(hint)) < 2 else _any_of([reference, {"type": "null"}])


def closed_object(properties: Mapping[str, Schema], required: list[str]) -> Schema:
    """Return the schema of an object that has no other properties."""
    return {
        "type": "object",
        "properties": dict(properties),
        "required": required,
        "additionalProperties": False,
    }


def _any_of(options: list[Schema]) -> Schema:
    """Return the union of schemas; simple types become a list."""
    if all(set(option) == {"type"} for option in options):
        return {"type": [option["type"] for option in options]}
    flat = [alternative for option in options for alternative in option.get("anyOf", [option])]
    return {"anyOf": flat}


def _without_null(schema: Schema) -> Schema:
    """Return the schema of a value that is not ``None``."""
    if isinstance(schema.get("type"), list):
        kinds = [kind for kind in schema["type"] if kind != "null"]
        return {"type": kinds[0] if len(kinds) == 1 else kinds}
    options = [option for option in schema.get("anyOf", []) if option != {"type": "null"}]
    return options[0] if len(options) == 1 else {**schema, "anyOf": options} if options else schema


def _described(schema: Schema, text: str | None) -> Schema:
    return {**schema, "description": markdown(text)} if text else schema


def _find_annotation(kind: type, entry: Entry) -> tuple[Any, str | None]:
    """Return the type of the value of an entry, and its description."""
    if entry.type is not None:
        return entry.type, parse_argument_help(getdoc(kind) or "").get(entry.name)
    path = (entry.attribute or entry.name).split(".")
    owner: Any = kind
    is_optional = False
    for position, name in enumerate(path):
        hint, text = _attribute(owner, name)
        if position < len(path) - 1:
            is_optional |= type(None) in get_args(hint)
            owner = next(option for option in get_args(hint) or (hint,) if option is not type(None))
    if entry.convert is not None:
        is_optional |= type(None) in get_args(hint)
        hint = get_type_hints(entry.convert)["return"]
    return (hint | None if is_optional else hint), text


def _attribute(owner: type, name: str) -> tuple[Any, str | None]:
    """Return the annotation and the description of a field or a property."""
    declared = getattr_static(owner, name, None)
    if isinstance(declared, property):
        getter: Callable[..., Any] = declared.fget  # type: ignore[assignment]
        summary = (getter.__doc__ or "").partition("\n\n")[0]
        return get_type_hints(getter)["return"], " ".join(summary.split())
    # Other annotations may name what their module imports for type checking only.
    source = next(base for base in owner.__mro__ if name in get_annotations(base))
    only = types.SimpleNamespace(__annotations__={name: get_annotations(source)[name]})
    hints = get_type_hints(only, vars(getmodule(source)))
    return hints[name], parse_argument_help(getdoc(owner) or "").get(name)
