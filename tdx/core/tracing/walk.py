"""The places of a chain that are traced, and the walk that calls them through a recorder.

The walk runs a chain hook by hook exactly as ``TransformedEnv`` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import tensordict.nn
from tensordict import TensorDictBase
from torch import nn

from tdx.core.chain import StageSpecs, chain_stages, declares, stage_specs
from tdx.core.eager_program import EagerProgram
from tdx.core.envs.env_base import EnvBase
from tdx.core.envs.policies import is_public_class
from tdx.core.tracing.traces import Direction, Kind, Place
from tdx.core.transformed_env import TransformedEnv
from tdx.core.transforms import Compose, Transform
from tdx.foundation.errors import SpecError
from tdx.foundation.keys import NestedKey, normalize_key
from tdx.foundation.tensordicts import new_tensordict, read, write
from tdx.specs.violations import spec_leaves


class HookRecorder(Protocol):
    """Calls the hooks of a walk and records what they write."""

    def call(
        self,
        place: Place,
        direction: Direction,
        function: Callable[..., TensorDictBase],
        *arguments: Any,
    ) -> Any:
        """Call a hook and return its result."""
        ...

    def settle(self, place: Place, direction: Direction, result: Any) -> None:
        """Record what was written outside of any hook."""
        ...


def stage_place(index: int, stage: Transform, added: Iterable[NestedKey]) -> Place:
    """Return the place of a stage.

    Args:
        index: Index of the stage.
        stage: The transform.
        added: Keys that its specs have and those before it do not.
    """
    names = (*stage.out_keys, *stage._written_keys, *added)
    # A stage that steps the env passes on everything that the env wrote.
    anything = stage._changes_batch or stage._steps_env
    own_preprocess = type(stage)._reset_env_preprocess is not Transform._reset_env_preprocess
    invertible = stage.invertible
    return Place(
        kind="stage",
        index=index,
        name=type(stage).__name__,
        stage=stage,
        reads={"forward": _normal(stage.in_keys), "inverse": _normal(stage.out_keys_inv)},
        writes={
            "forward": None if anything else frozenset(_normal(names)),
            "inverse": frozenset(_normal((*stage.in_keys_inv, *stage._exposed_keys, *added))),
        },
        pure=is_pure(stage),
        acts=invertible,
        acts_at_reset=invertible or own_preprocess,
    )


def env_place(env: EnvBase) -> Place:
    """Return the place of the env inside."""
    try:
        reads = _normal([*env.action_keys, *env.state_keys])
    except SpecError:
        # The actions of different envs in a batch may have no spec in common.
        reads = ()
    return _without_stage("env", type(env).__name__, reads, is_pure(env))


def policy_place(policy: object, kind: Kind = "policy", name: str | None = None) -> Place:
    """Return the place of a policy, or of anything else that is called instead."""
    found = getattr(policy, "in_keys", ())
    keys = found if isinstance(found, (list, tuple)) else ()
    label = name or getattr(policy, "__name__", None) or type(policy).__name__
    pure = name is not None or (isinstance(policy, nn.Module) and is_pure(policy))
    return _without_stage(kind, label, _normal(keys), pure)


def _without_stage(kind: Kind, name: str, reads: tuple[NestedKey, ...], pure: bool) -> Place:
    return Place(
        kind, -1, name, None, {"forward": reads, "inverse": reads}, dict.fromkeys(_LANES), pure
    )


_LANES: tuple[Direction, Direction] = ("forward", "inverse")


def _normal(keys: Iterable[NestedKey]) -> tuple[NestedKey, ...]:
    return tuple(normalize_key(key) for key in keys)


def is_pure(module: nn.Module) -> bool:
    """Return True if all of a module's code is known not to write its inputs in place.

    Stages and envs declare it (``_is_verified``). Layers that torch and tensordict export do not
    write in place unless an argument says so, or a function inside does.
    """
    return all(
        declares(type(part), "_is_verified")
        if isinstance(part, (Transform, EnvBase))
        else _is_pure_layer(part)
        for part in module.modules()
    )


def _is_pure_layer(part: nn.Module) -> bool:
    if is_public_class(type(part), tensordict.nn):
        # A module inside is a submodule, a function inside an attribute.
        return "module" not in vars(part)
    return is_public_class(type(part), nn) and not getattr(part, "inplace", False)


def is_plain(env: EnvBase) -> bool:
    """Return True if a chain can be run stage by stage, so no subclass overrides its step."""
    kind = type(env)
    return isinstance(env, TransformedEnv) and all(
        getattr(kind, hook) is getattr(TransformedEnv, hook)
        for hook in ("_completed_step", "_completed_reset")
    )


GIVEN = policy_place(None, "given", "given")
KEPT = policy_place(None, "kept", "kept")


class TracedWalk:
    """Reset and step of an env, nested chains from the inside out.

    ``record`` is the recorder of the current reset or step.

    Args:
        env: The env, transformed or not. An instance of a subclass that overrides its step or
            reset is called as a whole.
    """

    def __init__(self, env: EnvBase) -> None:
        self.env = env
        self.record: HookRecorder
        self.version: float = -1
        # Stages of each transformed env, and the env inside it.
        self._levels: dict[int, tuple[list[Place], EnvBase]] = {}
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
        index = len(chain_stages(self.inner))
        self._levels = {}
        for level in reversed(levels):
            places = []
            for stage in level.stages:
                places.append(stage_place(index, stage, specs[index + 1] - specs[index]))
                index += 1
            self._levels[id(level)] = places, level.base_env
        self.env_place = env_place(self.inner)
        self.env_place.index = len(chain_stages(self.inner)) - 1
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
        places, inside = self._levels[id(env)]
        for place in reversed(places):
            assert place.stage is not None
            hook = place.stage._reset_env_preprocess
            inner = call(place, "inverse", hook, inner) if place.acts_at_reset else hook(inner)
        is_trivial = inner.is_empty() and inner.batch_size == inside.batch_size
        passed = None if tensordict is None and is_trivial else inner
        result = self.reset(inside, passed, **kwargs)
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
        places, inside = self._levels[id(env)]
        if program.inverts:
            tensordict = self._apply_inverse(program, places, tensordict)
        result = self.step(inside, tensordict)
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
