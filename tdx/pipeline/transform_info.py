"""Declarations of transforms: their arguments with types, their documentation, and the catalog."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, Literal

from tdx.foundation.errors import UnknownNameError, did_you_mean, find_similar_names
from tdx.foundation.keys import NestedKey, normalize_key
from tdx.foundation.plugins import explain_missing
from tdx.foundation.serialization import omit_empty
from tdx.pipeline.aliases import ALIASES, aliases_of, find_aliased, find_aliased_calls
from tdx.pipeline.grammar import format_value
from tdx.pipeline.values import Value

# fmt: off
TypeName = Literal[
    "any", "none", "bool", "int", "float", "str", "key", "keys", "dtype", "device", "tensor",
    "spec", "transform", "callable", "literal", "sequence", "dict", "union", "other",
]
# fmt: on

TYPE_PHRASES: Mapping[str, tuple[str, str]] = {
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
    """Declared type of an argument.

    Args:
        name: Name of the type.
        items: Inner types: of a sequence (one), of the values of a dict (one), or of a union.
        values: Values that a ``literal`` allows.
        text: Annotation as written in the source, for a type that has no name here.
    """

    name: TypeName
    items: tuple[Type, ...] = omit_empty(())
    values: tuple[Value, ...] = omit_empty(())
    text: str = omit_empty("")

    @property
    def options(self) -> tuple[Type, ...]:
        """Members of a union; any other type is its own only option."""
        return self.items if self.name == "union" else (self,)

    def words(self) -> str:
        """Return the type as a phrase for messages.

        Example:
            >>> Type("union", (Type("int"), Type("sequence", (Type("int"),)), Type("none"))).words()
            'a whole number, a list of whole numbers or None'
        """
        if self.name == "union":
            return _join_alternatives([option.words() for option in self.items])
        if self.name == "literal":
            return "one of " + _join_alternatives([format_value(value) for value in self.values])
        if self.name == "sequence":
            return f"a list of {self.items[0].plural()}"
        if self.name == "dict":
            return f"a dict of {self.items[0].plural()}"
        return self.text if self.name == "other" else TYPE_PHRASES[self.name][0]

    def plural(self) -> str:
        """Return the type as a plural phrase for messages."""
        named = TYPE_PHRASES.get(self.name)
        return named[1] if named else f"values that are {self.words()}"

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Type:
        """Create a type from its plain data."""
        items = tuple(cls.from_json(item) for item in data.get("items", ()))
        return cls(data["name"], items, tuple(data.get("values", ())), data.get("text", ""))


def _join_alternatives(parts: list[str]) -> str:
    return " or ".join(part for part in (", ".join(parts[:-1]), parts[-1]) if part)


def make_union(options: list[Type]) -> Type:
    """Combine types into one; flattens unions and drops duplicates."""
    flat = dict.fromkeys(option for given in options for option in given.options)
    return next(iter(flat)) if len(flat) == 1 else Type("union", tuple(flat))


ParameterKind = Literal["positional", "keyword", "var_positional", "var_keyword"]
TimeBehavior = Literal["pointwise", "scan", "control"]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One argument of a transform's constructor.

    Args:
        name: Name.
        annotation: Annotation as written in the source.
        default: Default as written in the source. ``None``: required.
        help: Description from the docstring, on one line.
        kind: How it can be passed; ``positional`` arguments can be named too.
        type: Declared type.
    """

    name: str
    annotation: str | None
    default: str | None
    help: str
    kind: ParameterKind
    type: Type

    @property
    def required(self) -> bool:
        """True if the argument has no default."""
        return self.default is None and self.kind in ("positional", "keyword")

    @property
    def signature(self) -> str:
        """Text of the argument in a signature."""
        stars = {"var_positional": "*", "var_keyword": "**"}.get(self.kind, "")
        annotation = f": {self.annotation}" if self.annotation else ""
        spaced = " = " if self.annotation else "="
        return f"{stars}{self.name}{annotation}" + (
            f"{spaced}{self.default}" if self.default else ""
        )

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Parameter:
        """Create a parameter from its plain data."""
        return cls(**{**data, "type": Type.from_json(data["type"])})


