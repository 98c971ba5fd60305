"""Views of what is available: envs, transforms, and what can be opened."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from tdx.cli.views import (
    Block,
    Cell,
    Code,
    Column,
    Fluid,
    Heading,
    Paragraph,
    Table,
    View,
    dim,
    fact_table,
    first_that_fits,
    without_repeats,
)
from tdx.cli.views.specs import comparison_table, spec_table
from tdx.foundation.serialization import Entries, Entry, Result
from tdx.foundation.text import count_text
from tdx.pipeline.aliases import find_aliased_calls
from tdx.pipeline.catalog import load_catalog
from tdx.pipeline.transform_info import Parameter, TransformInfo, strip_markup

if TYPE_CHECKING:
    from tdx.envs.gym.registry import RegisteredEnv
    from tdx.inspection.envs import EnvDetails, EnvList
    from tdx.inspection.openable import Openable, OpenableList
    from tdx.inspection.transform_example import TransformDocument


def envs_view(result: EnvList, similar: Sequence[str] = ()) -> View:
    """Lay out a list of envs."""
    envs = result.envs

    def blocks() -> list[Block]:
        if not envs:
            from tdx.envs.gym.providers import PROVIDERS

            near = "`tdx list envs` shows all; a function that makes one is FILE.py:NAME"
            if similar:
                near = f"did you mean {' or '.join(similar)}?"
            missing = {
                (provider.package, provider.about, provider.hint)
                for provider in PROVIDERS
                if not provider.installed
            }
            shown: list[Block] = [_no_match("env", result.search, near)]
            if missing:
                text = "these packages are not installed, so their envs are not searched:"
                shown.append(Paragraph([Cell(text)]))
            return shown + [
                Paragraph([Cell(f"{package} ({about}): {hint}")], indent=2)
                for package, about, hint in sorted(missing)
            ]
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
        return [Table.of(titles, rows)]

    names = ("id", "package", "installed", "hint", "replaced_by")
    return View("envs", result, blocks, lambda: envs, names=names)


def openable_view(result: OpenableList) -> View:
    """Lay out what can be opened."""
    entries = result.stack_kinds

    def blocks() -> list[Block]:
        if not entries:
            return [_no_match("kind", result.search)]
        groups = list(without_repeats(entry.group for entry in entries))
        rows = [
            [
                Cell(group, "dim"),
                Cell(entry.name, "name" if entry.available else "dim"),
                Cell(_package_text(entry), "" if entry.available else "dim"),
                Cell(entry.target, "dim"),
            ]
            for group, entry in zip(groups, entries, strict=True)
        ]
        return [Table.of(["kind", "what", "package", "target"], rows)]

    names = ("group", "name", "target", "package", "version")
    return View("stack_kinds", result, blocks, lambda: entries, names=names)


def _package_text(entry: Openable) -> str:
    if entry.package is None:
        return ""
    return f"{entry.package} {entry.version or '(not installed)'}"


def _env_note(env: RegisteredEnv) -> str:
    if env.hint is not None:
        return env.hint
    return "" if env.replaced_by is None else f"deprecated: use {env.replaced_by}"


def env_view(details: EnvDetails) -> View:
    """Lay out the description of an env."""

    def blocks() -> list[Block]:
        aside = f"{details.package}  {details.entry_point}"
        shown: list[Block] = [
            Heading(details.id, aside, level=1),
            fact_table(_env_facts(details)),
            Heading("specs"),
            spec_table(details.specs),
        ]
        if details.arguments:
            rows = [
                [
                    Cell(argument.name, "name"),
                    Cell(argument.default or "required"),
                    Cell(argument.type or ""),
                ]
                for argument in details.arguments
            ]
            columns = [Column("name", fixed=True), Column("default"), Column("type")]
            shown += [Heading("arguments", "for --env-kwargs"), Table(columns, rows)]
        return shown

    return View("env", details, blocks)


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


@dataclass(frozen=True, slots=True)
class TransformRow(Result):
    """A transform in a list.

    Args:
        info: Catalog entry.
    """

    json_entries: ClassVar[Entries] = tuple(
        Entry(name, f"info.{name}")
        for name in ("name", "category", "time_behavior", "summary", "signature")
    )

    info: TransformInfo


@dataclass(frozen=True, slots=True)
class TransformList(Result):
    """The transforms that match a search."""

    search: str
    transforms: tuple[TransformRow, ...]


def transforms_view(infos: Sequence[TransformInfo], search: str) -> View:
    """Lay out a list of transforms."""
    transforms = tuple(map(TransformRow, infos))
    nearest = load_catalog().nearest(search)
    needs_arguments = any("(" in call for call in find_aliased_calls(search))

    def blocks() -> list[Block]:
        if not infos:
            return [_no_match("transform", search, nearest)]
        note = [dim(nearest)] if nearest is not None and needs_arguments else []
        return [Fluid(partial(_transforms, infos)), *note]

    names = ("name", "category", "time_behavior", "summary", "signature")
    result = TransformList(search, transforms)
    return View("transforms", result, blocks, lambda: transforms, names=names)


def _transforms(infos: Sequence[TransformInfo], width: int) -> list[Block]:
    categories = list(without_repeats(info.category for info in infos))
    rows = [
        [Cell(category, "dim"), Cell(info.name, "name"), Cell(strip_markup(info.summary))]
        for category, info in zip(categories, infos, strict=True)
    ]
    columns = [Column("category", fixed=True), Column("name", fixed=True), Column("summary")]
    wide = Table(columns, rows)
    if wide.width <= width or width >= 90:
        return [wide]
    rows = []
    for category, info in zip(categories, infos, strict=True):
        if category:
            rows.append([Cell(category, "dim"), Cell("")])
        rows.append([Cell(f"  {info.name}", "name"), Cell(strip_markup(info.summary))])
    return [Table([Column(fixed=True), Column()], rows)]


def _no_match(noun: str, search: str, nearest: str | None = None) -> Paragraph:
    text = f"no {noun} matches {search!r}" if search else f"no {noun}s"
    return dim(text if nearest is None else f"{text}: {nearest}")


def transform_view(result: TransformDocument) -> View:
    """Lay out the documentation of a transform."""
    info, example = result.info, result.example

    def blocks() -> list[Block]:
        shown: list[Block] = [
            Heading(info.name, f"{info.category}, {info.time_behavior}", level=1),
            *(Paragraph([Cell(text)]) for text in paragraphs(info.doc)),
            *_arguments(info),
        ]
        if example is not None:
            shown.append(Heading("example", example.command or ""))
            shown += [Code(example.code)] if example.code else []
            shown.append(comparison_table(example.changes, sides=("before", "after")))
        return shown

    return View("transform", result, blocks, lambda: result.arguments)


def _arguments(info: TransformInfo) -> list[Block]:
    if not info.parameters:
        return [dim("no arguments")]
    rows = [
        [
            Cell(parameter.name, "name"),
            Cell(_type(parameter)),
            Cell("required" if parameter.required else parameter.default or ""),
            Cell(strip_markup(parameter.help)),
        ]
        for parameter in info.parameters
    ]
    table = Table.of(("argument", "type", "default", "meaning"), rows)
    narrow: list[Block] = []  # With the meaning below.
    for parameter in info.parameters:
        default = ", required" if parameter.required else f" = {parameter.default}"
        cells = [Cell(parameter.name, "name"), Cell(f": {_type(parameter)}{default}")]
        narrow.append(Paragraph(cells, 2))
        if parameter.help:
            narrow.append(dim(strip_markup(parameter.help), 6))
    return [Heading("arguments"), first_that_fits(lambda: [table], lambda: narrow)]


def _type(parameter: Parameter) -> str:
    return (parameter.annotation or "any").replace("NestedKey", "key")


_SECTION = re.compile(
    r"^\s*(?:Args|Attributes|Examples?|Notes?|Raises|Returns|Yields):\s*$", re.MULTILINE
)


def paragraphs(doc: str) -> Iterator[str]:
    """Yield the paragraphs of a docstring before its first section, each on one line."""
    body = _SECTION.split(doc, maxsplit=1)[0].strip()
    for paragraph in re.split(r"\n\s*\n", body):
        yield strip_markup(" ".join(paragraph.split()))
