"""The text of the help: that of a docstring, and the short help that ``-h`` prints."""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Iterable, Mapping
from inspect import getdoc
from typing import TYPE_CHECKING, Any

from typer.core import TyperGroup

if TYPE_CHECKING:
    from tdx.cli.options import Function

EXAMPLE = re.compile(r"(?:[A-Z_]+=\S+ )?tdx ")
"""Start of a paragraph of a docstring that is an example."""
_GROUP_EXAMPLES = 3
_SHORT_HEIGHT, _SHORT_OPTIONS = 24, 11
_OPTION_WIDTH = 26
RARE = frozenset(
    {
        *("--allow-download", "--batching", "--color", "--debug", "--device", "--env-kwargs"),
        *("--from-pixels", "--num-envs", "--quiet", "--samples", "--verbose", "--worker-timeout"),
        *("--all-wrappers", "--calibrate", "--dry-run", "--histogram", "--marginal", "--on"),
        *("--passes", "--repeat", "--retries", "--shard", "--shards", "--speedscope", "--sync"),
        *("--threads", "--trace", "--warmup"),
    }
)
"""Options that the short help leaves out, and the whole help shows last."""
RARE_PANEL = "Rarely used"


def command_help(function: Function) -> str:
    """Return the docstring with each paragraph on one line, and the examples at the end."""
    paragraphs = (getdoc(function) or "").split("\n\n")
    prose = [" ".join(text.split()) for text in paragraphs if not EXAMPLE.match(text)]
    examples = "\n".join(f"  {text}" for text in paragraphs if EXAMPLE.match(text))
    return "\n\n".join([*prose, f"Examples:\n{examples}"])


def group_examples(functions: Iterable[Function]) -> list[str]:
    """Return the first example of the first commands of a group."""
    texts = [getdoc(function) or "" for function in functions]
    by_command = [[p for p in text.split("\n\n") if EXAMPLE.match(p)] for text in texts]
    return [f"  {examples[0]}" for examples in by_command if examples][:_GROUP_EXAMPLES]


def short_help(command: Any, ctx: Any) -> list[str]:
    """Return the lines of the short help of a command or group: at most 24 at 80 columns."""
    width = max(shutil.get_terminal_size().columns, 40)
    head, _, examples = (command.help or "").partition("Examples:\n")
    lines = [*_wrapped(command.get_usage(ctx), width), ""]
    lines += [*_wrapped(head.partition("\n\n")[0], width), ""]
    lines += [f"  {line.strip()}" for line in examples.splitlines()[:2]]
    lines.append("")
    if isinstance(command, TyperGroup):
        rows = []
        for name in command.list_commands(ctx):
            inner: Any = command.get_command(ctx, name)
            summary = (inner.help or "").partition("\n\n")[0]
            rows.append((name, summary))
        count = 0
    else:
        visible = [
            param
            for param in command.params
            if not getattr(param, "hidden", False) and "--help" not in param.opts
        ]
        rows = [
            _short_row(param)
            for param in visible
            if getattr(param, "rich_help_panel", "") != RARE_PANEL
        ]
        # The option that most commands have in common, before those of the command.
        rows.sort(key=lambda row: not row[0].startswith("-t "))
        room = min(_SHORT_OPTIONS, _SHORT_HEIGHT - len(lines) - 2)
        count = len(visible) - min(len(rows), room)
        rows = rows[:room]
    start = min(max((len(name) for name, _ in rows), default=0), _OPTION_WIDTH)
    for name, text in rows:
        lines.append(_cut(f"  {name:{start}}  {text}", width))
    more = f" ({count} more options)" if count else ""
    return [*lines, "", f"All of it{more}: {ctx.command_path} --help", ""]


def _short_row(param: Any) -> tuple[str, str]:
    """Return the name of a parameter with its value, and its text on one line."""
    text = " ".join((getattr(param, "help", None) or "").split())
    if param.param_type_name == "argument":
        return str(param.metavar or param.name).upper(), text
    name = ", ".join(sorted(param.opts, key=len))
    return (name if param.is_flag else f"{name} {param.metavar or param.name.upper()}"), text


def short_root_help(about: str, sections: Mapping[str, Iterable[str]], example: str) -> list[str]:
    """Return the lines of the short help of ``tdx``."""
    width = max(shutil.get_terminal_size().columns, 40)
    start = max(map(len, sections))
    lines = ["Usage: tdx COMMAND [TARGET] [OPTIONS]", ""]
    lines += [*_wrapped(about, width), ""]
    for panel, names in sections.items():
        lines.append(_cut(f"  {panel:{start}}  {', '.join(names)}", width))
    return [*lines, "", f"  {example}", "", "All of it: tdx --help, and tdx help COMMAND", ""]


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(" ".join(text.split()), width)


def _cut(line: str, width: int) -> str:
    return line if len(line) <= width else f"{line[: width - 2].rstrip()} …"
