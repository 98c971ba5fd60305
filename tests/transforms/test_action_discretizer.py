"""Values, specs and errors of ``ActionDiscretizer``."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from tdx import (
    ActionDiscretizer,
    Compose,
    GymEnv,
    ParallelEnv,
    PendulumEnv,
    RenameTransform,
    SerialEnv,
    TransformedEnv,
    check_env_specs,
)
from tdx.core.envs import EnvBase
from tdx.foundation.errors import (
    ArgumentError,
    ChainError,
    KeyNotFoundError,
    TdxError,
    UnknownNameError,
)
from tdx.specs import (
    Bounded,
    Categorical,
    Composite,
    MultiCategorical,
    MultiOneHot,
    OneHot,
    Unbounded,
)
from tdx.transforms import TimeBehavior
from tests.transforms.envs import RowsEnv

COUNTS = [1, 2, 10, 49, 98, 103, 107]
SAMPLINGS = ["median", "low", "high", "random"]
STRATEGIES = ActionDiscretizer.SamplingStrategy


class ScalarEnv(EnvBase):
    """Env with a scalar action, which observes its last action."""

    def __init__(self, batch_size: tuple[int, ...] = (), low: float = -1.0) -> None:
        super().__init__(batch_size=batch_size)
        self.action_spec = Bounded(low, 3.0, shape=batch_size)
        self.observation_spec = Composite(seen=Unbounded(batch_size), shape=batch_size)

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        return TensorDict(seen=torch.zeros(self.batch_size), batch_size=self.batch_size)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        action = tensordict["action"]
        assert action.shape == self.batch_size
        return TensorDict(
            seen=action,
            reward=action.unsqueeze(-1),
            done=torch.zeros(*self.batch_size, 1, dtype=torch.bool),
            batch_size=self.batch_size,
        )

    def _set_seed(self, seed: int | None) -> None:
        return None


def values_of(env: TransformedEnv, count: int) -> Tensor:
    """Return the continuous action of each bin of the first element, ``[count]``."""
    env.reset()
    bins = torch.arange(count).unsqueeze(-1).expand(count, 2)
    found: Tensor = env.transform.inv(TensorDict(action=bins, batch_size=[count]))["action"]
    return found[:, 0]


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("count", COUNTS)
def test_number_of_bins(count: int, sampling: Any) -> None:
    env = TransformedEnv(RowsEnv(), ActionDiscretizer(count, sampling=sampling))
    assert env.action_spec == MultiCategorical([count, count])
    values = values_of(env, count)
    assert len(values.unique()) == count
    edges = torch.linspace(-2.0, 4.0, count + 1)
    assert (values >= edges[:-1] - 1e-5).all()
    assert (values <= edges[1:] + 1e-5).all()


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        ("median", [-1.0, 1.0, 3.0]),
        ("low", [-2.0, 0.0, 2.0]),
        ("high", [0.0, 2.0, 4.0]),
        (STRATEGIES.HIGH, [0.0, 2.0, 4.0]),
        (None, [-1.0, 1.0, 3.0]),
    ],
)
def test_the_value_of_a_bin(sampling: Any, expected: list[float]) -> None:
    env = TransformedEnv(RowsEnv(), ActionDiscretizer(3, sampling=sampling))
    torch.testing.assert_close(values_of(env, 3), torch.tensor(expected))


def test_random_values_fill_their_bin() -> None:
    discretizer = ActionDiscretizer(3, sampling="random")
    env = TransformedEnv(RowsEnv(), discretizer)
    drawn = torch.stack([values_of(env, 3) for _ in range(200)])
    low = torch.tensor([-2.0, 0.0, 2.0])
    assert ((drawn >= low) & (drawn <= low + 2)).all()
    assert (drawn.min(0).values < low + 0.3).all()
    assert (drawn.max(0).values > low + 1.7).all()
    assert discretizer.time_behavior is TimeBehavior.CONTROL


@pytest.mark.parametrize("batch_size", [(), (4,), (2, 3)])
@pytest.mark.parametrize("categorical", [True, False])
def test_scalar_actions(batch_size: tuple[int, ...], categorical: bool) -> None:
    base = ScalarEnv(batch_size)
    env = TransformedEnv(base, ActionDiscretizer(4, categorical=categorical))
    if categorical:
        assert env.action_spec == Categorical(4, shape=batch_size)
    else:
        assert env.action_spec == OneHot(4, shape=(*batch_size, 4))
    check_env_specs(env)
    seen = env.rollout(20)["next", "seen"]
    assert set(seen.flatten().tolist()) <= {-0.5, 0.5, 1.5, 2.5}


@pytest.mark.parametrize("categorical", [True, False])
@pytest.mark.parametrize("given", [4, [4, 7], (4, 7), torch.tensor([4, 7])])
def test_random_actions_are_discrete(given: Any, categorical: bool) -> None:
    env = TransformedEnv(RowsEnv((3,)), ActionDiscretizer(given, categorical=categorical))
    counts = [4, 4] if isinstance(given, int) else [4, 7]
    expected = MultiCategorical(counts, shape=(3, 2))
    assert env.action_spec == (expected if categorical else expected.to_one_hot_spec())
    action = env.rand_action()["action"]
    assert action.dtype == (torch.int64 if categorical else torch.bool)
    assert env.action_spec.is_in(action)
    check_env_specs(env)


def test_inside_and_around_batches() -> None:
    def single() -> EnvBase:
        return TransformedEnv(GymEnv("Pendulum-v1"), ActionDiscretizer(5))

    for env in (
        SerialEnv(2, single),
        TransformedEnv(SerialEnv(2, lambda: GymEnv("Pendulum-v1")), ActionDiscretizer([5])),
        TransformedEnv(PendulumEnv(batch_size=[2]), ActionDiscretizer(5)),
    ):
        assert env.action_spec == MultiCategorical([5], shape=(2, 1))
        check_env_specs(env)


@pytest.mark.timeout(120)
def test_in_worker_processes() -> None:
    env = ParallelEnv(2, pendulum_of_bins)
    try:
        assert env.rollout(4)["action"].dtype == torch.int64
    finally:
        env.close()


def pendulum_of_bins() -> EnvBase:
    return TransformedEnv(GymEnv("Pendulum-v1"), ActionDiscretizer(5, categorical=True))


def test_separate_key_keeps_the_continuous_action() -> None:
    env = TransformedEnv(RowsEnv((2,)), ActionDiscretizer(3, out_action_key=("bins", "action")))
    assert env.action_keys == [("bins", "action")]
    assert env.full_state_spec["action"] == env.base_env.action_spec
    check_env_specs(env)
    rollout = env.rollout(2)
    assert rollout["bins", "action"].dtype == torch.int64
    assert rollout["action"].dtype == torch.float32
    base = env.base_env
    assert isinstance(base, RowsEnv)
    assert torch.equal(rollout["action"][:, -1], cast(Tensor, base.given))


def test_a_renamed_action_downstream() -> None:
    chain = Compose(ActionDiscretizer(3), RenameTransform([], [], ["action"], ["choice"]))
    env = TransformedEnv(RowsEnv(), chain)
    assert env.action_keys == ["choice"]
    check_env_specs(env)


def test_custom_spacing_of_bins() -> None:
    class Squared(ActionDiscretizer):
        def custom_arange(self, nint: int, device: torch.device | None) -> Tensor:
            return torch.linspace(0.0, 1.0, nint, device=device) ** 2

    env = TransformedEnv(RowsEnv(), Squared(3))
    torch.testing.assert_close(values_of(env, 3), torch.tensor([-2.0, -0.5, 4.0]))


def test_stored_actions_of_any_length_become_continuous() -> None:
    env = TransformedEnv(RowsEnv((4,)), ActionDiscretizer(3))
    assert env.action_spec.shape == (4, 2)
    stored = TensorDict(action=torch.randint(3, (4, 9, 2)), batch_size=[4, 9])
    assert env.transform.inv(stored)["action"].shape == (4, 9, 2)
    assert torch.equal(env.transform(stored.clone())["action"], stored["action"])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"num_intervals": 0}, ArgumentError, "integers of at least 1, got 0"),
        ({"num_intervals": 2.5}, ArgumentError, "integers of at least 1, got 2.5"),
        ({"num_intervals": [3, -1]}, ArgumentError, "integers of at least 1"),
        ({"num_intervals": torch.tensor([1.5])}, ArgumentError, "integers of at least 1"),
        ({"num_intervals": 3, "sampling": "medain"}, UnknownNameError, "did you mean median"),
        ({"num_intervals": 3, "sampling": 9}, ArgumentError, "a strategy or its name, got 9"),
    ],
)
def test_invalid_arguments(arguments: dict[str, Any], error: type[TdxError], message: str) -> None:
    with pytest.raises(error, match=message):
        ActionDiscretizer(**arguments)


@pytest.mark.parametrize(
    ("base", "discretizer", "error", "message"),
    [
        (RowsEnv(), ActionDiscretizer([3, 4, 5]), ChainError, "has 3 numbers, .* 2 elements"),
        (ScalarEnv(), ActionDiscretizer([3, 4]), ChainError, "has 2 numbers, .* 1 elements"),
        (RowsEnv(), ActionDiscretizer(3, "acton"), KeyNotFoundError, "existing keys: action"),
        (GymEnv("CartPole-v1"), ActionDiscretizer(3), ChainError, "OneHot without a finite"),
        (
            ScalarEnv(low=-torch.inf),
            ActionDiscretizer(3),
            ChainError,
            "without a finite, non-empty range to divide",
        ),
    ],
)
def test_incompatible_env(
    base: EnvBase, discretizer: ActionDiscretizer, error: type[TdxError], message: str
) -> None:
    env = TransformedEnv(base, Compose(discretizer))
    with pytest.raises(error, match=message) as caught:
        env.action_spec  # noqa: B018
    assert caught.value.where.stage == 0


def test_bin_index_out_of_range() -> None:
    env = TransformedEnv(RowsEnv(), ActionDiscretizer([3, 5]))
    with pytest.raises(ArgumentError, match=r"a bin index that is out of range for \[3, 5\]"):
        env.step(env.reset().set("action", torch.tensor([3, 4])))


def test_without_an_env() -> None:
    with pytest.raises(ChainError, match="put it into an env"):
        ActionDiscretizer(3).inv(TensorDict(action=torch.tensor([1])))


def test_one_hot_rows_of_unlike_lengths() -> None:
    env = TransformedEnv(RowsEnv(), ActionDiscretizer([2, 3], categorical=False, sampling="low"))
    assert env.action_spec == MultiOneHot([2, 3])
    rows = torch.tensor([False, True, False, False, True])
    action = env.transform.inv(TensorDict(action=rows))["action"]
    torch.testing.assert_close(action, torch.tensor([1.0, 0.5 + 0.5 * 2 / 3]))