@dataclass(frozen=True, slots=True)
class TransformInfo:
    """Declaration of a transform.

    Args:
        name: Class name.
        module: Module of the class.
        category: Folder of the module.
        time_behavior: ``pointwise``, ``scan`` or ``control``.
        summary: First paragraph of the docstring, on one line.
        doc: Whole docstring.
        default_in_keys: Default of ``in_keys``, if the class declares one.
        parameters: Arguments of the constructor, in order.
        package: Package that provides it as a plugin. Empty: tdx.
    """

    name: str
    module: str
    category: str
    time_behavior: str
    summary: str
    doc: str
    default_in_keys: tuple[NestedKey, ...] | None = field(default=None, kw_only=True)
    package: str = field(default="", kw_only=True, metadata={"omit_empty": True})
    parameters: tuple[Parameter, ...]

    @property
    def signature(self) -> str:
        """Signature of the constructor, ``StepCounter(max_steps: int | None = None, …)``."""
        shown = [parameter.signature for parameter in self.parameters]
        kinds = [parameter.kind for parameter in self.parameters]
        if "keyword" in kinds and "var_positional" not in kinds:
            shown.insert(kinds.index("keyword"), "*")
        return f"{self.name}({', '.join(shown)})"

    @property
    def positional(self) -> list[Parameter]:
        """Arguments that can be passed by position."""
        return [parameter for parameter in self.parameters if parameter.kind == "positional"]

    @property
    def named(self) -> list[Parameter]:
        """Arguments that can be passed by name."""
        return [
            parameter
            for parameter in self.parameters
            if parameter.kind in ("positional", "keyword")
        ]

    def parameter(self, name: str) -> Parameter | None:
        """Return the argument with this name; ``None`` if there is none."""
        return next((parameter for parameter in self.parameters if parameter.name == name), None)

    def rest(self, kind: Literal["var_positional", "var_keyword"]) -> Parameter | None:
        """Return the argument that takes any further ones, ``*args`` or ``**kwargs``."""
        return next((parameter for parameter in self.parameters if parameter.kind == kind), None)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TransformInfo:
        """Create a declaration from its plain data."""
        parameters = tuple(Parameter.from_json(entry) for entry in data["parameters"])
        given = data.get("default_in_keys")
        in_keys = None if given is None else tuple(normalize_key(key) for key in given)
        return cls(**{**data, "parameters": parameters, "default_in_keys": in_keys})


