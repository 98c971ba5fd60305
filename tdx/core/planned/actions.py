"""Where the actions of a rollout come from, and how the inverse of the chain maps them.

Random actions and those of an :class:`~tdx.ActionSequence` depend on no observation, so those of a
whole chunk are drawn and mapped at once (:class:`OpenLoopActions`). A policy whose keys are known
(:class:`KeyedPolicy`) acts step by step (:class:`PolicyActions`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.chain import declares, flatten_chain, stage_forms
from tdx.core.envs.env_base import EnvBase
from tdx.core.envs.failures import stage_failure
from tdx.core.envs.policies import ActionCheck, ActionSequence, first_nan, nan_error
from tdx.core.meter import DRAWING, GIVING, Meter, Part
from tdx.core.plan.build import Program
from tdx.core.planned.columns import as_tensordict, flatten
from tdx.core.planned.keyed_policy import KeyedPolicy
from tdx.core.transformed_env import TransformedEnv
from tdx.core.transforms import Transform
from tdx.foundation.errors import TdxError, Where
from tdx.foundation.keys import NestedKey
from tdx.foundation.tensordicts import new_tensordict, read
from tdx.specs import TensorSpec
from tdx.specs.bounded import Bounded
from tdx.specs.categorical import Binary, Categorical, OneHot


class InversePath:
    """The inverse of a chain: from the policy to the env, for actions with any leading dims.

    ``handed_out`` has the keys that the inverse stages write for the policy side.
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
        self._indices = {stage: index for index, stage in enumerate(flatten_chain(env)[1])}

    def apply(self, outer: TensorDictBase) -> tuple[TensorDictBase, dict[NestedKey, Tensor]]:
        """Return the input of the env for an action of the policy, and what is handed out."""
        inner = outer
        if self.stages:
            inner = outer.clone(recurse=False)
            for stage in reversed(self.stages):
                try:
                    inner = stage._inv_call(inner)
                except Exception as error:
                    where = Where(stage=self._indices[stage], transform=type(stage).__name__)
                    if isinstance(error, TdxError):
                        error.where = error.where.merge(where)
                        raise
                    raise stage_failure(error, where) from error
        handed_out = {key: read(inner, key) for key in self.handed_out}
        return inner, {key: value for key, value in handed_out.items() if value is not None}


@dataclass(slots=True)
class ActionBlock:
    """Actions for many steps."""

    inner: TensorDictBase  # input of the env, [T, *B]
    # What the policy side wrote, and what the chain hands out, [T, *B, ...].
    columns: dict[NestedKey, Tensor]
    keep: Callable[[int], None]  # called with the number of actions that were used
    length: int
    error: Exception | None = None  # what is wrong with the action after the last one, if requested


class ActionSource(ABC):
    """Source of the actions of a rollout."""

    def __init__(self, inverse: InversePath) -> None:
        self.inverse = inverse

    @abstractmethod
    def measure(self, meter: Meter) -> None:
        """Measure every call that produces actions."""


_OuterActions = tuple[TensorDictBase, Callable[[int], None], Exception | None]


class OpenLoopActions(ActionSource):
    """Actions that depend on no observation: those of many steps are available at once."""

    def draw(self, length: int) -> ActionBlock:
        """Return the actions of the next ``length`` steps; fewer and an error if one is wrong."""
        outer, keep, error = self.draw_outer(length)
        count = outer.shape[0]
        if not count:
            return ActionBlock(outer, {}, keep, 0, error)
        try:
            inner, handed_out = self.inverse.apply(outer)
        except Exception as raised:
            count, error = self._valid_count(outer, raised)
            outer = outer[:count]
            inner, handed_out = self.inverse.apply(outer) if count else (outer, {})
        return ActionBlock(inner, {**flatten(outer), **handed_out}, keep, count, error)

    def _valid_count(self, outer: TensorDictBase, raised: Exception) -> tuple[int, Exception]:
        """Return how many actions pass the inverse one by one, and what the next one raises."""
        for index in range(outer.shape[0]):
            try:
                self.inverse.apply(outer[index])
            except Exception as error:
                return index, error
        raise raised

    def measure(self, meter: Meter) -> None:
        """Measure the drawing of actions."""
        part = DRAWING if isinstance(self, RandomActions) else GIVING
        self.draw_outer = meter.timed(  # type: ignore[method-assign]
            part, self.draw_outer, steps=lambda length: length
        )

    @abstractmethod
    def draw_outer(self, length: int) -> _OuterActions:
        """Return actions before the inverse of the chain, and ``keep`` and ``error`` of the block.

        They are as in :class:`ActionBlock`.
        """


