"""Writes views to stdout and text to files."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tdx.cli.choices import Format
from tdx.cli.errors import SCHEMA_VERSION
from tdx.cli.options import OutputOptions
from tdx.cli.output.markdown import markdown
from tdx.cli.output.terminal import UNLIMITED, terminal_text, terminal_width
from tdx.cli.output.view import View
from tdx.cli.streams import json_text
from tdx.errors import OutputError
from tdx.files import check_replaceable, write_atomically
from tdx.text import escape_control_characters, escape_json

STDOUT = "-"
"""Path that stands for stdout."""


def write_view(view: View, options: OutputOptions) -> None:
    """Write a view to stdout.

    Args:
        view: View to write.
        options: Format and color.
    """
    sys.stdout.write(render_view(view, options))


def render_view(view: View, options: OutputOptions, width: int | None = None) -> str:
    """Return a view as text.

    Args:
        view: View to render.
        options: Format and color.
        width: Columns. ``None``: those of the terminal, unlimited in a pipe.

    Returns:
        Complete lines.
    """
    match options.format:
        case Format.JSON:
            return _json(view.kind, view.data, indent=2)
        case Format.JSONL:
            return "".join(_json(view.kind, record) for record in view.records)
        case Format.CSV:
            return _csv(view)
        case Format.MD:
            return markdown(view.blocks(UNLIMITED))
        case Format.TABLE:
            columns = terminal_width() if width is None else width
            return terminal_text(
                view.blocks(columns), columns, color=options.color.is_enabled(sys.stdout)
            )


def _json(kind: str, data: Mapping[str, Any], indent: int | None = None) -> str:
    document = {"schema_version": SCHEMA_VERSION, "kind": kind, **data}
    return json_text(document, sys.stdout, indent)


def _csv(view: View) -> str:
    rows = [view.names, *view.records]
    names = list(dict.fromkeys(name for row in rows for name in row))
    if not names:
        return ""
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writerow({name: _csv_value(name) for name in names})
    for record in view.records:
        writer.writerow({name: _csv_value(value) for name, value in record.items()})
    return text.getvalue()


def _csv_value(value: Any) -> Any:
    if isinstance(value, (list, tuple, dict)):
        return escape_json(json.dumps(value, ensure_ascii=False))
    if isinstance(value, str):
        return escape_control_characters(value, keep="\n\t")
    return value


def write_file(
    path: str | Path, text: str, *, force: bool = False, create_folder: bool = False
) -> None:
    """Write text to a file atomically, or to stdout, a device or a pipe.

    Args:
        path: Target; ``-`` is stdout.
        text: Content.
        force: If True, replace an existing file.
        create_folder: If True, create missing folders.

    Raises:
        ArgumentError: The file exists and ``force`` is False, or it is a link.
        OutputError: The file cannot be written.
    """
    if str(path) == STDOUT:
        sys.stdout.write(text)
        return
    check_target(path, force=force)
    sys.stdout.flush()
    try:
        if create_folder:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text)
    except BrokenPipeError:
        raise
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise OutputError(f"cannot write {path}: {reason}", hint="choose another path") from error


def check_target(path: str | Path, *, force: bool = False) -> None:
    """Check that a file may be written.

    Raises:
        ArgumentError: The file exists and ``force`` is False, or it is a link.
    """
    if str(path) != STDOUT:
        check_replaceable(path, force=force)
