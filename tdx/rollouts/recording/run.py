"""Record a rollout as a dump, resume an interrupted one, or save an existing rollout."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from tensordict import TensorDictBase

from tdx.core import TransformedEnv
from tdx.core.planned.columns import chunk_steps_for
from tdx.envs import EnvBase
from tdx.errors import ArgumentError, EnvError, StorageError, TdxError, summarize_error
from tdx.pipeline import Pipeline, read_pipeline, write_pipeline
from tdx.rollouts.dump.creation import check_target, create_dump, lock_interrupted_dump
from tdx.rollouts.dump.episodes import EpisodeIndex
from tdx.rollouts.dump.folder import MANIFEST
from tdx.rollouts.dump.index import Position
from tdx.rollouts.dump.json_fields import DAMAGED, MAX_COUNT
from tdx.rollouts.dump.manifest import Goal, Manifest, package_versions
from tdx.rollouts.dump.specs import describe_specs
from tdx.rollouts.dump.state_files import remove_leftovers
from tdx.rollouts.dump.writer import DumpWriter
from tdx.rollouts.policies.policy import NamedPolicy, check_policy, load_recorded_policy
from tdx.rollouts.recording.checkpoint import (
    STATE_FIELDS,
    Checkpointer,
    describe_tensors,
    read_chain_state,
)
from tdx.rollouts.recording.raw_envs import RecordingEnv
from tdx.rollouts.recording.request import DumpRequest, build_seeded_env, prepare_dump
from tdx.rollouts.recording.stream import (
    OnChunk,
    find_episode_keys,
    ignore_progress,
    stream_rollout,
)

UNKNOWN = "unknown"
_RECORD_AGAIN = "record the dump again: --force replaces it"


def roll_out(
    request: DumpRequest, folder: Path, *, force: bool = False, on_chunk: OnChunk = ignore_progress
) -> Manifest:
    """Roll out a pipeline into a new dump.

    Args:
        request: What to roll out.
        folder: Folder of the dump.
        force: Whether an existing dump may be replaced.
        on_chunk: Called after each chunk.

    Raises:
        TdxError: The request is invalid, the env fails, or the disk is full. The chunks that were
            finished before are in the dump.
    """
    check_target(folder, force)
    with build_seeded_env(request.pipeline, request.seed, request.allow_code) as (env, seed):
        policy, manifest = prepare_dump(request, env, seed)
        with create_dump(folder, manifest, force=force) as writer:
            policy.copy_to(folder)
            if manifest.keeps_raw:
                env.base_env = RecordingEnv(env.base_env)
            checkpointer = Checkpointer(env, policy.is_code)
            return stream_rollout(env, policy, writer, checkpointer, None, on_chunk)


def record_dump(
    pipeline: Pipeline,
    path: str | Path,
    *,
    steps: int | None = None,
    episodes: int | None = None,
    policy: str | None = None,
    seed: int | None = None,
    keys: tuple[str, ...] | None = None,
    chunk_steps: int | None = None,
    raw: bool = False,
    force: bool = False,
    allow_code: bool = False,
) -> Manifest:
    """Roll out a pipeline into a dump on disk; see ``tdx rollout``.

    Args:
        pipeline: Env and chain.
        path: New folder.
        steps: Number of steps of each env.
        episodes: Number of episodes of all envs together, instead of ``steps``.
        policy: ``random``, ``zero``, ``sequence:FILE``, ``mlp:FILE`` or ``module:FILE``. ``None``:
            that of the pipeline, else ``random``.
        seed: Seed of the env and of the actions. ``None``: that of the pipeline, or a random one.
        keys: Entries to store. ``None``: all.
        chunk_steps: Number of steps per chunk. ``None``: chosen by their size.
        raw: Whether to store the raw steps of the base env too, for :func:`replay`.
        force: Whether an existing dump may be replaced.
        allow_code: Whether Python objects may be imported.

    Returns:
        The manifest; :func:`open_dump` opens the dump.

    Raises:
        TdxError: An argument is invalid, the env fails, or the disk is full.
    """
    if steps is not None and episodes is not None:
        raise ArgumentError("steps and episodes are both given", hint="give one of them")
    goal = None if steps is None and episodes is None else Goal(steps, episodes)
    request = DumpRequest(pipeline, goal, seed, policy, keys, chunk_steps, raw, allow_code)
    return roll_out(request, Path(path), force=force)


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
    """Save an existing rollout as a dump.

    Args:
        rollout: Result of ``env.rollout``, ``[*B, T]``.
        env: Env that it was made with, including its chain.
        pipeline: Pipeline that the env was built from.
        path: New folder.
        seed: Seed of the env. ``None``: unknown, recorded as 0.
        policy: Name of the policy in the dump, for the reader.
        force: Whether an existing dump may be replaced.

    Returns:
        The manifest; :func:`open_dump` opens the dump.

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
    dim, folder = len(env.batch_size), Path(path)
    if rollout.shape[:dim] != env.batch_size or rollout.ndim <= dim or not rollout.shape[dim]:
        wanted = [*env.batch_size, "T"]
        raise ArgumentError(
            f"a rollout of this env has shape {wanted}, this one has {list(rollout.shape)}",
            hint="pass the result of env.rollout(...) with at least one step",
        )
    steps = rollout.shape[dim]
    manifest = Manifest(
        pipeline=write_pipeline(replace(pipeline, env=replace(pipeline.env, seed=seed))),
        seed=seed or 0,
        policy=policy,
        policy_sha256=None,
        goal=Goal(steps=steps),
        chunk_steps=chunk_steps_for(env, None, None),
        keys=None,
        batch_size=tuple(env.batch_size),
        specs=describe_specs(env),
        versions=package_versions(),
        flags=find_episode_keys(env),
        episodes=EpisodeIndex(max(env.batch_size.numel(), 1)),
        transforms=describe_tensors(read_chain_state(env)),
    )
    with create_dump(folder, manifest, force=force, atomic=True) as writer:
        for chunk in rollout.split(manifest.chunk_steps, dim):
            writer.append(chunk, None, None)
        writer.finish()
    return manifest


