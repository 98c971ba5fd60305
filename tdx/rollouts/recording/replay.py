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
from tdx.rollouts.dump.creation import check_target, create_dump
from tdx.rollouts.dump.episodes import EpisodeIndex
from tdx.rollouts.dump.json_fields import DAMAGED
from tdx.rollouts.dump.manifest import Goal, Manifest, package_versions
from tdx.rollouts.dump.reading import Dump
from tdx.rollouts.dump.specs import describe_specs
from tdx.rollouts.policies.policy import NamedPolicy
from tdx.rollouts.recording.checkpoint import Checkpointer
from tdx.rollouts.recording.raw_envs import RESET_KEY, PlaybackEnv
from tdx.rollouts.recording.stream import (
    OnChunk,
    find_episode_keys,
    ignore_progress,
    stream_rollout,
)


def replay(
    dump: Dump,
    stages: tuple[StageConfig, ...],
    folder: Path,
    *,
    force: bool = False,
    allow_code: bool = False,
    on_chunk: OnChunk = ignore_progress,
) -> Manifest:
    """Apply another chain to the raw steps of a dump, and write the result as a new dump.

    The env is built for its specs, and not stepped. If the chain needs other steps from the env
    than the recorded ones (other actions, a reset elsewhere), an error reports it.

    Args:
        dump: A dump that was recorded without a chain, or with ``raw``.
        stages: The chain.
        folder: Folder of the new dump.
        force: Whether an existing dump may be replaced.
        allow_code: Whether Python objects may be imported.
        on_chunk: Called after each chunk.

    Raises:
        ArgumentError: The dump does not have the raw steps.
        EnvError: The chain needs other steps.
    """
    check_target(folder, force)
    if folder.resolve() == dump.path.resolve():
        raise ArgumentError(
            f"{folder} is the dump that is replayed", hint="name another folder for the result"
        )
    pipeline = replace(dump.pipeline, transforms=stages, file=None)
    recorded = _read_raw_steps(dump)
    env = build_env(pipeline, allow_code)
    try:
        actions = _find_actions(dump, env, stages, recorded, allow_code)
        manifest = _create_manifest(dump, pipeline, env)
        env.base_env = PlaybackEnv(env.base_env, recorded)
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(dump.manifest.seed)
            policy = NamedPolicy("replay", None, None, lambda step: ActionSequence(actions))
            with create_dump(folder, manifest, force=force, atomic=True) as writer:
                checkpointer = Checkpointer(env)
                return stream_rollout(env, policy, writer, checkpointer, None, on_chunk)
    finally:
        env.close()


def _read_raw_steps(dump: Dump) -> TensorDictBase:
    """Return the raw steps of a dump, ``[*B, T]``, with :data:`RESET_KEY`."""
    if dump.raw is not None:
        return dump.raw
    manifest = dump.manifest
    if dump.pipeline.transforms:
        raise ArgumentError(
            f"{dump.path} does not have the raw steps of the env",
            hint="roll out with --raw, or without a chain",
        )
    if manifest.keys is not None:
        raise ArgumentError(
            f"{dump.path} has only some of the entries",
            hint="roll out without --keys, or with --raw",
        )
    data = dump.data
    dim = data.ndim - 1
    resets = torch.ones((*data.shape, 1), dtype=torch.bool)
    ended = torch.zeros(data.shape, dtype=torch.bool)
    for name in [("next", *entry["key"]) for entry in manifest.specs if entry["part"] == "done"]:
        flag = data.get(name, None)
        if not isinstance(flag, torch.Tensor):
            raise StorageError(f"{dump.path} has no {format_key(name)!r}", hint=DAMAGED)
        ended |= flag.reshape(*data.shape, -1).any(-1)
    steps = data.shape[dim]
    resets.narrow(dim, 1, steps - 1).copy_(ended.narrow(dim, 0, steps - 1).unsqueeze(-1))
    recorded = data.clone(recurse=False)
    recorded.set(RESET_KEY, resets)
    return recorded


def _find_actions(
    dump: Dump,
    env: TransformedEnv,
    stages: tuple[StageConfig, ...],
    recorded: TensorDictBase,
    allow_code: bool,
) -> TensorDictBase:
    """Return the actions to pass to the new chain, ``[*B, T]``.

    They are those of the dump if both chains transform actions in the same way, else the raw ones.
    """
    old_env = build_env(dump.pipeline, allow_code)
    try:
        is_same = _inverse_stages(old_env, dump.pipeline.transforms) == _inverse_stages(env, stages)
    finally:
        old_env.close()
    source = dump.data if is_same else recorded
    missing = [key for key in env.action_keys if source.get(key, None) is None]
    if missing:
        raise ArgumentError(
            f"{dump.path} has no {format_key(missing[0])!r}", hint="roll out without --keys"
        )
    return source.select(*env.action_keys)


def _inverse_stages(env: TransformedEnv, stages: tuple[StageConfig, ...]) -> list[str]:
    """Return the stages that transform actions."""
    pairs = zip(env.stages, stages, strict=True)
    return [format_stage(config) for stage, config in pairs if stage.invertible]


def _create_manifest(dump: Dump, pipeline: Pipeline, env: TransformedEnv) -> Manifest:
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
        specs=describe_specs(env),
        versions=package_versions(),
        source=str(dump.path),
        flags=find_episode_keys(env),
        episodes=EpisodeIndex(max(env.batch_size.numel(), 1)),
    )
