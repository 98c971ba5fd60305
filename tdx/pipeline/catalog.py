"""The catalog: names, arguments and documentation of every transform, loaded without torch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tdx.errors import UnknownNameError, did_you_mean
from tdx.pipeline.transform_info import COMPOSE, TransformInfo
from tdx.plugins import explain_missing, find_plugins
from tdx.serialization import to_plain

CATALOG_FILE = Path(__file__).with_name("catalog.json")


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
            hint = explain_missing("tdx.transforms", name) or did_you_mean(
                name, [*self.names, COMPOSE.name], "`tdx list transforms` prints all of them"
            )
            raise UnknownNameError(f"unknown transform {name}", hint=hint)
        return info

    def search(self, words: str) -> list[TransformInfo]:
        """Return the transforms whose name, category or summary contains every word."""
        terms = words.casefold().split()
        return [
            info
            for info in self.transforms
            if all(word in _searchable_text(info) for word in terms)
        ]


def _searchable_text(info: TransformInfo) -> str:
    return f"{info.name} {info.category} {info.summary}".casefold()


@cache
def load_catalog() -> Catalog:
    """Load the catalog of all transforms, without torch.

    Those of tdx are read from a generated file, those of plugins from their source.

    Example:
        >>> load_catalog()["StepCounter"].category
        'episode'
    """
    data = json.loads(CATALOG_FILE.read_text(encoding="utf-8"))
    own = tuple(TransformInfo.from_json(each) for each in data["transforms"])
    if not find_plugins("tdx.transforms"):
        return Catalog(own)
    from tdx.pipeline.plugin_transforms import read_plugin_transforms

    return Catalog((*own, *read_plugin_transforms({info.name for info in own})))


def format_catalog(transforms: list[TransformInfo]) -> str:
    """Return the text of the catalog file."""
    data = {"version": 1, "transforms": to_plain(transforms)}
    return json.dumps(data, indent=1, ensure_ascii=False) + "\n"
