"""The examples of docs/profiling.md: their numbers vary, what stands in front of them does not.

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
    """The examples of the page."""
    return [text for kind, text in BLOCK.findall(PAGE.read_text()) if kind == "measured"]


def fronts(text: str) -> list[str]:
    """What each line begins with, up to the first gap, without its numbers.

    Which rows take most, where only those are shown, is another matter each time.
    """
    found = []
    dearest = re.compile(r"(^part .*\n)(?:(?!.*other rows).+\n)*(.*other rows)", re.MULTILINE)
    told = dearest.sub(r"\1\2", text)
    if told != text:
        # Whether one of those that take most stands for many steps varies as well.
        told = re.sub(r"^  per step: .*\n\n?", "", told, flags=re.MULTILINE)
    for line in filter(None, told.splitlines()):
        front = re.split(r"  |: (?=\D)", line.strip(), maxsplit=1)[0]
        varies = next((word for word in VARYING if line.strip().startswith(word)), None)
        found.append(varies or re.sub(r"[\d.,]+", "N", front))
    return found


@pytest.mark.parametrize("number", range(len(sessions())))
def test_examples_begin_as_the_page_says(
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
