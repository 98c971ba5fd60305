"""Examples of profiles in the docs. Only the start of each line is compared: numbers vary.

TDX_UPDATE_GOLDEN=1 updates the pages.
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.profiling.sample_profile import MACHINE
from tests.programs import sampled
from tests.test_readme import BLOCK

if TYPE_CHECKING:
    from tests.cli.conftest import Tdx

DOCS = Path(__file__).parents[2] / "docs"
PAGES = (DOCS / "profiling.md", DOCS / "tutorials" / "profile-atari.md")
COLUMNS = 110
VARYING = ("noise: ", "too slow: ", "bound by: ", "may help: ")
BUSY_MACHINE = re.compile(
    r"^  preempted: (?s:.*?)hardly do\n|^  .*the mean is above p95, since (?s:.*?)of its time\n",
    re.MULTILINE,
)
"""Lines that say that other programs ran."""
SUMMARY_ROWS = re.compile(
    r"(^part +(?:µs/step +share|lane +figure).*\n)(?:.+\n)*?(?=whole step)", re.MULTILINE
)
"""The most expensive parts, and the parts that changed: which ones, and in which order, varies."""


def sessions(page: Path) -> list[str]:
    """Return the examples of a page."""
    return [text for kind, text in BLOCK.findall(page.read_text()) if kind == "measured"]


def fronts(text: str) -> list[str]:
    """Return the start of each line, up to the first gap, without numbers.

    In a summary and with ``--top``, the most expensive rows vary and are removed.
    """
    found = []
    text = SUMMARY_ROWS.sub(r"\1", BUSY_MACHINE.sub("", text))
    top_rows = re.compile(r"(^part .*\n)(?:(?!.*other rows).+\n)*(.*other rows)", re.MULTILINE)
    shown = top_rows.sub(r"\1\2", text)
    if shown != text:
        # The note about rows of many steps varies too.
        shown = re.sub(r"^  one call runs a (?:.*\n)(?:  .*\n)*", "", shown, flags=re.MULTILINE)
    for line in filter(None, shown.splitlines()):
        front = re.split(r"  |: (?=\D)", line.strip(), maxsplit=1)[0]
        varies = next((word for word in VARYING if line.strip().startswith(word)), None)
        found.append(varies or re.sub(r"[\d.,]+", "N", front))
    return found


EXAMPLES = [
    pytest.param(page, number, id=f"{page.stem}-{number}")
    for page in PAGES
    for number in range(len(sessions(page)))
]


@sampled(2)
@pytest.mark.parametrize(("page", "number"), EXAMPLES)
def test_examples_match_the_start_of_each_line(
    tdx: Tdx, page: Path, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if page.stem == "profile-atari":
        pytest.importorskip("ale_py")
    (tmp_path / "sample_pipelines").symlink_to(DOCS.parent / "sample_pipelines")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tdx.profiling.run.detect_machine", lambda: MACHINE)
    monkeypatch.setattr("tdx.profiling.machine.detect_machine", lambda: MACHINE)
    for part in re.split(r"^\$ ", sessions(page)[number], flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        found = tdx(*shlex.split(command)[1:], columns=COLUMNS)
        printed = found.out + found.err
        if os.environ.get("TDX_UPDATE_GOLDEN"):
            before, after = f"$ {command}\n{output}", f"$ {command}\n{printed}"
            page.write_text(page.read_text().replace(before, after, 1))
            continue
        assert found.code == 0, found.err
        assert fronts(printed) == fronts(output)
