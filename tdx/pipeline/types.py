"""The types an argument can be declared with, as plain data and in plain words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tdx.pipeline.formatting import format_value
from tdx.pipeline.values import Value

# fmt: off
TypeName = Literal[
    "any", "none", "bool", "int", "float", "str", "key", "keys", "dtype", "device", "tensor",
    "spec", "transform", "callable", "literal", "sequence", "dict", "union", "other",
]
# fmt: on

WORDS: Mapping[str, tuple[str, str]] = {
    "any": ("any value", "values"),
    "none": ("None", "None"),
    "bool": ("True or False", "booleans"),
    "int": ("a whole number", "whole numbers"),
    "float": ("a number", "numbers"),
    "str": ("a string", "strings"),
    "key": ("a key (a string or a tuple of strings)", "keys"),
    "keys": ("a list of keys", "lists of keys"),
    "dtype": ("a dtype such as torch.float32", "dtypes"),
    "device": ("a device such as cuda:0", "devices"),
    "tensor": ("a tensor (a number, or lists of numbers)", "tensors"),
    "spec": ("a spec such as Unbounded(shape=(3,))", "specs"),
    "transform": ("a transform", "transforms"),
    "callable": ("a Python object written module:name", "Python objects written module:name"),
}


@dataclass(frozen=True, slots=True)
class Type:
    """One declared type.

    Args:
        name: which type it is.
        items: the types inside: of a sequence (one), a dict's values (one) or a union.
        values: the values that a ``literal`` allows.
        text: how it is written in the source, for a type that has no name here.
    """

    name: TypeName
    items: tuple[Type, ...] = ()
    values: tuple[Value, ...] = ()
    text: str = ""

    @property
    def options(self) -> tuple[Type, ...]:
        """What a union allows; of any other type, itself."""
        return self.items if self.name == "union" else (self,)

    @property
    def is_optional(self) -> bool:
        """Whether None is allowed."""
        return any(option.name in ("none", "any") for option in self.options)

    def words(self) -> str:
        """The type as a sentence names it.

        Example:
            >>> Type("union", (Type("int"), Type("sequence", (Type("int"),)), Type("none"))).words()
            'a whole number, a list of whole numbers or None'
        """
        if self.name == "union":
            return _either([option.words() for option in self.items])
        if self.name == "literal":
            return "one of " + _either([format_value(value) for value in self.values])
        if self.name == "sequence":
            return f"a list of {self.items[0].plural()}"
        if self.name == "dict":
            return f"a dict of {self.items[0].plural()}"
        return self.text if self.name == "other" else WORDS[self.name][0]

    def plural(self) -> str:
        """The type as a sentence names many of it."""
        named = WORDS.get(self.name)
        return named[1] if named else f"values that are {self.words()}"

    def to_json(self) -> dict[str, Any]:
        """Plain data; the inverse of :meth:`from_json`."""
        data: dict[str, Any] = {"name": self.name}
        if self.items:
            data["items"] = [item.to_json() for item in self.items]
        if self.values:
            data["values"] = list(self.values)
        if self.text:
            data["text"] = self.text
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Type:
        """The type that :meth:`to_json` wrote."""
        items = tuple(cls.from_json(item) for item in data.get("items", ()))
        return cls(data["name"], items, tuple(data.get("values", ())), data.get("text", ""))


def _either(parts: list[str]) -> str:
    return " or ".join(part for part in (", ".join(parts[:-1]), parts[-1]) if part)


def union(options: list[Type]) -> Type:
    """One type out of several; unions inside are flattened and repetitions left out."""
    flat = dict.fromkeys(option for given in options for option in given.options)
    return next(iter(flat)) if len(flat) == 1 else Type("union", tuple(flat))
