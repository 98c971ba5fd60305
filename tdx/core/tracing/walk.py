"""Runs a chain hook by hook exactly as ``TransformedEnv`` does, through a recorder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensordict import TensorDictBase

from tdx.core.chain_specs import StageSpecs, stage_count, stage_specs
from tdx.core.envs.env_base import EnvBase
from tdx.core.envs.spec_violations import spec_leaves
from tdx.core.tracing.recorder import Recorder
from tdx.core.tracing.traces import Place
from tdx.core.tracing.walk import GIVEN, env_place, is_plain, stage_place
from tdx.core.transformed_env import EagerProgram, TransformedEnv
from tdx.core.transforms import Compose
from tdx.keys import NestedKey
from tdx.tensordicts import new_tensordict, read, write


class TracedWalk:
    """Reset and step of an env, nested chains from the inside out.

    ``record`` is the :class:`~tdx.core.tracing.recorder.Recorder` of the current reset or step.

    Args:
        env: The env, transformed or not. An instance of a subclass that overrides its step or
            reset is called as a whole.
    """

    def __init__(self, env: EnvBase) -> None:
        self.env = env
        self.record: Recorder
        self.version = -1
        self._stages: dict[int, list[Place]] = {}
        self.inner = env
        while isinstance(self.inner, TransformedEnv) and is_plain(self.inner):
            self.inner = self.inner.base_env
        self._inner_step: Callable[..., TensorDictBase] = self.inner._completed_step
        self._inner_reset: Callable[..., TensorDictBase] = self.inner._completed_reset

    def refresh(self) -> None:
        """Read the chain again if it has changed."""
        if self.env._specs.version == self.version:
            return
        specs = [_declared_keys(place) for place in stage_specs(self.env)]
        levels: list[TransformedEnv] = []
        env = self.env
        while env is not self.inner:
            assert isinstance(env, TransformedEnv)
            levels.append(env)
            env = env.base_env
        index = stage_count(self.inner)
        self._stages = {}
        for level in reversed(levels):
            places = []
            for stage in level.stages:
                places.append(stage_place(index, stage, specs[index + 1] - specs[index]))
                index += 1
            self._stages[id(level)] = places
        self.env_place = env_place(self.inner)
        self.env_place.index = stage_count(self.inner) - 1
        self.version = self.env._specs.version

    def reset(
        self, env: EnvBase, tensordict: TensorDictBase | None, **kwargs: Any
    ) -> TensorDictBase:
        """Return the result of ``env._completed_reset``, ``[*B]``."""
        call = self.record.call
        if env is self.env and tensordict is not None:
            # The masks of a partial reset are written just before this call.
            self.record.settle(GIVEN, "inverse", tensordict)
        if env is self.inner:
            result: TensorDictBase = call(
                self.env_place, "forward", _with(self._inner_reset, kwargs), tensordict
            )
            return result
        assert isinstance(env, TransformedEnv)
        env._specs.compute()
        given = tensordict
        if given is None:
            given = new_tensordict({}, env.batch_size, env.device)
        inner = given.clone(recurse=False)
        places = self._stages[id(env)]
        for place in reversed(places):
            assert place.stage is not None
            hook = place.stage._reset_env_preprocess
            inner = call(place, "inverse", hook, inner) if place.acts_at_reset else hook(inner)
        is_trivial = inner.is_empty() and inner.batch_size == env.base_env.batch_size
        passed = None if tensordict is None and is_trivial else inner
        result = self.reset(env.base_env, passed, **kwargs)
        chain = env._chain
        views = chain._stage_inputs(given) if isinstance(chain, Compose) else [given]
        for place, view in zip(places, views, strict=True):
            assert place.stage is not None
            result = call(place, "forward", place.stage._reset, view, result)
        return result

    def step(
        self, env: EnvBase, tensordict: TensorDictBase, preset: TensorDictBase | None = None
    ) -> TensorDictBase:
        """Return the result of ``env._completed_step``, ``[*B]``."""
        call = self.record.call
        if env is self.inner:
            result: TensorDictBase = call(
                self.env_place, "forward", self._inner_step, tensordict, preset
            )
            return result
        assert isinstance(env, TransformedEnv)
        program = env._current_program()
        places = self._stages[id(env)]
        if program.inverts:
            tensordict = self._apply_inverse(program, places, tensordict)
        result = self.step(env.base_env, tensordict)
        if preset is not None:
            known = set(result.keys(True, True))
            result.update(env._chain._to_inner_batch(preset.exclude(*known)))
            self.record.settle(GIVEN, "forward", result)
        for place in places:
            stage = place.stage
            assert stage is not None
            result = call(place, "forward", stage._step, tensordict, result)
            if stage._changes_batch:
                tensordict = stage._to_outer_batch(tensordict)
        return result

    def _apply_inverse(
        self, program: EagerProgram, places: list[Place], tensordict: TensorDictBase
    ) -> TensorDictBase:
        inner = tensordict.clone(recurse=False)
        for place in reversed(places):
            assert place.stage is not None
            hook = place.stage._inv_call
            inner = self.record.call(place, "inverse", hook, inner) if place.acts else hook(inner)
        for key in program.exposed_keys:
            write(tensordict, key, read(inner, key))
        return inner


def _declared_keys(place: StageSpecs) -> set[NestedKey]:
    return {key for _, part in place.output_spec.items() for key in spec_leaves(part)}


def _with(
    function: Callable[..., TensorDictBase], kwargs: dict[str, Any]
) -> Callable[..., TensorDictBase]:
    return (lambda tensordict: function(tensordict, **kwargs)) if kwargs else function
