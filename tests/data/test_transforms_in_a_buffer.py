"""Transforms applied when a buffer is written and sampled."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule

from tdx import (
    ActionScaling,
    BurnInTransform,
    CallableTransform,
    CatFrames,
    Compose,
    DoubleToFloat,
    GymEnv,
    LazyTensorStorage,
    ObservationNorm,
    RandomSampler,
    RenameTransform,
    ReplayBuffer,
    Reward2GoTransform,
    RewardClipping,
    RewardScaling,
    RewardSum,
    Sampler,
    SamplerWithoutReplacement,
    SliceSampler,
    TensorDictPrimer,
    TensorDictReplayBuffer,
    TransformedEnv,
    Unbounded,
)
from tdx.foundation.errors import ArgumentError, ChainError, KeyNotFoundError
from tests.data.stored import batched, rollout
from tests.transforms.fixed_rollouts import assert_same

REWARD = ("next", "reward")


def buffer_of(
    data: TensorDictBase, *transforms: Any, sampler: Sampler | None = None, batch_size: int = 12
) -> ReplayBuffer:
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(1000),
        sampler=RandomSampler() if sampler is None else sampler,
        batch_size=batch_size,
    )
    for transform in transforms:
        buffer.append_transform(transform)
    buffer.extend(data)
    return buffer


def whole(buffer: ReplayBuffer) -> Any:
    """Everything, in order, as ``sample`` gives it."""
    buffer.set_sampler(SamplerWithoutReplacement(shuffle=False))
    return buffer.sample(len(buffer))


def test_forward_maps_samples_and_not_stored_data() -> None:
    data = rollout([8])
    buffer = buffer_of(
        data, RewardScaling(1.0, 2.0, in_keys=[REWARD]), RewardClipping(0, 9, [REWARD])
    )
    assert whole(buffer)[REWARD].flatten().tolist() == [3, 5, 7, 9, 9, 9, 9, 9]
    assert buffer[:3][REWARD].flatten().tolist() == [3, 5, 7]
    assert_same(buffer.storage[:], data)


def test_order_of_the_chain() -> None:
    buffer = buffer_of(rollout([3]), RewardScaling(0.0, 2.0, in_keys=[REWARD]))
    assert buffer.insert_transform(0, RewardScaling(1.0, 1.0, in_keys=[REWARD])) is buffer
    assert whole(buffer)[REWARD].flatten().tolist() == [4, 6, 8]
    assert len(buffer.transform) == 2


@pytest.mark.parametrize("as_chain", [False, True])
def test_transform_argument(as_chain: bool) -> None:
    stage = RewardScaling(0.0, 2.0, in_keys=[REWARD])
    given = Compose(stage) if as_chain else stage
    buffer = ReplayBuffer(storage=LazyTensorStorage(5), transform=given, batch_size=2)
    assert buffer.transform[0] is stage
    buffer.extend(rollout([3]))
    assert set(buffer.sample()[REWARD].flatten().tolist()) <= {2.0, 4.0, 6.0}


def test_an_appended_chain_adds_its_stages() -> None:
    scale, clip = RewardScaling(0.0, 2.0, [REWARD]), RewardClipping(-1.0, 1.0, [REWARD])
    buffer = buffer_of(rollout([5]))
    buffer.append_transform(Compose(scale, clip))
    assert list(buffer.transform) == [scale, clip]
    assert buffer.sample()["next", "reward"].abs().max() <= 1.0


def test_functions() -> None:
    buffer = buffer_of(rollout([4]), lambda td: td.set("twice", td["step"] * 2))
    assert whole(buffer)["twice"].tolist() == [0, 2, 4, 6]
    assert isinstance(buffer.transform[0], CallableTransform)


def test_inverse_when_written() -> None:
    data = TensorDict(value=torch.rand(4, dtype=torch.float64), batch_size=[4])
    buffer = buffer_of(data, DoubleToFloat(in_keys=["value"], in_keys_inv=["value"]))
    buffer.append_transform(ObservationNorm(0.0, 2.0, in_keys=["value"]))
    single = TensorDict(value=torch.tensor(0.5, dtype=torch.float32))
    buffer.add(single)
    assert buffer.storage[:]["value"].dtype == torch.float64
    assert buffer.storage[4]["value"] == 0.5
    assert buffer[4]["value"] == 1.0
    assert whole(buffer)["value"].dtype == torch.float32
    assert single["value"].dtype == torch.float32


def test_actions_round_trip() -> None:
    data = rollout([4])
    buffer = buffer_of(data, ActionScaling(loc=torch.ones(2), scale=torch.tensor([2.0, 4.0])))
    torch.testing.assert_close(
        buffer.storage[:]["action"], data["action"] * torch.tensor([2.0, 4.0]) + 1
    )
    torch.testing.assert_close(whole(buffer)["action"], data["action"])


def test_input_data_is_not_changed() -> None:
    data = rollout([4])
    kept = data.clone()
    buffer = buffer_of(data, RenameTransform([], [], ["stored"], ["action"]))
    assert_same(data, kept)
    assert "stored" in buffer.storage[:].keys()


def test_inverted() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(4), batch_size=4)
    buffer.append_transform(RewardScaling(1.0, 2.0, in_keys=[REWARD]), invert=True)
    data = rollout([4])
    buffer.extend(data)
    assert buffer.storage[:][REWARD].flatten().tolist() == [3, 5, 7, 9]
    assert whole(buffer)[REWARD].flatten().tolist() == [3, 5, 7, 9]
    assert data[REWARD].flatten().tolist() == [1, 2, 3, 4]


def test_entries_that_are_primed() -> None:
    buffer = buffer_of(rollout([4]), TensorDictPrimer(hidden=Unbounded((3,)), default_value=2.0))
    assert (buffer.sample()["hidden"] == 2).all()
    assert buffer.sample()["hidden"].shape == (12, 3)


def test_shape_may_change() -> None:
    sampler = SliceSampler(slice_len=3)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(9), sampler=sampler, batch_size=6)
    buffer.append_transform(lambda td: td.reshape(-1, 3))
    buffer.extend(rollout([9]))
    assert buffer.sample().batch_size == (2, 3)
    assert buffer.sample()["index"].shape == (2, 3)


def test_keys_changed_later_are_followed() -> None:
    stage = RewardScaling(0.0, 2.0, in_keys=[REWARD])
    buffer = buffer_of(rollout([2]), stage)
    whole(buffer)
    stage.out_keys = ["scaled"]
    batch = whole(buffer)
    assert batch["scaled"].flatten().tolist() == [2, 4]
    assert batch[REWARD].flatten().tolist() == [1, 2]


def test_hooks_are_called() -> None:
    stage = RewardScaling(0.0, 2.0, in_keys=[REWARD])
    buffer = buffer_of(rollout([2]), stage)
    for module in (stage, buffer.transform):
        seen: list[object] = []
        handle = module.register_forward_hook(lambda module, *_, seen=seen: seen.append(module))
        whole(buffer)
        handle.remove()
        assert seen == [module]


def test_chain_program_equals_the_chain() -> None:
    data = rollout([5, 4])
    stages = [
        ObservationNorm(0.5, 2.0, in_keys=["observation"], out_keys=[("sub", "normal")]),
        DoubleToFloat(in_keys=["observation", "action"]),
        RewardSum(in_keys=["reward"]),
        RewardClipping(0, 2, in_keys=[REWARD, REWARD], out_keys=["a", ("next", "b")]),
    ]
    expected = Compose(*(stage.clone() for stage in stages))(data.clone())
    buffer = buffer_of(data, *stages, sampler=SliceSampler(slice_len=4))
    batch, info = buffer.sample(return_info=True)
    keys = ["observation", ("sub", "normal"), "a", ("next", "b")]
    assert_same(batch.select(*keys), expected[info["index"]].select(*keys))


# Time


@pytest.mark.parametrize("padding", ["same", "constant"])
def test_stacks_never_cross_episodes(padding: Any) -> None:
    data = rollout([5, 7, 3, 9])
    stack = CatFrames(3, dim=-1, in_keys=["observation"], padding=padding, padding_value=-1.0)
    buffer = buffer_of(data, stack, sampler=SliceSampler(slice_len=3), batch_size=300)
    batch = buffer.sample()
    for where in (batch, batch["next"]):
        frames = where["observation"].reshape(-1, 3, 2)
        episodes = frames[..., 0]
        inside = (episodes == batch["episode"].unsqueeze(-1)) | (frames == -1).all(-1)
        assert inside.all()
    rows = batch.reshape(-1, 3)
    newest = rows["observation"].reshape(-1, 3, 3, 2)[..., 1]
    first = rows["step"][:, :1]
    pad = first if padding == "same" else torch.full_like(first, -1)
    expected = torch.stack(
        [
            torch.cat([pad, pad, first], -1),
            torch.cat([pad, first, first + 1], -1),
            torch.cat([first, first + 1, first + 2], -1),
        ],
        1,
    )
    assert torch.equal(newest.long(), expected)


def test_slices_are_stacked_separately() -> None:
    buffer = buffer_of(rollout([5, 7]), sampler=SliceSampler(slice_len=4))
    buffer.append_transform(lambda td: td.reshape(-1, 4))
    buffer.append_transform(CatFrames(2, dim=-1, in_keys=["observation"]))
    steps = buffer.sample()["observation"].reshape(-1, 4, 2, 2)[..., 1]
    first = steps[:, 0, 1]
    assert torch.equal(steps[:, :, 1] - first.unsqueeze(-1), torch.arange(4.0).expand(3, 4))
    assert torch.equal(steps[:, 1:, 0], steps[:, :-1, 1])
    assert torch.equal(steps[:, 0, 0], first)


def test_stacks_of_batches_of_envs() -> None:
    data = batched([[5, 7], [12], [3, 9]])
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(100, ndim=2), sampler=SliceSampler(slice_len=3), batch_size=90
    )
    buffer.append_transform(CatFrames(3, dim=-1, in_keys=["observation"]))
    buffer.extend(data)
    batch = buffer.sample()
    episodes = batch["observation"].reshape(-1, 3, 2)[..., 0]
    assert (episodes == batch["episode"].unsqueeze(-1)).all()


def test_stored_stacks_equal_those_of_the_env() -> None:
    """Stacked when written: whole episodes equal the steps of the env."""
    stack: dict[str, Any] = {"N": 4, "dim": -1, "in_keys": ["observation"], "out_keys": ["stack"]}
    env = TransformedEnv(GymEnv("CartPole-v1"), CatFrames(**stack))
    env.set_seed(0)
    torch.manual_seed(0)
    stepped = env.rollout(100, break_when_any_done=False)
    raw = stepped.exclude("stack", ("next", "stack"))
    buffer = buffer_of(raw, CatFrames(**stack, as_inverse=True))
    assert_same(buffer.storage[:], stepped)
    batch = buffer.sample()
    assert torch.equal(batch["stack"][:, -4:], batch["observation"])


@pytest.mark.parametrize("sampler", [RandomSampler, SamplerWithoutReplacement])
@pytest.mark.parametrize(
    "transform", [CatFrames(3, -1, ["observation"]), RewardSum(in_keys=["reward"])]
)
def test_unrelated_steps_are_no_sequence(transform: Any, sampler: type[Sampler]) -> None:
    buffer = buffer_of(rollout([9]), transform.clone(), sampler=sampler())
    with pytest.raises(ArgumentError, match=r"stage 0 .*named 'batch' .*SliceSampler") as caught:
        buffer.sample()
    assert caught.value.where.stage == 0


def test_sums_of_slices() -> None:
    buffer = buffer_of(
        rollout([5, 4]), RewardSum(in_keys=["reward"]), sampler=SliceSampler(slice_len=3)
    )
    rows = buffer.sample().reshape(-1, 3)
    torch.testing.assert_close(
        rows["next", "episode_reward"].squeeze(-1), rows[REWARD].squeeze(-1).cumsum(-1)
    )


def test_returns_are_stored() -> None:
    data = rollout([2, 3])
    data[REWARD] = torch.ones(5, 1)
    returns = Reward2GoTransform(gamma=0.5, out_keys=["return"])
    buffer = buffer_of(data, returns, sampler=SliceSampler(slice_len=2))
    assert buffer.storage[:]["return"].flatten().tolist() == [1.5, 1, 1.75, 1.5, 1]
    batch, info = buffer.sample(return_info=True)
    assert torch.equal(batch["return"], buffer.storage[:]["return"][info["index"]])
    batches = ReplayBuffer(storage=LazyTensorStorage(20, ndim=2), transform=returns.clone())
    batches.extend(batched([[5, 5], [10]]))
    last = batches.storage[:]["return"][[4, 9, 9], [0, 0, 1]]
    assert last.flatten().tolist() == [5, 5, 10]


def test_burn_in_of_slices() -> None:
    count = TensorDictModule(
        lambda step, count: count[:, :1] + torch.ones_like(step).cumsum(1),
        in_keys=["step", "count"],
        out_keys=[("next", "count")],
    )
    data = rollout([9, 8])
    data["count"] = torch.zeros(17, dtype=torch.int64)
    buffer = buffer_of(data, lambda td: td.reshape(-1, 4), sampler=SliceSampler(slice_len=4))
    buffer.append_transform(BurnInTransform([count], burn_in=3))
    batch = buffer.sample()
    assert batch.batch_size == (3, 1)
    assert (batch["count"] == 3).all()
    buffer.set_sampler(RandomSampler())
    buffer.transform.pop(0)
    with pytest.raises(ArgumentError, match=r"stage 0 .BurnInTransform.*named 'batch'"):
        buffer.sample()


# Wrong use


def test_one_instance_in_two_places() -> None:
    env = TransformedEnv(GymEnv("Pendulum-v1"), RewardScaling(0.0, 1.0))
    buffer = ReplayBuffer(storage=LazyTensorStorage(5))
    with pytest.raises(ChainError, match="already part of a chain"):
        buffer.append_transform(env.transform)
    with pytest.raises(ChainError, match="already part of a chain"):
        ReplayBuffer(storage=LazyTensorStorage(5), transform=env.transform)


def test_missing_key() -> None:
    buffer = buffer_of(rollout([3]), RewardScaling(0.0, 1.0), RewardClipping(0, 1, ["rewrd"]))
    with pytest.raises(KeyNotFoundError, match=r"stage 0 \(RewardScaling\).*no key 'reward'"):
        buffer.sample()
    buffer.transform[0].set_missing_tolerance()
    with pytest.raises(KeyNotFoundError, match=r"stage 1 \(RewardClipping\).*no key 'rewrd'"):
        buffer.sample()


def test_transforms_of_other_data_than_tensordicts() -> None:
    buffer = buffer_of(torch.arange(4), RewardScaling(0.0, 1.0))
    with pytest.raises(ChainError, match="the batches are Tensor"):
        buffer.sample()
