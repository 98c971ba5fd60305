"""Random chains: data matches the specs, and a batch equals its single rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict, TensorDictBase

from tdx import (
    Bounded,
    CartPoleEnv,
    CatFrames,
    Compose,
    Composite,
    EnvBase,
    GymEnv,
    PendulumEnv,
    RenameTransform,
    SerialEnv,
    TdxError,
    TransformedEnv,
    Unbounded,
    check_env_specs,
)
from tests.core.stages import DISHONEST, HONEST, STAGES
from tests.programs import examples

ENVS: dict[str, Callable[[], EnvBase]] = {
    "Blackjack": lambda: GymEnv("Blackjack-v1"),
    "CartPole": lambda: GymEnv("CartPole-v1"),
    "FrozenLake": lambda: GymEnv("FrozenLake-v1", categorical_action_encoding=True),
    "Pendulum": lambda: GymEnv("Pendulum-v1"),
    "three CartPoles": lambda: GymEnv("CartPole-v1", num_envs=3),
    "two CartPoles": lambda: SerialEnv(2, lambda: GymEnv("CartPole-v1")),
    "native": lambda: PendulumEnv(batch_size=[2, 3], max_episode_steps=4),
    "native CartPole": lambda: CartPoleEnv(max_episode_steps=3),
}


@settings(max_examples=examples(100))
@given(
    env=st.sampled_from(sorted(ENVS)),
    names=st.lists(st.sampled_from(sorted(HONEST)), min_size=1, max_size=7, unique=True),
)
def test_data_matches_the_specs(env: str, names: list[str]) -> None:
    made = TransformedEnv(ENVS[env](), Compose(*(HONEST[name]() for name in names)))
    try:
        _ = made.specs
    except TdxError:
        return
    check_env_specs(made)
    made.rollout(7, break_when_any_done=False)
    made.close()


class Sums(EnvBase):
    """Deterministic env that observes its steps, episodes and the sum of its actions.

    Args:
        stop: Step that ends an episode: an even one terminates it, an odd one truncates it.
        dtype: Dtype of observation and action.
    """

    def __init__(self, stop: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.stop, self.dtype = stop, dtype
        self.observation_spec = Composite(
            observation=Unbounded((3,), dtype=dtype), nested=Composite(steps=Unbounded((1,)))
        )
        self.action_spec = Bounded(-2.0, 3.0, (2,), dtype=dtype)
        self.steps, self.episodes, self.total = 0, 0, 0.0

    def _observed(self) -> TensorDict:
        seen = torch.tensor([self.steps, self.episodes, self.total], dtype=self.dtype)
        return TensorDict(
            observation=seen, nested=TensorDict(steps=torch.tensor([float(self.steps)]))
        )

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        mask = None if tensordict is None else tensordict.get("_reset", None)
        if mask is None or bool(mask.any()):
            self.steps, self.episodes, self.total = 0, self.episodes + 1, 0.0
        return self._observed()

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        action = tensordict["action"]
        self.steps += 1
        self.total += float(action.sum())
        ended, even = torch.tensor([self.steps >= self.stop]), self.stop % 2 == 0
        result = self._observed().set("reward", action.sum(-1, keepdim=True).float() + self.steps)
        return result.set("terminated", ended & even).set("truncated", ended & (not even))

    def _set_seed(self, seed: int | None) -> None:
        return None


BATCHED: dict[str, Callable[[], Any]] = {
    **{name: stage for name, stage in STAGES.items() if name not in DISHONEST},
    "cat_frames_of_nested": lambda: CatFrames(3, -1, in_keys=[("nested", "steps")]),
    "rename_flat": lambda: RenameTransform([("nested", "steps")], ["steps"]),
}
STEPS = 10


def stepped(env: TransformedEnv, actions: torch.Tensor, masks: torch.Tensor) -> list[Any]:
    """Step with actions ``[T, *B, 2]``, with a reset before steps by masks ``[T, *B, 1]``."""
    current, steps = env.reset(), []
    for action, mask in zip(actions, masks, strict=True):
        if bool(mask.any()):
            current = env.reset(current.set("_reset", mask.clone()))
        current = env.step(current.set(env.action_key, action.clone()))
        steps.append(current.clone())
        current = env.step_mdp(current)
    return steps


@settings(max_examples=examples(50))
@given(
    names=st.lists(st.sampled_from(sorted(BATCHED)), min_size=1, max_size=7, unique=True),
    stops=st.lists(st.integers(2, 6), min_size=3, max_size=3),
    cut=st.none() | st.integers(0, 7),
    chance=st.sampled_from([0.0, 0.2, 0.5]),
)
def test_a_batch_is_its_rows_one_by_one(
    names: list[str], stops: list[int], cut: int | None, chance: float
) -> None:
    dtype = torch.float64 if "double_to_float" in names else torch.float32

    def chain(part: list[str]) -> Compose:
        return Compose(*(BATCHED[name]() for name in part))

    def transformed(make: Callable[[], EnvBase]) -> TransformedEnv:
        return TransformedEnv(make(), chain(names))

    bases = [partial(Sums, stop, dtype) for stop in stops]
    singles = [transformed(make) for make in bases]
    try:
        actions: Any = torch.stack([singles[0].full_action_spec.rand((3,)) for _ in range(STEPS)])
    except TdxError:
        return
    if cut is None:
        makers = [partial(transformed, make) for make in bases]
        batch = TransformedEnv(SerialEnv(3, makers))
    else:
        inner = TransformedEnv(SerialEnv(3, bases), chain(names[:cut]))
        batch = TransformedEnv(inner, chain(names[cut:]))
    drawn = actions[singles[0].action_key]
    masks = torch.rand(STEPS, 3, 1) < chance
    masks[0] = False
    together = stepped(batch, drawn, masks)
    for row, single in enumerate(singles):
        alone = stepped(single, drawn[:, row], masks[:, row])
        for mine, other in zip(together, alone, strict=True):
            keys = set(mine.keys(True, True))
            assert keys == set(other.keys(True, True))
            for key in keys:
                torch.testing.assert_close(mine[key][row], other[key], rtol=0, atol=0)
