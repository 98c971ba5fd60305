"""The places of a chain that are traced: what each declares, and the errors it raises."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import tensordict.nn
from torch import nn

from tdx.core.capabilities import declares, is_public_class
from tdx.core.envs.env_base import EnvBase
from tdx.core.envs.failures import noted_key
from tdx.core.tracing.traces import Direction, Kind
from tdx.core.transformed_env import TransformedEnv
from tdx.core.transforms import Transform
from tdx.errors import ChainError, EnvError, SpecError, TdxError, Where, get_first_line
from tdx.keys import NestedKey, normalize_key, split_key


@dataclass(slots=True, eq=False)
class Place:
    """A place that is called: a stage, the env inside, the policy.

    Args:
        kind: Which of them.
        index: Index of the stage, from 0; -1 for anything else.
        name: Class name.
        stage: The transform of a stage.
        reads: Keys that it declares to read, by direction.
        writes: Keys that it declares to write, by direction. ``None``: any.
        pure: True if it is known not to write in place, so that its inputs need no copy.
        acts: True if its inverse does anything in a step.
        acts_at_reset: True if its inverse does anything in a reset.
    """

    kind: Kind
    index: int
    name: str
    stage: Transform | None
    reads: dict[Direction, tuple[NestedKey, ...]]
    writes: dict[Direction, frozenset[NestedKey] | None]
    pure: bool
    acts: bool = True
    acts_at_reset: bool = True

    def declares(self, key: NestedKey, direction: Direction) -> bool:
        """Return True if a key, or a group that contains it, is declared to be written."""
        declared = self.writes[direction]
        if declared is None or key in declared:
            return True
        parts = split_key(key)
        return any(normalize_key(parts[:length]) in declared for length in range(1, len(parts)))


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
    write in place, unless they are told to, which the recorder notices.
    """
    return all(
        declares(type(part), "_is_verified")
        if isinstance(part, (Transform, EnvBase))
        else is_public_class(type(part), nn) or is_public_class(type(part), tensordict.nn)
        for part in module.modules()
    )


def is_plain(env: EnvBase) -> bool:
    """Return True if a chain can be run stage by stage, so no subclass overrides its step."""
    kind = type(env)
    return isinstance(env, TransformedEnv) and all(
        getattr(kind, hook) is getattr(TransformedEnv, hook)
        for hook in ("_completed_step", "_completed_reset")
    )


def to_located_error(error: Exception, place: Place, direction: Direction, phase: str) -> TdxError:
    """Return an error of tdx that names the place that raised it, and the step.

    Args:
        error: What was raised.
        place: The place that was called.
        direction: Direction of the call.
        phase: What was running: ``step 3``.
    """
    is_stage = place.kind == "stage"
    during = f"the inverse of {phase}" if is_stage and direction == "inverse" else phase
    if isinstance(error, TdxError):
        error.message = f"{error.message}, in {during}"
        return error.at(stage=place.index, transform=place.name) if is_stage else error
    what = f"raised {type(error).__name__} in {during}: {get_first_line(error)}"
    if is_stage:
        where = Where(stage=place.index, transform=place.name, key=noted_key(error))
        return ChainError(
            f"it {what}", where=where, hint="correct the stage; --debug shows the traceback"
        )
    if place.kind == "env":
        return EnvError(
            f"the env {what}",
            where=Where(env=place.name),
            hint="correct the env; --debug shows the traceback",
        )
    return ChainError(f"the policy {place.name} {what}", hint="correct the policy")


GIVEN = policy_place(None, "given", "given")
KEPT = policy_place(None, "kept", "kept")
