"""MuJoCo's warnings are logged once and leave no file behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from tdx.envs import GymEnv
from tdx.envs.gym.gym_env import log_mujoco_warnings

mujoco = pytest.importorskip("mujoco")


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
