"""The plan: versions and their readers, when stages run, and reasons to run eagerly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from tdx import (
    CartPoleEnv,
    CatFrames,
    Compose,
    Composite,
    DoubleToFloat,
    DTypeCastTransform,
    EnvBase,
    ExcludeTransform,
    GrayScale,
    GymEnv,
    GymWrapper,
    InitTracker,
    ObservationNorm,
    PendulumEnv,
    RenameTransform,
    Resize,
    RewardScaling,
    RewardSum,
    SerialEnv,
    StepCounter,
    TimeBehavior,
    ToTensorImage,
    Transform,
    TransformedEnv,
    Unbounded,
    VecNorm,
)
from tdx.core.plan import Plan, plan_of
from tdx.core.planned.executor import cached_program
from tests.core.planned.failing import Plain
from tests.core.planned.test_law import compared


def chain() -> TransformedEnv:
    stages = (
        ObservationNorm(0.1, 2.0),
        RewardScaling(0.0, 0.5),
        CatFrames(3, -1, ["observation"], ["stack"]),
        RewardSum(),
        StepCounter(9),
    )
    return TransformedEnv(GymEnv("Pendulum-v1"), Compose(*stages))


def when(plan: Plan) -> dict[str, str]:
    return {stage.name: stage.when for stage in plan.stages}


# Versions


def test_each_write_makes_a_version_that_knows_its_writer_and_readers() -> None:
    versions = {version.name: version for version in plan_of(chain(), ["stack"]).versions}
    raw, normal, stack = (versions[name] for name in ("observation@0", "observation@1", "stack@0"))
    assert (raw.writer, raw.readers, raw.final) == (-1, (0,), False)
    assert (normal.writer, normal.readers, normal.final) == (0, (2,), True)
    assert (stack.writer, stack.policy, stack.final) == (2, True, True)
    assert versions["reward@0"].readers == (1,)
    assert versions["reward@1"].readers == (3,)
    assert versions["episode_reward@0"].writer == 3
    assert not any(version.dead for version in versions.values())


def test_write_without_a_reader_is_dead() -> None:
    stages = (RewardScaling(0.0, 0.5, ["reward"], ["gain"]), ExcludeTransform("gain"))
    plan = plan_of(TransformedEnv(GymEnv("Pendulum-v1"), Compose(*stages)))
    assert [version.name for version in plan.dead] == ["gain@0"]
    assert plan.stages[1].drops == ("gain",)


def test_a_renamed_entry_keeps_its_readers() -> None:
    stages = (RenameTransform(["observation"], ["seen"]), ObservationNorm(0.0, 2.0, ["seen"]))
    plan = plan_of(TransformedEnv(GymEnv("Pendulum-v1"), Compose(*stages)))
    versions = {version.name: version for version in plan.versions}
    assert versions["observation@0"].readers == (0,)
    assert versions["seen@0"].readers == (1,)
    assert versions["seen@1"].final


# When


@pytest.mark.parametrize("key", [[], ["observation"]], ids=["float32", "float64"])
def test_a_cast_is_deferred_whether_or_not_there_is_anything_to_cast(key: list[str]) -> None:
    env = GymEnv("Pendulum-v1")
    widened = [DTypeCastTransform(torch.float32, torch.float64, key)] if key else []
    plan = plan_of(TransformedEnv(env, Compose(*widened, DoubleToFloat(), RewardSum())))
    assert plan.rows == "raw"
    assert set(when(plan).values()) == {"deferred"}


@pytest.mark.parametrize(
    ("reads", "immediate"),
    [
        (None, set()),
        ([], set()),
        (["observation"], {"ObservationNorm"}),
        (["stack"], {"ObservationNorm", "CatFrames"}),
        (["episode_reward"], {"RewardScaling", "RewardSum"}),
        (["step_count"], {"StepCounter"}),
        (["done"], {"StepCounter"}),
    ],
)
def test_only_what_the_policy_s_keys_need_runs_in_each_step(
    reads: Any, immediate: set[str]
) -> None:
    plan = plan_of(chain(), reads)
    assert {name for name, time in when(plan).items() if time == "immediate"} == immediate
    assert plan.executor == "planned"
    for stage in plan.stages:
        assert ("need" in stage.why) is (stage.when == "immediate" or "nothing needs" in stage.why)
    assert plan.policy_reads == (None if reads is None else tuple(reads))


def test_reader_that_makes_a_stage_immediate_is_named() -> None:
    whys = [stage.why for stage in plan_of(chain(), ["stack"]).stages]
    assert whys[0] == "stage 2 needs observation"
    assert whys[2] == "the policy needs stack"


class Images(gymnasium.Env[Any, Any]):
    """Env that observes noise."""

    observation_space = gymnasium.spaces.Box(0, 255, (48, 64, 3), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.np_random.integers(0, 255, (48, 64, 3), np.uint8), {}

    def step(self, action: Any) -> Any:
        seen = self.np_random.integers(0, 255, (48, 64, 3), np.uint8)
        return seen, 1.0, int(seen[0, 0, 0]) > 200, False, {}


def test_image_stages_are_one_map_of_each_image() -> None:
    keys = GymWrapper(Images()).observation_keys
    stages = (ToTensorImage(in_keys=keys), GrayScale(in_keys=keys), Resize(20, 20, in_keys=keys))
    plan = plan_of(TransformedEnv(GymWrapper(Images()), Compose(*stages, RewardSum())))
    assert [stage.when for stage in plan.stages] == ["fused"] * 3 + ["deferred"]
    assert plan.rows == "raw"


class Unknown(Transform):
    """Stage that declares no order."""

    def _apply_transform(self, tensor: Tensor) -> Tensor:
        return tensor * 2


class Opaque(Transform):
    """Stage that may read and write any entry."""

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        return next_tensordict


def test_undeclared_stage_and_its_inputs_run_in_each_step() -> None:
    stages = (ObservationNorm(0.0, 2.0), RewardScaling(0.0, 2.0), Unknown(["observation"]))
    plan = plan_of(TransformedEnv(GymEnv("Pendulum-v1"), Compose(*stages, RewardSum())))
    assert [stage.when for stage in plan.stages] == [
        "immediate",
        "deferred",
        "immediate",
        "deferred",
    ]
    assert plan.stages[2].why == "it does not declare that it can be deferred"


def test_everything_up_to_an_opaque_stage_runs_in_each_step() -> None:
    stages = (ObservationNorm(0.0, 2.0), RewardScaling(0.0, 2.0), Opaque(), RewardSum())
    plan = plan_of(TransformedEnv(GymEnv("Pendulum-v1"), Compose(*stages)))
    assert [stage.when for stage in plan.stages] == [
        "immediate",
        "immediate",
        "immediate",
        "deferred",
    ]
    assert plan.rows == "tensordict"


@pytest.mark.parametrize(
    ("base", "rows"),
    [
        (lambda: GymEnv("Pendulum-v1"), "raw"),
        (lambda: SerialEnv(2, lambda: GymEnv("Pendulum-v1")), "raw"),
        (lambda: GymEnv("Pendulum-v1", num_envs=2), "raw"),
        (PendulumEnv, "tensordict"),
        (Plain, "tensordict"),
    ],
)
def test_how_envs_are_stepped(base: Callable[[], EnvBase], rows: str) -> None:
    plan = plan_of(TransformedEnv(base(), RewardSum()))
    assert (plan.executor, plan.rows) == ("planned", rows)


# Why a rollout is eager


class OwnStep(Transform):
    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        return next_tensordict


class BeforeReset(ObservationNorm):
    def _reset_env_preprocess(self, tensordict: TensorDictBase) -> TensorDictBase:
        return super()._reset_env_preprocess(tensordict)


class TimedInverse(Transform):
    def _inv_apply_transform(self, tensor: Tensor) -> Tensor:
        return tensor * 0.5


class Ends(Transform):
    """Stage that ends episodes depending on the observation."""

    def _apply_transform(self, tensor: Tensor) -> Tensor:
        return tensor[..., :1] > 0.9


class Subclassed(TransformedEnv):
    pass


class ReadsState(EnvBase):
    """Env that keeps its state in the TensorDict."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_spec = Composite(observation=Unbounded((1,)))
        self.action_spec = Unbounded((1,))

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        return TensorDict(observation=torch.zeros(1))

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        after = tensordict["observation"] + 1
        return TensorDict(observation=after, reward=after.clone(), done=after > 4)

    def _set_seed(self, seed: int | None) -> None:
        return None


