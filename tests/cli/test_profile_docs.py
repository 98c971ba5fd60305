"""Examples of docs/profiling.md: the start of each line is compared, since numbers vary.

With TDX_UPDATE_GOLDEN=1 the page takes over what is printed.
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.profiling.sample_profile import MACHINE
from tests.test_readme import BLOCK

if TYPE_CHECKING:
    from tests.cli.conftest import Tdx

PAGE = Path(__file__).parents[2] / "docs" / "profiling.md"
COLUMNS = 110
VARYING = ("noise: ", "too slow: ")


def sessions() -> list[str]:
    """Return the examples of the page."""
    return [text for kind, text in BLOCK.findall(PAGE.read_text()) if kind == "measured"]


def fronts(text: str) -> list[str]:
    """Return the start of each line, up to the first gap, without numbers.

    With ``--top``, the most expensive rows vary and are removed.
    """
    found = []
    top_rows = re.compile(r"(^part .*\n)(?:(?!.*other rows).+\n)*(.*other rows)", re.MULTILINE)
    shown = top_rows.sub(r"\1\2", text)
    if shown != text:
        # So does the note about rows of many steps.
        shown = re.sub(r"^  per step: .*\n\n?", "", shown, flags=re.MULTILINE)
    for line in filter(None, shown.splitlines()):
        front = re.split(r"  |: (?=\D)", line.strip(), maxsplit=1)[0]
        varies = next((word for word in VARYING if line.strip().startswith(word)), None)
        found.append(varies or re.sub(r"[\d.,]+", "N", front))
    return found


@pytest.mark.parametrize("number", range(len(sessions())))
def test_examples_start_as_on_the_page(
    tdx: Tdx, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tdx.profiling.run.detect_machine", lambda: MACHINE)
    monkeypatch.setattr("tdx.profiling.machine.detect_machine", lambda: MACHINE)
    for part in re.split(r"^\$ ", sessions()[number], flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        found = tdx(*shlex.split(command)[1:], columns=COLUMNS)
        printed = found.out + found.err
        if os.environ.get("TDX_UPDATE_GOLDEN"):
            before, after = f"$ {command}\n{output}", f"$ {command}\n{printed}"
            PAGE.write_text(PAGE.read_text().replace(before, after, 1))
            continue
        assert found.code == 0, found.err
        assert fronts(printed) == fronts(output)
