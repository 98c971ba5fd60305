"""Settings from the configuration file and the environment."""

from __future__ import annotations

import io
import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.cli.conftest import Golden, Tdx

LIST = ("list", "transforms", "RewardSum")
REPLACE = """
import sys
from pathlib import Path
old, new, name = sys.argv[1:]
Path(name).write_text(Path(name).read_text().replace(old, new))
"""
"""An editor that replaces a text: ``python replace.py OLD NEW FILE``."""
SPEC = ("inspect", "spec", "--env", "CartPole-v1", "--format", "json")


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "tdx" / "config.toml"
    path.parent.mkdir()
    monkeypatch.setenv("TDX_CONFIG", str(path))
    for name in ("FORMAT", "COLOR", "SEED", "NUM_ENVS", "DEVICE", "THEME"):
        monkeypatch.delenv(f"TDX_{name}", raising=False)
    return path


def test_options_override_variables_and_the_file(
    tdx: Tdx, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tdx(*LIST).out.splitlines()[0].split() == ["category", "name", "summary"]
    config.write_text('format = "jsonl"\n')
    assert json.loads(tdx(*LIST).out)["name"] == "RewardSum"
    monkeypatch.setenv("TDX_FORMAT", "csv")
    assert tdx(*LIST).out.startswith("name,category")
    assert tdx(*LIST, "--format", "md").out.startswith("| category")


def test_options_and_pipeline_override_settings(
    tdx: Tdx, config: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config.write_text("num_envs = 3\n")

    def batch(*arguments: str) -> list[int]:
        return list(json.loads(tdx(*SPEC, *arguments).out)["after"]["batch_size"])

    assert batch() == [3]
    monkeypatch.setenv("TDX_NUM_ENVS", "4")
    assert batch() == [4]
    assert batch("--num-envs", "5") == [5]
    file = tmp_path / "chain.yaml"
    file.write_text("version: 1\nenv: {id: CartPole-v1, num_envs: 2}\n")
    outcome = tdx("inspect", "spec", "--pipeline", str(file), "--format", "json")
    assert json.loads(outcome.out)["after"]["batch_size"] == [2]


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ('frmat = "json"', ":1: unknown setting 'frmat'", "did you mean format?"),
        ('\nformat = "jsno"', ":2: invalid value 'jsno' for format", "did you mean json"),
        ("seed = -1", ":1: seed must be an integer of at least 0, got -1", "for example 0"),
        ("seed = true", ":1: seed must be an integer", "for example 0"),
        ("device = 3", ":1: device must be a quoted string", "for example cpu"),
        ("format = \n", ":1: invalid TOML: invalid value", "tdx config init --force"),
        ("[inspect]\nformat = 'json'", ":1: unknown setting 'inspect'", "the settings are format"),
    ],
)
def test_broken_file_fails_commands_but_not_help(
    tdx: Tdx, config: Path, text: str, message: str, hint: str
) -> None:
    config.write_text(text)
    outcome = tdx(*LIST)
    assert (outcome.code, outcome.out) == (2, "")
    error, advice = outcome.err.splitlines()
    assert error.startswith(f"error: {config}{message}")
    assert hint in advice
    help_page = tdx("list", "transforms", "--help")
    assert (help_page.code, help_page.err.count("\n")) == (0, 1)
    assert help_page.err.startswith(f"notice: {config}{message}")
    assert "Usage" in help_page.out