class ReadsObservation(ReadsState):
    step_reads: tuple[Any, ...] | None = ("observation",)


def switched_off(env: EnvBase) -> EnvBase:
    env.planned = False
    return env


def pendulum(*stages: Any, **kwargs: Any) -> Callable[[], TransformedEnv]:
    return lambda: TransformedEnv(GymEnv("Pendulum-v1"), Compose(*stages), **kwargs)


EAGER: dict[str, tuple[Callable[[], EnvBase], str]] = {
    "a reset's input": (
        pendulum(BeforeReset(0.0, 2.0)),
        "stage 0 (BeforeReset) overrides _step or _reset, which may read any entry",
    ),
    "a step of its own": (
        pendulum(RewardSum(), OwnStep()),
        "stage 1 (OwnStep) overrides _step or _reset, which may read any entry",
    ),
    "base off": (
        lambda: TransformedEnv(switched_off(GymEnv("Pendulum-v1")), RewardSum()),
        "planned=False",
    ),
    "end": (
        pendulum(Ends(["observation"], ["done"])),
        "stage 0 (Ends) decides on done",
    ),
    "feedback": (
        pendulum(RewardSum(), ObservationNorm(0.0, 2.0, ["episode_reward"])),
        "stage 1 (ObservationNorm) rewrites episode_reward, which stage 0 (RewardSum) reads back "
        "in the next step",
    ),
    "inverse of time": (
        pendulum(TimedInverse(in_keys_inv=["action"])),
        "the inverse of stage 0 (TimedInverse) depends on time",
    ),
    "no flag": (
        pendulum(RenameTransform(["done"], ["over"])),
        "done",
    ),
    "off": (pendulum(RewardSum(), planned=False), "planned=False"),
    "state": (
        lambda: TransformedEnv(ReadsState(), RewardSum()),
        "ReadsState may read any entry in its steps",
    ),
    "state is changed": (
        lambda: TransformedEnv(ReadsObservation(), ObservationNorm(0.0, 2.0)),
        "stage 0 (ObservationNorm) changes observation, which ReadsObservation reads back in the "
        "next step",
    ),
    "subclass": (
        lambda: Subclassed(GymEnv("Pendulum-v1"), RewardSum()),
        "Subclassed may override how it steps",
    ),
}


