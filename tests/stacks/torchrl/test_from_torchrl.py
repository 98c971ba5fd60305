"""``from_torchrl``: values, specs and state of TorchRL's own envs and transforms."""

from __future__ import annotations

import copy
import os
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torchrl.data as data
import torchrl.envs as rl
from tensordict import TensorDict

import tdx
from tdx import from_torchrl, to_torchrl
from tdx.stacks.torchrl import from_torchrl_spec
from tests.programs import exhaustive, is_exhaustive, sampled
from tests.stacks.torchrl.chains import (
    BASES,
    Camera,
    cart_pole,
    differences,
    make_chain,
    rollout,
)

CHAINS = int(os.environ.get("TDX_TORCHRL_CHAINS", "25" if is_exhaustive() else "10"))
"""Number of random chains; 300 for the acceptance run, which makes 200 steps with each."""
STEPS = 200 if CHAINS >= 300 else 30

Make = Callable[[], Any]

# TorchRL and Gymnasium warn about VecNorm and about steps after the end of an episode.
pytestmark = pytest.mark.filterwarnings("ignore")


class Arms(rl.EnvBase):  # type: ignore[misc]
    """Four arms, of which a mask in the observation allows some."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_spec = data.Composite(action_mask=data.Binary(4, dtype=torch.bool))
        self.action_spec = data.Categorical(4)
        self.reward_spec = data.Unbounded((1,))
        self.count = 0

    def _observe(self) -> TensorDict:
        self.count += 1
        return TensorDict(action_mask=(torch.arange(4) + self.count) % 3 != 0)

    def _reset(self, tensordict: Any = None, **kwargs: Any) -> Any:
        return self._observe()

    def _step(self, tensordict: Any) -> Any:
        reward = tensordict["action"].float().reshape(1)
        return self._observe().update({"reward": reward, "done": torch.zeros(1, dtype=torch.bool)})

    def _set_seed(self, seed: int | None) -> None: ...


def nested() -> Any:
    inner = rl.TransformedEnv(
        rl.GymEnv("Pendulum-v1"), rl.Compose(rl.StepCounter(max_steps=9), rl.FrameSkipTransform(2))
    )
    outer = rl.Compose(
        rl.InitTracker(), rl.Compose(rl.RewardSum(), rl.Compose(rl.RewardScaling(0.0, 2.0)))
    )
    return rl.TransformedEnv(inner, outer, auto_unwrap=False)


def stateless() -> Any:
    """The state of the env is in the TensorDict, and inverses map it."""
    keys = ["th", "thdot"]
    return rl.TransformedEnv(
        rl.PendulumEnv(),
        rl.Compose(
            rl.UnsqueezeTransform(-1, in_keys=keys, in_keys_inv=keys),
            rl.CatTensors(in_keys=keys, out_key="observation", del_keys=False),
            rl.ActionDiscretizer(5),
            rl.StepCounter(max_steps=9),
        ),
    )


def shared_statistics() -> Any:
    zeros = {f"observation_{name}": torch.zeros(4) for name in ("sum", "ssq", "count")}
    shared = TensorDict({**zeros, "observation_count": torch.zeros(1)}).share_memory_()
    return rl.TransformedEnv(
        cart_pole(), rl.VecNorm(in_keys=["observation"], shared_td=shared, decay=0.9)
    )


def _double_observation(tensordict: Any) -> Any:
    return tensordict.set("observation", tensordict["observation"] * 2)


ENVS: dict[str, Make] = {
    **BASES,
    "nested": nested,
    "stateless": stateless,
    "flat rewards": lambda: rl.TransformedEnv(
        Camera((3,), flat=True), rl.Compose(rl.RewardScaling(0.5, 2.0), rl.StepCounter())
    ),
    "shared statistics": shared_statistics,
    "mask": lambda: rl.TransformedEnv(Arms(), rl.ActionMask()),
    "empty": lambda: rl.TransformedEnv(cart_pole()),
    "function": lambda: rl.TransformedEnv(cart_pole(), _double_observation),
    "noops": lambda: rl.TransformedEnv(
        cart_pole(), rl.Compose(rl.NoopResetEnv(noops=4), rl.StepCounter(max_steps=9))
    ),
    "parts": lambda: rl.TransformedEnv(
        Camera((2,)),
        rl.Compose(
            rl.ToTensorImage(in_keys=["pixels"]),
            rl.Resize(4, in_keys=["pixels"]),
            rl.CatFrames(N=3, dim=-3, in_keys=["pixels"]),
            rl.RewardSum(),
            rl.DoubleToFloat(in_keys=[("agent", "position")]),
            rl.VecNorm(in_keys=["observation", "reward"]),
        ),
    ),
}
envs = pytest.mark.parametrize("make", ENVS.values(), ids=ENVS)


def to_cpu(spec: Any) -> Any:
    return from_torchrl_spec(spec).clone().unlock_().to("cpu")  # type: ignore[attr-defined]


@envs
@sampled(5)
def test_rollouts_and_specs_are_equal(make: Make) -> None:
    theirs, ours = make(), from_torchrl(make())
    assert ours.batch_size == theirs.batch_size
    assert ours.output_spec == to_cpu(theirs.output_spec)
    assert ours.input_spec == to_cpu(theirs.input_spec)
    for stop in (True, False):
        expected = rollout(theirs, 40, break_when_any_done=stop)
        found = rollout(ours, 40, break_when_any_done=stop)
        assert found.batch_size == expected.batch_size
        assert differences(expected, found) == []


@pytest.mark.programs
@exhaustive
def test_random_chains() -> None:
    equal = seed = 0
    while equal < CHAINS:
        seed += 1
        try:
            expected = rollout(make_chain(seed), STEPS, break_when_any_done=False)
        except (AttributeError, LookupError, RuntimeError, TypeError):
            continue  # TorchRL refuses this chain
        found = rollout(from_torchrl(make_chain(seed)), STEPS, break_when_any_done=False)
        assert differences(expected, found) == [], f"seed {seed}"
        equal += 1
    assert seed < 2 * CHAINS


def test_partial_reset_keeps_the_other_rows() -> None:
    def make() -> Any:
        frames = rl.CatFrames(N=3, dim=-1, in_keys=["observation"])
        return rl.TransformedEnv(Camera((3,)), rl.Compose(rl.StepCounter(), rl.RewardSum(), frames))

    results = []
    for env in (make(), from_torchrl(make())):
        env.set_seed(1)
        torch.manual_seed(0)
        current = env.rollout(4, break_when_any_done=False)[:, -1]["next"]
        mask = torch.tensor([[True], [False], [True]])
        results.append(env.reset(current.set("_reset", mask)))
    # TorchRL clears what a reset does not write.
    written = [result.exclude("reward") for result in results]
    assert differences(*written) == []
    assert [count > 0 for count in results[1]["step_count"].flatten()] == [False, True, False]


def test_one_stage_for_each_transform() -> None:
    env: Any = from_torchrl(nested())
    assert [type(stage).__name__ for stage in env.base_env.stages] == [
        "StepCounter",
        "FrameSkipTransform",
    ]
    assert [type(stage).__name__ for stage in env.stages] == [
        "InitTracker",
        "RewardSum",
        "RewardScaling",
    ]
    assert env.stages[1].in_keys == ["reward"]
    assert env.stages[1].out_keys == ["episode_reward"]


def test_specs_of_each_stage() -> None:
    env = ENVS["parts"]()
    spec = env.base_env.output_spec.clone()
    found = tdx.stage_specs(from_torchrl(env))
    assert len(found) == len(env.transform) + 1
    for transform, after in zip(env.transform, found[1:], strict=True):
        spec = transform.transform_output_spec(spec)
        assert after.output_spec == to_cpu(spec)


def test_tdx_accepts_the_env() -> None:
    env = from_torchrl(ENVS["parts"]())
    tdx.check_env_specs(env)
    report = tdx.inspect_spec(env)
    assert [place.name for place in report.stages][-1] == "VecNorm"


def test_tracer_records_each_stage() -> None:
    env = from_torchrl(
        rl.TransformedEnv(
            rl.GymEnv("Pendulum-v1"),
            rl.Compose(rl.RewardScaling(0.0, 2.0), rl.RewardSum(), rl.ActionDiscretizer(3)),
        )
    )
    tracer = tdx.Tracer(env)
    tracer.reset(seed=0)
    trace = tracer.step()
    written = {(stage.name, key) for stage in trace.stages for key in stage.written}
    assert ("ActionDiscretizer", "action") in written
    assert ("RewardScaling", "reward") in written
    assert ("RewardSum", "episode_reward") in written


def test_the_original_stays_usable() -> None:
    original = ENVS["parts"]()
    expected = rollout(ENVS["parts"](), 20, break_when_any_done=False)
    modes = [transform.training for transform in original.transform]
    env = from_torchrl(original)
    assert [transform.training for transform in original.transform] == modes
    assert original.transform[0].container is original
    assert differences(expected, rollout(original, 20, break_when_any_done=False)) == []
    rollout(env, 5)
    rl.check_env_specs(original)


def test_the_original_is_kept_alive() -> None:
    def convert() -> Any:
        return from_torchrl(nested())

    assert rollout(convert(), 5).batch_size == (5,)


def test_state() -> None:
    def make() -> Any:
        norm = rl.ObservationNorm(in_keys=["observation"], standard_normal=True)
        env = rl.TransformedEnv(cart_pole(), norm)
        norm.init_stats(20)
        return from_torchrl(env)

    env, other = make(), make()
    assert len(env.state_dict()) == 3
    other.load_state_dict(env.state_dict())
    assert differences(rollout(env, 10), rollout(other, 10)) == []


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
def test_copies_continue_on_their_own(duplicate: Callable[[Any], Any]) -> None:
    env = from_torchrl(nested())
    copied = duplicate(env)
    assert type(copied.stages[1]).__name__ == "RewardSum"
    assert differences(rollout(env, 12), rollout(copied, 12)) == []


def test_there_and_back() -> None:
    expected = rollout(nested(), 20, break_when_any_done=False)
    back = to_torchrl(from_torchrl(nested()))
    rl.check_env_specs(to_torchrl(from_torchrl(nested())))
    assert differences(expected, rollout(back, 20, break_when_any_done=False)) == []


def test_transforms_of_tdx_around_an_env_of_torchrl() -> None:
    env = tdx.TransformedEnv(
        from_torchrl(Camera((2,))), tdx.Compose(tdx.RewardSum(), tdx.StepCounter(max_steps=6))
    )
    assert rollout(env, 20, break_when_any_done=False)["next", "step_count"].max() == 6
    tdx.check_env_specs(env)


def test_close_closes_the_original() -> None:
    original = nested()
    from_torchrl(original).close()
    assert original.is_closed


def test_other_objects_are_refused() -> None:
    with pytest.raises(tdx.ArgumentError, match="takes an env of TorchRL, got CartPoleEnv"):
        from_torchrl(tdx.CartPoleEnv())
    resetting = cart_pole()
    resetting._torchrl_native_autoreset = True
    with pytest.raises(tdx.ArgumentError, match="resets itself during a step"):
        from_torchrl(rl.TransformedEnv(resetting, rl.StepCounter()))
