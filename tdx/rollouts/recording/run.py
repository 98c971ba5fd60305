"""Record a rollout as a dump, resume an interrupted one, or save an existing rollout."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from tensordict import TensorDictBase

from tdx.core import TransformedEnv
from tdx.core.planned.chunk_size import chunk_steps_for
from tdx.envs import EnvBase
from tdx.errors import (
    ArgumentError,
    EnvError,
    StorageError,
    TdxError,
    one_line,
)
from tdx.pipeline import Pipeline, read_pipeline, write_pipeline
from tdx.rollouts.dump.creation import check_target, new_dump, resumed_dump, whole_dump
from tdx.rollouts.dump.episodes import EpisodeIndex
from tdx.rollouts.dump.folder import MANIFEST
from tdx.rollouts.dump.index import Position
from tdx.rollouts.dump.json_fields import DAMAGED, MAX_COUNT
from tdx.rollouts.dump.manifest import Goal, Manifest, package_versions
from tdx.rollouts.dump.specs import spec_entries
from tdx.rollouts.dump.state_files import remove_leftovers
from tdx.rollouts.dump.writer import DumpWriter
from tdx.rollouts.policies.policy import (
    NamedPolicy,
    check_policy,
    resumed_policy,
)
from tdx.rollouts.recording.checkpoint import Border, as_plain, chain_state
from tdx.rollouts.recording.raw_envs import RecordingEnv
from tdx.rollouts.recording.request import (
    DumpRequest,
    prepared,
    seeded_env,
)
from tdx.rollouts.recording.stream import OnChunk, flags_of, run_chunks, silent


def roll_out(
    request: DumpRequest, folder: Path, *, force: bool = False, on_chunk: OnChunk = silent
) -> Manifest:
    """Roll a pipeline out into a new dump.

    Args:
        request: what to roll out.
        folder: of the dump.
        force: whether a dump that is there is overwritten.
        on_chunk: called after each chunk.

    Raises:
        TdxError: the request cannot be met, the env fails, or the disk is full. What was finished
            until then is in the dump.
    """
    check_target(folder, force)
    with seeded_env(request.pipeline, request.seed, request.allow_code) as (env, seed):
        policy, manifest = prepared(request, env, seed)
        with new_dump(folder, manifest, flags_of(env), force=force) as writer:
            policy.keep(folder)
            if manifest.keeps_raw:
                env.base_env = RecordingEnv(env.base_env)
            return run_chunks(env, policy, writer, Border(env, not policy.is_code), None, on_chunk)


def resume(
    folder: Path,
    *,
    policy: str | None = None,
    allow_code: bool = False,
    on_chunk: OnChunk = silent,
) -> Manifest:
    """Go on with a dump that was interrupted, to what it would have been without.

    Args:
        folder: of the dump.
        policy: the policy that the dump was recorded with, where the dump has no copy of its file.
        allow_code: whether Python objects that its pipeline names may be imported.
        on_chunk: called after each chunk.

    Raises:
        TdxError: it cannot be gone on with exactly; the message says why.
    """
    Manifest.load(folder)
    with resumed_dump(folder) as (root, manifest, end):
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
        return _resumed(root, folder, manifest, end, policy, allow_code, on_chunk)


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


def _resumed(
    root: int,
    folder: Path,
    manifest: Manifest,
    end: Position,
    typed: str | None,
    allow_code: bool,
    on_chunk: OnChunk,
) -> Manifest:
    pipeline = read_pipeline(manifest.pipeline, str(folder / MANIFEST))
    with seeded_env(pipeline, manifest.seed, allow_code) as (env, _):
        name, sha256 = manifest.policy, manifest.policy_sha256
        policy = resumed_policy(name, sha256, folder, env, typed=typed, allow_code=allow_code)
        check_policy(policy, env)
        flags = flags_of(env)
        if flags != manifest.flags:
            raise StorageError(
                f"{folder} was recorded with other rewards or other ends of episodes",
                hint="record the dump again: --force replaces it",
            )
        if manifest.keeps_raw:
            env.base_env = RecordingEnv(env.base_env)
        border = Border(env, not policy.is_code)
        with DumpWriter(root, folder, manifest, flags, end) as writer:
            remove_leftovers(root, manifest.state)
            start = _start(env, policy, writer, border)
            return run_chunks(env, policy, writer, border, start, on_chunk)


def _start(
    env: TransformedEnv, policy: NamedPolicy, writer: DumpWriter, border: Border
) -> TensorDictBase | None:
    """Put the env where the stored steps end; returns the root of the next step.

    Returns:
        The root ``[*B]``; ``None`` if the rollout starts with a reset.
    """
    state = writer.state()
    if state is None:
        return None
    _check_state(writer.manifest, state, writer.folder)
    if state["env"] is None:
        return _made_again(env, policy, writer, border)
    try:
        return border.restore(state)
    except TdxError:
        raise
    except Exception as error:
        raise _unfit(writer.folder, one_line(error)) from error


_STATE_FIELDS = {
    *("steps", "rng", "device_rng", "chain", "memory", "env", "root", "groups", "raw_root"),
}


def _check_state(manifest: Manifest, state: Any, folder: Path) -> None:
    if not isinstance(state, dict) or not {"steps", "env"} <= state.keys():
        raise _unfit(folder, "it has no steps")
    if state["env"] is not None and state.keys() != _STATE_FIELDS:
        raise _unfit(folder, "it has other fields")
    if state["steps"] != manifest.steps:
        raise _unfit(
            folder, f"it is the one after {state['steps']} steps, and {manifest.steps} are stored"
        )


def _unfit(folder: Path, reason: str) -> StorageError:
    return StorageError(
        f"the state in {folder} does not fit the dump: {reason}",
        hint="record the dump again: --force replaces it",
    )


def _made_again(
    env: TransformedEnv, policy: NamedPolicy, writer: DumpWriter, border: Border
) -> TensorDictBase:
    """Roll out again what is stored, and hold it against the checksums; returns where it ends.

    Raises:
        EnvError: it is not what is stored.
    """
    manifest = writer.manifest
    chunks = env.iter_rollout(
        None, policy.after(0), chunk_steps=manifest.chunk_steps, auto_reset=True
    )
    for stored in manifest.chunks:
        chunk = next(chunks)
        if isinstance(env.base_env, RecordingEnv):
            env.base_env.take()
        if writer.checksums(chunk).items() - stored.crc32.items():
            raise EnvError(
                "the env does not repeat its rollout from the seed, and its state cannot be stored",
                hint="this dump cannot be resumed exactly: roll out anew with --force",
            )
    return border.start(chunk)


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
    """Roll a pipeline out into a dump on disk; see ``tdx rollout``.

    Args:
        pipeline: the env and its chain.
        path: a new folder.
        steps: how many steps each env makes.
        episodes: how many episodes all envs make together, instead.
        policy: ``random``, ``zero``, ``sequence:FILE``, ``mlp:FILE`` or ``module:FILE``; that of
            the pipeline by default, else random.
        seed: of the env and of the actions; a fresh one by default.
        keys: the entries to store; all by default.
        chunk_steps: how many steps are written at a time.
        raw: whether what the env itself gives is stored too, for :func:`replay`.
        force: whether a dump that is there is overwritten.
        allow_code: whether Python objects may be imported.

    Returns:
        the manifest; :func:`open_dump` opens the dump.

    Raises:
        TdxError: the request cannot be met, the env fails, or the disk is full.
    """
    if steps is not None and episodes is not None:
        raise ArgumentError("steps and episodes are both given", hint="give one of them")
    goal = None if steps is None and episodes is None else Goal(steps, episodes)
    request = DumpRequest(pipeline, goal, seed, policy, keys, chunk_steps, raw, allow_code)
    return roll_out(request, Path(path), force=force)


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
    """Write a rollout that was made by hand, by a policy of one's own, or live, as a dump.

    Args:
        rollout: what ``env.rollout`` returns, ``[*B, T]``.
        env: the env that made it, with its chain.
        pipeline: what the env was built from.
        path: a new folder.
        seed: of the env, where it is known; 0 stands for one that is not.
        policy: what the dump says of the actions; such a dump cannot be rolled out anew.
        force: whether a dump that is there is overwritten.

    Returns:
        the manifest; :func:`open_dump` opens the dump.

    Raises:
        TdxError: the rollout is no such one or has no step, or it cannot be written.

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
            f"a rollout of this env has the shape {wanted}, this has {list(rollout.shape)}",
            hint="give what env.rollout(...) returns, with a step at least",
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
        specs=spec_entries(env),
        versions=package_versions(),
        episodes=EpisodeIndex(max(env.batch_size.numel(), 1)),
        transforms=as_plain(chain_state(env)),
    )
    with whole_dump(folder, manifest, flags_of(env), force=force) as writer:
        for chunk in rollout.split(manifest.chunk_steps, dim):
            writer.append(chunk, None, None)
        writer.finish()
    return manifest
