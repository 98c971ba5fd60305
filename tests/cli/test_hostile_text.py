"""Control characters in untrusted text are escaped."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tdx.cli.charts import label, svg_image
from tdx.cli.html import html_fragment, html_page
from tdx.cli.options import (
    DATA_FORMATS,
    FINDINGS_FORMATS,
    GRAPH_FORMATS,
    IMAGE_FORMATS,
    Color,
    Format,
    OutputOptions,
)
from tdx.cli.output import markdown, render_view, terminal_text
from tdx.cli.views import (
    Cell,
    Code,
    Column,
    Fluid,
    Fold,
    Gallery,
    Heading,
    Paragraph,
    Picture,
    Table,
    View,
)
from tdx.foundation.text import is_printable
from tests.programs import exhaustive

if TYPE_CHECKING:
    from tests.cli.conftest import Tdx
    from tests.cli.processes import Completed

HOSTILE = "evil\x1b[2J\x1b[31m\x9b1m\x07\x7f\r\u202e\u2066\u200bdone"
QUOTED = json.dumps(HOSTILE)
STEPS = ("--steps", "3", "--seed", "0")
_MODULE = '''
import gymnasium as gym
import numpy as np

HOSTILE = {hostile!r}


class Env(gym.Env):
    """An env with a key that contains control characters."""

    observation_space = gym.spaces.Dict(
        {{HOSTILE: gym.spaces.Box(-1, 1, (2,)), "plain": gym.spaces.Box(-1, 1, (2,))}}
    )
    action_space = gym.spaces.Discrete(2)

    def _observation(self):
        return {{key: np.zeros(2, np.float32) for key in (HOSTILE, "plain")}}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        print("reset", HOSTILE)
        return self._observation(), {{}}

    def step(self, action):
        return self._observation(), 1.0, False, False, {{}}


def make():
    return Env()


def broken():
    raise RuntimeError(HOSTILE)
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Enter a temporary directory with a module ``hostile_env``."""
    (tmp_path / "hostile_env.py").write_text(_MODULE.format(hostile=HOSTILE), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def is_harmless(text: str) -> bool:
    """Return True if a text has no control characters except newlines and tabs."""
    return is_printable(text.replace("\n", "").replace("\t", ""))


def assert_harmless(outcome: Completed) -> None:
    assert is_harmless(outcome.out), ascii(outcome.out)
    assert is_harmless(outcome.err), ascii(outcome.err)


ENV = ("--env", "hostile_env:make", "--allow-code")
STAGE = ("--t", f"ObservationNorm(0.0, 2.0, in_keys=[{HOSTILE!r}])")
SHORT = ("--steps", "2", "--warmup", "1", "--repeat", "1")


@pytest.mark.parametrize("render", [terminal_text, markdown, html_page, html_fragment])
def test_renderer_escapes_every_block(render: Callable[..., str]) -> None:
    def draw() -> str:
        return svg_image(9, 9, [label(1, 1, HOSTILE)], HOSTILE)

    cells = [Cell(HOSTILE), Cell(HOSTILE, "name")]
    table = Table([Column(HOSTILE), Column(HOSTILE, is_number=True)], [cells])
    blocks = [
        *(Heading(HOSTILE, HOSTILE, level=1), Heading(HOSTILE, HOSTILE), Paragraph(cells), table),
        *(Code(HOSTILE), Fold(HOSTILE, [table]), Fluid(lambda width: [Paragraph(cells)])),
        Gallery(
            [Picture(draw, HOSTILE), Picture(b"png", HOSTILE)], Heading(HOSTILE, level=3), "<b>"
        ),
    ]
    for width in (20, 500):
        text = render(blocks, width) if render is terminal_text else render(blocks)
        assert is_harmless(text), ascii(text)
        assert "evil" in text
        assert "<b>" not in text


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("command", "formats"),
    [("spec", DATA_FORMATS), ("chain", IMAGE_FORMATS), ("keys", GRAPH_FORMATS)],
)
def test_keys_of_an_env_are_escaped(tdx: Tdx, command: str, formats: Sequence[str]) -> None:
    outcomes = [tdx("inspect", command, *ENV, *STAGE, "--format", form) for form in formats]
    for outcome in outcomes:
        assert_harmless(outcome)
    assert any("evil" in outcome.out for outcome in outcomes)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("form", FINDINGS_FORMATS)
