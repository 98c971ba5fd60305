"""The layout of all about one transform."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tdx.cli.output.terminal import table_width
from tdx.cli.output.view import Block, Cell, Code, Column, Heading, Paragraph, Table, View
from tdx.cli.views.comparison import comparison
from tdx.cli.views.prose import paragraphs
from tdx.pipeline.docstrings import strip_markup

if TYPE_CHECKING:
    from tdx.inspection.transform_example import TransformExample
    from tdx.pipeline.catalog import Parameter, TransformInfo


def transform_view(info: TransformInfo, example: TransformExample | None) -> View:
    """Lay out a transform.

    Args:
        info: what it declares.
        example: what it makes of the specs of an env that it fits.
    """
    arguments = [_argument(parameter) for parameter in info.parameters]
    data = {
        "name": info.name,
        "category": info.category,
        "time_behaviour": info.time_behaviour,
        "module": info.module,
        "signature": info.signature,
        "summary": info.summary,
        "doc": info.doc,
        "arguments": arguments,
        "example": example.to_dict() if example else None,
    }

    def blocks(width: int) -> list[Block]:
        head = Heading(info.name, f"{info.category}, {info.time_behaviour}", level=1)
        return [
            head,
            *(Paragraph([Cell(text)]) for text in paragraphs(info.doc)),
            *_arguments(info, width),
            *_example(example, width),
        ]

    return View("transform", data, arguments, blocks)


def _argument(parameter: Parameter) -> dict[str, Any]:
    return {
        "name": parameter.name,
        "type": parameter.annotation,
        "words": parameter.type.words(),
        "default": parameter.default,
        "required": parameter.required,
        "parameter_kind": parameter.kind,
        "help": parameter.help,
    }


def _arguments(info: TransformInfo, width: int) -> list[Block]:
    if not info.parameters:
        return [Paragraph([Cell("It takes no arguments.", "dim")])]
    rows = [
        [
            Cell(parameter.name, "name"),
            Cell(_type(parameter)),
            Cell("required" if parameter.required else parameter.default or ""),
            Cell(strip_markup(parameter.help)),
        ]
        for parameter in info.parameters
    ]
    titles = ("argument", "type", "default", "meaning")
    table = Table([Column(title) for title in titles], rows)
    if table_width(table) <= width:
        return [Heading("arguments"), table]
    described = [part for parameter in info.parameters for part in _described(parameter)]
    return [Heading("arguments"), *described]


def _described(parameter: Parameter) -> Iterator[Paragraph]:
    """An argument and its meaning under each other, for narrow terminals."""
    default = ", required" if parameter.required else f" = {parameter.default}"
    yield Paragraph([Cell(parameter.name, "name"), Cell(f": {_type(parameter)}{default}")], 2)
    if parameter.help:
        yield Paragraph([Cell(strip_markup(parameter.help), "dim")], 6)


def _type(parameter: Parameter) -> str:
    return (parameter.annotation or "any").replace("NestedKey", "key")


def _example(example: TransformExample | None, width: int) -> list[Block]:
    if example is None:
        return []
    code = [Code(example.code)] if example.code else []
    return [
        Heading("example", example.command or ""),
        *code,
        comparison(example.changes, width, sides=("before", "after")),
    ]
