"""Write existing steps as a dump: a rollout in memory, or a recording behind another chain.

Such a dump appears complete or not at all, because it cannot be resumed.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import torch
from tensordict import TensorDictBase

from tdx.core import TransformedEnv
from tdx.core.planned.columns import chunk_steps_for
from tdx.envs import ActionSequence, EnvBase
from tdx.foundation.container import Container
from tdx.foundation.errors import ArgumentError, StorageError, Where
from tdx.foundation.files import atomic_folder, report_write_errors
from tdx.foundation.keys import format_key, normalize_key
from tdx.pipeline import Pipeline, StageConfig, format_stage
from tdx.rollouts.dump.encoding import DAMAGED
from tdx.rollouts.dump.entries import describe_specs
from tdx.rollouts.dump.folder import SHARDS
from tdx.rollouts.dump.manifest import Goal, Manifest
from tdx.rollouts.dump.progress import OnChunk, ignore_progress
from tdx.rollouts.dump.reading import Dump, load_manifest_of
from tdx.rollouts.dump.shard_plan import ShardPlan, shard_name
from tdx.rollouts.dump.writing import check_target, create_dump
from tdx.rollouts.policies.policy import NamedPolicy
from tdx.rollouts.recording.checkpoint import Checkpointer, describe_tensors, read_chain_state
from tdx.rollouts.recording.raw_envs import RESET_KEY, PlaybackEnv
from tdx.rollouts.recording.request import create_manifest
from tdx.rollouts.recording.rollout import stream_rollout
from tdx.rollouts.recording.shards import complete_shards
from tdx.stacks.building import build_env

UNKNOWN = "unknown"


def keep_rollout(
    rollout: TensorDictBase,
    env: EnvBase,
    pipeline: Pipeline,
    path: str | Path,
    *,
    seed: int | None = None,
    policy: str = UNKNOWN,
    force: bool = False,
) -> Manifest:
    """Save an existing rollout as a dump, and return its manifest.

    Args:
        rollout: Result of ``env.rollout``, ``[*B, T]``.
        env: Env that returned it, with its chain, or an object with its specs and names of keys.
        pipeline: Pipeline that the env was built from.
        path: New folder.
        seed: Seed of the env. ``None``: unknown, recorded as 0.
        policy: Name of the policy.
        force: Whether an existing dump may be replaced.

    Raises:
        TdxError: The rollout is empty or does not fit the env, or the dump cannot be written.

    Example:
        >>> import tempfile
        >>> from tdx import Pipeline, build_env, keep_rollout, open_dump
        >>> pipeline = Pipeline.of("Pendulum-v1", "RewardSum")
        >>> env, folder = build_env(pipeline), tempfile.mkdtemp() + "/dump"
        >>> rollout = env.rollout(5)
        >>> keep_rollout(rollout, env, pipeline, folder).steps
        5
        >>> bool((open_dump(folder).data == rollout).all())
        True
    """
    dim = len(env.batch_size)
    if rollout.shape[:dim] != env.batch_size or rollout.ndim <= dim or not rollout.shape[dim]:
        raise ArgumentError(
            f"a rollout of this env has shape {[*env.batch_size, 'T']}, this one has "
            f"{list(rollout.shape)}",
            hint="pass the result of env.rollout(...) with at least one step",
        )
    manifest = create_manifest(
        env,
        replace(pipeline, env=replace(pipeline.env, seed=seed)),
        Goal(steps=rollout.shape[dim]),
        seed=seed or 0,
        policy=policy,
        policy_sha256=None,
        chunk_steps=chunk_steps_for(env, None, None),
        keys=None,
        transforms=describe_tensors(read_chain_state(env)),
    )
    with create_dump(Path(path), manifest, force=force, atomic=True) as writer:
        for chunk in rollout.split(manifest.chunk_steps, dim):
            writer.append(chunk, None, None)
        writer.finish()
    return manifest


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
        ArgumentError: The dump does not have the raw steps, or not as the env of tdx returns them.
        EnvError: The chain needs other steps.
    """
    check_target(folder, force)
    if folder.resolve() == dump.path.resolve():
        raise ArgumentError(
            f"{folder} is the dump that is replayed", hint="name another folder for the result"
        )
    if dump.shards:
        return _replay_shards(dump, stages, folder, allow_code, on_chunk)
    return _replay(dump, stages, folder, None, force, allow_code, on_chunk)


