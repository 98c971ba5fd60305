"""Values, specs and devices of casts."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule

from tdx import (
    CatFrames,
    Compose,
    DeviceCastTransform,
    DoubleToFloat,
    DTypeCastTransform,
    GymEnv,
    PinMemoryTransform,
    RewardSum,
    SerialEnv,
    StepCounter,
    TransformedEnv,
    check_env_specs,
)
from tdx.core.envs import EnvBase
from tdx.foundation.errors import ArgumentError, ChainError, DeviceError, KeyNotFoundError
from tdx.foundation.keys import normalize_key
from tests.transforms.envs import RowsEnv
from tests.transforms.fixed_rollouts import assert_same, fixed_rollout

F16, F32, F64, I64 = torch.float16, torch.float32, torch.float64, torch.int64


def dtypes(tensordict: Any) -> dict[Any, torch.dtype]:
    return {normalize_key(key): value.dtype for key, value in tensordict.items(True, True)}


def test_every_entry_of_the_dtype_is_cast_and_no_other() -> None:
    env = TransformedEnv(RowsEnv((2,)), DTypeCastTransform(F32, F64))
    check_env_specs(env)
    base = env.base_env
    assert isinstance(base, RowsEnv)
    found = dtypes(env.rollout(2))
    assert found["action"] == F64
    assert base.given is not None
    assert base.given.dtype == F32
    assert {found["next", key] for key in ("observation", "reward", "image", "precise")} == {F64}
    assert found["next", "pixels"] == torch.uint8
    assert found["next", "done"] == torch.bool


@pytest.mark.parametrize("make", [DTypeCastTransform, None])
def test_cast_of_one_entry_does_not_change_others(make: Any) -> None:
    """Reward, done and action are not cast by default."""
    casting = DoubleToFloat(["precise"]) if make is None else make(F64, F32, ["precise"])
    env = TransformedEnv(RowsEnv(), casting)
    before, after = RowsEnv().specs, env.specs
    changed = [key for key, leaf in after.items(True, True) if leaf.dtype != before[key].dtype]
    assert [normalize_key(key)[-1] for key in changed] == ["precise"]


def test_env_without_the_dtype_keeps_its_entries() -> None:
    plain = GymEnv("Pendulum-v1")
    env = TransformedEnv(plain, DTypeCastTransform(F64, F16))
    assert env.output_spec == plain.output_spec
    assert env.input_spec == plain.input_spec
    assert env.rollout(3)["next"].keys() == plain.rollout(3)["next"].keys()


def test_done_flags_are_cast_only_on_request() -> None:
    stored = RowsEnv().rollout(2)
    casting = DTypeCastTransform(torch.bool, torch.int8)
    flags = [key for key, dtype in dtypes(casting(stored)).items() if dtype == torch.bool]
    assert len(flags) == 6
    assert TransformedEnv(RowsEnv(), casting).full_done_spec["done"].dtype == torch.bool


def test_bounds_follow_the_values_to_integers() -> None:
    env = TransformedEnv(RowsEnv(), DTypeCastTransform(F64, I64, ["precise"]))
    check_env_specs(env)
    spec = env.observation_spec["precise"]
    assert spec.dtype == I64
    assert (spec.low.min(), spec.high.max()) == (-100, 100)


def test_forward_and_inverse_on_stored_data() -> None:
    casting = DTypeCastTransform(F64, F32)
    stored = TensorDict(a=torch.zeros(3, dtype=F64), b=torch.zeros(3, dtype=I64), batch_size=[3])
    assert dtypes(casting(stored.clone())) == {"a": F32, "b": I64}
    assert dtypes(casting.inv(casting(stored.clone()))) == {"a": F64, "b": I64}
    keyed = DTypeCastTransform(F64, F32, in_keys_inv=["a"], out_keys_inv=["c"])
    given = TensorDict(c=torch.zeros(3), batch_size=[3])
    assert dtypes(keyed.inv(given))["a"] == F64


def test_double_to_float_is_a_cast() -> None:
    casting = DoubleToFloat()
    assert isinstance(casting, DTypeCastTransform)
    assert (casting.dtype_in, casting.dtype_out) == (F64, F32)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((cast(Any, "float32"), F64), "dtype_in must be a torch.dtype, got 'float32'"),
        ((F32, cast(Any, None)), "dtype_out must be a torch.dtype"),
        ((F32, F64, None, ["a"]), "out_keys are given without in_keys"),
        ((F32, F64, None, None, None, ["a"]), "out_keys_inv are given without in_keys_inv"),
        ((F32, F64, ["a"], ["a", "b"]), "1 in-keys and 2 out-keys"),
    ],
)
def test_invalid_arguments(arguments: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        DTypeCastTransform(*arguments)


def test_an_entry_of_another_dtype() -> None:
    env = TransformedEnv(RowsEnv(), DTypeCastTransform(F64, F32, ["observation"]))
    with pytest.raises(ChainError, match=r"casts float64, but 'observation' is torch.float32"):
        env.output_spec  # noqa: B018


# Devices. For torch, `cpu:1` is another name of the CPU, which shows what is moved.


def test_env_has_the_outer_device() -> None:
    base = GymEnv("Pendulum-v1")
    env = TransformedEnv(base, DeviceCastTransform("cpu:1"))
    assert (env.device, base.device) == (torch.device("cpu:1"), torch.device("cpu"))
    assert {leaf.device for leaf in env.specs.values(True, True)} == {torch.device("cpu:1")}
    assert {leaf.device for leaf in base.specs.values(True, True)} == {torch.device("cpu")}
    rollout = env.rollout(3)
    assert rollout.device == rollout["next"].device == torch.device("cpu:1")
    inner = env.transform.inv(rollout)
    assert inner.device == torch.device("cpu")


@pytest.mark.parametrize("workers", [None, 2])
def test_scans_before_and_after_a_device_cast(workers: int | None) -> None:
    def base() -> EnvBase:
        single = partial(GymEnv, "CartPole-v1")
        return single() if workers is None else SerialEnv(workers, single)

    def env(device: str) -> TransformedEnv:
        return TransformedEnv(
            base(),
            Compose(
                StepCounter(5),
                RewardSum(),
                DeviceCastTransform(device),
                RewardSum(["reward"], ["again"]),
                CatFrames(2, -1, ["observation"]),
            ),
        )

    def fixed_rollout(device: str) -> Any:
        one = env(device)
        one.set_seed(3)
        torch.manual_seed(0)
        return one.rollout(14, break_when_any_done=False)

    moved, still = fixed_rollout("cpu:1"), fixed_rollout("cpu")
    assert moved.device == torch.device("cpu:1")
    assert torch.equal(moved["next", "again"], moved["next", "episode_reward"])
    for key, value in still.items(True, True):
        assert torch.equal(moved[key], value), key


def test_cast_to_the_same_device_changes_nothing() -> None:
    plain = RowsEnv((2,))
    env = TransformedEnv(RowsEnv((2,)), DeviceCastTransform("cpu"))
    assert env.specs == plain.specs
    check_env_specs(env)


def test_stored_data_moves() -> None:
    stored = TensorDict(a=torch.zeros(2), b=torch.zeros(2), batch_size=[2])
    whole = DeviceCastTransform("meta")(stored)
    assert whole.device == torch.device("meta")
    assert stored["a"].device.type == "cpu"
    some = DeviceCastTransform("meta", in_keys=["a"], out_keys=["c"])(stored.to("cpu"))
    assert {key: value.device.type for key, value in some.items()} == {
        **{"a": "cpu", "b": "cpu"},
        "c": "meta",
    }
    back = DeviceCastTransform("cpu", "meta").inv(stored)
    assert back.device == torch.device("meta")
    assert DeviceCastTransform("meta").inv(stored)["a"].device.type == "cpu"
    assert (
        DeviceCastTransform("cpu", "meta", in_keys_inv=["c"]).inv(stored)["a"].device.type == "cpu"
    )
    keyed = DeviceCastTransform("cpu", "meta", in_keys_inv=["a"]).inv(stored)
    assert (keyed["a"].device.type, keyed["b"].device.type) == ("meta", "cpu")


def test_unknown_device() -> None:
    with pytest.raises(DeviceError, match="unknown device 'gpu'"):
        DeviceCastTransform("gpu")


def some_moved(target: str = "cpu:1") -> TransformedEnv:
    mover = DeviceCastTransform(
        target,
        in_keys=["observation"],
        out_keys=["moved"],
        in_keys_inv=["action"],
        out_keys_inv=["moved_action"],
    )
    return TransformedEnv(RowsEnv((2,)), Compose(StepCounter(4), mover, RewardSum()))


def test_only_some_keys_of_an_env() -> None:
    env, target = some_moved(), torch.device("cpu:1")
    assert env.device is None
    assert env.base_env.device == torch.device("cpu")
    assert env.observation_spec.device is None
    assert env.observation_spec["moved"].device == env.action_spec.device == target
    assert env.observation_spec["observation"].device == torch.device("cpu")
    assert env.action_keys == ["moved_action"]
    check_env_specs(env)
    rollout = env.rollout(9, break_when_any_done=False)
    assert rollout.device is None
    assert torch.equal(rollout["moved"], rollout["observation"])
    assert rollout["next", "step_count"].max() == 3
    base = cast(RowsEnv, env.base_env)
    assert base.given is not None
    assert torch.equal(base.given, rollout["moved_action"][:, -1])


def test_entries_stay_on_their_devices() -> None:
    env = TransformedEnv(RowsEnv((2,)), DeviceCastTransform("meta", in_keys=["precise"]))
    rollout = env.rollout(4, break_when_any_done=False)
    devices = {key: value.device.type for key, value in rollout["next"].items(True, True)}
    assert devices.pop("precise") == "meta"
    assert set(devices.values()) == {"cpu"}


def test_a_policy_on_one_device_acts_in_an_env_on_two() -> None:
    env = some_moved()
    policy = TensorDictModule(torch.nn.Linear(3, 2), ["moved"], ["moved_action"])
    assert env.rollout(3, policy, auto_cast_to_device=True).device is None
    step = env.step(env.rand_action(env.reset().to("cpu")))
    assert step.device == step["next"].device == torch.device("cpu")


def test_a_batch_of_envs_on_two_devices_is_on_the_cpu() -> None:
    env = SerialEnv(2, some_moved)
    assert env.device == torch.device("cpu")
    check_env_specs(env)
    assert env.rollout(3).device == torch.device("cpu")


def test_selected_keys_to_the_same_device() -> None:
    env = TransformedEnv(
        RowsEnv(), DeviceCastTransform("cpu", in_keys=["observation"], out_keys=["o"])
    )
    assert env.device == torch.device("cpu")
    check_env_specs(env)
    planned, eager = (
        fixed_rollout(TransformedEnv(RowsEnv(), env.transform.clone(), planned=choice))
        for choice in (True, False)
    )
    assert_same(planned, eager)
    assert torch.equal(planned["o"], planned["observation"])


def test_a_missing_selected_key() -> None:
    env = TransformedEnv(RowsEnv(), DeviceCastTransform("cpu:1", in_keys=["observatoin"]))
    with pytest.raises(KeyNotFoundError, match="observatoin"):
        env.reset()


@pytest.mark.gpu
@pytest.mark.parametrize("batch_size", [(), (4,)])
def test_an_env_on_the_cpu_with_its_results_on_an_accelerator(batch_size: tuple[int, ...]) -> None:
    chain = Compose(RewardSum(), DeviceCastTransform("cuda"), StepCounter(4), DoubleToFloat())
    base = RowsEnv(batch_size)
    env = TransformedEnv(base, chain)
    check_env_specs(env)
    rollout = env.rollout(9, break_when_any_done=False)
    assert {value.device.type for value in rollout.values(True, True)} == {"cuda"}
    assert base.given is not None
    assert base.device == torch.device("cpu")
    assert env.action_spec.rand().device.type == "cuda"
    some = DeviceCastTransform("cpu", in_keys=["observation"])(rollout)
    assert (some["observation"].device.type, some["action"].device.type) == ("cpu", "cuda")


# Casts


def test_cast_of_an_observation_does_not_change_others() -> None:
    base = RowsEnv((2,))
    base.action_spec = base.action_spec.to(torch.float64)
    env = TransformedEnv(base, DoubleToFloat(in_keys=["precise"]))
    assert env.observation_spec["precise"].dtype is torch.float32
    assert env.action_spec.dtype is torch.float64
    rollout, plain = fixed_rollout(env), fixed_rollout(RowsEnv((2,)))
    assert rollout["next", "precise"].dtype is torch.float32
    for key in ("reward", "done", "observation", "pixels"):
        assert rollout["next", key].dtype == plain["next", key].dtype


def test_an_env_without_doubles_loses_no_keys() -> None:
    plain = TransformedEnv(RowsEnv((2,)), DoubleToFloat())
    env = TransformedEnv(plain, DoubleToFloat())
    assert env.output_spec == plain.output_spec
    assert env.input_spec == plain.input_spec
    assert env.transform.in_keys == []
    assert_same(fixed_rollout(env), fixed_rollout(plain))


def test_casting_another_dtype_is_refused() -> None:
    env = TransformedEnv(RowsEnv(), DoubleToFloat(in_keys=["pixels"]))
    with pytest.raises(ChainError, match=r"'pixels' is torch\.uint8"):
        env.output_spec  # noqa: B018


def test_pinning_changes_no_value() -> None:
    data = TensorDict(a=torch.ones(3), n={"b": torch.zeros(2)})
    pinned = PinMemoryTransform()(data.clone())
    assert (pinned == data).all()
    assert pinned["n", "b"].is_pinned() is torch.cuda.is_available()


def test_the_index_of_a_cpu_has_no_meaning() -> None:
    mover = DeviceCastTransform("cpu:1")
    assert mover.orig_device is None
    env = TransformedEnv(GymEnv("CartPole-v1", device="cpu:0"), mover)
    assert env.device == torch.device("cpu:1")
    assert mover.orig_device == torch.device("cpu:0")
    check_env_specs(env)
