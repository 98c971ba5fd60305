"""Apply another chain to the recorded steps of a dump."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from tensordict import TensorDictBase

from tdx.core import TransformedEnv
from tdx.envs import ActionSequence
from tdx.errors import ArgumentError, StorageError
from tdx.keys import format_key
from tdx.pipeline import Pipeline, StageConfig, build_env, format_stage, write_pipeline
from tdx.rollouts.dump.creation import check_target, whole_dump
from tdx.rollouts.dump.episodes import EpisodeIndex
from tdx.rollouts.dump.json_fields import DAMAGED
from tdx.rollouts.dump.manifest import Goal, Manifest, package_versions
from tdx.rollouts.dump.reading import Dump
from tdx.rollouts.dump.specs import spec_entries
from tdx.rollouts.policies.policy import NamedPolicy
from tdx.rollouts.recording.checkpoint import Border
from tdx.rollouts.recording.raw_envs import RESET, StoredEnv
from tdx.rollouts.recording.stream import OnChunk, flags_of, run_chunks, silent


def replay(
    dump: Dump,
    stages: tuple[StageConfig, ...],
    folder: Path,
    *,
    force: bool = False,
    allow_code: bool = False,
    on_chunk: OnChunk = silent,
) -> Manifest:
    """Apply another chain to what a dump's env gave, and write that as a dump of its own.

    The env is made for its specs, and not stepped. Where the chain asks something else of the env
    than the stored one did (other actions, an episode that ends elsewhere), an error says so.

    Args:
        dump: made without a chain, or with ``raw``.
        stages: the chain.
        folder: of the new dump.
        force: whether a dump that is there is overwritten.
        allow_code: whether Python objects may be imported.
        on_chunk: called after each chunk.

    Raises:
        ArgumentError: the dump does not hold what the env gave.
        EnvError: the chain asks something else of the env.
    """
    check_target(folder, force)
    if folder.resolve() == dump.path.resolve():
        raise ArgumentError(
            f"{folder} is the dump that is replayed", hint="name another folder for the result"
        )
    pipeline = replace(dump.pipeline, transforms=stages, file=None)
    recorded = _recorded(dump)
    seed = dump.manifest.seed
    env = build_env(pipeline, allow_code)
    try:
        actions = _actions(dump, env, stages, recorded, allow_code)
        manifest = _manifest(dump, pipeline, env)
        env.base_env = StoredEnv(env.base_env, recorded)
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(seed)
            policy = NamedPolicy("replay", None, None, lambda made: ActionSequence(actions))
            with whole_dump(folder, manifest, flags_of(env), force=force) as writer:
                return run_chunks(env, policy, writer, Border(env), None, on_chunk)
    finally:
        env.close()


def _recorded(dump: Dump) -> TensorDictBase:
    """What the env gave and took, ``[*B, T]``, with the resets."""
    if dump.raw is not None:
        return dump.raw
    manifest = dump.manifest
    if dump.pipeline.transforms:
        raise ArgumentError(
            f"{dump.path} does not hold what the env itself gave",
            hint="roll out with --raw, or without a chain",
        )
    if manifest.keys is not None:
        raise ArgumentError(
            f"{dump.path} holds some entries only", hint="roll out without --keys, or with --raw"
        )
    data = dump.data
    dim = data.ndim - 1
    names = [("next", *entry["key"]) for entry in manifest.specs if entry["part"] == "done"]
    env_ends = [data.get(name, None) for name in names]
    resets = torch.ones((*data.shape, 1), dtype=torch.bool)
    ended = torch.zeros(data.shape, dtype=torch.bool)
    for name, flag in zip(names, env_ends, strict=True):
        if flag is None or not isinstance(flag, torch.Tensor):
            raise StorageError(f"{dump.path} has no {format_key(name)!r}", hint=DAMAGED)
        ended |= flag.reshape(*data.shape, -1).any(-1)
    steps = data.shape[dim]
    resets.narrow(dim, 1, steps - 1).copy_(ended.narrow(dim, 0, steps - 1).unsqueeze(-1))
    recorded = data.clone(recurse=False)
    recorded.set(RESET, resets)
    return recorded


def _actions(
    dump: Dump,
    env: TransformedEnv,
    stages: tuple[StageConfig, ...],
    recorded: TensorDictBase,
    allow_code: bool,
) -> TensorDictBase:
    """The actions that the new chain is given, ``[*B, T]``."""
    kept = build_env(dump.pipeline, allow_code)
    try:
        same = _way_in(kept, dump.pipeline.transforms) == _way_in(env, stages)
    finally:
        kept.close()
    source = dump.data if same else recorded
    missing = [key for key in env.action_keys if source.get(key, None) is None]
    if missing:
        raise ArgumentError(
            f"{dump.path} holds no {format_key(missing[0])!r}", hint="roll out without --keys"
        )
    return source.select(*env.action_keys)


def _way_in(env: TransformedEnv, stages: tuple[StageConfig, ...]) -> list[str]:
    """The stages that do something to the actions."""
    both = zip(env.stages, stages, strict=True)
    return [format_stage(config) for stage, config in both if stage.invertible]


def _manifest(dump: Dump, pipeline: Pipeline, env: TransformedEnv) -> Manifest:
    old = dump.manifest
    return Manifest(
        pipeline=write_pipeline(pipeline),
        seed=old.seed,
        policy=old.policy,
        policy_sha256=old.policy_sha256,
        goal=Goal(steps=old.steps),
        chunk_steps=old.chunk_steps,
        keys=None,
        batch_size=tuple(env.batch_size),
        specs=spec_entries(env),
        versions=package_versions(),
        source=str(dump.path),
        episodes=EpisodeIndex(max(env.batch_size.numel(), 1)),
    )
