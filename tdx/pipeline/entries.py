"""The catalogue of transforms: what each of them declares, read without torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from tdx.errors import UnknownNameError, did_you_mean
from tdx.keys import NestedKey, normalize_key
from tdx.pipeline.types import Type

CATALOGUE_FILE = Path(__file__).with_name("catalogue.json")
ParameterKind = Literal["positional", "keyword", "var_positional", "var_keyword"]
TimeBehaviour = Literal["pointwise", "scan", "control"]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One argument of a transform's constructor.

    Args:
        name: its name.
        annotation: its annotation as it is written in the source.
        default: its default as it is written in the source; none where it is required.
        help: what the docstring says of it, on one line.
        kind: how it can be given; ``positional`` arguments can be named too.
        type: its declared type.
    """

    name: str
    annotation: str | None
    default: str | None
    help: str
    kind: ParameterKind
    type: Type

    @property
    def required(self) -> bool:
        """Whether a value must be given."""
        return self.default is None and self.kind in ("positional", "keyword")

    @property
    def signature(self) -> str:
        """The argument as a signature shows it."""
        stars = {"var_positional": "*", "var_keyword": "**"}.get(self.kind, "")
        annotation = f": {self.annotation}" if self.annotation else ""
        spaced = " = " if self.annotation else "="
        return f"{stars}{self.name}{annotation}" + (
            f"{spaced}{self.default}" if self.default else ""
        )

    def to_json(self) -> dict[str, Any]:
        """Plain data; the inverse of :meth:`from_json`."""
        return {
            "name": self.name,
            "annotation": self.annotation,
            "default": self.default,
            "help": self.help,
            "kind": self.kind,
            "type": self.type.to_json(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Parameter:
        """The parameter that :meth:`to_json` wrote."""
        return cls(**{**data, "type": Type.from_json(data["type"])})


@dataclass(frozen=True, slots=True)
class TransformInfo:
    """What a transform declares.

    Args:
        name: its class name.
        module: the module that it lives in.
        category: its folder.
        time_behaviour: ``pointwise``, ``scan`` or ``control``.
        summary: the first paragraph of its docstring, on one line.
        doc: the whole docstring.
        parameters: the arguments of its constructor, in order.
        default_in_keys: the keys it reads unless told otherwise, where its class says so.
    """

    name: str
    module: str
    category: str
    time_behaviour: str
    summary: str
    doc: str
    parameters: tuple[Parameter, ...]
    default_in_keys: tuple[NestedKey, ...] | None = None

    @property
    def signature(self) -> str:
        """The constructor as text, ``StepCounter(max_steps: int | None = None, …)``."""
        shown = [parameter.signature for parameter in self.parameters]
        kinds = [parameter.kind for parameter in self.parameters]
        if "keyword" in kinds and "var_positional" not in kinds:
            shown.insert(kinds.index("keyword"), "*")
        return f"{self.name}({', '.join(shown)})"

    def parameter(self, name: str) -> Parameter | None:
        """The argument of that name, or none."""
        return next((each for each in self.parameters if each.name == name), None)

    def to_json(self) -> dict[str, Any]:
        """Plain data; the inverse of :meth:`from_json`."""
        return {
            "name": self.name,
            "module": self.module,
            "category": self.category,
            "time_behaviour": self.time_behaviour,
            "summary": self.summary,
            "doc": self.doc,
            "default_in_keys": self.default_in_keys,
            "parameters": [parameter.to_json() for parameter in self.parameters],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TransformInfo:
        """The transform that :meth:`to_json` wrote."""
        parameters = tuple(Parameter.from_json(each) for each in data["parameters"])
        given = data.get("default_in_keys")
        in_keys = None if given is None else tuple(normalize_key(key) for key in given)
        return cls(**{**data, "parameters": parameters, "default_in_keys": in_keys})


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Every transform that a pipeline can name."""

    transforms: tuple[TransformInfo, ...]

    @property
    def names(self) -> list[str]:
        """The names, in the order of the catalogue."""
        return [info.name for info in self.transforms]

    @property
    def categories(self) -> list[str]:
        """The categories that have members."""
        return list(dict.fromkeys(info.category for info in self.transforms))

    def find(self, name: str) -> TransformInfo | None:
        """The transform of that name, or none; ``Compose`` is one too."""
        if name == COMPOSE.name:
            return COMPOSE
        return next((info for info in self.transforms if info.name == name), None)

    def __getitem__(self, name: str) -> TransformInfo:
        """The transform of that name.

        Raises:
            UnknownNameError: there is none; the hint has the nearest names.
        """
        info = self.find(name)
        if info is None:
            hint = did_you_mean(
                name, [*self.names, COMPOSE.name], "tdx list transforms has them all"
            )
            raise UnknownNameError(f"unknown transform {name}", hint=hint)
        return info

    def search(self, words: str) -> list[TransformInfo]:
        """The transforms in whose name, category or summary every word occurs."""
        wanted = words.casefold().split()
        return [info for info in self.transforms if all(word in _text(info) for word in wanted)]


COMPOSE = TransformInfo(
    name="Compose",
    module="tdx.core.transforms.compose",
    category="chain",
    time_behaviour="control",
    summary="Several transforms, one after the other.",
    doc="Several transforms, one after the other.",
    parameters=(
        Parameter(
            *("transforms", "Transform", None, "the transforms in order.", "var_positional"),
            type=Type("transform"),
        ),
    ),
)


def _text(info: TransformInfo) -> str:
    return f"{info.name} {info.category} {info.summary}".casefold()


@cache
def catalogue() -> Catalogue:
    """Every transform of tdx, from a file generated from the sources; loads no torch.

    Example:
        >>> catalogue()["StepCounter"].category
        'episode'
    """
    data = json.loads(CATALOGUE_FILE.read_text(encoding="utf-8"))
    return Catalogue(tuple(TransformInfo.from_json(each) for each in data["transforms"]))


def catalogue_json(transforms: list[TransformInfo]) -> str:
    """The text of the catalogue's file."""
    data = {"version": 1, "transforms": [info.to_json() for info in transforms]}
    return json.dumps(data, indent=1, ensure_ascii=False) + "\n"
