"""Listing env ids: complete, fast the second time, and without torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tdx.envs.gym import available_envs, registry

LIST = """
import sys
from tdx.envs.gym.registry import available_envs
ids = [env.id for env in available_envs()]
print(len(ids), "Pendulum-v1" in ids, "torch" in sys.modules, "gymnasium" in sys.modules)
"""


def test_ids_are_sorted_and_name_their_package() -> None:
    envs = available_envs()
    packages = {env.id: env.package for env in envs}
    assert list(packages) == sorted(packages)
    assert packages["Pendulum-v1"] == "gymnasium"
    assert all(env.hint is None for env in envs if env.installed)
    assert all(env.hint for env in envs if not env.installed)
    assert next(env.hint for env in envs if env.id == "HalfCheetah-v3") == "use HalfCheetah-v5"


def test_ids_of_packages_that_nobody_imported() -> None:
    pytest.importorskip("ale_py")
    packages = {env.id: env.package for env in available_envs()}
    assert packages["ALE/Pong-v5"] == "ale-py"


def test_an_env_whose_requirement_is_missing_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registry, "find_spec", lambda _: None)
    box2d = next(env for env in available_envs() if env.id.startswith("LunarLander"))
    assert not box2d.installed
    assert box2d.hint == "pip install 'gymnasium[box2d]'"


def test_the_list_is_kept_and_needs_neither_torch_nor_gymnasium_again(tmp_path: Path) -> None:
    def listed() -> list[str]:
        ran = subprocess.run(
            [sys.executable, "-c", LIST],
            env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        )
        return ran.stdout.split()

    first, second = listed(), listed()
    assert first[1:] == ["True", "False", "True"]
    assert second == [first[0], "True", "False", "False"]
    (kept,) = tmp_path.rglob("envs.json")
    stored = json.loads(kept.read_text())
    stored["versions"]["gymnasium"] = "0"
    kept.write_text(json.dumps(stored))
    assert listed() == first
    kept.write_text("not json")
    assert listed() == first
