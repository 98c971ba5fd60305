"""Fast deterministic envs of any batch size whose rows end at different steps."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from tdx.core.envs import EnvBase
from tdx.specs import Bounded, Categorical, Composite, Unbounded


def flag(*shape: int) -> Categorical:
    return Categorical(2, shape=shape, dtype=torch.bool)


class RowsEnv(EnvBase):
    """Env whose row ``i`` terminates at step ``2 + i % 3``; every third row is truncated too.

    It observes a vector that depends on the row, the step and the last action, a vector of
    doubles, an image ``[H, W, C]`` of bytes, and the same image ``[C, H, W]`` of floats.
    """

    def __init__(self, batch_size: tuple[int, ...] = (), endless: bool = False) -> None:
        super().__init__(batch_size=batch_size)
        b = tuple(batch_size)
        self.observation_spec = Composite(
            observation=Unbounded((*b, 3)),
            precise=Bounded(-100.0, 100.0, shape=(*b, 2), dtype=torch.float64),
            pixels=Bounded(0, 255, shape=(*b, 6, 7, 3), dtype=torch.uint8),
            image=Bounded(0.0, 1.0, shape=(*b, 3, 6, 7)),
            shape=b,
        )
        low, high = torch.tensor([-2.0, 0.5]), torch.tensor([4.0, 1.0])
        self.action_spec = Bounded(low.expand(*b, 2), high.expand(*b, 2))
        self.reward_spec = Unbounded((*b, 1))
        self.count = torch.zeros(b, dtype=torch.int64)
        rows = torch.arange(self.count.numel()).reshape(b)
        self.rows = rows
        self.lengths = torch.full_like(rows, 10**6) if endless else 2 + rows % 3
        self.seed = 0
        self.given: Tensor | None = None

    def _observed(self, action: Tensor) -> dict[str, Tensor]:
        ids, count = self.rows.unsqueeze(-1).double(), self.count.unsqueeze(-1).double()
        base = ids * 10 + count + self.seed
        pixels = (torch.arange(126).reshape(6, 7, 3) + (base[..., None, None] * 7).long()) % 256
        return {
            "observation": torch.cat([base, -base / 3, action[..., :1].double()], -1).float(),
            "precise": torch.cat([torch.sin(base), base / 7], -1),
            "pixels": pixels.to(torch.uint8),
            "image": pixels.movedim(-1, -3) * (1 / 255),
        }

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        mask = None if tensordict is None else tensordict.get("_reset", None)
        zero = torch.zeros_like(self.count)
        self.count = zero if mask is None else torch.where(mask.squeeze(-1).cpu(), zero, self.count)
        still = torch.zeros(*self.batch_size, 2)
        return TensorDict(self._observed(still), batch_size=self.batch_size, device=self.device)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.given = tensordict["action"].cpu()
        self.count = self.count + 1
        ended = (self.count >= self.lengths).unsqueeze(-1)
        entries = {
            **self._observed(self.given),
            "reward": (self.given.sum(-1, keepdim=True) + self.count.unsqueeze(-1)).float(),
            "terminated": ended,
            "truncated": ended & (self.rows % 3 == 2).unsqueeze(-1),
        }
        return TensorDict(entries, batch_size=self.batch_size, device=self.device)

    def _set_seed(self, seed: int | None) -> None:
        self.seed = (seed or 0) % 50


class GroupsEnv(EnvBase):
    """Env with two groups, each with its own observations, rewards, actions and done flags.

    Group ``solo`` ends every 2 steps, group ``pair``, of two agents, every 3.
    """

    lengths: ClassVar[dict[str, int]] = {"solo": 2, "pair": 3}

    def __init__(self, batch_size: tuple[int, ...] = ()) -> None:
        super().__init__(batch_size=batch_size)
        b = tuple(batch_size)
        self.shapes = {"solo": b, "pair": (*b, 2)}
        parts: dict[str, dict[str, Composite]] = {"obs": {}, "act": {}, "rew": {}, "done": {}}
        for name, g in self.shapes.items():
            observed = {
                "observation": Bounded(-50.0, 50.0, shape=(*g, 3)),
                "precise": Unbounded((*g, 2), dtype=torch.float64),
                "pixels": Bounded(0, 255, shape=(*g, 6, 7, 3), dtype=torch.uint8),
                "image": Bounded(0.0, 1.0, shape=(*g, 3, 6, 7)),
            }
            parts["obs"][name] = Composite(observed, shape=g)
            parts["act"][name] = Composite(action=Bounded(-3.0, 1.0, shape=(*g, 2)), shape=g)
            parts["rew"][name] = Composite(reward=Unbounded((*g, 1)), shape=g)
            flags = {key: flag(*g, 1) for key in ("done", "terminated", "truncated")}
            parts["done"][name] = Composite(flags, shape=g)
        self.observation_spec = Composite(parts["obs"], shape=b)
        self.action_spec = Composite(parts["act"], shape=b)
        self.reward_spec = Composite(parts["rew"], shape=b)
        self.done_spec = Composite(parts["done"], shape=b)
        self.counts = {name: torch.zeros(b, dtype=torch.int64) for name in self.shapes}

    def _grown(self, name: str, dims: int) -> Tensor:
        count = self.counts[name]
        if name == "pair":
            count = count.unsqueeze(-1).expand(self.shapes[name])
        return count.reshape(*count.shape, *([1] * dims))

    def _observed(self) -> TensorDict:
        result = TensorDict({}, batch_size=self.batch_size, device=self.device)
        for name, shape in self.shapes.items():
            pixels = (torch.arange(126).reshape(6, 7, 3) + 9 * self._grown(name, 3)) % 256
            result[name] = TensorDict(
                {
                    "observation": self._grown(name, 1) + torch.tensor([0.0, 0.5, -1.0]),
                    "precise": self._grown(name, 1) / torch.tensor([3.0, 7.0]).double(),
                    "pixels": pixels.to(torch.uint8),
                    "image": pixels.movedim(-1, -3) * (1 / 255),
                },
                batch_size=shape,
            )
        return result

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        masks = [
            None if tensordict is None else tensordict.get((n, "_reset"), None) for n in self.shapes
        ]
        for name, mask in zip(self.shapes, masks, strict=True):
            count = self.counts[name]
            if mask is not None:
                rows = mask.reshape(*self.batch_size, -1).any(-1)
                self.counts[name] = torch.where(rows, torch.zeros_like(count), count)
            elif all(each is None for each in masks):
                self.counts[name] = torch.zeros_like(count)
        return self._observed()

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        for name in self.counts:
            self.counts[name] = self.counts[name] + 1
        result = self._observed()
        for name, length in self.lengths.items():
            action = tensordict[name, "action"]
            result[name, "reward"] = action.sum(-1, keepdim=True)
            result[name, "terminated"] = self._grown(name, 1) >= length
        return result

    def _set_seed(self, seed: int | None) -> None:
        return None
