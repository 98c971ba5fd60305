"""Fixtures that run ``tdx`` in this process and check its output."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tdx.cli.process import run
from tests.cli.processes import Completed

GOLDEN = Path(__file__).parent / "golden"
UPDATE = "TDX_UPDATE_GOLDEN"
WIDTHS = (60, 100)
"""Widths of the terminals that each table must fit, in columns."""
_NAMES = ("key", "version", "id", "code", "call", "label")


Tdx = Callable[..., Completed]
Golden = Callable[[str, str], None]
Layout = Callable[..., None]


@pytest.fixture
def tdx(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Tdx:
    """Return a function that runs ``tdx``, optionally on a terminal with ``columns`` columns."""
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)

    def call(*arguments: str, columns: int | None = None) -> Completed:
        with monkeypatch.context() as patch:
            if columns is not None:
                patch.setattr("tdx.cli.output.terminal_width", lambda: columns)
            capsys.readouterr()
            code = run(arguments)
        captured = capsys.readouterr()
        return Completed(int(code), captured.out, captured.err)

    return call


@pytest.fixture
def golden() -> Golden:
    """Return a function that compares text with a golden file; TDX_UPDATE_GOLDEN=1 updates it."""

    def compare(name: str, text: str) -> None:
        path = GOLDEN / name
        if os.environ.get(UPDATE):
            path.write_text(text, encoding="utf-8")
        expected = path.read_text(encoding="utf-8")
        difference = difflib.unified_diff(
            expected.splitlines(), text.splitlines(), "golden", "printed", lineterm=""
        )
        assert text == expected, "\n".join([*difference, f"{UPDATE}=1 updates the file"])

    return compare


@pytest.fixture
def layout(tdx: Tdx, golden: Golden) -> Layout:
    """Return a function that compares a table with ``NAME.txt`` and checks it on terminals."""

    def check(name: str, *arguments: str, code: int = 0) -> None:
        outcome = tdx(*arguments)
        assert (outcome.code, outcome.err) == (code, "")
        golden(f"{name}.txt", outcome.out)
        lines = tdx(*arguments, "--format", "jsonl").out.splitlines()
        records = [json.loads(line) for line in lines]
        assert_complete(outcome.out, records)
        for columns in WIDTHS:
            text = tdx(*arguments, columns=columns).out
            assert_fits(text, columns)
            assert_complete(text, records)

    return check


def assert_fits(text: str, columns: int) -> None:
    """Check that no line is wider than a terminal."""
    longest = max(text.splitlines(), key=len)
    assert len(longest) <= columns, longest


def assert_complete(text: str, document: Any) -> None:
    """Check that a table, wrapped or not, contains all names of a JSON document."""
    squeezed = "".join(text.split())
    missing = [name for name in names_in(document) if "".join(name.split()) not in squeezed]
    assert missing == [], text


def names_in(document: Any) -> Iterator[str]:
    """Yield the names of keys, stages and other items in a JSON document."""
    if isinstance(document, list):
        for item in document:
            yield from names_in(item)
    elif isinstance(document, dict):
        for field, value in document.items():
            if field in _NAMES and isinstance(value, str):
                yield value
            else:
                yield from names_in(value)
