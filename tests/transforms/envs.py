"""Deterministic envs of any batch size whose rows end at different steps, and their functions."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule
from torch import Tensor, nn

from tdx.core.envs import EnvBase
from tdx.specs import Bounded, Categorical, Composite, OneHot, Unbounded


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


def flags_of_agents(kind: type[RowsEnv]) -> type[RowsEnv]:
    """Return the class of an env whose done flags are only those of two agents, which end at once.

    A reset starts a new episode in a row if either agent asks for it.
    """

    class AgentFlags(kind):  # type: ignore[misc, valid-type]
        step_reads = ()

        def __init__(self, batch_size: tuple[int, ...] = (), endless: bool = False) -> None:
            super().__init__(batch_size, endless)
            group = (*batch_size, 2)
            flags = {key: flag(*group, 1) for key in ("done", "terminated", "truncated")}
            self.done_spec = Composite(agents=Composite(flags, shape=group), shape=batch_size)

        def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
            mask = None if tensordict is None else tensordict.get(("agents", "_reset"), None)
            if tensordict is not None and mask is not None:
                tensordict = tensordict.clone(recurse=False).set("_reset", mask.any(-2))
            return super()._reset(tensordict, **kwargs)

        def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
            result = super()._step(tensordict)
            for name in ("terminated", "truncated"):
                ended = result.pop(name).unsqueeze(-2).expand(*self.batch_size, 2, 1)
                result["agents", name] = ended.clone()
            return result

    return AgentFlags


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


class OneHotRowsEnv(RowsEnv):
    """``RowsEnv`` whose action is a one-hot vector of four categories."""

    def __init__(self, batch_size: tuple[int, ...] = (), endless: bool = False) -> None:
        super().__init__(batch_size, endless)
        self.action_spec = OneHot(CATEGORIES, shape=(*batch_size, CATEGORIES))

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        return super()._step(TensorDict(action=tensordict["action"][..., :2].float()))


class OneHotGroupsEnv(GroupsEnv):
    """``GroupsEnv`` whose actions are one-hot vectors of four categories."""

    def __init__(self, batch_size: tuple[int, ...] = ()) -> None:
        super().__init__(batch_size)
        actions = {
            name: Composite(action=OneHot(CATEGORIES, shape=(*g, CATEGORIES)), shape=g)
            for name, g in self.shapes.items()
        }
        self.action_spec = Composite(actions, shape=batch_size)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        inner = TensorDict({}, batch_size=self.batch_size)
        for name, shape in self.shapes.items():
            action = tensordict[name, "action"].float()
            inner[name] = TensorDict(action=action, batch_size=shape)
        return super()._step(inner)


class SteppedRowsEnv(RowsEnv):
    """``RowsEnv`` that can step some of its rows alone."""

    steps_some_rows = True

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        rows, before = tensordict.get("_step", None), self.count
        result = super()._step(tensordict)
        if rows is not None:
            self.count = torch.where(rows.to(before.device), self.count, before)
        return result


class SteppedGroupsEnv(GroupsEnv):
    """``GroupsEnv`` that can step some of its rows alone."""

    steps_some_rows = True

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        rows, before = tensordict.get("_step", None), dict(self.counts)
        result = super()._step(tensordict)
        if rows is not None:
            for name, count in self.counts.items():
                self.counts[name] = torch.where(rows, count, before[name])
        return result


def same_size(tensordict: TensorDictBase) -> TensorDictBase:
    """Return the batch unchanged: the batch sizes of the tests differ."""
    reshaped: TensorDictBase = tensordict.reshape(tensordict.batch_size)
    return reshaped


def cubed(value: Tensor) -> Tensor:
    """Map one entry."""
    return value**3


def cubing_observation() -> TensorDictModule:
    """Return a module that replaces an observation."""
    return TensorDictModule(cubed, in_keys=["observation"], out_keys=["observation"])


def cubing_precise() -> TensorDictModule:
    """Return a module that writes a nested observation."""
    return TensorDictModule(cubed, in_keys=["precise"], out_keys=[("more", "cubed_by_module")])


def cubing_solo_reward() -> TensorDictModule:
    """Return a module that writes another entry of a group of ``GroupsEnv``."""
    return TensorDictModule(
        cubed, in_keys=[("solo", "reward")], out_keys=[("solo", "cubed_by_module")]
    )


def high(tensordict: TensorDictBase) -> Tensor:
    """Return True at some steps of ``RowsEnv``, ``[*B]``."""
    return tensordict["precise"][..., 0] > 0.9


def solo_high(tensordict: TensorDictBase) -> Tensor:
    """Return True at some steps of ``GroupsEnv``, ``[*B]``."""
    return tensordict["solo", "precise"][..., 0] > 0.6


def moved(tensordict: TensorDictBase) -> Tensor:
    """Return False at the start of the first row of ``RowsEnv``, ``[*B]``."""
    return tensordict["observation"][..., 0] > 0


def solo_moved(tensordict: TensorDictBase) -> Tensor:
    """Return False at the start of an episode of ``GroupsEnv``, ``[*B]``."""
    return tensordict["solo", "observation"][..., 0] > 0


def pushed(tensordict: TensorDictBase) -> Tensor:
    """Return True for some actions of ``RowsEnv``, ``[*B]``."""
    return tensordict["action"][..., 0] > 1.0


def solo_pushed(tensordict: TensorDictBase) -> Tensor:
    """Return True for some actions of ``GroupsEnv``, ``[*B]``."""
    return tensordict["solo", "action"][..., 0] > -1.0


def still(tensordict: TensorDictBase) -> TensorDictBase:
    """Write actions for ``RowsEnv``."""
    return tensordict.set("action", torch.ones(*tensordict.batch_size, 2))


def solo_still(tensordict: TensorDictBase) -> TensorDictBase:
    """Write actions for ``GroupsEnv``."""
    for name in ("solo", "pair"):
        group = tensordict[name]
        group.set("action", torch.zeros(*group.batch_size, 2))
    return tensordict


class Adding(nn.Module):
    """Recurrent module whose state is the weighted sum of its inputs.

    Args:
        state: Key of the state.
    """

    def __init__(self, state: str = "hidden") -> None:
        super().__init__()
        self.in_keys: list[Any] = ["observation", state]
        self.out_keys: list[Any] = ["out", ("next", state)]
        self.state = state
        self.weight = nn.Parameter(torch.tensor(2.0))

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        time = tensordict.ndim - 1
        first = tensordict[self.state].narrow(time, 0, 1)
        state = first + (self.weight * tensordict["observation"]).cumsum(time)
        tensordict["out"] = state + 1
        tensordict["next", self.state] = state
        return tensordict


def sequences(batch: int = 2, steps: int = 6) -> TensorDict:
    """Return stored sequences ``[batch, steps]`` for :class:`Adding`."""
    return TensorDict(
        {
            "observation": torch.arange(float(batch * steps)).reshape(batch, steps, 1),
            "hidden": torch.zeros(batch, steps, 1),
            "number": torch.arange(steps).expand(batch, steps),
        },
        batch_size=[batch, steps],
    )
