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
from tdx.cli.completion import complete_env, complete_name, complete_transform
from tdx.cli.pipelines import complete_key, complete_policy, complete_stored_keys

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


def test_names_of_transforms() -> None:
    assert offered("StepC") == ["StepCounter"]
    assert offered("stepc") == ["StepCounter"]
    assert {"RewardClipping", "RewardScaling", "RewardSum"} <= set(offered("Reward"))


def test_names_that_contain_the_word_are_the_fallback() -> None:
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
def test_arguments(word: str, wanted: str | list[str]) -> None:
    found = offered(word)
    assert found == wanted if isinstance(wanted, list) else wanted in found


def test_each_argument_is_completed_once() -> None:
    found = offered("StepCounter(max_steps=3, ")
    assert found
    assert "StepCounter(max_steps=3, max_steps=" not in found


def test_env_ids() -> None:
    assert ("Pendulum-v1", "gymnasium") in complete_env("pendul")
    assert complete_env("no such env") == []


def test_completion_in_a_shell_loads_no_torch() -> None:
    """Run a whole process with cached env ids."""
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
    offers, heavy = complete("inspect", "spec", "--t", '"StepCounter(ma')
    assert "StepCounter(max_steps=" in offers
    assert heavy == []
    assert "--format" in complete("check", "--fo")[0]


def test_keys_of_the_env_on_the_command_line() -> None:
    line = Context(build_root())
    line.params.update({"env": "Pendulum-v1", "transforms": ["RewardSum"]})
    assert complete_key(line, "") == [
        *("observation", "reward", "done", "terminated", "truncated", "episode_reward", "action"),
    ]
    assert complete_stored_keys(line, "reward,next.ep") == ["reward,next.episode_reward"]
    line.params.update({"env": None, "file": "nowhere.yaml"})
    assert complete_key(line, "") == []


def test_broken_torch_prints_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    line = Context(build_root())
    line.params.update({"env": "Pendulum-v1"})
    monkeypatch.setitem(sys.modules, "tdx.inspection.lineage", None)
    assert complete_key(line, "") == []


def test_policies() -> None:
    assert complete_policy("") == ["random", "zero", "sequence:", "mlp:", "module:"]
    assert complete_policy("m") == ["mlp:", "module:"]