def test_keys_in_findings_are_escaped(tdx: Tdx, form: str) -> None:
    stage = f"DoubleToFloat(in_keys=[{HOSTILE!r}])"
    assert_harmless(tdx("check", *ENV, "--t", stage, "--format", form))


@pytest.mark.usefixtures("folder")
def test_terminal_receives_only_colors_of_tdx(tdx: Tdx) -> None:
    outcome = tdx("inspect", "spec", *ENV, "--color", "always", columns=60)
    assert outcome.code == 0
    assert "\x1b[1m" in outcome.out
    assert "\x1b[2J" not in outcome.out
    assert is_harmless(re.sub(r"\x1b\[[\d;]*m", "", outcome.out))
    shown = re.sub(r"\x1b\[[\d;]*m", "", outcome.out).replace("\n", "").replace(" ", "")
    assert "\\x1b[31m" in shown


@pytest.mark.usefixtures("folder")
def test_json_and_csv_keep_the_text(tdx: Tdx) -> None:
    document = json.loads(tdx("inspect", "spec", *ENV, "--format", "json").out)
    assert any(HOSTILE in change["key"] for change in document["keys"])
    table = tdx("inspect", "spec", *ENV, "--format", "csv").out
    rows = list(csv.DictReader(io.StringIO(table)))
    assert {len(row) for row in rows} == {len(rows[0])}
    assert any("evil\\x1b[2J" in row["key"] for row in rows)


def test_dumps_and_folder_names_are_escaped(tdx: Tdx, folder: Path) -> None:
    """Use hostile keys in the manifest and a hostile name of the folder."""
    dump = folder / "dumps" / HOSTILE.replace("\x00", "")
    assert_harmless(tdx("rollout", *ENV, *STEPS, "--out", str(dump)))
    for arguments in (
        ("show", "dump", str(dump)),
        ("verify", str(dump)),
        ("list", "dumps", str(folder)),
        ("export", str(dump), str(folder / f"{HOSTILE}.npz"), "--to", "npz"),
        ("rollout", *ENV, *STEPS, "--out", str(dump)),
        ("replay", str(dump), "--t", "RewardSum", "--allow-code"),
        ("show", "dump", str(folder / "dumps" / f"no {HOSTILE}")),
    ):
        assert_harmless(tdx(*arguments))


# An unknown key, an error of the parser and an error of the env.
FILES = {
    "key": f"version: 1\nenv: Pendulum-v1\n{QUOTED}: 1\n",
    "not YAML": "version: 1\nenv: [\u202eevil\n",
    "environment fails": "version: 1\nenv: hostile_env:broken\n",
}


@pytest.mark.parametrize("name", FILES)
def test_text_of_pipeline_files_is_escaped(tdx: Tdx, folder: Path, name: str) -> None:
    file = folder / f"{HOSTILE}.yaml"
    file.write_text(FILES[name], encoding="utf-8")
    path = str(file)
    for form in (Format.TABLE, Format.JSON):
        assert_harmless(tdx("check", path, "--allow-code", "--format", form))


