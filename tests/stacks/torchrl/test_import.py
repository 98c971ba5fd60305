"""TorchRL envs as pipelines: the counterparts of transforms, and the comparison of values."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
import torch
import torchrl.data as data
import torchrl.envs as rl

from tdx.foundation.errors import ArgumentError
from tdx.inspection.stack_import import StackImport, import_stack
from tdx.pipeline import format_stage
from tdx.stacks import open_stack
from tdx.stacks.building import build_env
from tdx.stacks.conversion import Counterpart
from tdx.stacks.counterparts import TABLE, Place, Row, find_counterpart
from tdx.stacks.refusals import Missing
from tests.programs import exhaustive
from tests.stacks.comparing import proofs, stages
from tests.stacks.torchrl.chains import Camera

Make = Callable[[], Any]
KEYS = {"in_keys": ["observation"]}

pytestmark = pytest.mark.filterwarnings("ignore:.*is to be deprecated:FutureWarning")


def pendulum(*transforms: Make) -> Any:
    chain = rl.Compose(rl.StepCounter(max_steps=9), *(make() for make in transforms))
    return rl.TransformedEnv(rl.GymEnv("Pendulum-v1", g=9.0), chain)


def converted(make: Make, steps: int = 25) -> StackImport:
    return import_stack(lambda: open_stack(make()), steps=steps)


def frozen() -> Any:
    norm = rl.VecNormV2(in_keys=["observation"])
    env = rl.TransformedEnv(rl.GymEnv("Pendulum-v1"), norm)
    env.set_seed(0)
    torch.manual_seed(0)
    env.rollout(9)
    norm.freeze()
    return norm.clone()


SAME: dict[str, tuple[Make, str]] = {
    "sum": (rl.RewardSum, "RewardSum"),
    "tracker": (rl.InitTracker, "InitTracker"),
    "scaling": (lambda: rl.RewardScaling(0.1, 0.3), "RewardScaling(loc=0.1, scale=0.3)"),
    "standard": (
        lambda: rl.RewardScaling(-8.0, 4.0, standard_normal=True),
        "RewardScaling(loc=-8.0, scale=4.0, standard_normal=True)",
    ),
    "clipping": (lambda: rl.RewardClipping(-2.0, -0.5), "RewardClipping(clamp_min=-2.0, "),
    "clip": (lambda: rl.ClipTransform(low=-1.0, high=1.0, **KEYS), "ClipTransform(low=-1.0, "),
    "clipped-actions": (
        lambda: rl.ClipTransform(in_keys_inv=["action"], low=-1.0),
        "ClipTransform(low=-1.0, in_keys_inv",
    ),
    "sign": (lambda: rl.SignTransform(in_keys=["reward"]), 'SignTransform(in_keys=["reward"])'),
    "joined": (
        lambda: rl.CatTensors(["observation"], "joined", del_keys=False),
        'CatTensors(out_key="joined", del_keys=False, in_keys=["observation"]',
    ),
    "target": (lambda: rl.TargetReturn(10.0), "TargetReturn(target_return=10.0)"),
    "highest": (lambda: rl.TimeMaxPool(T=3), "TimeMaxPool(T=3)"),
    "total": (
        lambda: rl.LineariseRewards(["reward"], weights=[0.5]),
        "LineariseRewards(weights=[0.5], ",
    ),
    "binarize": (rl.BinarizeReward, "BinarizeReward"),
    "frames": (
        lambda: rl.CatFrames(N=3, dim=-1, padding="constant", padding_value=0.5, **KEYS),
        'CatFrames(N=3, dim=-1, padding="constant", padding_value=0.5, in_keys=["observation"])',
    ),
    "norm": (lambda: rl.ObservationNorm(0.5, 2.0, **KEYS), "ObservationNorm(loc=0.5, scale=2.0, "),
    "norms": (
        lambda: rl.ObservationNorm(torch.arange(3.0), torch.ones(3), **KEYS),
        "ObservationNorm(loc=[0.0, 1.0, 2.0], ",
    ),
    "frozen": (frozen, "ObservationNorm(loc=["),
    "cast": (
        lambda: rl.DTypeCastTransform(torch.float32, torch.float64, **KEYS),
        "DTypeCastTransform(dtype_in=torch.float32, dtype_out=torch.float64, in_keys=",
    ),
    "double": (rl.DoubleToFloat, "DoubleToFloat"),
    "unsqueeze": (
        lambda: rl.UnsqueezeTransform(-1, out_keys=["tall"], **KEYS),
        'UnsqueezeTransform(dim=-1, in_keys=["observation"], out_keys=["tall"])',
    ),
    "flatten": (lambda: rl.FlattenObservation(-1, -1, **KEYS), "FlattenObservation(first_dim=-1"),
    "rename": (
        lambda: rl.RenameTransform(["observation"], ["seen"], ["action"], [("moves", "action")]),
        'RenameTransform(in_keys=["observation"], out_keys=["seen"], in_keys_inv=["action"], ',
    ),
    "exclude": (lambda: rl.ExcludeTransform("truncated"), 'ExcludeTransform("truncated")'),
    "primer": (
        lambda: rl.TensorDictPrimer(
            {"h": data.Unbounded((2,)), "n": data.Bounded(0, 9, (1,), dtype=torch.int64)},
            default_value={"h": 1.5, "n": 4},
            expand_specs=True,
        ),
        'TensorDictPrimer(primers={"h": Unbounded(shape=(2,)',
    ),
    "actions": (rl.ActionScaling, "ActionScaling"),
    "bins": (lambda: rl.ActionDiscretizer(4), "ActionDiscretizer(num_intervals=4)"),
    "finite": (rl.FiniteTensorDictCheck, ""),
}


@pytest.mark.parametrize("name", SAME)
def test_transform_is_equal(name: str) -> None:
    make, text = SAME[name]
    found = converted(lambda: pendulum(make), steps=12)
    assert not found.gap
    assert found.is_equal, proofs(found)
    assert found.pipeline.env.kwargs == {"g": 9.0}
    assert stages(found)[0] == "StepCounter(max_steps=9)"
    rest = "".join(stages(found)[1:])
    assert rest.startswith(text), rest
    assert bool(rest) == bool(text)


def pixels() -> Any:
    env = rl.GymEnv("CartPole-v1", from_pixels=True, pixels_only=False)
    chain = rl.Compose(rl.ToTensorImage(), rl.GrayScale(), rl.Resize(16, 20), rl.CatFrames(2, -3))
    return rl.TransformedEnv(env, chain)


def batch() -> Any:
    env = rl.SerialEnv(3, lambda: rl.GymEnv("CartPole-v1"))
    return rl.TransformedEnv(env, rl.Compose(rl.StepCounter(20), rl.RewardSum()))


def lake() -> Any:
    env = rl.GymEnv("FrozenLake-v1", categorical_action_encoding=True)
    return rl.TransformedEnv(env, rl.Compose(rl.StepCounter(9), rl.Compose(rl.InitTracker())))


def skipping() -> Any:
    return rl.TransformedEnv(rl.GymEnv("Pendulum-v1"), rl.FrameSkipTransform(2))


@pytest.mark.parametrize(
    ("make", "env"),
    [
        (pixels, {"from_pixels": True, "pixels_only": False, "kwargs": {}}),
        (batch, {"num_envs": 3, "batching": "serial"}),
        (lake, {"kwargs": {"categorical_action_encoding": True}}),
        (skipping, {"kwargs": {}}),
        (lambda: rl.GymEnv("Pendulum-v1"), {"id": "Pendulum-v1", "kwargs": {}}),
    ],
)
def test_env_inside_is_equal(make: Make, env: dict[str, Any]) -> None:
    found = converted(make)
    assert found.is_equal, proofs(found)
    assert {name: getattr(found.pipeline.env, name) for name in env} == env


@exhaustive
def test_steps_are_equal_around_a_stage_without_counterpart() -> None:
    found = converted(
        lambda: pendulum(
            lambda: rl.VecNormV2(in_keys=["observation"]),
            lambda: rl.CatFrames(N=2, dim=-1, **KEYS),
            rl.RewardSum,
        ),
        steps=50,
    )
    assert proofs(found) == [
        "stage 0: equal for 50 steps",
        "stages 2 to 3 on top of stage 1: equal for 50 steps",
    ]
    missing = found.stages[1].result
    assert isinstance(missing, Missing)
    assert missing.suggestion is not None
    assert format_stage(missing.suggestion) == 'VecNorm(in_keys=["observation"])'
    assert found.gap.endswith("; not converted: 1 VecNormV2; the pipeline as a whole is not equal")


class Doubled(rl.RewardScaling):  # type: ignore[misc]
    pass


class Rounded(rl.RewardScaling):  # type: ignore[misc]
    def forward(self, tensordict: Any) -> Any:
        return super().forward(tensordict).round()


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: rl.VecNorm(in_keys=["observation"]), "TorchRL adds up"),
        (lambda: rl.TrajCounter(), "TrajCounter is not converted"),
        (lambda: rl.TerminateTransform(bool), "its function is Python code"),
        (lambda: rl.gSDENoise(shape=(1,)), "gSDENoise is not converted"),
        (lambda: rl.MultiAction(), "MultiAction is not converted"),
        (lambda: Doubled(0.0, 2.0), "it is a class of its own"),
        (lambda: Rounded(0.0, 2.0), "it is a subclass of RewardScaling with its own forward"),
        (lambda: rl.ObservationNorm(in_keys=["observation"]), "it has no statistics yet"),
        (lambda: rl.NoopResetEnv(3), "it steps random actions"),
        (lambda: rl.RewardSum(reward_spec=True), "it declares the sum as a reward"),
        (
            lambda: rl.TensorDictPrimer({"h": data.Unbounded((2,))}, random=True),
            "its values are random",
        ),
    ],
)
def test_transform_without_counterpart_has_a_reason(make: Make, reason: str) -> None:
    found = find_counterpart(make(), Place())
    assert isinstance(found, Missing)
    assert found.reason.startswith(reason)
    assert found.advice


def test_stage_whose_semantics_differ_in_a_chain_is_found() -> None:
    """TorchRL repeats the step of the env alone, tdx that of the chain below."""
    found = converted(lambda: pendulum(lambda: rl.FrameSkipTransform(2)), steps=3)
    assert proofs(found) == [
        "stages 0 to 1: first difference at step 0: TDX511 value: stage 1 (FrameSkipTransform), "
        "key 'step_count': 1 in the stack, 2 in the pipeline"
    ]


def test_first_difference_names_step_key_stage_and_values(monkeypatch: Any) -> None:
    monkeypatch.setitem(TABLE["torchrl.envs.transforms"], "RewardClipping", Row(Counterpart()))
    found = converted(lambda: pendulum(lambda: rl.RewardClipping(-0.1, 0.0), rl.InitTracker))
    assert not found.is_equal
    (comparison,) = found.comparisons
    text = "first difference at step 0: TDX511 value: stage 1 (RewardClipping), key 'reward': "
    assert str(comparison).startswith(text)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            Camera,
            "neither the env nor a stage has a counterpart: Camera is not a GymEnv: its class and "
            "its arguments are Python code",
        ),
        (
            lambda: rl.GymEnv("Pendulum-v1", frame_skip=2),
            "the GymEnv repeats each action 2 times",
        ),
        (
            lambda: rl.SerialEnv(2, lambda: pendulum()),
            "the envs of the SerialEnv have transforms of their own",
        ),
        (
            lambda: rl.TransformedEnv(rl.GymEnv("Pendulum-v1"), rl.TrajCounter()),
            "no stage has a counterpart: TrajCounter: TrajCounter is not converted",
        ),
    ],
)
def test_env_that_cannot_be_converted(make: Make, message: str) -> None:
    with pytest.raises(ArgumentError) as raised:
        converted(make, steps=3)
    assert raised.value.message == message
    assert raised.value.hint


class Negate(rl.Transform):  # type: ignore[misc]
    def _apply_transform(self, reward: Any) -> Any:
        return -reward


def camera() -> Any:
    stages = rl.StepCounter(7), Negate(["reward"], ["reward"]), rl.RewardSum()
    return rl.TransformedEnv(Camera(), rl.Compose(*stages))


def test_stages_around_an_env_of_another_class_are_equal_on_top_of_it() -> None:
    found = converted(camera)
    assert found.pipeline.env.id == "tests.stacks.torchrl.chains:Camera"
    assert found.missing_env is not None
    assert [each.name for each in found.pipeline.transforms] == ["StepCounter", "RewardSum"]
    assert proofs(found) == [
        "stage 0 on top of the env: equal for 25 steps",
        "stage 2 on top of stage 1: equal for 25 steps",
    ]
    assert found.gap.startswith("compared 2 of 3 stages; not converted: the env inside, 1 Negate; ")
    # The proposal is an env, because its class needs no arguments.
    with closing(build_env(found.pipeline, allow_code=True)) as env:
        assert "step_count" in env.rollout(3).keys()


def test_class_that_cannot_be_imported_is_a_placeholder() -> None:
    class Local(Camera):
        pass

    found = converted(lambda: rl.TransformedEnv(Local(), rl.StepCounter(7)))
    assert found.pipeline.env.id == "module:function"
    assert not found.has_difference, proofs(found)
    assert not found.is_equal


def make_cart_pole() -> Any:
    return rl.GymEnv("CartPole-v1")


@exhaustive
def test_envs_in_worker_processes_are_equal() -> None:
    def make() -> Any:
        env = rl.ParallelEnv(2, make_cart_pole, mp_start_method="fork")
        return rl.TransformedEnv(env, rl.Compose(rl.StepCounter(9), rl.RewardSum()))

    found = converted(make)
    env = found.pipeline.env
    assert (env.id, env.num_envs, env.batching) == ("CartPole-v1", 2, "parallel")
    assert stages(found) == ["StepCounter(max_steps=9)", "RewardSum"]
    assert proofs(found) == ["stages 0 to 1: equal for 25 steps"]
