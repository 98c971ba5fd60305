"""Output and errors of the commands for exports."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer import Context

from tdx.cli.commands import build_root
from tdx.cli.completion import complete_dump_keys, complete_export, complete_import
from tdx.rollouts.formats.registry import builtin_formats
from tests.cli.test_dumps import FORMS, RUN, in_form

if TYPE_CHECKING:
    from tests.cli.conftest import Golden, Tdx

STORED = ("--keys", "observation,action,reward,done", "--keys", "step_count")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Enter a temporary directory, with fixed package versions in manifests."""
    monkeypatch.chdir(tmp_path)
    for module in ("recording.request", "formats.import_writers"):
        monkeypatch.setattr(f"tdx.rollouts.{module}.package_versions", lambda: {"tdx": "0.1.0"})
    return tmp_path


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("form", FORMS)
def test_each_command_in_each_format(tdx: Tdx, golden: Golden, form: str) -> None:
    pytest.importorskip("minari")
    pytest.importorskip("h5py")
    assert tdx(*RUN, *STORED, "--steps", "60", "--chunk", "25", "--out", "runs/cart").code == 0
    export = ("export", "runs/cart")
    in_form(tdx, golden, form, 0, "export", *export, "--to", "npz")
    in_form(tdx, golden, form, 0, "export_dry", *export, "--to", "minari", "--dry-run")
    assert [each.name for each in Path("runs").iterdir()] in (
        ["cart", "cart.npz"],
        ["cart.npz", "cart"],
    )
    in_form(tdx, golden, form, 0, "import", "import", "runs/cart.npz", "--out", "runs/again")
    rows = [{"obs": [0.5, step], "reward": 1, "done": step == 2} for step in range(4)]
    Path("theirs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    theirs = ("import", "theirs.jsonl", "--out", "runs/theirs")
    in_form(tdx, golden, form, 0, "import_foreign", *theirs)


@pytest.mark.usefixtures("folder")
def test_export_to_stdout_equals_the_file(tdx: Tdx) -> None:
    assert tdx(*RUN, "--steps", "20", "--out", "cart").code == 0
    assert tdx("export", "cart", "--to", "jsonl").code == 0
    shown = tdx("export", "cart", "--out", "-")
    assert (shown.code, shown.err) == (0, "")
    assert shown.out == Path("cart.jsonl").read_text()
    assert len(shown.out.splitlines()) == 20 * 2


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (("cart", "--to", "parqet"), "unknown format 'parqet'", "did you mean parquet?"),
        (("cart", "--to", "bogus"), "unknown format 'bogus'", "one of "),
        (
            ("cart", "--to", "pandas"),
            "unknown format 'pandas'",
            "pandas reads parquet: --to parquet",
        ),
        (("cart",), "the export has no format", "add --to: "),
        (("cart", "-o", "cart.bin"), "the export has no format", "add --to: "),
        (("cart", "--to", "npz", "-o", "-"), "npz cannot be written to stdout", "--to jsonl"),
        (
            ("cart", "--to", "npz", "--keys", "rewrd"),
            "unknown entry 'rewrd'",
            "did you mean reward",
        ),
        (("cart", "--to", "npz", "--split"), "--split is for videos", "leave it out"),
        (("cart", "--to", "gif", "--lossy"), "--lossy is for mp4", "leave it out"),
        (("cart", "--to", "mp4"), "has no pixels, only observation [4]", "--from-pixels"),
        (("cart", "--to", "mp4", "--fps", "0"), "--fps must be an integer", ""),
        (("cart", "--to", "mp4", "--episodes", "a"), "invalid value 'a' for --episodes", "0,3-5"),
        (("cart", "--to", "minari", "--keys", "reward"), "needs an observation with its", "--keys"),
        (("none", "--to", "npz"), "none has no dump", "list dumps"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_export_errors_are_one_line(
    tdx: Tdx, arguments: tuple[str, ...], message: str, hint: str
) -> None:
    for format_name, package in (("mp4", "av"), ("minari", "minari")):
        if format_name in arguments:
            pytest.importorskip(package)
    made = ("rollout", "--env", "CartPole-v1", "--seed", "0", "--steps", "5", "--out", "cart")
    assert tdx(*made).code == 0
    outcome = tdx("export", *arguments)
    assert outcome.code in (2, 3)
    assert outcome.out == ""
    first, *rest = outcome.err.splitlines()
    assert first.startswith("error: ")
    assert message in first
    assert len(rest) <= 1
    assert hint in "".join(rest)
    assert [each.name for each in Path().iterdir()] == ["cart"]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (("none.npz", "--out", "d"), "none.npz does not exist", "of an export"),
        (("cart.npz", "--out", "d", "--from", "npy"), "unknown format 'npy'", "did you mean npz?"),
        (("cart.npz", "--out", "d", "--from", "gif"), "gif cannot be imported", "these can"),
        (("cart.npz", "--out", "d", "--env", "X-v0"), "already names its env", "leave --env out"),
        (("cart.npz", "--out", "cart"), "cart already has a dump", "--force"),
        (("cart", "--out", "d"), "the format of cart cannot be detected", "--from: hdf5"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_import_errors_are_one_line(
    tdx: Tdx, arguments: tuple[str, ...], message: str, hint: str
) -> None:
    made = ("rollout", "--env", "CartPole-v1", "--seed", "0", "--steps", "5", "--out", "cart")
    assert tdx(*made).code == 0
    assert tdx("export", "cart", "--to", "npz").code == 0
    outcome = tdx("import", *arguments)
    assert outcome.code in (2, 3)
    assert outcome.out == ""
    first, second = outcome.err.splitlines()
    assert message in first
    assert hint in second
    assert sorted(each.name for each in Path().iterdir()) == ["cart", "cart.npz"]


@pytest.mark.usefixtures("folder")
def test_import_equals_the_exported_dump(tdx: Tdx) -> None:
    assert tdx(*RUN, "--steps", "40", "--out", "cart").code == 0
    assert tdx("export", "cart", "--out", "data.safetensors").code == 0
    assert tdx("import", "data.safetensors", "--out", "again").code == 0
    same = tdx("diff", "cart", "again", "--steps", "40")
    assert (same.code, same.err) == (0, "")
    assert tdx("verify", "again").code == 0
    for command in (
        ("export", "cart", "--out", "data.safetensors"),
        ("import", "data.safetensors", "--out", "again"),
    ):
        assert tdx(*command).code == 2
        assert tdx(*command, "--force").code == 0


@pytest.mark.usefixtures("folder")
def test_completion_of_formats_and_entries(tdx: Tdx) -> None:
    assert [name for name, _ in complete_export("p")] == ["parquet"]
    assert {"mp4", "gif"} & {name for name, _ in complete_import("")} == set()
    assert {"mp4", "gif"} < {name for name, _ in complete_export("")}
    line = Context(build_root())
    line.params["dump"] = "cart"
    assert complete_dump_keys(line, "") == []
    assert tdx(*RUN, *STORED, "--steps", "5", "--out", "cart").code == 0
    assert complete_dump_keys(line, "action,next.o") == ["action,next.observation"]
    assert "reward" in complete_dump_keys(line, "")


def test_help_lists_every_format(tdx: Tdx) -> None:
    text = " ".join(tdx("export", "--help").out.replace("│", " ").split())
    listed = text[text.index("--to FORMAT") : text.index("--out -o")]
    for name in builtin_formats():
        assert re.search(rf"\b{name}\b", listed), name
