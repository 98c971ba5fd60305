"""Listing env ids: complete, cached, and without importing torch."""

from __future__ import annotations

import errno
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tdx.envs.gym import available_envs, registry
from tdx.envs.gym.registry import RegisteredEnv, read_cache, write_cache
from tests.programs import exhaustive

LIST = """
import sys
from tdx.envs.gym.registry import available_envs
ids = [env.id for env in available_envs()]
print(len(ids), "Pendulum-v1" in ids, "torch" in sys.modules, "gymnasium" in sys.modules)
"""


def test_ids_are_sorted_and_name_their_package() -> None:
    envs = available_envs()
    packages = {env.id: env.package for env in envs}
    names = [env_id.rpartition("-v")[0] or env_id for env_id in packages]
    assert names == sorted(names)
    cart_poles = [env_id for env_id in packages if env_id.startswith("CartPole-")]
    assert cart_poles == ["CartPole-v1", "CartPole-v0"]
    assert packages["Pendulum-v1"] == "gymnasium"
    assert all(env.hint is None for env in envs if env.installed)
    assert all(env.hint for env in envs if not env.installed)
    hints = {env.id: env.hint for env in envs}
    assert hints["HalfCheetah-v3"] == "use HalfCheetah-v5"
    if importlib.util.find_spec("shimmy") is None:
        assert hints["GymV21Environment-v0"] == "pip install 'shimmy[gym-v21]'"


def test_ids_of_packages_that_are_not_imported() -> None:
    pytest.importorskip("ale_py")
    packages = {env.id: env.package for env in available_envs()}
    assert packages["ALE/Pong-v5"] == "ale-py"


def test_missing_requirement_names_the_package_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registry, "find_spec", lambda _: None)
    box2d = next(env for env in available_envs() if env.id.startswith("LunarLander"))
    assert not box2d.installed
    assert box2d.hint == "pip install 'gymnasium[box2d]'"


@exhaustive
def test_cached_list_needs_neither_torch_nor_gymnasium(tmp_path: Path) -> None:
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
    kept.write_text("not json")
    assert listed() == first


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a cache folder for this test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


ENTRY = RegisteredEnv("A-v0", "a", True)


@pytest.mark.parametrize(
    "change",
    [
        lambda kept: "",
        lambda kept: "[1]",
        lambda kept: kept[:-9],
        lambda kept: kept.replace('"python": "', '"python": "2'),
        lambda kept: kept.replace('"A-v0"', "1"),
        lambda kept: kept.replace('"hint"', '"hnit"'),
    ],
    ids=["empty", "another form", "cut off", "another python", "wrong type", "wrong name"],
)
def test_invalid_cache_is_ignored(cache: Path, change: Callable[[str], str]) -> None:
    write_cache([ENTRY])
    assert read_cache() == (ENTRY,)
    (kept,) = cache.rglob("envs.json")
    kept.write_text(change(kept.read_text()))
    assert read_cache() is None


def test_cache_is_outdated_after_an_installation(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = cache / "site-packages"
    packages.mkdir()
    monkeypatch.syspath_prepend(str(packages))
    write_cache([ENTRY])
    assert read_cache() == (ENTRY,)
    os.utime(packages, (1, 1))
    assert read_cache() is None


def test_a_full_disk_leaves_nothing_behind(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object, **kwargs: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    write_cache([ENTRY])
    assert [path for path in cache.rglob("*") if path.is_file()] == []


def test_unwritable_cache_folder_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", os.devnull)
    write_cache([ENTRY])
    assert read_cache() is None
