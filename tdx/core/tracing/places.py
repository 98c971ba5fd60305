"""The places of a chain that are traced, and their hooks, which call a recorder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from threading import get_ident
from typing import Any, Literal, Protocol

import tensordict.nn
from tensordict import TensorDictBase
from torch import nn

from tdx.core.chain import chain_stages, declares, stage_specs
from tdx.core.envs.env_base import EnvBase
from tdx.core.envs.policies import is_public_class
from tdx.core.tracing.traces import Direction, Kind, Place
from tdx.core.transformed_env import TransformedEnv
from tdx.core.transforms import Transform
from tdx.foundation.errors import SpecError
from tdx.foundation.keys import NestedKey, normalize_key
from tdx.foundation.patches import Patches
from tdx.specs.composite import all_leaves

Hooked = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class ChainHook:
    """A method that an env calls in a step or reset."""

    index: int  # of the stage; -1 for the env inside
    owner: Transform | EnvBase
    name: str
    # what it does: _reset_env_preprocess is a part of a reset
    method: Literal["step", "reset", "inverse"]
    direction: Direction  # of what it writes


def stage_hooks(index: int, stage: Transform) -> Iterator[ChainHook]:
    """Yield the methods of a stage that its env calls, in the order of a step, then of a reset."""
    if stage.invertible:
        yield ChainHook(index, stage, "_inv_call", "inverse", "inverse")
    yield ChainHook(index, stage, "_step", "step", "forward")
    own = type(stage)._reset_env_preprocess is not Transform._reset_env_preprocess
    if stage.invertible or own:
        yield ChainHook(index, stage, "_reset_env_preprocess", "reset", "inverse")
    yield ChainHook(index, stage, "_reset", "reset", "forward")


def env_hooks(env: EnvBase) -> Iterator[ChainHook]:
    """Yield the methods of the env inside that its chain calls."""
    yield ChainHook(-1, env, "completed_step", "step", "forward")
    yield ChainHook(-1, env, "completed_reset", "reset", "forward")


class HookRecorder(Protocol):
    """Calls the hooks of a chain and records what they write.

    ``is_busy`` while hooks run as they are: between two resets or steps, and inside a hook.
    """

    is_busy: bool

    def call(
        self, place: Place, direction: Direction, function: Hooked, *arguments: Any
    ) -> TensorDictBase:
        """Call a hook and return its result."""
        ...

    def settle(self, place: Place, direction: Direction, result: Any) -> None:
        """Record what was written outside of any hook."""
        ...


def stage_place(index: int, stage: Transform, added: Iterable[NestedKey]) -> Place:
    """Return the place of a stage, whose specs have the keys ``added`` and earlier ones do not."""
    names = (*stage.out_keys, *stage.written_keys, *added)
    # A stage that steps the env passes on everything that the env wrote.
    anything = stage.changes_batch or stage.steps_env
    return Place(
        kind="stage",
        index=index,
        name=type(stage).__name__,
        stage=stage,
        reads={"forward": _normal(stage.in_keys), "inverse": _normal(stage.out_keys_inv)},
        writes={
            "forward": None if anything else frozenset(_normal(names)),
            "inverse": frozenset(_normal((*stage.in_keys_inv, *stage.exposed_keys, *added))),
        },
        pure=is_pure(stage),
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
    declared = getattr(policy, "in_keys", ())
    keys = declared if isinstance(declared, (list, tuple)) else ()
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
        for hook in ("completed_step", "completed_reset")
    )


GIVEN = policy_place(None, "given", "given")
KEPT = policy_place(None, "kept", "kept")


class TracedChain:
    """The hooks of an env and its chain, which call a recorder while they are attached.

    ``record`` is the recorder of the current reset or step, which ``thread`` makes. Between them,
    in other threads, and inside a stage that steps the env itself, hooks run as they are. An
    instance of a subclass that overrides its step or reset is called as a whole.
    """

    def __init__(self, env: EnvBase) -> None:
        self.env = env
        self.record: HookRecorder | None = None
        self.thread = 0
        self.other_threads: set[int] = set()
        """Threads that stepped the env during a reset or step of this one."""
        self.is_attached = False
        self._has_given_next = False
        self._version: float = -1
        self._patches = Patches()
        self._levels: list[TransformedEnv] = []
        self.inner = env
        while isinstance(self.inner, TransformedEnv) and is_plain(self.inner):
            self._levels.append(self.inner)
            self.inner = self.inner.base_env

    def refresh(self) -> None:
        """Read the chain again if it has changed."""
        if self.env.env_specs.version == self._version:
            return
        specs = [all_leaves(after.output_spec).keys() for after in stage_specs(self.env)]
        index = len(chain_stages(self.inner))
        self._places: list[tuple[Place, Transform, bool]] = []
        for level in reversed(self._levels):
            for number, stage in enumerate(level.stages):
                place = stage_place(index, stage, specs[index + 1] - specs[index])
                sees_given_next = level is self.env and number == 0
                self._places.append((place, stage, sees_given_next))
                index += 1
        self.env_place = env_place(self.inner)
        self.env_place.index = len(chain_stages(self.inner)) - 1
        self._version = self.env.env_specs.version
        if self.is_attached:
            self._detach()
            self._attach()

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Replace the hooks in a block."""
        self.refresh()
        self._attach()
        self.is_attached = True
        try:
            with self.inner.record_threads(self.other_threads):
                yield
        finally:
            self.is_attached = False
            self._detach()

    def _attach(self) -> None:
        hook = self._patches.hook
        for level in self._levels:
            level.observe_hooks(True)
        for place, stage, sees_given_next in self._places:
            for called in stage_hooks(place.index, stage):
                wrap = partial(self._recorded, place, called.direction)
                if sees_given_next and called.name == "_step":
                    wrap = partial(self._after_given_next, wrap)
                hook(stage, called.name, wrap)
        if self._levels:
            for called in env_hooks(self.inner):
                hook(self.inner, called.name, partial(self._recorded, self.env_place, "forward"))
        hook(self.env, "completed_step", self._outermost_step)
        hook(self.env, "completed_reset", self._outermost_reset)

    def _detach(self) -> None:
        self._patches.undo()
        for level in self._levels:
            level.observe_hooks(False)

    def _recorded(self, place: Place, direction: Direction, function: Hooked) -> Hooked:
        def hooked(*args: Any, **kwargs: Any) -> Any:
            record = self.record
            if record is None or record.is_busy or get_ident() != self.thread:
                return function(*args, **kwargs)
            if kwargs:
                return record.call(place, direction, partial(function, **kwargs), *args)
            return record.call(place, direction, function, *args)

        return hooked

    def _after_given_next(self, wrap: Callable[[Hooked], Hooked], function: Hooked) -> Hooked:
        recorded = wrap(function)

        def hooked(tensordict: TensorDictBase, following: TensorDictBase) -> Any:
            self._settle_given_next(following)
            return recorded(tensordict, following)

        return hooked

    def _outermost_step(self, function: Hooked) -> Hooked:
        if not self._levels:
            function = self._recorded(self.env_place, "forward", function)

        def hooked(tensordict: TensorDictBase, given_next: TensorDictBase | None = None) -> Any:
            if self._is_outermost():
                self._has_given_next = given_next is not None and bool(self._levels)
            result = function(tensordict, given_next)
            self._settle_given_next(result)
            return result

        return hooked

    def _outermost_reset(self, function: Hooked) -> Hooked:
        if not self._levels:
            function = self._recorded(self.env_place, "forward", function)

        def hooked(tensordict: TensorDictBase | None = None, **kwargs: Any) -> Any:
            if self._is_outermost() and self.record is not None and tensordict is not None:
                # The masks of a partial reset are written just before this call.
                self.record.settle(GIVEN, "inverse", tensordict)
            return function(tensordict, **kwargs)

        return hooked

    def _settle_given_next(self, following: TensorDictBase) -> None:
        """Record the existing entries of ``next`` that the env has not written, once."""
        if self._has_given_next and self._is_outermost() and self.record is not None:
            self._has_given_next = False
            self.record.settle(GIVEN, "forward", following)

    def _is_outermost(self) -> bool:
        """Return True outside of all stages in a recorded call; note other threads."""
        if self.record is None:
            return False
        if get_ident() != self.thread:
            self.other_threads.add(get_ident())
            return False
        return not self.record.is_busy
