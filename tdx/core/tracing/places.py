"""The places of a chain that are traced, with what is declared of each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import nn

from tdx.core.envs import EnvBase
from tdx.core.tracing.traces import Direction, Kind
from tdx.core.transformed_env import TransformedEnv
from tdx.core.transforms import Transform
from tdx.core.transforms.callable_transform import CallableTransform
from tdx.errors import SpecError
from tdx.keys import NestedKey, key_parts, normal_key
from tdx.transforms.episode.frame_skip_transform import FrameSkipTransform
from tdx.transforms.episode.noop_reset_env import NoopResetEnv

_KNOWN = ("tdx.", "torch.nn.", "tensordict.")


@dataclass(slots=True, eq=False)
class Place:
    """Who is called: a stage, the env inside, the policy.

    Args:
        kind: which of them.
        index: the stage's place in the chain, from 0; -1 for what is no stage.
        name: its class name.
        stage: the stage, where it is one.
        reads: the keys that it declares to read, by direction.
        writes: the keys that it declares to write, by direction; none for any.
        pure: whether it is known not to write in place, so that nothing is copied for its sake.
        acts: whether it does anything on the way in, at a step.
        acts_at_reset: the same at a reset.
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
        """Whether a key, or a group that it is in, is declared to be written."""
        declared = self.writes[direction]
        if declared is None or key in declared:
            return True
        parts = key_parts(key)
        return any(normal_key(parts[:length]) in declared for length in range(1, len(parts)))


def stage_place(index: int, stage: Transform, added: Iterable[NestedKey]) -> Place:
    """The place that a stage stands at.

    Args:
        index: its place in the chain.
        stage: the stage.
        added: the keys that its specs have and those before it have not.
    """
    names = (*stage.out_keys, *stage._written_keys, *added)
    # What steps the env itself hands on all that the env wrote anew.
    anything = stage._changes_batch or isinstance(stage, (FrameSkipTransform, NoopResetEnv))
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
    """The env inside."""
    try:
        reads = _normal([*env.action_keys, *env.state_keys])
    except SpecError:
        # The actions of unlike envs in a batch may have no spec in common.
        reads = ()
    return _without_stage("env", type(env).__name__, reads, is_pure(env))


def policy_place(policy: object, kind: Kind = "policy", name: str | None = None) -> Place:
    """Whoever gives the actions."""
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
    return tuple(normal_key(key) for key in keys)


def is_pure(module: nn.Module) -> bool:
    """Whether all of a module's code is known not to write in place."""
    return all(
        type(part).__module__.startswith(_KNOWN) and not isinstance(part, CallableTransform)
        for part in module.modules()
    )


def is_plain(env: EnvBase) -> bool:
    """Whether a chain can be walked stage by stage; not where a subclass has its own step."""
    kind = type(env)
    return isinstance(env, TransformedEnv) and all(
        getattr(kind, hook) is getattr(TransformedEnv, hook)
        for hook in ("_completed_step", "_completed_reset")
    )


def depth(env: EnvBase) -> int:
    """How many stages there are from the env inside to the outermost."""
    return depth(env.base_env) + len(env.stages) if isinstance(env, TransformedEnv) else 0


GIVEN = policy_place(None, "given", "given")
KEPT = policy_place(None, "kept", "kept")
