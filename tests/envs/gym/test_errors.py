"""Error messages: one line, with a hint and the name of the env."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from tensordict import TensorDict

from tdx import PendulumEnv, RewardSum, SerialEnv, TransformedEnv
from tdx.core.envs import EnvBase
from tdx.envs.gym import GymEnv, GymWrapper, providers
from tdx.foundation.errors import (
    ArgumentError,
    EnvError,
    EnvNotFoundError,
    ExitCode,
    KeyNotFoundError,
    MissingPackageError,
    SpecError,
    TdxError,
)
from tests.envs.gym.mocks import BOX, FailingEnv, SpaceEnv

OWN = "the error comes from the env; --debug or the __cause__ shows where it was raised"


def vector(phase: str) -> GymWrapper:
    return GymWrapper(
        SyncVectorEnv([lambda: FailingEnv(phase)] * 2, autoreset_mode=AutoresetMode.DISABLED)
    )


@pytest.mark.parametrize(
    ("env_id", "hint"),
    [
        ("Pendulm-v1", "did you mean Pendulum-v1"),
        ("CartPole-v7", "did you mean CartPole-v1 or CartPole-v0"),
        ("Taxi-v3", "did you mean Taxi-v4"),
        ("cartpole", "did you mean CartPole-v1 or CartPole-v0"),
        ("PendulumEasy-v1", "did you mean Pendulum-v1"),
        ("ALE/Pog-v5", "did you mean ALE/Pong-v5"),
        ("no such thing at all", "`tdx list envs` shows all ids"),
    ],
)
def test_an_unknown_id(env_id: str, hint: str) -> None:
    if env_id.startswith("ALE"):
        pytest.importorskip("ale_py")
    with pytest.raises(EnvNotFoundError) as caught:
        GymEnv(env_id)
    assert str(caught.value).startswith(f"env {env_id}: no env of this id is registered ({hint}")
    assert caught.value.exit_code == ExitCode.USAGE


def test_id_of_an_unknown_namespace() -> None:
    with pytest.raises(EnvNotFoundError, match=r"and no other that begins with nowhere/ .*module:"):
        GymEnv("nowhere/Thing-v0")


def test_an_id_of_a_package_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = providers.Provider("no_such_module", "its-package", "Absent/", "absent[all]")
    monkeypatch.setattr(providers, "PROVIDERS", (absent,))
    with pytest.raises(MissingPackageError) as caught:
        GymEnv("Absent/Env-v0")
    assert str(caught.value) == (
        "env Absent/Env-v0: the env needs the package its-package, which is not installed "
        "(pip install 'absent[all]')"
    )


def test_install_hints_of_known_packages() -> None:
    hints = {
        env_id: provider.hint
        for env_id in ("ALE/Pong-v5", "MiniGrid-Empty-5x5-v0", "BabyAI-GoTo-v0", "FetchReach-v4")
        if (provider := providers.find_provider(env_id))
    }
    assert hints == {
        "ALE/Pong-v5": "pip install ale-py",
        "MiniGrid-Empty-5x5-v0": "pip install minigrid",
        "BabyAI-GoTo-v0": "pip install minigrid",
        "FetchReach-v4": "pip install gymnasium-robotics",
    }


@pytest.mark.parametrize("is_installed", [False, True])
@pytest.mark.parametrize(
    ("module", "entry_point", "hint"),
    [
        ("Box2D", "gymnasium.envs.box2d:Absent", "pip install 'gymnasium[box2d]'"),
        ("mujoco", "gymnasium.envs.mujoco.absent:Absent", "pip install 'gymnasium[mujoco]'"),
        ("other", "no_such_module:Absent", "install it, or see the documentation of the env"),
    ],
)
def test_an_env_whose_class_cannot_be_imported(
    module: str, entry_point: str, hint: str, is_installed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: object, **__: object) -> None:
        raise gymnasium.error.DependencyNotInstalled(f"{module} is not installed\nsee the docs")

    spec = gymnasium.envs.registration.EnvSpec("Absent-v0", entry_point=entry_point)
    monkeypatch.setitem(gymnasium.registry, "Absent-v0", spec)
    monkeypatch.setattr(gymnasium, "make", missing)
    monkeypatch.setattr("tdx.envs.gym.gym_env.is_installed", lambda name: is_installed)
    with pytest.raises(MissingPackageError) as caught:
        GymEnv("Absent-v0")
    message = f"cannot load the env: DependencyNotInstalled: {module} is not installed"
    if module != "other" and not is_installed:
        message = f"the env needs the package {module}, which is not installed"
    assert str(caught.value) == f"env Absent-v0: {message} ({hint})"


@pytest.mark.parametrize("env_id", ["HalfCheetah-v3", "Pusher-v2"])
def test_removed_version(env_id: str) -> None:
    newest = env_id.replace("-v3", "-v5").replace("-v2", "-v5")
    with pytest.raises(MissingPackageError) as caught:
        GymEnv(env_id)
    assert str(caught.value).endswith(f"(use {newest})")


def test_missing_module_before_the_id() -> None:
    with pytest.raises(MissingPackageError, match="env no_module:A-v0: the module no_module is"):
        GymEnv("no_module:A-v0")


@pytest.mark.parametrize("rows", [0, 2])
def test_argument_unknown_to_the_env(rows: int) -> None:
    with pytest.raises(ArgumentError) as caught:
        GymEnv("FrozenLake-v1", num_envs=rows, map_nam="8x8")
    assert str(caught.value) == (
        "env FrozenLake-v1: the env has no argument 'map_nam' (did you mean map_name?)"
    )


def test_env_that_raises_during_construction() -> None:
    with pytest.raises(EnvError) as caught:
        GymEnv("FrozenLake-v1", map_name="9x9")
    assert str(caught.value) == f"env FrozenLake-v1: cannot create the env: KeyError: '9x9' ({OWN})"
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize("make", [lambda phase: GymWrapper(FailingEnv(phase)), vector])
@pytest.mark.parametrize(("phase", "text"), [("reset", "begin"), ("step", "continue")])
def test_an_env_that_raises(make: Any, phase: str, text: str) -> None:
    env = make(phase)
    name = "FailingEnv" if env.batch_size == torch.Size([]) else "SyncVectorEnv"
    with pytest.raises(EnvError) as caught:
        env.rollout(2)
    where = f"env {name}" if phase == "reset" else f"step 0, env {name}"
    assert str(caught.value) == (
        f"{where}: {phase} raised ZeroDivisionError: cannot {text} ({OWN})"
    )
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert caught.value.exit_code == ExitCode.ENVIRONMENT


def test_an_env_that_raises_in_a_raw_method() -> None:
    with pytest.raises(EnvError, match="step raised ZeroDivisionError"):
        GymWrapper(FailingEnv("step")).raw_step(0)
    with pytest.raises(EnvError, match="reset raised ZeroDivisionError"):
        GymWrapper(FailingEnv("reset")).raw_reset()


def test_a_step_without_an_action() -> None:
    with pytest.raises(KeyNotFoundError) as caught:
        GymEnv("Pendulum-v1").step(TensorDict())
    assert str(caught.value) == (
        "env Pendulum-v1: the input of step has no key 'action' "
        "(write an action first, with env.rand_action(td) or a policy)"
    )


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"num_envs": -1}, "num_envs must be an integer of at least 0, got -1"),
        ({"num_envs": 1.5}, "num_envs must be an integer of at least 0, got 1.5"),
        ({"frame_skip": 0}, "frame_skip must be an integer of at least 1, got 0"),
        (
            {"num_envs": 2, "vectorization_mode": "asink"},
            "sync, async, got 'asink' (did you mean async?)",
        ),
    ],
)
def test_a_wrong_argument(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        GymEnv("CartPole-v1", **arguments)
    assert text in str(caught.value)


def test_wrapper_rejects_other_objects() -> None:
    with pytest.raises(ArgumentError) as caught:
        GymWrapper("CartPole-v1")  # type: ignore[arg-type]
    assert str(caught.value) == (
        "GymWrapper needs a Gymnasium env, got str (use GymEnv('CartPole-v1'))"
    )


@pytest.mark.parametrize("key", ["reward", "done", "action"])
def test_observation_with_the_key_of_a_result(key: str) -> None:
    with pytest.raises(SpecError) as caught:
        GymWrapper(SpaceEnv(spaces.Dict({key: BOX})))
    assert f"observation entry {key!r}" in str(caught.value)


def test_every_message_is_one_line() -> None:
    for make in (lambda: GymEnv("Nothing-v0"), lambda: GymWrapper(FailingEnv("reset")).reset()):
        with pytest.raises(TdxError) as caught:
            make()
        assert "\n" not in str(caught.value)


def test_an_action_outside_the_space_names_the_env() -> None:
    env = GymEnv("CartPole-v1", categorical_action_encoding=True)
    start = env.reset()
    start["action"] = torch.tensor(7)
    with pytest.raises(EnvError, match="env CartPole-v1: step raised AssertionError"):
        env.step(start)


def test_rewards_of_an_env_that_declares_their_shape() -> None:
    class TwoRewards(SpaceEnv):
        reward_space = spaces.Box(-1.0, 1.0, (2,), np.float32)

        def step(self, action: Any) -> Any:
            observation, _, *rest = super().step(action)
            return (observation, np.array([0.5, -0.5], np.float32), *rest)

    env = GymWrapper(TwoRewards())
    assert env.reward_spec.shape == torch.Size([2])
    assert env.rand_step(env.reset())["next", "reward"].tolist() == [0.5, -0.5]


class FailsAtRow(gymnasium.Env[Any, Any]):
    """Raises in its third step, in the row of a batch that had the seed 102."""

    observation_space = BOX
    action_space = spaces.Discrete(2)
    seed = 0

    def __init__(self, row: int | None = None) -> None:
        self.seed = 0 if row is None else 100 + row

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        self.seed = self.seed if self.seed >= 100 else seed or 0
        return BOX.low, {}

    def step(self, action: Any) -> Any:
        self.count += 1
        if self.count == 3 and self.seed == 102:
            raise ValueError("out of fuel")
        return BOX.low, 0.0, False, False, {}


@pytest.fixture
def _fails_at_row(monkeypatch: pytest.MonkeyPatch) -> None:
    make: Any = FailsAtRow
    spec = gymnasium.envs.registration.EnvSpec("FailsAtRow-v0", entry_point=make)
    monkeypatch.setitem(gymnasium.registry, "FailsAtRow-v0", spec)


def batch(kind: str) -> EnvBase:
    """Return four envs, of which number 2 fails."""
    if kind == "serial":
        rows = [partial(GymWrapper, FailsAtRow(row)) for row in range(4)]
        return SerialEnv(4, rows)
    env = GymEnv("FailsAtRow-v0", num_envs=4, vectorization_mode=kind)
    env.set_seed(100)
    return env


@pytest.mark.parametrize("kind", ["sync", "async", "serial"])
@pytest.mark.parametrize("planned", [True, False], ids=["planned", "eager"])
@pytest.mark.usefixtures("_fails_at_row")
def test_env_of_a_batch_that_raises_is_named_by_its_index(kind: str, planned: bool) -> None:
    env = TransformedEnv(batch(kind), RewardSum(), planned=planned)
    try:
        with pytest.raises(
            EnvError, match=r"step 2, env 2 \(.*\): step raised .*out of fuel"
        ) as error:
            env.rollout(9)
        assert error.value.to_dict()["where"]["row"] == 2
    finally:
        env.close(raise_if_closed=False)


class Uphill(PendulumEnv):
    """Raises an error of its own."""

    def _step(self, tensordict: Any) -> Any:
        raise ValueError("too steep")


def test_error_that_a_batch_passes_on_has_a_note_with_the_index() -> None:
    env = SerialEnv(3, [PendulumEnv, Uphill, PendulumEnv])
    with pytest.raises(ValueError, match="too steep") as caught:
        env.step(env.rand_action(env.reset()))
    assert caught.value.__notes__ == ["tdx: raised by env 1 of the batch"]
    with pytest.raises(EnvError, match=r"step 0, env 1 \(SerialEnv\): step raised ValueError"):
        env.rollout(3)
