"""A measured rollout equals an unmeasured one, and the meter is detached afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from tensordict.nn import TensorDictModule
from torch import nn

import tdx
from tdx import (
    ActionScaling,
    CatFrames,
    Compose,
    GrayScale,
    GymEnv,
    PendulumEnv,
    Resize,
    SerialEnv,
    StepCounter,
    ToTensorImage,
    TransformedEnv,
    VecNorm,
)
from tdx.core.envs import EnvBase
from tdx.profiling.clock import ClockMeter
from tdx.profiling.run import ProfilePlan, profile_env
from tdx.stacks.native_times import timed_env
from tests.benchmarks.chains import chain_6

STEPS = 70
Make = Callable[[], TransformedEnv]


def pendulum() -> TransformedEnv:
    return TransformedEnv(GymEnv("Pendulum-v1"), chain_6("tdx"))


def cart_poles() -> TransformedEnv:
    """Return a nested chain with a step limit whose rows end at different times."""
    inner = TransformedEnv(GymEnv("CartPole-v1", num_envs=3), Compose(Compose(VecNorm())))
    return TransformedEnv(inner, Compose(chain_6("tdx"), StepCounter(max_steps=23)))


def serial() -> TransformedEnv:
    return TransformedEnv(SerialEnv(2, lambda: GymEnv("CartPole-v1")), chain_6("tdx"))


def native() -> TransformedEnv:
    scaling = ActionScaling(loc=0.5, scale=2.0)
    return TransformedEnv(PendulumEnv(batch_size=[4]), Compose(scaling, chain_6("tdx")))


def pong() -> TransformedEnv:
    if find_spec("ale_py") is None:
        pytest.skip("needs ale-py")
    keys = ["pixels"]
    chain = Compose(
        ToTensorImage(in_keys=keys), GrayScale(in_keys=keys), Resize(84, 84, in_keys=keys)
    )
    return TransformedEnv(GymEnv("ALE/Pong-v5"), Compose(chain, CatFrames(4, -3, in_keys=keys)))


def policy_of(env: EnvBase) -> TensorDictModule:
    torch.manual_seed(0)
    network = nn.Sequential(nn.LazyLinear(8), nn.Tanh(), nn.LazyLinear(1))
    network(env.reset()["observation"])
    return TensorDictModule(network, in_keys=["observation"], out_keys=["action"])


def all_objects(env: Any) -> Iterator[Any]:
    """Yield the env, all inner envs, and their stages."""
    yield env
    if isinstance(env, TransformedEnv):
        yield from env.transform.modules()
        yield from all_objects(env.base_env)
    for each in env.__dict__.get("_envs", ()):
        yield from all_objects(each)


def attributes(env: EnvBase, policy: nn.Module | None) -> list[tuple[object, dict[str, Any]]]:
    """Return the attributes of all objects; functions are compared by identity."""
    owners = [*all_objects(env), *([] if policy is None else policy.modules())]
    found = []
    for each in owners:
        own = {
            name: value if callable(value) and not isinstance(value, nn.Module) else None
            for name, value in each.__dict__.items()
        }
        found.append((each, own))
    return found


def rolled(env: EnvBase, policy: Any) -> Any:
    env.set_seed(5)
    torch.manual_seed(5)
    with torch.no_grad():
        return env.rollout(STEPS, policy, break_when_any_done=False)


@pytest.mark.parametrize("planned", [True, False], ids=["planned", "eager"])
@pytest.mark.parametrize("make", [pendulum, cart_poles, serial, native, pong])
def test_values_are_bit_identical(make: Make, planned: bool) -> None:
    found = []
    for is_measured in (False, True):
        env = make()
        env.planned = planned
        if is_measured:
            with timed_env(env, ClockMeter()):
                found.append(rolled(env, None))
        else:
            found.append(rolled(env, None))
        found.append(env.transform.state_dict())
        env.close()
    plain, state, seen, seen_state = found
    assert set(plain.keys(True, True)) == set(seen.keys(True, True))
    for key in plain.keys(True, True):
        assert torch.equal(plain[key], seen[key]), key
    assert all(torch.equal(state[name], seen_state[name]) for name in state)


@pytest.mark.parametrize("planned", [True, False], ids=["planned", "eager"])
@pytest.mark.parametrize("make", [pendulum, serial, native])
def test_values_with_a_policy_are_unchanged(make: Make, planned: bool) -> None:
    env = make()
    env.planned = planned
    policy = None if make is serial else policy_of(env)
    plain = rolled(env, policy)
    before = attributes(env, policy)
    with tdx.profile(env) as meter:
        seen = rolled(env, policy)
    assert attributes(env, policy) == before
    assert (plain == seen).all()
    again = rolled(env, policy)
    assert (plain == again).all()
    (mode,) = meter.result.modes
    assert mode.steps.tolist() == [STEPS]
    env.close()


@pytest.mark.parametrize("planned", [True, False], ids=["planned", "eager"])
def test_meter_is_detached_after_a_stage_raises(planned: bool) -> None:
    broken: list[int] = []

    def maybe(next_tensordict: Any) -> Any:
        if broken:
            raise ZeroDivisionError
        return next_tensordict

    env = TransformedEnv(TransformedEnv(GymEnv("CartPole-v1"), chain_6("tdx")), Compose())
    env.append_transform(maybe)
    env.planned = planned
    env.rollout(3)
    before = attributes(env, None)
    broken.append(1)
    with pytest.raises(ZeroDivisionError), tdx.profile(env):
        env.rollout(3)
    assert attributes(env, None) == before
    broken.clear()
    assert env.rollout(3).shape == (3,)
    assert attributes(env, None) == before


def test_meter_is_detached_when_the_caller_stops_early() -> None:
    env = pendulum()
    env.rollout(3)
    before = attributes(env, None)
    with tdx.profile(env) as meter:
        for chunk in env.iter_rollout(60, chunk_steps=20):
            assert chunk.shape[0] == 20
            break
    assert attributes(env, None) == before
    assert meter.result.modes[0].steps.tolist() == [20]


def test_profile_env_detaches_its_meter() -> None:
    class Own(TransformedEnv):
        """Env that overrides ``_step``."""

        def _step(self, tensordict: Any) -> Any:
            return super()._step(tensordict)

    env = Own(pendulum())
    env.rollout(3)
    before, threads = attributes(env, None), torch.get_num_threads()
    plan = ProfilePlan(steps=30, warmup=5, repeats=2, threads=1, passes=())
    profile = profile_env(env, ["eager", "planned"], plan)
    assert attributes(env, None) == before
    assert torch.get_num_threads() == threads
    assert [mode.mode for mode in profile.modes] == ["eager", "planned"]
    for mode in profile.modes:
        assert mode.error is None
        assert mode.steps.tolist() == [30, 30]
        assert sum(row.total_ns for row in mode.rows) == mode.total_ns.sum()
        forward = [row for row in mode.rows if row.key == ("5 CatFrames", "forward")]
        assert len(forward[0].times_ns) == 60


def test_env_runs_the_original_functions_outside_the_block() -> None:
    """Compare the functions before, during and after a block."""
    env = pendulum()

    def functions() -> list[Any]:
        program = env._current_eager_program()
        owners = [env, env.base_env, *env.stages]
        names = ("rollout", "step", "reset", "completed_step", "completed_reset", "_step")
        bound = [getattr(each, name, None) for each in owners for name in names]
        steps = [step for _, step in program._on_dicts]
        return [getattr(each, "__func__", each) for each in bound] + [
            getattr(each, "__qualname__", "") for each in [*steps, program._step_inner]
        ]

    _ = env.output_spec
    before = functions()
    with tdx.profile(env):
        during = functions()
    assert functions() == before
    assert during != before
