"""Views of what is available: envs and transforms."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from tdx.cli.output import table_width
from tdx.cli.views import (
    Block,
    Cell,
    Code,
    Column,
    Heading,
    Paragraph,
    Table,
    View,
    count_text,
)
from tdx.cli.views.specs import spec_table
from tdx.pipeline.transform_info import strip_markup

if TYPE_CHECKING:
    from tdx.envs.gym.registry import RegisteredEnv
    from tdx.inspection.envs import EnvDetails
    from tdx.inspection.transform_example import TransformExample
    from tdx.pipeline.transform_info import Parameter, TransformInfo


class EnvEntries(TypedDict):
    """JSON entries of an env in a list."""

    id: str
    package: str
    installed: bool
    hint: str | None
    replaced_by: str | None


class EnvsEntries(TypedDict):
    """JSON entries of a list of envs."""

    search: str
    envs: list[EnvEntries]


def envs_view(envs: Sequence[RegisteredEnv], search: str) -> View:
    """Lay out a list of envs.

    Args:
        envs: Envs to show.
        search: Words of the search.
    """
    records: list[EnvEntries] = [
        {
            "id": env.id,
            "package": env.package,
            "installed": env.installed,
            "hint": env.hint,
            "replaced_by": env.replaced_by,
        }
        for env in envs
    ]

    def blocks(width: int) -> list[Block]:
        if not envs:
            return [_no_match("env", search), *_missing_packages()]
        has_notes = any(env.hint or env.replaced_by for env in envs)
        titles = ["id", "package", *(["note"] if has_notes else [])]
        rows = [
            [
                Cell(env.id, "dim" if env.hint or env.replaced_by else ""),
                Cell(env.package, "dim"),
                *([Cell(_env_note(env))] if has_notes else []),
            ]
            for env in envs
        ]
        return [Table([Column(title) for title in titles], rows)]

    names = ("id", "package", "installed", "hint", "replaced_by")
    return View("envs", lambda: {"search": search, "envs": records}, lambda: records, blocks, names)


def _env_note(env: RegisteredEnv) -> str:
    if env.hint is not None:
        return env.hint
    return "" if env.replaced_by is None else f"deprecated: use {env.replaced_by}"


def env_view(details: EnvDetails) -> View:
    """Lay out the description of an env."""

    def blocks(width: int) -> list[Block]:
        aside = f"{details.package}  {details.entry_point}"
        facts = [[Cell(name, "dim"), Cell(text)] for name, text in _env_facts(details)]
        shown: list[Block] = [
            Heading(details.id, aside, level=1),
            Table([Column(fixed=True), Column()], facts),
            Heading("specs"),
            spec_table(details.specs, width),
        ]
        if details.arguments:
            rows = [
                [Cell(each.name, "name"), Cell(each.default or "required"), Cell(each.type or "")]
                for each in details.arguments
            ]
            columns = [Column("name", fixed=True), Column("default"), Column("type")]
            shown += [Heading("arguments", "for --env-kwargs"), Table(columns, rows)]
        return shown

    return View("env", details.to_dict, lambda: [details.to_dict()], blocks)


def _env_facts(details: EnvDetails) -> Iterator[tuple[str, str]]:
    """Yield the known facts about an env, with their names."""
    if details.replaced_by is not None:
        yield "deprecated", f"use {details.replaced_by}"
    yield "versions", ", ".join(details.versions)
    limits = {"the registered id": details.time_limit, "the env itself": details.own_limit}
    steps = [f"{count_text(limit, 'step')} by {by}" for by, limit in limits.items() if limit]
    yield "time limit", ", ".join(steps) or "none is declared"
    low, high = details.reward_range or (None, None)
    yield "reward range", "not declared" if low is None else f"{low:g} … {high:g}"
    if details.reward_threshold is not None:
        yield "solved at", f"a return of {details.reward_threshold:g}"
    if details.nondeterministic:
        yield "seeds", "two runs with one seed may differ"
    modes = ", ".join(details.render_modes)
    rate = "" if details.render_fps is None else f"; {details.render_fps:g} frames per second"
    yield "render modes", f"{modes}{rate}" if modes else "none"


class TransformRow(TypedDict):
    """JSON entries of a transform in a list."""

    name: str
    category: str
    time_behavior: str
    summary: str
    signature: str


class TransformsEntries(TypedDict):
    """JSON entries of a list of transforms."""

    search: str
    transforms: list[TransformRow]


def transforms_view(infos: Sequence[TransformInfo], search: str) -> View:
    """Lay out a list of transforms.

    Args:
        infos: Transforms, grouped by category.
        search: Words of the search.
    """
    records: list[TransformRow] = [
        {
            "name": info.name,
            "category": info.category,
            "time_behavior": info.time_behavior,
            "summary": info.summary,
            "signature": info.signature,
        }
        for info in infos
    ]

    def blocks(width: int) -> list[Block]:
        return [_transforms_table(infos, width)] if infos else [_no_match("transform", search)]

    names = ("name", "category", "time_behavior", "summary", "signature")
    data = {"search": search, "transforms": records}
    return View("transforms", lambda: data, lambda: records, blocks, names)


def _transforms_table(infos: Sequence[TransformInfo], width: int) -> Table:
    rows = [
        [Cell(category, "dim"), Cell(info.name, "name"), Cell(strip_markup(info.summary))]
        for category, info in zip(_category_titles(infos), infos, strict=True)
    ]
    columns = [Column("category", fixed=True), Column("name", fixed=True), Column("summary")]
    wide = Table(columns, rows)
    if table_width(wide) <= width or width >= 90:
        return wide
    rows = []
    for category, info in zip(_category_titles(infos), infos, strict=True):
        if category:
            rows.append([Cell(category, "dim"), Cell("")])
        rows.append([Cell(f"  {info.name}", "name"), Cell(strip_markup(info.summary))])
    return Table([Column(fixed=True), Column()], rows)


def _category_titles(infos: Sequence[TransformInfo]) -> Iterator[str]:
    """Yield the category of each transform; empty if it is the same as that of the previous one."""
    previous = ""
    for info in infos:
        yield "" if info.category == previous else info.category
        previous = info.category


def _missing_packages() -> Iterator[Paragraph]:
    """Name the env packages that are not installed, whose envs no search can match."""
    from tdx.envs.gym.providers import PROVIDERS

    missing = {
        (provider.package, provider.about, provider.hint)
        for provider in PROVIDERS
        if not provider.installed
    }
    if missing:
        yield Paragraph([Cell("these packages are not installed, so their envs are not searched:")])
    for package, about, hint in sorted(missing):
        yield Paragraph([Cell(f"{package} ({about}): {hint}")], indent=2)


def _no_match(noun: str, search: str) -> Paragraph:
    return Paragraph([Cell(f"no {noun} matches {search!r}" if search else f"no {noun}s", "dim")])


class ArgumentEntries(TypedDict):
    """JSON entries of an argument; type and default are Python source."""

    name: str
    type: str
    words: str
    default: str | None
    required: bool
    parameter_kind: str
    help: str


class TransformEntries(TransformRow):
    """JSON entries of the documentation of a transform."""

    module: str
    doc: str
    arguments: list[ArgumentEntries]


def transform_view(info: TransformInfo, example: TransformExample | None) -> View:
    """Lay out the documentation of a transform.

    Args:
        info: Catalog entry.
        example: Specs before and after the transform on an example env.
    """
    arguments = [_argument(parameter) for parameter in info.parameters]
    data = {
        "name": info.name,
        "category": info.category,
        "time_behavior": info.time_behavior,
        "module": info.module,
        "signature": info.signature,
        "summary": info.summary,
        "doc": info.doc,
        "arguments": arguments,
        "example": example.to_dict() if example else None,
    }

    def blocks(width: int) -> list[Block]:
        head = Heading(info.name, f"{info.category}, {info.time_behavior}", level=1)
        return [
            head,
            *(Paragraph([Cell(text)]) for text in paragraphs(info.doc)),
            *_arguments(info, width),
            *_example(example, width),
        ]

    return View("transform", lambda: data, lambda: arguments, blocks)


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
        return [Paragraph([Cell("no arguments", "dim")])]
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
    blocks = [block for parameter in info.parameters for block in _narrow_argument(parameter)]
    return [Heading("arguments"), *blocks]


def _narrow_argument(parameter: Parameter) -> Iterator[Paragraph]:
    """Yield an argument with its meaning below, for narrow terminals."""
    default = ", required" if parameter.required else f" = {parameter.default}"
    yield Paragraph([Cell(parameter.name, "name"), Cell(f": {_type(parameter)}{default}")], 2)
    if parameter.help:
        yield Paragraph([Cell(strip_markup(parameter.help), "dim")], 6)


def _type(parameter: Parameter) -> str:
    return (parameter.annotation or "any").replace("NestedKey", "key")


def _example(example: TransformExample | None, width: int) -> list[Block]:
    if example is None:
        return []
    from tdx.cli.views.specs import comparison_table

    code = [Code(example.code)] if example.code else []
    return [
        Heading("example", example.command or ""),
        *code,
        comparison_table(example.changes, width, sides=("before", "after")),
    ]


_SECTION = re.compile(
    r"^\s*(?:Args|Attributes|Examples?|Notes?|Raises|Returns|Yields):\s*$", re.MULTILINE
)


def paragraphs(doc: str) -> Iterator[str]:
    """Yield the paragraphs of a docstring before its first section, each on one line."""
    body = _SECTION.split(doc, maxsplit=1)[0].strip()
    for paragraph in re.split(r"\n\s*\n", body):
        yield strip_markup(" ".join(paragraph.split()))
