"""Completion in real bash, zsh and fish shells."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.cli.processes import run
from tests.programs import exhaustive, require_program, sampled
from tests.tui.tmux import Terminal

SCRIPT_VARIABLE = "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION"
CASES = {
    "entries of a dump": ("tdx export runs/pendulum --keys next.r", ["next.reward", "next.return"]),
    "the second key of a stage": (
        "tdx inspect spec Pendulum-v1 -t \"CatFrames(4, -1, in_keys=['reward', 'obs",
        ["in_keys=['reward', 'observation'"],
    ),
}
"""Typed lines and the candidates that a shell shows or inserts."""
START = {
    "bash": ("--noprofile --norc -i", "PS1='> '; source complete.bash"),
    "zsh": (
        "-f -i",
        "PS1='> '; autoload -U compinit; compinit -u -D; source complete.zsh; setopt no_auto_menu",
    ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a folder with completion scripts and a dump."""
    folder = tmp_path_factory.mktemp("shells")
    for shell in ("bash", "zsh", "fish"):
        before = partial(os.environ.update, {SCRIPT_VARIABLE: "1"})
        script = run("--show-completion", shell, before=before).out
        (folder / f"complete.{shell}").write_text(script)
    dump = folder / "runs" / "pendulum"
    dump.mkdir(parents=True)
    (dump / "manifest.json").write_text("{}")
    leaves = [{"key": ["next", "reward"]}, {"key": ["next", "return"]}, {"key": ["action"]}]
    line = {"tracks": {"data": {"leaves": leaves}}}
    (dump / "chunks.jsonl").write_text(json.dumps(line) + "\n")
    return folder


@pytest.fixture(scope="module")
def environ(folder: Path) -> dict[str, str]:
    """Return the environment variables of the shells; the cache has the keys of Pendulum-v1."""
    script = folder / "bin" / "tdx"
    script.parent.mkdir()
    code = "import sys; sys.argv[0] = 'tdx'; from tdx.cli import main; sys.exit(main())"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -c {shlex.quote(code)} "$@"\n')
    script.chmod(0o755)
    environ = {
        "PATH": f"{script.parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "HOME": str(folder),
        "TERM": "xterm",
    }
    words = ["tdx", "inspect", "spec", "Pendulum-v1", "-t", "\"CatFrames(in_keys=['rew"]
    completion = {
        "_TDX_COMPLETE": "complete_bash",
        "COMP_WORDS": "\n".join(words),
        "COMP_CWORD": "5",
    }
    # Without the variable, a process in the background finds the keys, and the first TAB has none.
    environment = {**environ, **completion, "_TDX_FINDS_KEYS": "1"}
    subprocess.run([script], cwd=folder, env=environment, capture_output=True, check=True)
    return environ


@pytest.fixture(scope="module")
def completed_in_fish(folder: Path, environ: dict[str, str]) -> dict[str, list[str]]:
    """Return the candidates of fish for each line."""
    fish = require_program("fish")
    lines = "; ".join(f"complete -C {shlex.quote(line)}; echo ---" for line, _ in CASES.values())
    done = subprocess.run(
        [fish, "--no-config", "-c", f"source complete.fish; {lines}"],
        cwd=folder,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=True,
    )
    parts = done.stdout.split("---\n")
    return {name: part.splitlines() for name, part in zip(CASES, parts, strict=False)}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.programs
@exhaustive
def test_fish_offers_the_candidates(completed_in_fish: dict[str, list[str]], name: str) -> None:
    offered = completed_in_fish[name]
    for text in CASES[name][1]:
        assert any(text in each for each in offered), offered


@pytest.fixture(scope="module", params=START)
def shell(
    request: pytest.FixtureRequest,
    folder: Path,
    environ: dict[str, str],
) -> Iterator[Terminal]:
    """Start an interactive shell with the completion of tdx."""
    options, setup = START[request.param]
    program = require_program(request.param)
    settings = " ".join(f"{name}={shlex.quote(value)}" for name, value in environ.items())
    with tempfile.TemporaryDirectory(prefix="tmux") as socket:
        terminal = Terminal(socket)
        command = f"exec env {settings} {program} {options}"
        terminal.tmux("new-session", "-d", "-x", "150", "-y", "50", "-c", str(folder), command)
        try:
            terminal.type(f"{setup}; echo rea''dy")
            terminal.press("Enter")
            terminal.sees("ready")
            yield terminal
        finally:
            terminal.close()


@sampled(2)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.programs
def test_bash_and_zsh_offer_the_candidates(shell: Terminal, name: str) -> None:
    """Press TAB once for the common prefix, and again for the list of candidates."""
    line, wanted = CASES[name]
    shell.type(line)
    shell.press(*["Tab"] * (3 if len(wanted) > 1 else 1))
    shell.sees(*wanted)
    shell.press("C-u", "C-l")
    shell.sees(">", gone="tdx")
