"""Saved policies are code: no command opens one without --allow-code."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tdx import CodeNotAllowedError, EnvConfig, Pipeline, record_dump
from tdx.foundation.container import Container
from tdx.rollouts import DumpRequest, Goal, Manifest, roll_out
from tdx.rollouts import resume as resume_dump
from tests.cli.conftest import Tdx
from tests.rollouts.hostile import KINDS, write_hostile

COMMANDS = {
    "rollout": ("rollout", "p.yaml", "--steps", "5", "--out", "dump"),
    "dry run": ("rollout", "p.yaml", "--steps", "5", "--dry-run"),
    "values": ("inspect", "values", "--pipeline", "p.yaml"),
    "profile": ("profile", "p.yaml", "--steps", "5", "--repeat", "1"),
    "check": ("check", "p.yaml"),
}
QUIET = {
    "spec": ("inspect", "spec", "--pipeline", "p.yaml"),
    "diff": ("diff", "p.yaml", "p.yaml"),
    "report": ("report", "p.yaml", "--out", "report.html", "--steps", "5"),
}


any_command = pytest.mark.parametrize("marker", ["script"], indirect=True)
"""Commands open all kinds of policies by the same function, which the other tests call."""


@pytest.fixture(params=KINDS)
def marker(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path that a hostile policy creates; ``p.yaml`` uses that policy."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    marker = tmp_path / "marker"
    name = write_hostile(request.param, Path(), marker)
    Path("p.yaml").write_text(f"version: 1\nenv: Pendulum-v1\npolicy: {name}\n")
    return marker


@any_command
@pytest.mark.parametrize("command", COMMANDS)
def test_code_is_refused_with_a_hint(tdx: Tdx, marker: Path, command: str) -> None:
    outcome = tdx(*COMMANDS[command])
    assert outcome.code in (1, 2)
    assert "can run code" in outcome.out + outcome.err
    assert "--allow-code" in outcome.out + outcome.err
    assert not marker.exists()


@any_command
@pytest.mark.parametrize("command", QUIET)
def test_commands_without_a_policy_do_not_open_it(tdx: Tdx, marker: Path, command: str) -> None:
    tdx(*QUIET[command])
    assert not marker.exists()


def test_policy_option_is_refused_without_allow_code(tdx: Tdx, marker: Path) -> None:
    name = Path("p.yaml").read_text().split("policy: ")[1].strip()
    asked = ("--env", "Pendulum-v1", "--policy", name, "--steps", "5")
    outcome = tdx("rollout", *asked, "--out", "dump")
    assert (outcome.code, marker.exists()) == (2, False)
    with pytest.raises(CodeNotAllowedError):
        record_dump(Pipeline.of("Pendulum-v1"), "dump", steps=5, policy=name)
    assert not marker.exists()


def test_dump_with_a_hostile_policy_is_not_resumed(tdx: Tdx, marker: Path) -> None:
    name = Path("p.yaml").read_text().split("policy: ")[1].strip()
    _cut_dump(Path("dump"), name)
    outcome = tdx("rollout", "--out", "dump", "--resume")
    assert (outcome.code, "can run code" in outcome.err) == (2, True)
    with pytest.raises(CodeNotAllowedError):
        resume_dump(Path("dump"))
    for command in (("show", "dump"), ("verify", "dump"), ("list", "dumps", ".")):
        tdx(*command)
    tdx("replay", "dump", "--t", "RewardSum", "--out", "again")
    tdx("export", "dump", "--out", "dump.npz")
    assert not marker.exists()


def _cut_dump(folder: Path, policy: str) -> None:
    """Write an unfinished dump whose manifest names another policy."""

    class CutError(Exception):
        pass

    def cut(progress: object) -> None:
        raise CutError

    asked = DumpRequest(Pipeline.of(EnvConfig("Pendulum-v1")), Goal(steps=20), seed=0)
    with pytest.raises(CutError):
        roll_out(replace(asked, chunk_steps=5, raw=True), folder, on_chunk=cut)
    manifest = Manifest.load(folder)
    manifest.policy = policy
    with Container.open(folder) as root:
        manifest.save(root)


@pytest.mark.parametrize("marker", ["export", "script"], indirect=True)
def test_allow_code_runs_the_policy(tdx: Tdx, marker: Path) -> None:
    outcome = tdx(*COMMANDS["rollout"], "--allow-code")
    assert marker.exists(), outcome.err