@pytest.mark.parametrize("form", [Format.TABLE, Format.JSON])
@pytest.mark.parametrize(
    "arguments",
    [
        # An unknown command, a usage error and a file that does not exist.
        (HOSTILE,),
        ("check", "--env", "Pendulum-v1", "--num-envs", HOSTILE),
        ("import", HOSTILE, "--out", HOSTILE),
    ],
    ids=lambda arguments: ascii(" ".join(arguments)),
)
def test_arguments_in_messages_are_escaped(tdx: Tdx, arguments: tuple[str, ...], form: str) -> None:
    outcome = tdx(*arguments, "--format", form)
    assert outcome.code in (1, 2, 3)
    assert "evil" in (outcome.out + outcome.err).lower()
    assert_harmless(outcome)


@exhaustive
def test_text_in_written_files_is_escaped(tdx: Tdx, folder: Path) -> None:
    report = tdx("report", *ENV, "--steps", "2", "--out", str(folder / f"{HOSTILE}.html"))
    assert report.code == 0, report.err
    assert_harmless(report)
    assert is_harmless((folder / f"{HOSTILE}.html").read_text(encoding="utf-8"))
    assert_harmless(tdx("init", "-", *ENV))
    page = tdx("profile", *ENV, *SHORT, "--html", "-")
    assert_harmless(page)
    saved = tdx("profile", *ENV, *SHORT, "--save", "-")
    assert saved.code == 0, saved.err
    assert is_harmless(saved.out)


def test_completion_omits_hostile_words(
    tdx: Tdx, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_TDX_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "tdx inspect keys --env hostile_env:make --allow-code ")
    monkeypatch.setenv("COMP_CWORD", "6")
    monkeypatch.setenv("_TDX_FINDS_KEYS", "1")  # in this process, not in the background
    import contextlib

    from tdx.cli.process import run

    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        run([])
    assert "plain" in out.getvalue().splitlines()
    assert is_harmless(out.getvalue())


LINKING = (
    *("@everyone", "![a](https://example.org/a.png)", "[a](https://example.org)", "<b>", "a](b)"),
    *("https://example.org", "www.example.org", "#12", "GH-12", "&#64;everyone", "a|b", "[a]: b"),
    *("a.@everyone", "someone@example.org"),
    "~~~\n```\n@everyone",
)


def rendered(markdown: str) -> str:
    """Return what a code host shows of a text: comments end a word, escapes are characters."""
    return re.sub(r"\\([!-/:-@\[-`{-~])", r"\1", markdown.replace("<!-- -->", "\0"))


@pytest.mark.parametrize("text", LINKING)
def test_markdown_mentions_nobody_and_links_nowhere(text: str) -> None:
    cells = (Cell("the key "), Cell(text))
    table = Table((Column(text), Column("b")), ((Cell(text), Cell("c")),))
    for block in (Heading(text), Paragraph(cells), table):
        shown = markdown([block]).replace("\\\\", "")
        assert not re.search(
            r"(?<!\w)@\w|@\w+\.|(?<!\\)\](?=[(\[:])|://|www\.|#\d|GH-\d|(?<!\\)&\W*\w+;", shown
        )
        assert "<b>" not in shown.replace("\\<", "")
        assert text.split("\n")[0] in rendered(shown).replace("\0", "")
    code = markdown([Code(text)])
    assert code.splitlines()[0].removesuffix("python") == code.splitlines()[-1] not in text


def test_link_that_two_cells_make_together_is_escaped() -> None:
    shown = markdown([Paragraph((Cell("[a]"), Cell("(https://example.org)")))])
    assert "](" not in shown.replace("\\]", "")


@pytest.mark.parametrize("text", ["=1+1", "+1+1", "-1+1", "@SUM(1)", "\t=1", "=cmd|' /C calc'!A0"])
def test_cells_of_csv_are_no_formulas(text: str) -> None:
    view = View("kind", dict, list, lambda: [{"key": text, text: -1.5, "n": "-1.5"}])
    shown = render_view(view, OutputOptions(Format.CSV, Color.NEVER, debug=False))
    head, row = csv.reader(io.StringIO(shown))
    assert head == ["key", f"'{text}", "n"]
    assert row == [f"'{text}", "-1.5", "-1.5"]