def _replay(
    dump: Dump,
    stages: tuple[StageConfig, ...],
    folder: Path,
    manifest: Manifest | None,
    force: bool,
    allow_code: bool,
    on_chunk: OnChunk,
) -> Manifest:
    pipeline = replace(dump.pipeline, transforms=stages, file=None)
    recorded = _read_raw_steps(dump)
    env = build_env(pipeline, allow_code)
    try:
        _check_recorded(dump, env.base_env)
        actions = _find_actions(dump, env, stages, recorded, allow_code)
        if manifest is None:
            manifest = _describe_replay(dump, env, pipeline)
        env.base_env = PlaybackEnv(env.base_env, recorded)
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(manifest.seed)
            policy = NamedPolicy("replay", None, None, lambda step: ActionSequence(actions))
            with create_dump(folder, manifest, force=force, atomic=True) as writer:
                checkpointer = Checkpointer(env)
                return stream_rollout(
                    env, policy, writer, checkpointer, None, on_chunk, can_resume=False
                )
    finally:
        env.close()


def _describe_replay(dump: Dump, env: EnvBase, pipeline: Pipeline) -> Manifest:
    old = dump.manifest
    return create_manifest(
        env,
        pipeline,
        Goal(steps=old.steps),
        seed=old.seed,
        policy=old.policy,
        policy_sha256=old.policy_sha256,
        chunk_steps=old.chunk_steps,
        keys=None,
        source=str(dump.path),
    )


def _replay_shards(
    dump: Dump,
    stages: tuple[StageConfig, ...],
    folder: Path,
    allow_code: bool,
    on_chunk: OnChunk,
) -> Manifest:
    """Replay each shard; all of them appear at once."""
    if not dump.manifest.complete or dump.manifest.goal.steps is None:
        raise ArgumentError(
            f"the shards of {dump.path} are not complete, or have a number of episodes as their "
            "length",
            hint=f"replay one of them: {dump.shards[0].path}",
        )
    pipeline = replace(dump.pipeline, transforms=stages, file=None)
    env = build_env(pipeline, allow_code)
    plan = ShardPlan(_describe_replay(dump, env, pipeline), len(dump.shards))
    env.close()
    with (
        report_write_errors(folder, full_hint="make room, then run the command again"),
        atomic_folder(os.path.abspath(folder)) as part,
    ):
        (part / SHARDS).mkdir()
        with Container.open(part) as root:
            plan.save(root)
        for shard, recorded in enumerate(dump.shards):
            target, manifest = part / shard_name(shard), plan.shard_manifest(shard)
            _replay(recorded, stages, target, manifest, False, allow_code, on_chunk)
        complete_shards(part)
    return load_manifest_of(folder)


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


def _check_recorded(dump: Dump, base: EnvBase) -> None:
    """Refuse raw steps whose entries have other shapes or dtypes than those of the env.

    The live steps of an env of another library are stored as that library returns them.
    """
    if dump.raw is not None:
        return
    expected = {tuple(spec["key"]): spec for spec in describe_specs(base)}
    for found in dump.manifest.specs:
        entry = expected.get(tuple(found["key"]), found)
        texts = [f"{spec['dtype']} {spec['shape']}" for spec in (found, entry)]
        if texts[0] != texts[1]:
            raise ArgumentError(
                f"{dump.path} has {texts[0]}, its env in a chain of tdx has {texts[1]}",
                hint="live steps of an env of another library cannot be replayed: record them "
                "with tdx rollout",
                where=Where(key=normalize_key(tuple(map(str, found["key"])))),
            )


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
    pairs = zip(env.stages, stages, strict=True)
    return [format_stage(config) for stage, config in pairs if stage.invertible]
