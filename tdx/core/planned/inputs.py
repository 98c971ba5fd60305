"""Where the actions come from: drawn or given in advance, or asked of a policy step by step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.envs import EnvBase
from tdx.core.envs.failures import stage_failed
from tdx.core.envs.policies import ActionCheck, first_nan, nan_error
from tdx.core.meter import DRAWING, GIVING, Meter, Part
from tdx.core.plan.forms import flattened
from tdx.core.planned.columns import as_tensordict, leaves_of
from tdx.core.planned.generator import same_state
from tdx.core.transforms import Transform
from tdx.errors import TdxError, Where
from tdx.keys import NestedKey
from tdx.specs import TensorSpec
from tdx.specs.binary import Binary
from tdx.specs.bounded import Bounded
from tdx.specs.categorical import Categorical, OneHot
from tdx.tensordicts import new_tensordict, read

_CPU = torch.device("cpu")


class WayIn:
    """The chain's way in, for actions with any leading dims.

    Args:
        env: the env, with its chain.
        base: the env before all chains.
        stages: the stages that do something on the way in, in order.
        handed_out: what these write that the outside gets to see.
    """

    def __init__(
        self,
        env: EnvBase,
        base: EnvBase,
        stages: Sequence[Transform],
        handed_out: Sequence[NestedKey],
    ) -> None:
        self.stages = tuple(stages)
        self.action_keys = tuple(base.action_keys)
        self.handed_out = tuple(handed_out)
        self._device = base.device
        self._places = {stage: index for index, stage in enumerate(flattened(env)[1])}

    def through(self, outer: TensorDictBase) -> tuple[TensorDictBase, dict[NestedKey, Tensor]]:
        """What the env takes, and what is handed out, from what the outside gives."""
        inner = outer
        if self.stages:
            inner = outer.clone(recurse=False)
            for stage in reversed(self.stages):
                try:
                    inner = stage._inv_call(inner)
                except Exception as error:
                    place = Where(stage=self._places[stage], transform=type(stage).__name__)
                    if isinstance(error, TdxError):
                        error.where = error.where.merge(place)
                        raise
                    raise stage_failed(error, place) from error
        shown = {key: read(inner, key) for key in self.handed_out}
        return inner, {key: value for key, value in shown.items() if value is not None}


@dataclass(slots=True)
class Drawn:
    """Actions for many steps.

    Args:
        inner: what the env takes, ``[T, *B]``.
        columns: what the outside gave, and what is handed out, ``[T, *B, ...]``.
        keep: told how many of them were used.
        length: how many there are, ``T``.
        error: what is wrong with the one after the last, if it was asked for.
    """

    inner: TensorDictBase
    columns: dict[NestedKey, Tensor]
    keep: Callable[[int], None]
    length: int
    error: Exception | None = None


class Inputs:
    """What gives the actions of a rollout.

    Args:
        way_in: the chain's way in.
    """

    def __init__(self, way_in: WayIn) -> None:
        self.way_in = way_in

    def measure(self, meter: Meter) -> None:
        """Have every call of what gives the actions measured."""
        raise NotImplementedError


_Outer = tuple[TensorDictBase, Callable[[int], None], Exception | None]


class OpenLoop(Inputs):
    """Actions that look at nothing: those of many steps are there at once."""

    def draw(self, length: int) -> Drawn:
        """The actions of the next ``length`` steps, or of fewer and what is wrong with the next."""
        outer, keep, error = self._outer(length)
        made = outer.shape[0]
        if not made:
            return Drawn(outer, {}, keep, 0, error)
        try:
            inner, shown = self.way_in.through(outer)
        except Exception as raised:
            made, error = self._fitting(outer, raised)
            outer = outer[:made]
            inner, shown = self.way_in.through(outer) if made else (outer, {})
        return Drawn(inner, {**leaves_of(outer), **shown}, keep, made, error)

    def _fitting(self, outer: TensorDictBase, raised: Exception) -> tuple[int, Exception]:
        """How many go through the way in one by one, and what the next raises."""
        for index in range(outer.shape[0]):
            try:
                self.way_in.through(outer[index])
            except Exception as error:
                return index, error
        raise raised

    def measure(self, meter: Meter) -> None:
        """Have the drawing measured."""
        part = DRAWING if isinstance(self, RandomActions) else GIVING
        self._outer = meter.timed(  # type: ignore[method-assign]
            part, self._outer, steps=lambda length: length
        )

    def _outer(self, length: int) -> _Outer:
        raise NotImplementedError


class RandomActions(OpenLoop):
    """Random actions, the same numbers as when drawn step by step.

    Args:
        env: the env, with its chain.
        way_in: the chain's way in.
        on_others: called where something else drew from the generator in between.
    """

    def __init__(self, env: EnvBase, way_in: WayIn, on_others: Callable[[], None]) -> None:
        super().__init__(way_in)
        self._env, self._on_others = env, on_others
        leaves = list(env.full_action_spec.items(True, True))
        # Several leaves are drawn in turns, and rare distributions use up numbers by the block.
        self._leaf: tuple[Any, TensorSpec] | None = None
        if len(leaves) == 1 and _draws_in_order(leaves[0][1]):
            self._leaf = leaves[0]

    def _outer(self, length: int) -> _Outer:
        state = torch.get_rng_state()
        outer = self._drawn(length)
        after = torch.get_rng_state()

        def keep(used: int) -> None:
            if not same_state(torch.get_rng_state(), after):
                self._on_others()
            elif used < length:
                torch.set_rng_state(state)
                if used:
                    self._drawn(used)

        return outer, keep, None

    def _drawn(self, length: int) -> TensorDictBase:
        env = self._env
        size = torch.Size((length, *env.batch_size))
        if self._leaf is not None:
            key, spec = self._leaf
            return as_tensordict({key: spec.rand((length,))}, size, env.device)
        rows = [env.full_action_spec.rand() for _ in range(length)]
        stacked: TensorDictBase = torch.stack(rows, 0)
        return stacked


def _draws_in_order(spec: TensorSpec) -> bool:
    """Whether a block of draws holds the numbers of as many single draws."""
    if spec.device is not None and spec.device.type != "cpu":
        return False
    if isinstance(spec, (Categorical, OneHot)):
        return type(spec) in (Categorical, OneHot) and spec.mask is None
    return isinstance(spec, (Bounded, Binary))


class GivenActions(OpenLoop):
    """A sequence of actions that is there from the beginning.

    Args:
        sequence: the actions, ``[*B, T]``; remembers how many were used.
        env: whose actions they are.
        way_in: the chain's way in.
    """

    def __init__(self, sequence: Any, env: EnvBase, way_in: WayIn) -> None:
        super().__init__(way_in)
        self._sequence, self._env = sequence, env
        self._check = ActionCheck(env)

    def _outer(self, length: int) -> _Outer:
        sequence, before = self._sequence, self._sequence.position

        def keep(used: int) -> None:
            sequence.position = before + used

        outer: TensorDictBase = new_tensordict({}, torch.Size((0,)), self._env.device)
        try:
            taken = sequence.taken(self._env, length)
            self._check(lambda key: read(taken[0], key))
            outer = taken
        except TdxError as raised:
            return outer, keep, raised
        error: Exception | None = sequence.used_up if outer.shape[0] < length else None
        for key in self._env.action_keys:
            bad = first_nan(read(outer, key))
            if bad is not None:
                outer, error = outer[:bad], nan_error(key)
        return outer, keep, error


class ClosedLoop(Inputs):
    """Actions of a policy that reads some entries.

    Args:
        policy: the policy, by the keys that it reads and writes.
        env: the env, with its chain.
        way_in: the chain's way in.
    """

    def __init__(self, policy: Any, env: EnvBase, way_in: WayIn) -> None:
        super().__init__(way_in)
        self.policy = policy
        self._batch_size, self._device = env.batch_size, env.device
        self._specs = [(key, env.full_action_spec[key]) for key in env.action_keys]

    def measure(self, meter: Meter) -> None:
        """Have the policy measured."""
        part = Part("policy", -1, self.policy.name, "step")
        self.policy = replace(self.policy, act=meter.timed(part, self.policy.act))

    def act(self, root: Mapping[NestedKey, Tensor]) -> dict[NestedKey, Tensor]:
        """What the policy writes, from the root's entries ``[*B, ...]``."""
        written: dict[NestedKey, Tensor] = self.policy.act(root)
        return written

    def inward(
        self, written: Mapping[NestedKey, Tensor]
    ) -> tuple[TensorDictBase, dict[NestedKey, Tensor]]:
        """What the env takes of it ``[*B]``, and what is handed out."""
        outer = as_tensordict(written, self._batch_size, self._device)
        return self.way_in.through(outer)
