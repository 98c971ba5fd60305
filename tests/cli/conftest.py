"""How the tests of the command line run it: in this process, with what it prints caught."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tdx.cli.process import run

GOLDEN = Path(__file__).parent / "golden"
UPDATE = "TDX_UPDATE_GOLDEN"


@dataclass(frozen=True)
class Outcome:
    """What one run of ``tdx`` did."""

    code: int
    out: str
    err: str


Tdx = Callable[..., Outcome]
Golden = Callable[[str, str], None]


@pytest.fixture
def tdx(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Tdx:
    """Run ``tdx`` with these arguments; with ``columns`` as on a terminal of that width."""
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)

    def call(*arguments: str, columns: int | None = None) -> Outcome:
        with monkeypatch.context() as patch:
            if columns is not None:
                patch.setattr("tdx.cli.output.write.terminal_width", lambda: columns)
            capsys.readouterr()
            code = run(arguments)
        caught = capsys.readouterr()
        return Outcome(int(code), caught.out, caught.err)

    return call


@pytest.fixture
def golden() -> Golden:
    """Compare a text with a file in ``golden/``; with TDX_UPDATE_GOLDEN=1 write that file."""

    def compare(name: str, text: str) -> None:
        path = GOLDEN / name
        if os.environ.get(UPDATE):
            path.write_text(text, encoding="utf-8")
        wanted = path.read_text(encoding="utf-8")
        difference = difflib.unified_diff(
            wanted.splitlines(), text.splitlines(), "golden", "printed", lineterm=""
        )
        assert text == wanted, "\n".join([*difference, f"{UPDATE}=1 accepts what is printed"])

    return compare
