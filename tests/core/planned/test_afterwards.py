"""After a planned rollout, env and chain are in the same state as after an eager one."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule

from tdx import (
    CartPoleEnv,
    CatFrames,
    Compose,
    EnvBase,
    EnvError,
    GrayScale,
    GymEnv,
    GymWrapper,
    InitTracker,
    ObservationNorm,
    Resize,
    RewardScaling,
    RewardSum,
    SerialEnv,
    StepCounter,
    ToTensorImage,
    TransformedEnv,
    VecNorm,
)
from tdx.core.plan import plan_of
from tdx.envs.gym.vector import make_vector_env
from tests.core.planned.drawing import Groups, policy_reading
from tests.core.planned.failing import BASES as FAILING
from tests.core.planned.test_law import compared
from tests.core.planned.test_plan import Images
from tests.programs import sampled


def inner() -> EnvBase:
    return TransformedEnv(GymEnv("CartPole-v1"), StepCounter(6, step_count_key="inner"))


BASES: dict[str, Callable[[], EnvBase]] = {
    "CartPole": lambda: GymEnv("CartPole-v1"),
    "chains inside": lambda: SerialEnv(2, inner),
    "groups": lambda: Groups((2,)),
    "native": lambda: CartPoleEnv(batch_size=[3]),
    "three CartPoles": lambda: GymEnv("CartPole-v1", num_envs=3),
    "two CartPoles": lambda: SerialEnv(2, lambda: GymEnv("CartPole-v1")),
    "two natives": lambda: SerialEnv(2, lambda: CartPoleEnv(batch_size=[2])),
}


def make(name: str, planned: bool) -> TransformedEnv:
    rewards = ["reward"] if name != "groups" else [("a", "reward"), ("b", "reward")]
    chain = Compose(
        InitTracker(),
        RewardSum(rewards, [f"sum{index}" for index in range(len(rewards))])
        if name != "groups"
        else RewardSum(rewards),
        VecNorm(["observation"]),
        CatFrames(3, -1, ["observation"], ["stack"]),
        *([] if name == "groups" else [StepCounter(8)]),
    )
    env = TransformedEnv(BASES[name](), chain, planned=planned)
    env.set_seed(1)
    torch.manual_seed(1)
    return env


Going = Callable[[EnvBase, TensorDictBase], TensorDictBase]


def _partial(env: EnvBase, data: TensorDictBase) -> TensorDictBase:
    """Reset only the first row, with only the mask as input."""
    masks = TensorDict({}, batch_size=env.batch_size)
    for key in env.reset_keys:
        mask = torch.zeros(*env.batch_size, 1, dtype=torch.bool)
        mask.view(-1)[0] = True
        masks.set(key, mask)
    return env.reset(env.step_mdp(data[..., -1]).update(masks))


def _only_mask(env: EnvBase, data: TensorDictBase) -> TensorDictBase:
    masks = TensorDict({}, batch_size=env.batch_size)
    for key in env.reset_keys:
        mask = torch.zeros(*env.batch_size, 1, dtype=torch.bool)
        mask.view(-1)[0] = True
        masks.set(key, mask)
    return env.base_env.completed_reset(masks)  # type: ignore[operator, union-attr]


def _go_on(env: EnvBase, data: TensorDictBase) -> TensorDictBase:
    start = env.maybe_reset(env.step_mdp(data[..., -1]))
    return env.rollout(9, auto_reset=False, tensordict=start, break_when_any_done=False)


def _from_the_last_row(env: EnvBase, data: TensorDictBase) -> TensorDictBase:
    last = data[..., -1]
    return env.rollout(9, tensordict=last, break_when_any_done=False)


def _policy(env: EnvBase, data: TensorDictBase) -> TensorDictBase:
    return env.rollout(9, policy_reading(env, "first"), break_when_any_done=False)


def _from_a_copy(env: EnvBase, data: TensorDictBase) -> TensorDictBase:
    copied = copy.deepcopy(env)
    copied.set_seed(4)
    return copied.rollout(9, break_when_any_done=False)


GOING_ON: dict[str, Going] = {
    "a copy": _from_a_copy,
    "a policy": _policy,
    "a reset of a row": _partial,
    "a reset with only a mask": _only_mask,
    "a rollout of the rest": _go_on,
    "a rollout with the last row": _from_the_last_row,
    "a step": lambda env, data: env.rand_step(env.maybe_reset(env.step_mdp(data[..., -1]))),
    "another rollout": lambda env, data: env.rollout(9, break_when_any_done=False),
    "until an end": lambda env, data: env.rollout(9),
}


CASES = [
    # Every other cell: each pair of an env, a continuation, and stopping or not occurs.
    (name, going, (row + column) % 2 == 0)
    for row, name in enumerate(sorted(BASES))
    for column, going in enumerate(sorted(GOING_ON))
]


@pytest.mark.parametrize(("name", "going", "stop"), CASES)
@sampled(4)
def test_state_after_a_rollout(name: str, going: str, stop: bool) -> None:
    if name == "CartPole" and going == "a reset with only a mask":
        pytest.skip("there is one row")
    results, states, draws = [], [], []
    for planned in (True, False):
        env = make(name, planned)
        assert plan_of(env).executor == ("planned" if planned else "eager")
        data = env.rollout(20, break_when_any_done=stop)
        results.append(GOING_ON[going](env, data))
        states.append(env.state_dict())
        draws.append(torch.get_rng_state())
    compared(results[0], results[1])
    assert list(states[0]) == list(states[1])
    for key, value in states[0].items():
        assert torch.equal(value, states[1][key]), key
    assert torch.equal(*draws)


@pytest.mark.parametrize("going", ["a reset of a row", "a reset with only a mask", "a step"])
@pytest.mark.parametrize("base", ["serial", "vector"])
@pytest.mark.parametrize("stop", [False, True])
def test_rows_keep_their_images_after_a_rollout_that_fused_them(
    base: str, going: str, stop: bool
) -> None:
    results = []
    for planned in (True, False):
        rows: EnvBase = (
            SerialEnv(3, lambda: GymWrapper(Images()))
            if base == "serial"
            else GymWrapper(make_vector_env([Images] * 3, "sync"))
        )
        keys = rows.observation_keys
        stages = ToTensorImage(in_keys=keys), GrayScale(in_keys=keys), Resize(20, 20, in_keys=keys)
        env = TransformedEnv(rows, Compose(*stages, StepCounter(8)), planned=planned)
        env.set_seed(1)
        torch.manual_seed(1)
        assert (plan_of(env).stages[0].when == "fused") is planned
        data = env.rollout(20, break_when_any_done=stop)
        results.append([data, GOING_ON[going](env, data)])
    for mine, other in zip(*results, strict=True):
        compared(mine, other, rtol=2e-5)


@pytest.mark.parametrize("acts", [False, True])
@pytest.mark.parametrize("base", sorted(FAILING))
def test_state_after_an_error(base: str, acts: bool) -> None:
    results = []
    for planned in (True, False):
        chain = Compose(VecNorm(["observation"]), RewardSum(), InitTracker())
        env = TransformedEnv(FAILING[base](bad_step=5), chain, planned=planned)
        torch.manual_seed(1)
        policy = TensorDictModule(lambda seen: seen[..., :1] * 0.1, ["observation"], ["action"])
        parts: list[TensorDictBase] = []
        chunks = env.iter_rollout(
            20, policy if acts else None, chunk_steps=4, break_when_any_done=False
        )
        with pytest.raises(EnvError):
            parts.extend(chunks)
        base_env: Any = env.base_env
        made = base_env._envs[1] if base == "batch" else base_env
        (made.inside if base == "plain" else made._env).bad_step = -1
        start = env.step_mdp(parts[-1][..., -1])
        stepped = env.rand_step(start)
        results.append([stepped, env.rollout(7, break_when_any_done=False)])
        results[-1].append(TensorDict(env.state_dict()))
    for mine, other in zip(*results, strict=True):
        compared(mine, other)


@pytest.mark.parametrize("name", ["CartPole", "native"])
def test_pickled_env_continues_identically(name: str) -> None:
    results = []
    for planned in (True, False):
        env = make(name, planned)
        env.rollout(9, break_when_any_done=False)
        again: EnvBase = pickle.loads(pickle.dumps(env))
        again.set_seed(5)
        results.append(again.rollout(12, break_when_any_done=False))
    compared(*results)


def test_two_envs_share_nothing() -> None:
    mine, other = make("CartPole", True), make("CartPole", True)
    alone = make("CartPole", True)
    chunks = [
        env.iter_rollout(12, lambda_policy(), chunk_steps=3, break_when_any_done=False)
        for env in (mine, other)
    ]
    turns = [torch.cat(list(parts), -1) for parts in zip(*zip(*chunks, strict=True), strict=True)]
    whole = alone.rollout(12, lambda_policy(), break_when_any_done=False)
    for each in turns:
        compared(each, whole)


def lambda_policy() -> TensorDictModule:
    def act(seen: torch.Tensor) -> torch.Tensor:
        right = (seen[..., -1:] > 0).long()
        return torch.cat((1 - right, right), -1)

    return TensorDictModule(act, ["stack"], ["action"])


def _append(env: TransformedEnv) -> None:
    env.append_transform(RewardScaling(0.5, 3.0))


def _insert(env: TransformedEnv) -> None:
    env.insert_transform(0, ObservationNorm(0.5, 3.0))


def _replace(env: TransformedEnv) -> None:
    env.transform = Compose(InitTracker(), ObservationNorm(0.5, 3.0), RewardSum())


def _frozen(env: TransformedEnv) -> None:
    next(stage for stage in env.stages if isinstance(stage, VecNorm)).freeze()


def _limit(env: TransformedEnv) -> None:
    setattr(env.stages[-1], "max_steps", 3)  # noqa: B010 - it is a StepCounter


CHANGES: dict[str, Callable[[TransformedEnv], Any]] = {
    "append": _append,
    "eval": lambda env: env.eval(),
    "freeze": _frozen,
    "insert": _insert,
    "limit": _limit,
    "replace": _replace,
    "train": lambda env: env.train(False).train(True),
}


@pytest.mark.parametrize("acts", [True, False])
@pytest.mark.parametrize("change", sorted(CHANGES))
def test_a_chain_that_is_changed_between_rollouts(change: str, acts: bool) -> None:
    results = []
    for planned in (True, False):
        env = make("two CartPoles", planned)
        policy = policy_reading(env, "first") if acts else None
        env.rollout(12, policy, break_when_any_done=False)
        CHANGES[change](env)
        results.append(env.rollout(12, policy, break_when_any_done=False))
    compared(*results)


@pytest.mark.parametrize("nested", ["compose", "env"])
@pytest.mark.parametrize("change", ["freeze", "eval"])
def test_freezing_a_stage_of_an_inner_chain(nested: str, change: str) -> None:
    results = []
    for planned in (True, False):
        norm = VecNorm(["observation"])
        base = GymEnv("CartPole-v1")
        if nested == "compose":
            env = TransformedEnv(base, Compose(InitTracker(), Compose(norm)), planned=planned)
        else:
            env = TransformedEnv(TransformedEnv(base, norm), InitTracker(), planned=planned)
        env.set_seed(1)
        torch.manual_seed(1)
        env.rollout(12, break_when_any_done=False)
        norm.freeze() if change == "freeze" else norm.eval()
        results.append(env.rollout(12, break_when_any_done=False))
        results.append(TensorDict(env.state_dict()))
    compared(results[0], results[2])
    compared(results[1], results[3])


def test_plan_disabled_in_an_inner_env_is_not_used() -> None:
    env = make("two CartPoles", True)
    assert plan_of(env).executor == "planned"
    env.base_env.planned = False
    assert plan_of(env).why_eager == "planned=False"
    from tdx.core.planned.executor import cached_program

    assert cached_program(env, None).plan.executor == "eager"