@pytest.mark.parametrize("name", sorted(EAGER))
def test_reasons_to_run_eagerly(name: str) -> None:
    make, reason = EAGER[name]
    plan = plan_of(make())
    assert plan.executor == "eager"
    assert reason in plan.why_eager
    assert set(when(plan).values()) == {"immediate"}
    assert {stage.why for stage in plan.stages} == {"the whole chain runs step by step"}
    torch.manual_seed(0)
    assert make().rollout(6, break_when_any_done=False).shape == (6,)


def test_an_env_that_reads_its_own_entry_is_planned() -> None:
    results = []
    for planned in (True, False):
        env = TransformedEnv(ReadsObservation(), Compose(RewardSum(), StepCounter(3)))
        env.planned = planned
        assert (plan_of(env).executor == "planned") == planned
        torch.manual_seed(0)
        results.append(env.rollout(14, break_when_any_done=False))
    compared(*results)


# The plan is computed again


def test_a_plan_is_made_once_for_the_same_reads() -> None:
    env = chain()
    program = cached_program(env, None)
    assert cached_program(env, None) is program
    env.rollout(5)
    assert cached_program(env, None) is program
    assert cached_program(env, ("stack",)) is not program


CHANGES: dict[str, Callable[[TransformedEnv], Any]] = {
    "append": lambda env: env.append_transform(InitTracker()),
    "base": lambda env: setattr(env, "base_env", CartPoleEnv()),
    "insert": lambda env: env.insert_transform(0, DoubleToFloat()),
    "keys": lambda env: setattr(env.stages[0], "out_keys", ["normal"]),
    "mode": lambda env: env.stages[0].train(not env.stages[0].training),
    "off": lambda env: setattr(env, "planned", False),
    "off below": lambda env: setattr(env.base_env, "planned", False),
    "replace": lambda env: setattr(env, "transform", InitTracker()),
}


@pytest.mark.parametrize("change", sorted(CHANGES))
def test_a_changed_chain_gets_another_plan(change: str) -> None:
    env = TransformedEnv(GymEnv("CartPole-v1"), Compose(ObservationNorm(0.1, 2.0), RewardSum()))
    program = cached_program(env, None)
    CHANGES[change](env)
    assert cached_program(env, None) is not program
    assert cached_program(env, None).plan == plan_of(env)


@pytest.mark.parametrize("nested", [False, True])
def test_a_frozen_stage_gets_another_plan(nested: bool) -> None:
    norm = VecNorm(["observation"])
    stage: Any = Compose(Compose(norm)) if nested else norm
    env = TransformedEnv(GymEnv("CartPole-v1"), stage)
    env.rollout(5)
    norm.freeze()
    assert cached_program(env, None).plan == plan_of(env)
    before = env.state_dict()
    env.rollout(5)
    for key, value in env.state_dict().items():
        assert torch.equal(value, before[key])


def test_pointwise_declaration_covers_only_its_own_map() -> None:
    class Claims(Unknown):
        time_behavior = TimeBehavior.POINTWISE

    class Inherits(Claims):
        def _apply_transform(self, tensor: Tensor) -> Tensor:
            return tensor.cumsum(-1)

    for stage, expected in ((Claims(["reward"]), "deferred"), (Inherits(["reward"]), "immediate")):
        plan = plan_of(TransformedEnv(GymEnv("Pendulum-v1"), stage))
        assert plan.stages[0].when == expected