def resume(
    folder: Path,
    *,
    policy: str | None = None,
    allow_code: bool = False,
    on_chunk: OnChunk = ignore_progress,
) -> Manifest:
    """Resume an interrupted rollout; the result equals that of an uninterrupted one.

    Args:
        folder: Folder of the dump.
        policy: Policy that the dump was recorded with, if the dump has no copy of its file.
        allow_code: Whether Python objects that the pipeline names may be imported.
        on_chunk: Called after each chunk.

    Raises:
        TdxError: It cannot be resumed exactly; the message gives the reason.
    """
    Manifest.load(folder)
    with lock_interrupted_dump(folder) as (root, manifest, end):
        if manifest.complete:
            with suppress(OSError):
                remove_leftovers(root, manifest.state)
            return manifest
        if manifest.source is not None:
            raise ArgumentError(
                f"{folder} is a replay, which cannot be resumed",
                hint=f"replay {manifest.source} again with --force",
            )
        _check_stored(root, folder, manifest)
        return _resume(root, folder, manifest, end, policy, allow_code, on_chunk)


def _check_stored(root: int, folder: Path, manifest: Manifest) -> None:
    for track, steps in manifest.tracks:
        track.check_files(root, folder, steps)
    goal, chunks = manifest.goal, manifest.chunks
    is_reached = manifest.steps >= (goal.steps or MAX_COUNT) or (
        goal.episodes is not None and len(manifest.episodes) >= goal.episodes
    )
    if chunks and not is_reached and chunks[0].steps != manifest.chunk_steps:
        raise StorageError(
            f"{folder} has chunks of {chunks[0].steps} steps, "
            f"and its manifest states {manifest.chunk_steps}",
            hint=DAMAGED,
        )


def _resume(
    root: int,
    folder: Path,
    manifest: Manifest,
    end: Position,
    typed_policy: str | None,
    allow_code: bool,
    on_chunk: OnChunk,
) -> Manifest:
    pipeline = read_pipeline(manifest.pipeline, str(folder / MANIFEST))
    with build_seeded_env(pipeline, manifest.seed, allow_code) as (env, _):
        policy = load_recorded_policy(
            manifest.policy,
            manifest.policy_sha256,
            folder,
            env,
            typed=typed_policy,
            allow_code=allow_code,
        )
        check_policy(policy, env)
        if find_episode_keys(env) != manifest.flags:
            raise StorageError(
                f"{folder} was recorded with other rewards or other ends of episodes",
                hint=_RECORD_AGAIN,
            )
        if manifest.keeps_raw:
            env.base_env = RecordingEnv(env.base_env)
        checkpointer = Checkpointer(env, policy.is_code)
        with DumpWriter(root, folder, manifest, end) as writer:
            remove_leftovers(root, manifest.state)
            start = _restore(env, policy, writer, checkpointer)
            return stream_rollout(env, policy, writer, checkpointer, start, on_chunk)


def _restore(
    env: TransformedEnv, policy: NamedPolicy, writer: DumpWriter, checkpointer: Checkpointer
) -> TensorDictBase | None:
    """Put the env into the state in which the stored steps end.

    Returns:
        The root of the next step, ``[*B]``; ``None`` if the rollout starts with a reset.
    """
    state = writer.read_state()
    if state is None:
        return None
    _check_state(writer.manifest, state, writer.folder)
    if state["env"] is None:
        return _run_again(env, policy, writer, checkpointer)
    try:
        return checkpointer.restore(state)
    except TdxError:
        raise
    except Exception as error:
        raise _state_error(writer.folder, summarize_error(error)) from error


def _check_state(manifest: Manifest, state: Any, folder: Path) -> None:
    if not isinstance(state, dict) or not {"steps", "env"} <= state.keys():
        raise _state_error(folder, "it has no steps")
    if state["env"] is not None and state.keys() != STATE_FIELDS:
        raise _state_error(folder, "it has other fields")
    if state["steps"] != manifest.steps:
        raise _state_error(
            folder, f"it was saved after {state['steps']} steps, and {manifest.steps} are stored"
        )


def _state_error(folder: Path, reason: str) -> StorageError:
    return StorageError(
        f"the state in {folder} does not fit the dump: {reason}", hint=_RECORD_AGAIN
    )


def _run_again(
    env: TransformedEnv, policy: NamedPolicy, writer: DumpWriter, checkpointer: Checkpointer
) -> TensorDictBase:
    """Run the stored steps again, and compare them with their checksums.

    Returns:
        The root of the next step, ``[*B]``.

    Raises:
        EnvError: The steps differ.
    """
    manifest = writer.manifest
    chunks = env.iter_rollout(
        None, policy.start_at(0), chunk_steps=manifest.chunk_steps, auto_reset=True
    )
    for stored in manifest.chunks:
        chunk = next(chunks)
        if isinstance(env.base_env, RecordingEnv):
            env.base_env.pop_steps()
        if writer.checksums(chunk).items() - stored.crc32.items():
            raise EnvError(
                "the env does not repeat its rollout from the seed, and its state cannot be stored",
                hint="this dump cannot be resumed exactly: record it again with --force",
            )
    return checkpointer.start_after(chunk)
