"""Shell completion."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer import Context

from tdx.cli.commands import build_root
from tdx.cli.completion import (
    cached_names,
    complete_device,
    complete_dump,
    complete_env,
    complete_name,
    complete_policy,
    complete_transform,
)
from tdx.cli.pipelines import complete_key, complete_stage, complete_stored_keys
from tests.programs import exhaustive

ROOT = Path(__file__).parents[2]
REPORT = """
import contextlib, io, json, sys
from tdx.cli import main
out = io.StringIO()
with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
    main()
heavy = sorted({"torch", "gymnasium", "numpy", "textual", "tensordict"} & set(sys.modules))
print(json.dumps([out.getvalue().split("\\n"), heavy]))
"""


def offered(word: str) -> list[str]:
    return [text for text, _ in complete_transform(word)]


def test_completion_of_transform_names() -> None:
    assert offered("StepC") == ["StepCounter"]
    assert offered("stepc") == ["StepCounter"]
    assert {"RewardClipping", "RewardScaling", "RewardSum"} <= set(offered("Reward"))


def test_substring_matches_are_the_fallback() -> None:
    assert "RewardClipping" in [name for name, _ in complete_name("Clipping")]


@pytest.mark.parametrize(
    ("word", "wanted"),
    [
        ("StepCounter(ma", ["StepCounter(max_steps=", "StepCounter(max_steps=None"]),
        ("StepCounter(max_steps=3, trunc", "StepCounter(max_steps=3, truncated_key="),
        ("StepCounter(update_done=", "StepCounter(update_done=True"),
        ("StepCounter(update_done=F", ["StepCounter(update_done=False"]),
        ("CatFrames(4, -1, in_keys=['a', 'b'], di", []),
        ("CatFrames(4, d", "CatFrames(4, dim="),
        ("StepCounter(max_steps=3)", []),
        ("CatFrames(in_keys=['pix", []),
        ("NoSuchTransform(a", []),
    ],
)
def test_completion_of_arguments(word: str, wanted: str | list[str]) -> None:
    found = offered(word)
    assert found == wanted if isinstance(wanted, list) else wanted in found


def test_each_argument_is_completed_once() -> None:
    found = offered("StepCounter(max_steps=3, ")
    assert found
    assert "StepCounter(max_steps=3, max_steps=" not in found


def test_completion_of_env_ids() -> None:
    assert ("Pendulum-v1", "gymnasium") in complete_env("pendul")
    assert complete_env("no such env") == []


@exhaustive
def test_completion_in_a_shell_loads_no_torch() -> None:
    """Run ``tdx`` in a new process with cached env IDs."""
    complete_env("")

    def complete(*words: str) -> tuple[list[str], list[str]]:
        env = {
            **os.environ,
            "_TDX_COMPLETE": "complete_bash",
            "COMP_WORDS": "\n".join(("tdx", *words)),
            "COMP_CWORD": str(len(words)),
        }
        done = subprocess.run(
            [sys.executable, "-c", REPORT],
            capture_output=True,
            text=True,
            cwd=ROOT,
            env=env,
            check=True,
        )
        offers, heavy = json.loads(done.stdout.splitlines()[-1])
        return offers, heavy

    complete("inspect", "spec", "--env", "")
    offers, heavy = complete("inspect", "spec", "--env", "Pendulum-")
    assert "Pendulum-v1" in offers
    assert heavy == []
    offers, heavy = complete("inspect", "spec", "-t", '"StepCounter(ma')
    assert "StepCounter(max_steps=" in offers
    assert heavy == []
    assert "--format" in complete("check", "--fo")[0]
    assert not {"--t", "--transform", "--env"} & {*complete("check", "--")[0]}
    offers, heavy = complete("help", "")
    assert {"inspect", "profile"} <= {*offers}
    assert heavy == []
    assert "spec" in complete("help", "inspect", "")[0]


def test_completion_of_keys_of_the_env_on_the_command_line() -> None:
    line = Context(build_root())
    line.params.update({"env": "Pendulum-v1", "transforms": ["RewardSum"]})
    assert complete_key(line, "") == [
        *("observation", "reward", "done", "terminated", "truncated", "episode_reward", "action"),
    ]
    assert complete_stored_keys(line, "reward,next.ep") == ["reward,next.episode_reward"]
    line.params.update({"env": None, "file": "nowhere.yaml"})
    assert complete_key(line, "") == []


KEYS = ["observation", "reward", "done", "terminated", "truncated"]


@pytest.mark.parametrize(
    ("stage", "wanted"),
    [
        ("CatFrames(4, -1, in_keys=[", [f"'{key}'" for key in (*KEYS, "episode_reward", "action")]),
        ('CatFrames(4, -1, in_keys=["obs', ['"observation"', '"observation"]']),
        ("CatFrames(in_keys=['reward', 'ep", ["'episode_reward'", "'episode_reward']"]),
        ("CatFrames(in_keys=['reward','rew", []),
        ("RenameTransform(out_keys=['rew", []),
        ("Compose(transforms=['rew", []),
        ("CatFrames(in_keys=['reward']", []),
    ],
)
def test_completion_of_keys_in_a_stage(stage: str, wanted: list[str]) -> None:
    line = Context(build_root())
    line.params.update({"target": "Pendulum-v1", "transforms": ["RewardSum"]})
    found = {text for text, _ in complete_stage(line, stage)}
    start = stage.rstrip("abcdefghijklmnopqrstuvwxyz_").rstrip("\"'")
    assert found == {f"{start}{each}" for each in wanted}


def test_completed_keys_are_cached(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = tmp_path / "chain.yaml"
    calls: list[int] = []

    def find() -> list[str]:
        calls.append(1)
        sys.stdout.write("noise")
        return ["observation"] if file.exists() else []

    for exists in (False, True):
        if exists:
            file.write_text("version: 1")
        for _ in range(2):
            assert cached_names(["f", {"target": str(file)}], find) == ["observation"] * exists
    # An empty result is not cached, and a changed file invalidates the cache.
    assert len(calls) == 3
    file.write_text("version: 1\n")
    os.utime(file, ns=(1, 1))
    assert cached_names(["f", {"target": str(file)}], find) == ["observation"]
    assert len(calls) == 4
    (tmp_path / "cache" / "tdx" / "keys.json").write_text('{"a": 1}')
    assert cached_names(["f", {"target": str(file)}], find) == ["observation"]


@exhaustive
def test_keys_in_a_shell_are_found_in_the_background(tmp_path: Path) -> None:
    """TABs answer without torch, with nothing until the keys are found."""
    words = ("tdx", "inspect", "spec", "Pendulum-v1", "-t", "RewardSum", "--key", "epi")
    env = {
        **os.environ,
        "XDG_CACHE_HOME": str(tmp_path),
        "_TDX_COMPLETE": "complete_bash",
        "COMP_WORDS": "\n".join(words),
        "COMP_CWORD": "7",
    }
    offers: list[str] = []
    while not any(offers):
        command = [sys.executable, "-c", REPORT]
        done = subprocess.run(command, capture_output=True, text=True, env=env, check=True)
        offers, heavy = json.loads(done.stdout.splitlines()[-1])
        assert heavy == []
    assert "episode_reward" in offers


def test_a_tab_starts_no_second_process_for_the_same_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("_TDX_COMPLETE", "complete_bash")
    monkeypatch.setattr("tdx.cli.completion._WAIT_SECONDS", 0.0)
    started: list[object] = []
    monkeypatch.setattr(subprocess, "Popen", lambda command, **_: started.append(command))
    for target in ("A", "A", "B"):
        assert cached_names(["f", {"target": target}], list) == []
    assert len(started) == 2


def test_completion_of_devices_and_dumps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert complete_device("cu") == ["cuda", "cuda:0", "cuda:1"]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "a").mkdir(parents=True)
    (tmp_path / "runs" / "a" / "manifest.json").write_text("{}")
    (tmp_path / "runs" / ".part").mkdir()
    assert complete_dump("ru") == [("runs/", "folder")]
    assert complete_dump("runs/") == [("runs/a", "dump")]
    assert complete_dump("nowhere/") == []


def test_completion_with_a_broken_torch_prints_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    line = Context(build_root())
    line.params.update({"env": "Pendulum-v1"})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setitem(sys.modules, "tdx.inspection.lineage", None)
    assert complete_key(line, "") == []


def test_completion_of_policies() -> None:
    assert complete_policy("") == [
        "random",
        "zero",
        "sequence:",
        "mlp:",
        "module:",
        "sb3:",
        "lerobot:",
    ]
    assert complete_policy("m") == ["mlp:", "module:"]
