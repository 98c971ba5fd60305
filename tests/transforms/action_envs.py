"""Mock envs with other actions: matrices, and categories with a mask."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from tdx.specs import Bounded, Categorical, Composite
from tests.transforms.envs import GroupsEnv, RowsEnv

CATEGORIES = 4


class MatrixRowsEnv(RowsEnv):
    """``RowsEnv`` whose action is a matrix ``[2, 3]``; each row is averaged."""

    def __init__(self, batch_size: tuple[int, ...] = (), endless: bool = False) -> None:
        super().__init__(batch_size, endless)
        low = torch.arange(-6.0, 0.0).reshape(2, 3)
        self.action_spec = Bounded(low.expand(*batch_size, 2, 3), 1.0)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        return super()._step(TensorDict(action=tensordict["action"].mean(-1)))


class MatrixGroupsEnv(GroupsEnv):
    """``GroupsEnv`` whose actions are matrices ``[2, 3]``."""

    def __init__(self, batch_size: tuple[int, ...] = ()) -> None:
        super().__init__(batch_size)
        actions = {
            name: Composite(action=Bounded(-3.0, 1.0, shape=(*g, 2, 3)), shape=g)
            for name, g in self.shapes.items()
        }
        self.action_spec = Composite(actions, shape=batch_size)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        inner = TensorDict({}, batch_size=self.batch_size)
        for name, shape in self.shapes.items():
            flat = tensordict[name, "action"].flatten(-2)
            inner[name] = TensorDict(action=flat, batch_size=shape)
        return super()._step(inner)


def allowed(count: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The mask at a step, bool ``[*shape, CATEGORIES]``; it changes from step to step."""
    categories = torch.arange(CATEGORIES)
    mask = (categories + count.unsqueeze(-1)) % 3 != 0
    return mask.expand(*shape, CATEGORIES).clone()


class MaskedRowsEnv(RowsEnv):
    """``RowsEnv`` whose action is one of four categories, limited by ``action_mask``.

    Args:
        strict: Raise for a masked action.
    """

    def __init__(
        self, batch_size: tuple[int, ...] = (), endless: bool = False, strict: bool = False
    ) -> None:
        super().__init__(batch_size, endless)
        self.strict = strict
        self.action_spec = Categorical(CATEGORIES, shape=batch_size)
        observed = self.observation_spec.clone()
        observed.unlock_()
        observed["action_mask"] = Categorical(2, (*batch_size, CATEGORIES), dtype=torch.bool)
        self.observation_spec = observed

    def _observed(self, action: Tensor) -> dict[str, Tensor]:
        mask = allowed(self.count + self.rows, tuple(self.batch_size))
        return {**super()._observed(action), "action_mask": mask}

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        action = tensordict["action"].cpu()
        if self.strict:
            mask = allowed(self.count + self.rows, tuple(self.batch_size))
            assert mask.gather(-1, action.unsqueeze(-1)).all()
        return super()._step(TensorDict(action=action.unsqueeze(-1).expand(*action.shape, 2)))


class MaskedGroupsEnv(GroupsEnv):
    """``GroupsEnv`` whose actions are categories, with a mask for the group ``pair``."""

    def __init__(self, batch_size: tuple[int, ...] = ()) -> None:
        super().__init__(batch_size)
        actions = {
            name: Composite(action=Categorical(CATEGORIES, shape=g), shape=g)
            for name, g in self.shapes.items()
        }
        self.action_spec = Composite(actions, shape=batch_size)
        observed: Any = self.observation_spec.clone()
        observed.unlock_()
        shape = (*self.shapes["pair"], CATEGORIES)
        observed["pair", "action_mask"] = Categorical(2, shape, dtype=torch.bool)
        self.observation_spec = observed

    def _observed(self) -> TensorDict:
        result = super()._observed()
        result["pair", "action_mask"] = allowed(self._grown("pair", 0), self.shapes["pair"])
        return result

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        inner = TensorDict({}, batch_size=self.batch_size)
        for name, shape in self.shapes.items():
            column = tensordict[name, "action"].unsqueeze(-1).float()
            inner[name] = TensorDict(action=column, batch_size=shape)
        return super()._step(inner)
