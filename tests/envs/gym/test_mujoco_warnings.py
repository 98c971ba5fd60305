"""MuJoCo's warnings are logged once and leave no file behind."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from tdx.cli.runtime import third_party_code
from tdx.envs import GymEnv
from tdx.envs.gym.gym_env import log_mujoco_warnings

mujoco = pytest.importorskip("mujoco")

FAKE = """
found = [None]
get_mju_user_warning = lambda: found[0]
set_mju_user_warning = lambda handler: found.__setitem__(0, handler)
"""


def test_creating_envs_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    GymEnv("HalfCheetah-v5", num_envs=2).close()
    assert list(tmp_path.iterdir()) == []


def test_each_warning_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        with log_mujoco_warnings("some.mujoco.env:Env"):
            mujoco.get_mju_user_warning()("the mass is imaginary")
    assert caplog.messages == ["warning: MuJoCo: the mass is imaginary"]
    assert mujoco.get_mju_user_warning() is None


def test_a_handler_of_the_user_is_kept() -> None:
    messages: list[str] = []
    mujoco.set_mju_user_warning(messages.append)
    try:
        with log_mujoco_warnings("some.mujoco.env:Env"):
            mujoco.get_mju_user_warning()("as the user wants it")
    finally:
        mujoco.set_mju_user_warning(None)
    assert messages == ["as the user wants it"]


def test_deprecations_of_a_model_are_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    with log_mujoco_warnings("some.mujoco.env:Env"):
        mujoco.get_mju_user_warning()("the attribute 'mass' is deprecated")
    assert caplog.messages == []


@pytest.mark.parametrize("is_loaded", [True, False])
def test_commands_leave_no_file_in_any_step(
    is_loaded: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.chdir(tmp_path)
    if not is_loaded:
        monkeypatch.delitem(sys.modules, "mujoco")
        (tmp_path / "mujoco.py").write_text(FAKE)
        monkeypatch.syspath_prepend(tmp_path)
    with third_party_code():
        module = importlib.import_module("mujoco")
        assert (module is mujoco) == is_loaded
        module.get_mju_user_warning()(f"unstable, loaded {is_loaded}")
    assert caplog.messages == [f"warning: MuJoCo: unstable, loaded {is_loaded}"]
    assert module.get_mju_user_warning() is None
    assert not (tmp_path / "MUJOCO_LOG.TXT").exists()
    assert not any(type(each).__name__ == "_ImportHook" for each in sys.meta_path)