def test_error_names_the_invalid_variable(
    tdx: Tdx, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TDX_SEED", "many")
    outcome = tdx(*SPEC)
    assert outcome.code == 2
    assert "TDX_SEED must be an integer of at least 0, got 'many'" in outcome.err


def test_error_uses_the_configured_format(tdx: Tdx, config: Path) -> None:
    config.write_text('format = "json"\n')
    assert json.loads(tdx("lst").err)["error"]["hint"] == "did you mean list?"


def test_init_does_not_overwrite_an_existing_file(tdx: Tdx, config: Path) -> None:
    config.parent.rmdir()
    assert tdx("config", "path").out == f"{config}\n"
    assert tdx("config", "init").err == f"wrote {config}\n"
    config.write_text("broken")
    again = tdx("config", "init")
    assert (again.code, config.read_text()) == (2, "broken")
    assert "--force" in again.err
    assert tdx("config", "init", "--force").code == 0
    assert tdx(*LIST).code == 0


@pytest.mark.parametrize("form", ["table", "json"])
def test_show_lists_the_source_of_each_setting(
    tdx: Tdx, config: Path, golden: Golden, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    config.write_text("num_envs = 3\n")
    monkeypatch.setenv("TDX_SEED", "7")
    shown = tdx("config", "show", "--format", form).out
    for path in (str(config), str(config).replace("_", r"\_")):
        shown = shown.replace(path, "FILE")
    golden(f"config.{'txt' if form == 'table' else form}", shown)


def test_get_prints_the_value_of_a_setting(
    tdx: Tdx, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write_text("num_envs = 3\n")
    assert tdx("config", "get", "num_envs").out == "3\n"
    assert tdx("config", "get", "seed").out == ""
    monkeypatch.setenv("TDX_SEED", "7")
    shown = json.loads(tdx("config", "get", "seed", "--format", "json").out)
    assert (shown["value"], shown["source"]) == (7, "environment")
    unknown = tdx("config", "get", "num_env")
    assert (unknown.code, unknown.out) == (2, "")
    assert "unknown setting 'num_env'" in unknown.err
    assert "did you mean num_envs?" in unknown.err


def test_set_keeps_comments_and_other_settings(
    tdx: Tdx, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.parent.rmdir()
    assert tdx("config", "set", "num_envs", "4").err == f"set num_envs in {config}\n"
    text = config.read_text()
    assert "\nnum_envs = 4\n" in text
    assert "# seed = 0\n" in text
    config.write_text('# mine\nseed = 1  # for the paper\n\n[keymap]\n"chain.remove" = "x"\n')
    assert tdx("config", "set", "format", "json").code == 0
    assert tdx("config", "set", "seed", "2").code == 0
    assert config.read_text() == (
        '# mine\nseed = 2  # for the paper\nformat = "json"\n\n[keymap]\n"chain.remove" = "x"\n'
    )
    assert json.loads(tdx("config", "get", "seed").out)["value"] == 2
    monkeypatch.setenv("TDX_SEED", "7")
    assert "TDX_SEED is set and overrides the file" in tdx("config", "set", "seed", "3").err


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("sede", "1", "unknown setting 'sede'"),
        ("seed", "-1", "seed must be an integer of at least 0"),
        ("format", "jsno", "invalid value 'jsno' for format"),
        ("theme", "", "theme must be a quoted string"),
    ],
)
def test_set_with_an_invalid_value_does_not_change_the_file(
    tdx: Tdx, config: Path, name: str, value: str, message: str
) -> None:
    config.write_text("seed = 1\n")
    outcome = tdx("config", "set", "--", name, value)
    assert outcome.code == 2
    assert message in outcome.err
    assert config.read_text() == "seed = 1\n"


def test_set_does_not_change_an_invalid_file(tdx: Tdx, config: Path) -> None:
    config.write_text("seed = \n")
    assert "invalid TOML" in tdx("config", "set", "num_envs", "2").err
    assert config.read_text() == "seed = \n"


def test_set_does_not_change_a_text_that_looks_like_the_setting(tdx: Tdx, config: Path) -> None:
    config.write_text('theme = """\nseed = 1\n# seed = 1\n"""\n')
    assert tdx("config", "set", "seed", "2").code == 0
    assert config.read_text() == 'theme = """\nseed = 1\n# seed = 1\n"""\nseed = 2\n'


def test_set_uncomments_a_setting_above_the_tables(tdx: Tdx, config: Path) -> None:
    config.write_text('# seed = 7\n\n# [keymap]\n# "chain.remove" = "x"\n')
    assert tdx("config", "set", "seed", "2").code == 0
    assert config.read_text() == 'seed = 2\n\n# [keymap]\n# "chain.remove" = "x"\n'


def test_settings_of_earlier_versions_are_ignored(tdx: Tdx, config: Path) -> None:
    config.write_text('graphics = "kitty"\nseed = 3\n')
    assert tdx("config", "get", "seed").out == "3\n"


@pytest.mark.parametrize(
    ("editor", "message"),
    [
        (None, "no editor is set"),
        ("true", "an editor needs a terminal"),
    ],
)
def test_edit_requires_an_editor_and_a_terminal(
    tdx: Tdx, config: Path, monkeypatch: pytest.MonkeyPatch, editor: str | None, message: str
) -> None:
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.delenv("EDITOR", raising=False)
    if editor is not None:
        monkeypatch.setenv("EDITOR", editor)
    outcome = tdx("config", "edit")
    assert (outcome.code, outcome.out) == (2, "")
    assert message in outcome.err
    assert not config.exists()


def test_edit_opens_the_editor_and_validates_the_file(
    tdx: Tdx, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.setattr("sys.stdout", Terminal())
    monkeypatch.delenv("VISUAL", raising=False)
    script = config.parent / "replace.py"
    script.write_text(REPLACE)
    replace = shlex.join([sys.executable, str(script)])
    monkeypatch.setenv("EDITOR", f"{replace} '# seed = 0' 'seed = many'")
    outcome = tdx("config", "edit")
    assert outcome.code == 2
    assert "invalid TOML" in outcome.err
    assert "seed = many" in config.read_text()
    monkeypatch.setenv("EDITOR", f"{replace} many 5")
    assert tdx("config", "edit").code == 0
    assert "\nseed = 5\n" in config.read_text()
    monkeypatch.setenv("EDITOR", "no-such-editor --wait")
    assert "cannot run no-such-editor --wait" in tdx("config", "edit").err
    monkeypatch.setenv("EDITOR", "/bin/sh -c 'exit 1'")
    assert "/bin/sh -c 'exit 1' exited with 1" in tdx("config", "edit").err
