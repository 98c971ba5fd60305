"""Each transform of the catalog on the simulated device: no waits, and the values of the host."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule

from tdx import (
    Binary,
    Bounded,
    CartPoleEnv,
    Categorical,
    CatFrames,
    Compose,
    GymEnv,
    LazyTensorStorage,
    MultiCategorical,
    MultiOneHot,
    ObservationNorm,
    OneHot,
    PendulumEnv,
    RandomCropTensorDict,
    RandomSampler,
    RandomTruncationTransform,
    RewardClipping,
    RewardSum,
    SamplerWithoutReplacement,
    Stacked,
    StepCounter,
    TensorDictPrimer,
    TensorDictReplayBuffer,
    TensorSpec,
    TransformedEnv,
    Unbounded,
)
from tdx.core.envs import EnvBase
from tdx.data.samplers import Sampler
from tdx.envs.native.native_env import NativeEnv
from tdx.foundation.errors import SpecError
from tdx.foundation.keys import NestedKey
from tdx.foundation.simulated_cuda import DEVICE, DeviceCall, SimulatedCuda
from tdx.stacks.device_calls import count_device_calls
from tests.programs import exhaustive, sampled
from tests.transforms.contract.examples import EXAMPLES, made
from tests.transforms.fixed_rollouts import assert_same

WAITING = {
    "ConditionalPolicySwitch": "it steps the env again where its condition holds",
    "DeviceCastTransform": "the copies are what it is for",
    "FiniteTensorDictCheck": "an error is decided on the host",
    "FrameSkipTransform": "it stops stepping the env at the end of an episode",
    "NoopResetEnv": "it stops stepping the env at the end of an episode",
    "VideoRecorder": "frames are written by the host",
}
OTHER_VALUES = {"Timer": "it reads a clock"}
NAMES = sorted(name for name, example in EXAMPLES.items() if not example.offline)


def eager_rollout(name: str, device: torch.device | None = None) -> TensorDictBase:
    env = TransformedEnv(EXAMPLES[name].rows((4,)), made(name, "arguments"), planned=False)
    if device is not None:
        env = env.to(device)
        assert env.base_env.device == device
    env.set_seed(0)
    torch.manual_seed(0)
    return env.rollout(5, break_when_any_done=False)


@pytest.mark.parametrize("name", NAMES)
@sampled(3)
def test_host_does_not_wait_and_values_are_those_of_the_host(name: str) -> None:
    if name not in OTHER_VALUES:
        with SimulatedCuda(lambda call: None):
            there = eager_rollout(name, DEVICE)
        assert_same(eager_rollout(name), there.to("cpu"))
    example = EXAMPLES[name]
    calls = count_device_calls(
        lambda: TransformedEnv(example.rows((4,)), made(name, "arguments")), steps=3
    )
    assert calls.error is None
    waits = [line for line in calls.lines if line.kind == "wait" and line.stage is not None]
    assert bool(waits) == (name in WAITING), waits


@pytest.mark.parametrize("kind", [PendulumEnv, CartPoleEnv])
@exhaustive
def test_native_envs_and_their_masked_resets_do_not_wait(kind: type[NativeEnv]) -> None:
    def build() -> TransformedEnv:
        env = kind(batch_size=[4], max_episode_steps=3, device=None)  # type: ignore[call-arg]
        return TransformedEnv(env, Compose(StepCounter(), RewardSum()))

    for planned in (False, True):
        calls = count_device_calls(build, steps=8, planned=planned)
        assert calls.lines == ()


@pytest.mark.parametrize("planned", [True, False])
@pytest.mark.parametrize("kind", [PendulumEnv, CartPoleEnv])
@exhaustive
def test_all_episodes_of_native_envs_have_the_values_of_the_host(
    kind: type[NativeEnv], planned: bool
) -> None:
    """Rows end at different steps, and most more often than their starts are drawn ahead."""

    def episodes(device: torch.device | None) -> TensorDictBase:
        env = TransformedEnv(
            kind(batch_size=[2, 3], max_episode_steps=3, device=device),  # type: ignore[call-arg]
            Compose(StepCounter(), RewardSum()),
            planned=planned,
        )
        env.set_seed(0)
        torch.manual_seed(0)
        root = env.reset()
        base = env.base_env
        assert isinstance(base, NativeEnv)
        base.set_state(base.state, torch.arange(6, device=device).reshape(2, 3, 1) % 3)
        return env.rollout(60, auto_reset=False, tensordict=root, break_when_any_done=False)

    with SimulatedCuda(lambda call: None):
        there = episodes(DEVICE)
    expected = episodes(None)
    assert_same(expected, there.to("cpu"))
    starts = expected["observation"][expected["step_count"].squeeze(-1) == 0]
    assert len(starts.unique(dim=0)) == len(starts) > 100


@pytest.mark.parametrize(
    "build",
    [
        lambda: PendulumEnv(batch_size=[4], device=DEVICE),
        lambda: CartPoleEnv(batch_size=[4], device=DEVICE),
        lambda: GymEnv("Pendulum-v1", device=DEVICE),
    ],
    ids=["Pendulum", "CartPole", "Gymnasium"],
)
def test_an_env_and_its_chain_are_built_without_waiting(build: Callable[[], EnvBase]) -> None:
    calls: list[DeviceCall] = []
    with SimulatedCuda(calls.append):
        env = TransformedEnv(
            build(),
            Compose(
                StepCounter(10),
                RewardSum(),
                ObservationNorm(0.0, 2.0, in_keys=["observation"]),
                CatFrames(3, -1, in_keys=["observation"]),
                RewardClipping(-1.0, 1.0),
            ),
        )
        env.reset(env.fake_tensordict())
        assert env.observation_spec.device == DEVICE
    assert [call for call in calls if call.kind == "wait"] == []


def test_bounds_on_the_device_are_compared_when_they_are_sampled() -> None:
    with SimulatedCuda(lambda call: None):
        spec = Bounded(torch.ones(2, device=DEVICE), torch.zeros(2, device=DEVICE))
        with pytest.raises(SpecError, match="low must not be above high"):
            spec.rand()


SPECS: dict[NestedKey, TensorSpec] = {
    "normal": Unbounded(2),
    "flag": Unbounded(1, dtype=torch.bool),
    "uniform": Bounded(-1.0, 2.0, (2, 3)),
    "half_open": Bounded(0.0, None, (1,)),
    "small_integer": Bounded(-2, 5, (1,), dtype=torch.int8),
    "wide_integer": Bounded(-(2**62), 2**63 - 1, (1,), dtype=torch.int64),
    "word": Bounded(0, 2**64 - 1, (1,), dtype=torch.uint64),
    "any_integer": Unbounded(1, dtype=torch.int64),
    "any_byte": Unbounded(2, dtype=torch.uint8),
    "any_unsigned": Unbounded(1, dtype=torch.uint32),
    "category": Categorical(4, ()),
    "masked_category": Categorical(4, (1,), mask=torch.tensor([[True, False, False, True]])),
    "vector": OneHot(3),
    "masked_vector": OneHot(3, mask=torch.tensor([True, False, True])),
    "categories": MultiCategorical([2, 5]),
    "masked_categories": MultiCategorical([2, 3], mask=torch.tensor([1, 1, 0, 1, 1]).bool()),
    "vectors": MultiOneHot([2, 3]),
    "bits": Binary(3),
    "stack": Stacked(Bounded(0.0, 1.0, (2,)), Bounded(5.0, 6.0, (2,)), dim=0),
}


@pytest.mark.parametrize("batch", [(), (2, 2)])
def test_random_resets_are_those_of_the_host_and_of_eager_steps(batch: tuple[int, ...]) -> None:
    """An accelerator resets after every step by a mask, the host only where an episode ended."""

    def episodes(device: torch.device | None, planned: bool) -> TensorDictBase:
        chain = Compose(
            StepCounter(),
            RandomTruncationTransform(2, 5, prob=0.5, first_episode_prob=1.0),
            TensorDictPrimer(SPECS, random=True),
        )
        env = TransformedEnv(PendulumEnv(batch_size=batch, device=device), chain, planned=planned)
        env.set_seed(0)
        torch.manual_seed(0)
        policy = TensorDictModule(
            lambda observation: observation[..., :1], ["observation"], ["action"]
        )
        first = env.rollout(20, policy, break_when_any_done=False)
        return torch.cat([first, env.rollout(10, policy, break_when_any_done=False)], -1)

    expected = episodes(None, planned=False)
    assert_same(expected, episodes(None, planned=True))
    for planned in (False, True):
        with SimulatedCuda(lambda call: None):
            there = episodes(DEVICE, planned)
        assert_same(expected, there.to("cpu"))
    # NumPy, since older torch cannot index wide unsigned integers.
    is_start = (expected["step_count"].squeeze(-1) == 0).numpy()
    starts = {key: expected[key].numpy()[is_start] for key in SPECS}
    assert len(np.unique(starts["normal"], axis=0)) == is_start.sum() > 5
    for key, spec in SPECS.items():
        assert all(spec.is_in(torch.from_numpy(np.array(value))) for value in starts[key]), key
        assert len(np.unique(starts[key], axis=0)) > 1


def test_a_reset_of_some_rows_takes_no_number_of_torchs_generator() -> None:
    env = TransformedEnv(PendulumEnv(batch_size=[2]), TensorDictPrimer(SPECS, random=True))
    root = env.reset()
    before = torch.get_rng_state()
    after = env.reset(root.copy().set("_reset", torch.tensor([[True], [False]])))
    assert torch.equal(torch.get_rng_state(), before)
    assert_same(after[1], root[1])
    assert not torch.equal(after["normal"][0], root["normal"][0])


@pytest.mark.parametrize("sampler", [RandomSampler, SamplerWithoutReplacement])
def test_batches_of_a_buffer_on_the_device_are_drawn_and_cropped_without_waiting(
    sampler: Callable[[], Sampler],
) -> None:
    calls: list[DeviceCall] = []
    with SimulatedCuda(calls.append):
        steps = torch.arange(40, device=DEVICE).view(4, 10)
        data = TensorDict(step=steps, batch_size=[4, 10], device=DEVICE)
        buffer = TensorDictReplayBuffer(
            storage=LazyTensorStorage(4, device=DEVICE), sampler=sampler(), batch_size=2
        )
        buffer.extend(data)
        calls.clear()
        batch = RandomCropTensorDict(3)(buffer.sample())
    assert batch["step"].shape == (2, 3)
    assert [call for call in calls if call.kind == "wait"] == []
