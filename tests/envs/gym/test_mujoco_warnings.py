"""MuJoCo's warnings are logged once and leave no file behind."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tdx.cli.pipelines import PipelineOptions, open_env
from tdx.envs import GymEnv
from tdx.envs.gym.gym_env import log_mujoco_warnings
from tdx.pipeline import Pipeline

mujoco = pytest.importorskip("mujoco")


def test_creating_envs_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    GymEnv("HalfCheetah-v5", num_envs=2).close()
    assert list(tmp_path.iterdir()) == []


def test_each_warning_is_logged_once(log_records: list[logging.LogRecord]) -> None:
    for _ in range(2):
        with log_mujoco_warnings("some.mujoco.env:Env"):
            mujoco.get_mju_user_warning()("the mass is imaginary")
    assert [record.getMessage() for record in log_records] == [
        "warning: MuJoCo: the mass is imaginary"
    ]
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


def test_deprecations_of_a_model_are_not_shown(log_records: list[logging.LogRecord]) -> None:
    with log_mujoco_warnings("some.mujoco.env:Env"):
        mujoco.get_mju_user_warning()("the attribute 'mass' is deprecated")
    assert log_records == []


def test_commands_leave_no_file_in_any_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log_records: list[logging.LogRecord]
) -> None:
    monkeypatch.chdir(tmp_path)
    with open_env(Pipeline.of("HalfCheetah-v5"), PipelineOptions()):
        mujoco.get_mju_user_warning()("unstable")
    assert [record.getMessage() for record in log_records] == ["warning: MuJoCo: unstable"]
    assert mujoco.get_mju_user_warning() is None
    assert list(tmp_path.iterdir()) == []
