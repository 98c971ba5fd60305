"""The library behind Gymnasium envs."""

from __future__ import annotations

from typing import Any

import gymnasium
import pytest

from tdx import ArgumentError, GymEnv, set_gym_backend


@pytest.mark.parametrize("backend", ["gymnasium", gymnasium])
def test_gymnasium_is_the_backend(backend: Any) -> None:
    with set_gym_backend(backend):
        GymEnv("CartPole-v1").close()
    set_gym_backend(backend).set()
    set_gym_backend(backend)(GymEnv)("CartPole-v1").close()


def test_another_backend_is_refused() -> None:
    with pytest.raises(ArgumentError, match="unknown backend 'gym'"):
        set_gym_backend("gym")
