"""Write the reference pages before a build: transforms, commands and the Python API.

They are derived from the catalog of transforms, the options of each command, and the public names
in ``tdx/__init__.pyi``. Nothing is written by hand, and git ignores the folders.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import os
import re
import shutil
import textwrap
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import tdx
from tdx.cli.commands import NESTED, build_root
from tdx.cli.output import markdown as format_blocks
from tdx.cli.views.specs import comparison_table
from tdx.inspection.transform_example import TransformExample, find_example
from tdx.pipeline.aliases import aliases_of
from tdx.pipeline.catalog import load_catalog
from tdx.pipeline.transform_info import Parameter, TransformInfo
from tdx.pipeline.transform_info import markdown as format_docstring

FOLDERS = ("transforms", "commands", "api")
TIME_BEHAVIORS = {
    "pointwise": "maps each time step on its own",
    "scan": "depends on earlier steps of the episode",
    "control": "runs in every step",
}
API_PAGES: Mapping[str, tuple[str, str]] = {
    "specs": ("Specs", "Shape, dtype, device and domain of an entry or of a tree of entries."),
    "envs": ("Envs", "Environments, and batches of them."),
    "core": ("Chains and tracing", "An env with its chain, and every version of a step."),
    "transforms": ("Base classes of transforms", "To write a transform."),
    "modules": ("Modules", "Recurrent modules and their primers."),
    "data": ("Replay buffers", "Buffers with their storages, samplers and writers."),
    "pipeline": ("Pipelines", "An env and a chain as data."),
    "stacks": ("Stacks", "Chains of other libraries."),
    "inspection": ("Inspection and checks", "What a chain does, and if it is correct."),
    "profiling": ("Profiling", "What a chain costs."),
    "rollouts": ("Rollouts and dumps", "Record, read and convert rollouts."),
    "artifacts": ("Artifacts", "A chain as files that run without tdx."),
    "contracts": ("Contracts", "Record preprocessing, and compare it."),
    "notebook": ("Notebooks", "HTML of a value."),
    "errors": ("Errors", "One family, with a code and a hint."),
}
"""Title and summary of the page of each package that has public names."""


def setup(app: Any) -> dict[str, bool]:
    """Write the pages when a build starts."""
    # Examples render frames, and a build has no screen.
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    app.connect("builder-inited", lambda app: write_reference(Path(app.srcdir) / "reference"))
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def write_reference(folder: Path) -> None:
    """Write all pages, and remove those of an earlier build that have no source any more.

    Args:
        folder: Folder of the reference.
    """
    with warnings.catch_warnings():
        # Gymnasium warns about examples that render an env without a render mode.
        warnings.simplefilter("ignore")
        pages = dict(itertools.chain(transform_pages(), command_pages(), api_pages()))
    for name in FOLDERS:
        if name not in {page.partition("/")[0] for page in pages}:
            raise ValueError(f"the reference has no pages in {name}")
        for path in (folder / name).glob("*.md"):
            if f"{name}/{path.name}" not in pages:
                path.unlink()
    for name, text in pages.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        # Sphinx reads only pages again that changed.
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def remove_reference(folder: Path) -> None:
    """Remove all pages that :func:`write_reference` writes."""
    for name in FOLDERS:
        shutil.rmtree(folder / name, ignore_errors=True)


def toctree(names: Iterable[str], *, hidden: bool = True) -> str:
    """Return a table of contents of pages in the same folder."""
    options = ":hidden:\n" if hidden else ":maxdepth: 1\n"
    return f"```{{toctree}}\n{options}\n" + "\n".join(names) + "\n```\n"


def table(titles: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table; a vertical bar in a cell is escaped."""
    head = [*titles]
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(text: str) -> str:
    return re.sub(r"(?<!\\)\|", r"\|", " ".join(text.split()))


def code(text: str) -> str:
    """Return text as inline code; empty if there is none."""
    return f"`{text}`" if text else ""


# ---------------------------------------------------------------------------- transforms


def transform_pages() -> Iterator[tuple[str, str]]:
    """Yield path and text of the pages about transforms."""
    infos = sorted(load_catalog().transforms, key=lambda info: (info.category, info.name))
    for info in infos:
        yield f"transforms/{info.name}.md", transform_page(info, find_example(info))
    parts = [
        "# Transforms\n",
        "Each page has the arguments, and the specs of an env before and after the transform. "
        "`tdx show transform NAME` prints the same.\n",
    ]
    for category, members in itertools.groupby(infos, key=lambda info: info.category):
        rows = [
            (f"[{info.name}]({info.name}.md)", format_docstring(info.summary), info.time_behavior)
            for info in members
        ]
        parts += [f"## {category.capitalize()}\n", table(("transform", "task", "time"), rows), ""]
    parts.append(toctree(info.name for info in infos))
    yield "transforms/index.md", "\n".join(parts)


