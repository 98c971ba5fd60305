"""``RowsEnv`` and ``GroupsEnv`` that count their steps, have lives and render."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.specs import Unbounded
from tests.transforms.envs import GroupsEnv, RowsEnv


class CountedRowsEnv(RowsEnv):
    """``RowsEnv`` that writes ``step_count`` and loses a life in the first step."""

    def __init__(self, batch_size: tuple[int, ...] = (), endless: bool = False) -> None:
        super().__init__(batch_size, endless)
        spec = self.observation_spec.clone().unlock_()
        spec["step_count"] = Unbounded((*batch_size, 1), dtype=torch.int64)
        self.observation_spec = spec

    @property
    def lives(self) -> Tensor:
        """Return the lives of each row, ``[*B]``."""
        return 3 - self.count.clamp(max=1)

    def render(self) -> Tensor:
        """Return an image of each row, ``[*B, 4, 5, 3]``."""
        numbers = (self.rows * 10 + self.count).reshape(*self.count.shape, 1, 1, 1)
        return numbers.to(torch.uint8).expand(*self.count.shape, 4, 5, 3)

    def _observed(self, action: Tensor) -> dict[str, Tensor]:
        return {**super()._observed(action), "step_count": self.count.unsqueeze(-1)}


class CountedGroupsEnv(GroupsEnv):
    """``GroupsEnv`` that writes a ``step_count`` in each group."""

    def __init__(self, batch_size: tuple[int, ...] = ()) -> None:
        super().__init__(batch_size)
        spec = self.observation_spec.clone().unlock_()
        for name, shape in self.shapes.items():
            spec[name, "step_count"] = Unbounded((*shape, 1), dtype=torch.int64)
        self.observation_spec = spec

    @property
    def lives(self) -> Any:
        """Return a function for the lives of each row, ``[*B]``."""
        return lambda: 3 - self.counts["solo"].clamp(max=1)

    def render(self) -> Tensor:
        """Return an image of each row, ``[*B, 4, 5, 3]``."""
        numbers = self.counts["solo"].reshape(*self.batch_size, 1, 1, 1)
        return numbers.to(torch.uint8).expand(*self.batch_size, 4, 5, 3)

    def _observed(self) -> TensorDictBase:
        result = super()._observed()
        for name in self.shapes:
            result[name, "step_count"] = self._grown(name, 1).clone()
        return result