class RandomActions(OpenLoopActions):
    """Random actions: the same numbers as if they were drawn step by step.

    ``on_conflict`` is called if something else drew from the generator between two draws.
    """

    def __init__(self, env: EnvBase, inverse: InversePath, on_conflict: Callable[[], None]) -> None:
        super().__init__(inverse)
        self._env, self._on_conflict = env, on_conflict
        cache = env.env_specs.cache
        # The cache of unlocked specs keeps nothing.
        self._leaf: tuple[Any, TensorSpec] | None = cache.get("drawn_leaf")
        if "drawn_leaf" not in cache:
            leaves = list(env.full_action_spec.items(True, True))
            # Several leaves are drawn in turns, and rare distributions consume numbers in blocks.
            at_once = len(leaves) == 1 and _draws_in_order(leaves[0][1])
            self._leaf = cache["drawn_leaf"] = leaves[0] if at_once else None

    def draw_outer(self, length: int) -> _OuterActions:
        state = torch.get_rng_state()
        outer = self._draw(length)
        after = torch.get_rng_state()

        def keep(used: int) -> None:
            if not _is_same_state(torch.get_rng_state(), after):
                # The env drew too: rewinding would repeat its numbers. Later rollouts draw singly.
                self._on_conflict()
            elif used < length:
                # Leave the generator where as many single draws would have left it.
                torch.set_rng_state(state)
                if used:
                    self._draw(used)

        return outer, keep, None

    def _draw(self, length: int) -> TensorDictBase:
        env = self._env
        size = torch.Size((length, *env.batch_size))
        if self._leaf is not None:
            key, spec = self._leaf
            return as_tensordict({key: spec.rand((length,))}, size, env.device)
        steps = [env.full_action_spec.rand() for _ in range(length)]
        stacked: TensorDictBase = torch.stack(steps, 0)
        return stacked


def _draws_in_order(spec: TensorSpec) -> bool:
    """Return True if a block of draws holds the numbers of as many single draws."""
    if spec.device is not None and spec.device.type != "cpu":
        return False
    if isinstance(spec, (Categorical, OneHot)):
        return type(spec) in (Categorical, OneHot) and spec.mask is None
    return isinstance(spec, (Bounded, Binary))


class GivenActions(OpenLoopActions):
    """The actions of an :class:`~tdx.ActionSequence`, which remembers how many were used."""

    def __init__(self, sequence: ActionSequence, env: EnvBase, inverse: InversePath) -> None:
        super().__init__(inverse)
        self._sequence, self._env = sequence, env
        self._check = ActionCheck(env)

    def draw_outer(self, length: int) -> _OuterActions:
        sequence, before = self._sequence, self._sequence.position

        def keep(used: int) -> None:
            sequence.position = before + used

        outer: TensorDictBase = new_tensordict({}, torch.Size((0,)), self._env.device)
        try:
            taken = sequence.take(self._env, length)
            self._check(lambda key: read(taken[0], key))
            outer = taken
        except TdxError as raised:
            return outer, keep, raised
        error: Exception | None = sequence.exhausted if outer.shape[0] < length else None
        for key in self._env.action_keys:
            bad = first_nan(read(outer, key))
            if bad is not None:
                outer, error = outer[:bad], nan_error(key)
        return outer, keep, error