def transform_page(info: TransformInfo, example: TransformExample | None) -> str:
    """Return the page of a transform.

    Args:
        info: Declaration of the transform.
        example: Specs before and after it, if it fits an env.
    """
    body, *sections = re.split(r"^### ", format_docstring(info.doc), flags=re.MULTILINE)
    kept = [section for section in sections if not section.startswith("Args\n")]
    behavior = TIME_BEHAVIORS[info.time_behavior]
    aliases = aliases_of(info.name)
    parts = [
        f"# {info.name}\n",
        *_alias_index(aliases),
        body,
        f"Category: {info.category}. Time: {info.time_behavior} ({behavior}).\n",
        *([f"Similar in other libraries: {', '.join(map(code, aliases))}.\n"] if aliases else []),
        "## Arguments\n",
        _arguments_table(info.parameters),
        "",
        *_spec_section(example),
        *(f"## {section}" for section in kept),
    ]
    return "\n".join(parts)


def _alias_index(aliases: Iterable[str]) -> Iterator[str]:
    """Yield index entries; the search of the site ranks main entries, marked by ``!``, first."""
    names = dict.fromkeys(
        name for alias in aliases for name in (alias, re.sub(r"(?<=[a-z])(?=[A-Z])", " ", alias))
    )
    if names:
        yield "```{index} " + ", ".join(f"! {name}" for name in names) + "\n```\n"


def _arguments_table(parameters: Iterable[Parameter]) -> str:
    rows = [
        (
            code(each.name),
            format_docstring(each.help),
            "required" if each.required else code(each.default or ""),
            code((each.annotation or "Any").replace("NestedKey", "key")),
        )
        for each in parameters
    ]
    return table(("argument", "meaning", "default", "type"), rows) if rows else "None."


def _spec_section(example: TransformExample | None) -> Iterator[str]:
    if example is None:
        return
    yield "## Specs before and after\n"
    if example.command:
        yield f"```sh\n{example.command}\n```\n"
    changes = comparison_table(example.changes, sides=("before", "after"))
    yield format_blocks([changes])


# ---------------------------------------------------------------------------- commands


def command_pages() -> Iterator[tuple[str, str]]:
    """Yield path and text of the pages about commands: one for each word after ``tdx``."""
    root = build_root()
    rows = []
    for name in root.list_commands(None):
        command = root.get_command(None, name)
        summary, _, _ = command.help.partition("\n\n")
        rows.append((f"[`tdx {name}`]({name}.md)", " ".join(summary.split())))
        lines = [*_command_parts(f"tdx {name}", command, 1)]
        for word in NESTED.get(name, ()):
            path = f"{name} {word}"
            lines += _command_parts(f"tdx {path}", root.get_command(None, path), 2)
        yield f"commands/{name}.md", "\n".join(lines)
    parts = [
        "# Commands\n",
        "Every option of every command, as in `--help`. [Command line](../../cli.md) explains them "
        "with examples.\n",
        table(("command", "task"), rows),
        "",
        toctree(root.list_commands(None)),
    ]
    yield "commands/index.md", "\n".join(parts)


def _command_parts(path: str, command: Any, level: int) -> Iterator[str]:
    is_group = hasattr(command, "list_commands")
    yield f"{'#' * level} {path}\n"
    if not is_group:
        yield "```text\n" + _usage(path, command.params) + "\n```\n"
    for paragraph in command.help.split("\n\n"):
        if paragraph.startswith("Examples:"):
            commands = textwrap.dedent(paragraph.partition("\n")[2])
            yield f"```sh\n{commands}\n```\n"
        else:
            yield _escape(paragraph) + "\n"
    if is_group:
        for name in command.functions:
            nested = command.get_command(None, name)
            yield from _command_parts(f"{path} {name}", nested, level + 1)
        return
    shown = [each for each in command.params if not getattr(each, "hidden", False)]
    panels: dict[str, list[Any]] = {}
    for each in shown:
        is_option = each.opts[0].startswith("-")
        title = (each.rich_help_panel or "Options") if is_option else "Arguments"
        panels.setdefault(title, []).append(each)
    for title, parameters in sorted(panels.items(), key=lambda pair: pair[0] != "Arguments"):
        yield f"{'#' * (level + 1)} {title}\n" if level == 1 else f"**{title}**\n"
        kind = "argument" if title == "Arguments" else "option"
        rows = [(_spelling(each), _escape(each.help or ""), _default(each)) for each in parameters]
        if any(default for *_, default in rows):
            yield table((kind, "meaning", "default"), rows)
        else:
            yield table((kind, "meaning"), (row[:2] for row in rows))
        yield ""