COMPOSE = TransformInfo(
    name="Compose",
    module="tdx.core.transforms.compose",
    category="chain",
    time_behavior="control",
    summary="Several transforms, one after the other.",
    doc="Several transforms, one after the other.",
    parameters=(
        Parameter(
            *("transforms", "Transform", None, "the transforms in order.", "var_positional"),
            type=Type("transform"),
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class Catalog:
    """All transforms that a pipeline can name."""

    transforms: tuple[TransformInfo, ...]

    @property
    def names(self) -> list[str]:
        """Names of the transforms, in catalog order."""
        return [info.name for info in self.transforms]

    @property
    def categories(self) -> list[str]:
        """Categories that have at least one transform."""
        return list(dict.fromkeys(info.category for info in self.transforms))

    def find(self, name: str) -> TransformInfo | None:
        """Return the transform with this name (also ``Compose``); ``None`` if unknown."""
        if name == COMPOSE.name:
            return COMPOSE
        return next((info for info in self.transforms if info.name == name), None)

    def __getitem__(self, name: str) -> TransformInfo:
        """Return the transform with this name.

        Raises:
            UnknownNameError: No transform has this name; the hint has the nearest names.
        """
        info = self.find(name)
        if info is None:
            hint = explain_missing("tdx.transforms", name) or self.nearest(name)
            raise UnknownNameError(
                f"unknown transform {name}", hint=hint or "`tdx list transforms` prints all of them"
            )
        return info

    def nearest(self, name: str) -> str | None:
        """Return a hint with the transforms for a name of another library, or of similar names."""
        aliased = find_aliased_calls(name)
        if not aliased:
            known = [*self.names, COMPOSE.name, *ALIASES]
            similar = find_similar_names(name, known)
            own = [one for one in similar if one not in ALIASES]
            # Every wrapper is similar to every other one: only a misspelling counts.
            close = find_similar_names(name, ALIASES, cutoff=0.8)
            if own or not close:
                return did_you_mean(name, own)
            name = close[0]
            aliased = find_aliased_calls(name)
        return f"{name} of other libraries is {_join_names(aliased)} here"

    def search(self, words: str) -> list[TransformInfo]:
        """Return the transforms whose name, category, summary or aliases contain every word.

        A name of another library, such as ``frame stack``, finds its transforms, in the order in
        which they would be used. If there is none, return those whose documentation has words that
        begin with all of them.
        """
        aliased = [info for name in find_aliased(words) if (info := self.find(name)) is not None]
        if aliased:
            return aliased
        terms = words.casefold().split()
        named = [
            info for info in self.transforms if all(term in _search_text(info) for term in terms)
        ]
        starts = [re.compile(rf"\b{re.escape(term)}", re.IGNORECASE) for term in terms]
        return named or [
            info
            for info in self.transforms
            if all(start.search(f"{info.name} {info.doc}") for start in starts)
        ]


def _search_text(info: TransformInfo) -> str:
    names = " ".join(aliases_of(info.name))
    return f"{info.name} {info.category} {info.summary} {names}".casefold()


def _join_names(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


_ENTRY = re.compile(r"(\*{0,2}\w+)(?: \([^)]*\))?:\s*(.*)")
_SECTION = re.compile(r"[A-Z][A-Za-z ]*:$")


def clean_docstring(docstring: str | None) -> str:
    """Return the docstring without indentation."""
    return inspect.cleandoc(docstring) if docstring else ""


def summarize(docstring: str) -> str:
    r"""Return the first paragraph on one line.

    Example:
        >>> summarize("Clip rewards\ninto a range.\n\nMore.")
        'Clip rewards into a range.'
    """
    return " ".join(docstring.partition("\n\n")[0].split())


def strip_markup(text: str) -> str:
    """Remove the markup for code and cross-references from a docstring.

    Example:
        >>> strip_markup("See :class:`~tdx.specs.Bounded` and ``low``.")
        'See Bounded and low.'
    """
    return re.sub(r":\w+:`~?(?:[\w.]+\.)?([^`]+)`", r"\1", text).replace("``", "")


def markdown(docstring: str) -> str:
    r"""Render a docstring as Markdown: headings, a list of arguments, code blocks.

    Example:
        >>> print(markdown("Clip ``x``.\n\nArgs:\n    low: smallest."))
        Clip `x`.
        <BLANKLINE>
        ### Args
        <BLANKLINE>
        - **low**: smallest.
    """
    lines = re.sub(r":\w+:`~?(?:[\w.]+\.)?([^`]+)`", r"`\1`", docstring)
    return "\n".join(_iterate_markdown(lines.replace("``", "`").splitlines()))


def _iterate_markdown(lines: list[str]) -> Iterator[str]:
    section = ""
    for number, line in enumerate(lines):
        if _SECTION.match(line) and lines[number + 1 : number + 2] != [""]:
            section = line[:-1]
            yield from (f"### {section}", "")
            if section.startswith("Example"):
                yield "```python"
        elif section.startswith("Example"):
            yield line.removeprefix("    ")
        elif section and (entry := _ENTRY.fullmatch(line.removeprefix("    "))):
            yield f"- **{entry.group(1)}**: {entry.group(2)}"
        else:
            yield line.strip()
    if section.startswith("Example"):
        yield "```"


def parse_argument_help(docstring: str) -> dict[str, str]:
    r"""Return the description of each argument in the ``Args:`` section, on one line each.

    Example:
        >>> parse_argument_help("Clip.\n\nArgs:\n    low: smallest\n        one.\n    high: most.")
        {'low': 'smallest one.', 'high': 'most.'}
    """
    helps: dict[str, str] = {}
    name = None
    lines = docstring.splitlines()
    start = lines.index("Args:") + 1 if "Args:" in lines else len(lines)
    section = takewhile(
        lambda line: not _SECTION.match(line) and (not line or line.startswith(" ")), lines[start:]
    )
    for line in inspect.cleandoc("\n" + "\n".join(section)).splitlines():
        entry = _ENTRY.match(line)
        if entry:
            name = entry.group(1).lstrip("*")
            helps[name] = entry.group(2).strip()
        elif name and line.strip():
            helps[name] = f"{helps[name]} {line.strip()}".strip()
    return helps