class PolicyActions(ActionSource):
    """Actions of a policy that reads some entries of each step, and the check of these actions."""

    def __init__(self, policy: KeyedPolicy, env: EnvBase, inverse: InversePath) -> None:
        super().__init__(inverse)
        self.policy, self.check = policy, ActionCheck(env)
        self._batch_size, self._device = env.batch_size, env.device

    def measure(self, meter: Meter) -> None:
        """Measure the policy."""
        part = Part("policy", -1, self.policy.name, "step")
        self.policy = replace(self.policy, act=meter.timed(part, self.policy.act))

    def act(self, root: Mapping[NestedKey, Tensor]) -> dict[NestedKey, Tensor]:
        """Return what the policy writes for root entries ``[*B, ...]``."""
        return self.policy.act(root)

    def apply_inverse(
        self, written: Mapping[NestedKey, Tensor]
    ) -> tuple[TensorDictBase, dict[NestedKey, Tensor]]:
        """Return the input of the env ``[*B]`` for an action, and what is handed out."""
        outer = as_tensordict(written, self._batch_size, self._device)
        return self.inverse.apply(outer)


def action_source(
    env: EnvBase, program: Program, policy: KeyedPolicy | ActionSequence | None
) -> ActionSource:
    """Return the source of the actions of a rollout; ``None`` as a policy: random actions."""
    handed_out = env.chain.exposed_keys if isinstance(env, TransformedEnv) else ()
    stages = [forms.stage for forms in program.stages if forms.stage.invertible]
    inverse = InversePath(env, program.base, stages, handed_out)
    if policy is None:
        return RandomActions(env, inverse, partial(cache_rng_sharing, program.base, True))
    if isinstance(policy, ActionSequence):
        return GivenActions(policy, env, inverse)
    return PolicyActions(policy, env, inverse)


# Actions for many steps are drawn at once. That gives the numbers of as many single draws only if
# nothing else draws from torch's global generator in between.

_RNG_SHARING = "_shares_torch_rng"
"""Attribute of an env for what a probe has found."""


def shares_torch_rng(base: EnvBase) -> bool | None:
    """Return True if an env draws from torch's global generator; ``None`` if it is not known."""
    known: bool | None = base.__dict__.get(_RNG_SHARING)
    if known is not None:
        return known
    if not isinstance(base, TransformedEnv):
        return base.shares_torch_rng()
    inner, stages = flatten_chain(base)
    # Stages with a chunk kernel draw nothing.
    are_known = all(
        forms.chunk_kernel is not None and declares(type(forms.stage), "_is_verified")
        for forms in map(stage_forms, range(len(stages)), stages)
    )
    return shares_torch_rng(inner) if are_known else None


def cache_rng_sharing(base: EnvBase, shared: bool) -> None:
    """Store the result of a probe with the env."""
    base.__dict__[_RNG_SHARING] = shared


def _is_same_state(one: Tensor, other: Tensor) -> bool:
    """Compare two generator states without an operation of torch, which costs more."""
    return bool(np.array_equal(one.numpy(), other.numpy()))


class DrawProbe:
    """Draws one action at a time, and finds out if anything else draws in between."""

    def __init__(self, draw: Callable[[], Any]) -> None:
        self._draw = draw
        self._count = 0
        self._before = torch.get_rng_state()

    def __call__(self) -> Any:
        """Draw once."""
        self._count += 1
        return self._draw()

    def begin(self) -> None:
        """Start the observation here."""
        self._count, self._before = 0, torch.get_rng_state()

    def is_exclusive(self) -> bool:
        """Return True if as many draws alone lead to the present state of the generator."""
        now = torch.get_rng_state()
        torch.set_rng_state(self._before)
        for _ in range(self._count):
            self._draw()
        alone = _is_same_state(torch.get_rng_state(), now)
        torch.set_rng_state(now)
        return alone


def random_policy(env: EnvBase, program: Program) -> tuple[DrawProbe | None, KeyedPolicy | None]:
    """Return a policy that draws one action per step; ``None`` if many may be drawn at once.

    It comes with the probe of the draws, if it is not known whether the env draws too.
    """
    shares_generator = shares_torch_rng(program.base)
    has_chunk_forms = all(forms.chunk_kernel is not None for forms in program.stages)
    if shares_generator is False and has_chunk_forms:
        return None, None
    draw = DrawProbe(env.full_action_spec.rand)
    policy = KeyedPolicy((), tuple(env.action_keys), lambda root: flatten(draw()), DRAWING.name)
    return (draw if shares_generator is None else None), policy