def _usage(path: str, parameters: Iterable[Any]) -> str:
    arguments = [each for each in parameters if not each.opts[0].startswith("-")]
    names = [each.metavar or each.name.upper() for each in arguments]
    marked = [
        name if each.required else f"[{name}]" for name, each in zip(names, arguments, strict=True)
    ]
    dots = ["..." if each.nargs == -1 else "" for each in arguments]
    return " ".join([path, "[OPTIONS]", *map("".join, zip(marked, dots, strict=True))])


def _spelling(parameter: Any) -> str:
    if not parameter.opts[0].startswith("-"):
        return code(parameter.metavar or parameter.name.upper())
    names = ", ".join(map(code, (*parameter.opts, *parameter.secondary_opts)))
    value = "" if parameter.is_flag or not parameter.metavar else f" {code(parameter.metavar)}"
    return names + value


def _default(parameter: Any) -> str:
    value = parameter.default
    if value is None or value == [] or getattr(parameter, "is_flag", False) or callable(value):
        return ""
    return code(str(getattr(value, "value", value)))


def _escape(text: str) -> str:
    """Escape what Markdown would read as markup, and show options as code."""
    parts = re.split(r"(`[^`]*`|(?<!\S)--?[a-z][a-z-]*)", text)
    return "".join(
        f"`{part.strip('`')}`" if number % 2 else re.sub(r"([\\*_<\[\]])", r"\\\1", part)
        for number, part in enumerate(parts)
    )


# ---------------------------------------------------------------------------- Python API


def api_pages() -> Iterator[tuple[str, str]]:
    """Yield path and text of the pages about public names, one for each package."""
    names = public_names()
    for package, (title, summary) in API_PAGES.items():
        directives = "\n".join(map(_directive, names[package]))
        text = f"# {title}\n\n{summary}\n\n```{{eval-rst}}\n{directives}```\n"
        yield f"api/{package}.md", text
    yield (
        "api/testing.md",
        "# Testing\n\nFixtures and assertions for pytest.\n\n"
        "```{eval-rst}\n.. automodule:: tdx.testing\n   :members:\n```\n",
    )
    rows = [
        (f"[{title}]({package}.md)", summary) for package, (title, summary) in API_PAGES.items()
    ]
    rows.append(("[Testing](testing.md)", "Fixtures and assertions for pytest."))
    parts = [
        "# Python API\n",
        "Every name is imported from `tdx`, and loaded when it is first used. "
        "[Transforms](../transforms/index.md) have their own pages.\n",
        table(("page", "contents"), rows),
        "",
        toctree([*API_PAGES, "testing"]),
    ]
    yield "api/index.md", "\n".join(parts)


def public_names() -> dict[str, list[str]]:
    """Return the public names by package, without the transforms of the catalog."""
    stub = ast.parse((Path(tdx.__file__).with_name("__init__.pyi")).read_text(encoding="utf-8"))
    transforms = set(load_catalog().names)
    found: dict[str, list[str]] = {}
    for node in stub.body:
        if not isinstance(node, ast.ImportFrom) or node.module is None:
            continue
        package = node.module.partition(".")[0]
        package = "errors" if package == "foundation" else package
        names = [alias.name for alias in node.names if alias.name not in transforms]
        found.setdefault(package, []).extend(names)
    missing = {package for package, names in found.items() if names} - set(API_PAGES)
    if missing:
        raise ValueError(f"add the packages {sorted(missing)} to API_PAGES")
    return found


def _directive(name: str) -> str:
    value = getattr(tdx, name)
    if inspect.isclass(value):
        return f".. autoclass:: tdx.{name}\n   :members:\n   :show-inheritance:\n"
    if inspect.ismodule(value):
        return f".. automodule:: tdx.{value.__name__.removeprefix('tdx.')}\n   :members:\n"
    if inspect.isroutine(value):
        return f".. autofunction:: tdx.{name}\n"
    return f".. autodata:: tdx.{name}\n"
