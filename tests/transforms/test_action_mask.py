"""Values, specs and errors of ``ActionMask``."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase

from tdx import (
    ActionMask,
    Compose,
    ExcludeTransform,
    FlattenAction,
    RenameTransform,
    SerialEnv,
    StepCounter,
    TransformedEnv,
    check_env_specs,
)
from tdx.core.envs import EnvBase
from tdx.foundation.errors import ChainError, KeyNotFoundError, TdxError
from tdx.specs import Binary, Categorical, Composite, MultiCategorical, OneHot
from tdx.transforms import Transform
from tests.transforms.envs import MaskedRowsEnv, MatrixRowsEnv, RowsEnv


class ChoosingEnv(EnvBase):
    """Env that observes a given mask."""

    def __init__(self, action_spec: Any, mask: torch.Tensor, mask_spec: Any = None) -> None:
        super().__init__()
        self.mask = mask
        self.action_spec = action_spec
        spec = Binary(shape=mask.shape, dtype=mask.dtype) if mask_spec is None else mask_spec
        self.observation_spec = Composite(action_mask=spec)

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        return TensorDict(action_mask=self.mask)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        done = torch.zeros(1, dtype=torch.bool)
        return TensorDict(action_mask=self.mask, reward=torch.ones(1), done=done)

    def _set_seed(self, seed: int | None) -> None:
        return None


def mask_of(env: EnvBase) -> torch.Tensor:
    """Return the current mask of the action spec."""
    spec = env.action_spec
    assert isinstance(spec, Categorical)
    assert spec.mask is not None
    return spec.mask


def legal(rollout: TensorDictBase) -> torch.Tensor:
    """Return True for each allowed action of a rollout, ``[*B, T]``."""
    allowed: torch.Tensor = rollout["action_mask"].gather(-1, rollout["action"].unsqueeze(-1))
    return allowed.squeeze(-1)


@pytest.mark.parametrize("batch_size", [(), (4,), (2, 3)])
def test_random_actions_respect_the_mask(batch_size: tuple[int, ...]) -> None:
    env = TransformedEnv(MaskedRowsEnv(batch_size, strict=True), ActionMask())
    rollout = env.rollout(25, break_when_any_done=False)
    assert legal(rollout).all()
    assert len(rollout["action"].unique()) == 4


def test_around_a_serial_env() -> None:
    env = TransformedEnv(SerialEnv(2, lambda: MaskedRowsEnv(strict=True)), ActionMask())
    assert legal(env.rollout(12, break_when_any_done=False)).all()


def test_the_action_spec_follows_each_step() -> None:
    env = TransformedEnv(MaskedRowsEnv(), ActionMask())
    tensordict = env.reset()
    for _ in range(3):
        mask = tensordict["action_mask"]
        assert torch.equal(mask_of(env), mask)
        assert [env.action_spec.is_in(torch.tensor(each)) for each in range(4)] == mask.tolist()
        tensordict = env.step_mdp(env.rand_step(tensordict))


def test_later_stages_see_the_mask() -> None:
    chain = Compose(
        ActionMask(),
        StepCounter(),
        ExcludeTransform("action_mask"),
        RenameTransform([], [], ["action"], [("player", "choice")]),
    )
    inner = TransformedEnv(MaskedRowsEnv((3,), strict=True), chain)
    env = TransformedEnv(inner, StepCounter(step_count_key="outer"))
    rollout = env.rollout(20, break_when_any_done=False)
    assert rollout["player", "choice"].shape == (3, 20)


def test_rows_that_are_not_reset_keep_their_mask() -> None:
    env = TransformedEnv(MaskedRowsEnv((2,), endless=True), ActionMask())
    tensordict = env.step_mdp(env.rand_step(env.reset()))
    before = mask_of(env).clone()
    first = tensordict.clone().set("_reset", torch.tensor([[True], [False]]))
    tensordict = env.reset(first)
    assert torch.equal(mask_of(env)[1], before[1])
    assert torch.equal(mask_of(env)[0], tensordict["action_mask"][0])
    assert not torch.equal(mask_of(env)[0], before[0])


def test_copies_have_independent_masks() -> None:
    env = TransformedEnv(MaskedRowsEnv(), ActionMask())
    copied = deepcopy(env)
    env.reset()
    before = mask_of(env).clone()
    copied.rollout(2)
    assert torch.equal(mask_of(env), before)
    assert not torch.equal(mask_of(copied), before)


@pytest.mark.parametrize(
    ("spec", "mask"),
    [
        (OneHot(3), torch.tensor([True, False, True])),
        (MultiCategorical([2, 3]), torch.tensor([True, False, False, True, True])),
        (MultiCategorical([2, 3]).to_one_hot_spec(), torch.tensor([0, 1, 1, 0, 1]).bool()),
        (Categorical(3), torch.tensor([0, 1, 1], dtype=torch.int8)),
    ],
    ids=["one-hot", "several", "several-one-hot", "integers"],
)
def test_kinds_of_actions_and_masks(spec: Any, mask: torch.Tensor) -> None:
    env = TransformedEnv(ChoosingEnv(spec, mask), ActionMask())
    env.reset()
    for _ in range(20):
        action = env.rand_action()["action"]
        assert env.action_spec.is_in(action)
        spec = env.action_spec
        one_hot = spec.to_one_hot(action) if isinstance(spec, Categorical) else action
        assert mask.bool()[one_hot].all()


class BoardEnv(ChoosingEnv):
    """Env of a board with three columns that records the actions it gets."""

    def __init__(self, action_spec: Any, rows: int) -> None:
        mask = torch.zeros(rows, 3, dtype=torch.bool)
        mask[0, 0] = mask[0, 2] = mask[1, 1] = True
        super().__init__(action_spec, mask)
        self.received: list[torch.Tensor] = []

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.received.append(tensordict["action"])
        return super()._step(tensordict)


@pytest.mark.parametrize("one_hot", [False, True])
@pytest.mark.parametrize("planned", [False, True])
@pytest.mark.parametrize(
    "spec",
    [MultiCategorical([2, 3]), MultiCategorical([3, 3]), Categorical(3, (2,))],
    ids=["unequal", "equal", "repeated"],
)
def test_mask_of_combinations(
    spec: MultiCategorical | Categorical, planned: bool, one_hot: bool
) -> None:
    rows = int(spec.nvec[0]) if isinstance(spec, MultiCategorical) else spec.n
    base = BoardEnv(spec.to_one_hot_spec() if one_hot else spec, rows)
    env = TransformedEnv(base, ActionMask(), planned=planned)
    rollout = env.rollout(40)
    action = rollout["action"].int().argmax(-1) if one_hot else rollout["action"]
    assert set(action.tolist()) == {0, 2, 4}
    cells = torch.stack([action // 3, action % 3], -1)
    received = torch.stack(base.received[-40:])
    assert torch.equal(received, spec.to_one_hot(cells) if one_hot else cells)
    assert received.dtype == base.action_spec.dtype
    check_env_specs(env)


def test_mask_of_combinations_in_a_batch() -> None:
    spec = Categorical(3, (2,))
    env = TransformedEnv(SerialEnv(2, lambda: BoardEnv(spec, 3)), ActionMask())
    rollout = env.rollout(20)
    assert rollout["action"].shape == (2, 20)
    assert set(rollout["action"].flatten().tolist()) == {0, 2, 4}
    check_env_specs(env)


@pytest.mark.parametrize(
    ("base", "transform", "error", "message"),
    [
        (
            MaskedRowsEnv(),
            ActionMask(mask_key="mask"),
            KeyNotFoundError,
            "existing keys: action_mask",
        ),
        (MaskedRowsEnv(), ActionMask("acton"), KeyNotFoundError, "existing keys: action"),
        (RowsEnv(), ActionMask(mask_key="observation"), ChainError, "needs a discrete one"),
        (RowsEnv(), ActionMask(), ChainError, "needs a discrete one"),
        (
            ChoosingEnv(Categorical(3), torch.ones(4, dtype=torch.bool)),
            ActionMask(),
            ChainError,
            r"the mask has shape \(4,\), the action 'action' needs \(3,\)",
        ),
        (
            MaskedRowsEnv((2,)),
            ActionMask(mask_key="observation"),
            ChainError,
            r"the mask has shape \(2, 3\), the action 'action' needs \(2, 4\)",
        ),
        (RowsEnv(), FlattenAction(), ChainError, r"has shape \(2,\) after its batch"),
        (RowsEnv((3,)), FlattenAction(), ChainError, r"has shape \(2,\) after its batch"),
        (RowsEnv(), FlattenAction(in_keys_inv=["act"]), KeyNotFoundError, "existing keys: action"),
        (MatrixRowsEnv(), FlattenAction(action_shape=[3, 2]), ChainError, r"is \[3, 2\]"),
    ],
)
def test_incompatible_env(
    base: EnvBase, transform: Transform, error: type[TdxError], message: str
) -> None:
    env = TransformedEnv(base, Compose(transform))
    with pytest.raises(error, match=message) as caught:
        env.action_spec  # noqa: B018
    assert caught.value.where.stage == 0


def test_mask_that_violates_its_spec() -> None:
    promised = Binary(shape=(3,), dtype=torch.bool)
    base = ChoosingEnv(Categorical(3), torch.ones(2, dtype=torch.bool), promised)
    env = TransformedEnv(base, ActionMask())
    with pytest.raises(ChainError, match=r"the mask has shape \(2,\)"):
        env.reset()
