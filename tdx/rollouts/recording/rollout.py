"""Roll out a pipeline into a dump chunk by chunk, and resume an interrupted rollout."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import torch
from tensordict import TensorDictBase

from tdx.core import TransformedEnv
from tdx.foundation.errors import ArgumentError, EnvError, StorageError, TdxError, summarize_error
from tdx.foundation.untrusted import MAX_COUNT
from tdx.pipeline import Pipeline, read_pipeline
from tdx.rollouts.dump.encoding import DAMAGED
from tdx.rollouts.dump.entries import FiniteCheck
from tdx.rollouts.dump.episodes import EpisodeKeys
from tdx.rollouts.dump.folder import (
    MANIFEST,
    STATE,
    list_temporary,
    lock_for_writing,
    remove_leftovers,
)
from tdx.rollouts.dump.manifest import Manifest, load_manifest
from tdx.rollouts.dump.progress import OnChunk, Progress, ignore_progress
from tdx.rollouts.dump.writing import DumpWriter, check_target, create_dump
from tdx.rollouts.policies.policy import NamedPolicy, check_policy, load_recorded_policy
from tdx.rollouts.recording.checkpoint import STATE_FIELDS, Checkpointer
from tdx.rollouts.recording.raw_envs import RecordingEnv
from tdx.rollouts.recording.request import (
    DumpRequest,
    build_seeded_env,
    choose_goal,
    prepare_dump,
)

_RECORD_AGAIN = "record the dump again: --force replaces it"


def roll_out(
    request: DumpRequest, folder: Path, *, force: bool = False, on_chunk: OnChunk = ignore_progress
) -> Manifest:
    """Roll out a pipeline into a new dump.

    Raises:
        TdxError: The request is invalid, the env fails, or the disk is full. The chunks that were
            finished before are in the dump.
    """
    check_target(folder, force)
    with build_seeded_env(request.pipeline, request.seed, request.allow_code, request.workers) as (
        env,
        seed,
    ):
        policy, manifest = prepare_dump(request, env, seed)
        with create_dump(folder, manifest, policy_copy=policy.file_copy, force=force) as writer:
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
    goal = choose_goal(steps, episodes)
    request = DumpRequest(pipeline, goal, seed, policy, keys, chunk_steps, raw, allow_code)
    return roll_out(request, Path(path), force=force)


def resume(
    folder: Path,
    *,
    policy: str | None = None,
    allow_code: bool = False,
    workers: int | None = None,
    on_chunk: OnChunk = ignore_progress,
) -> Manifest:
    """Resume an interrupted rollout; the result equals that of an uninterrupted one.

    Args:
        folder: Folder of the dump.
        policy: Policy that the dump was recorded with, if the dump has no copy of its file.
        allow_code: Whether Python objects that the pipeline names may be imported.
        workers: Number of processes that run the envs of a ``parallel`` batch. ``None``: as many
            as cores.
        on_chunk: Called after each chunk.

    Raises:
        TdxError: It cannot be resumed exactly; the message gives the reason.
    """
    Manifest.load(folder)
    with lock_for_writing(folder) as root:
        manifest, end = load_manifest(root, without_partial=True)
        if manifest.complete:
            with suppress(OSError):
                if STATE in root.names() or list_temporary(root):
                    # A process did not reach the end of remove_leftovers(): the flush of the
                    # manifest may be what failed.
                    manifest.save_header(root, end)
                    remove_leftovers(root, None)
            return manifest
        if manifest.source is not None:
            raise ArgumentError(
                f"{folder} is a replay, which cannot be resumed",
                hint=f"replay {manifest.source} again with --force",
            )
        for track, steps in manifest.tracks:
            track.check_files(root, steps)
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
        pipeline = read_pipeline(manifest.pipeline, str(folder / MANIFEST))
        with build_seeded_env(pipeline, manifest.seed, allow_code, workers) as (env, _):
            recorded = load_recorded_policy(
                *(manifest.policy, manifest.policy_sha256, folder, env),
                typed=policy,
                allow_code=allow_code,
            )
            check_policy(recorded, env)
            if manifest.flags is None or not manifest.flags.fits(env):
                raise StorageError(
                    f"{folder} was recorded with other rewards or other ends of episodes",
                    hint=_RECORD_AGAIN,
                )
            if manifest.keeps_raw:
                env.base_env = RecordingEnv(env.base_env)
            checkpointer = Checkpointer(env, recorded.is_code)
            with DumpWriter(root, manifest, end) as writer:
                remove_leftovers(root, manifest.state)
                start = _restore(env, recorded, writer, checkpointer)
                return stream_rollout(env, recorded, writer, checkpointer, start, on_chunk)


def _restore(
    env: TransformedEnv, policy: NamedPolicy, writer: DumpWriter, checkpointer: Checkpointer
) -> TensorDictBase | None:
    """Put the env into the state in which the stored steps end, and return the next root ``[*B]``.

    ``None``: the rollout starts with a reset.
    """
    state = writer.read_state()
    if state is None:
        return None
    steps, cause = writer.manifest.steps, None
    if not isinstance(state, dict) or not {"steps", "env"} <= state.keys():
        reason = "it has no steps"
    elif state["env"] is not None and state.keys() != STATE_FIELDS:
        reason = "it has other fields"
    elif state["steps"] != steps:
        reason = f"it was saved after {state['steps']} steps, and {steps} are stored"
    elif state["env"] is None:
        return _run_again(env, policy, writer, checkpointer)
    else:
        try:
            return checkpointer.restore(state)
        except TdxError:
            raise
        except Exception as error:
            reason, cause = summarize_error(error), error
    raise StorageError(
        f"the state in {writer.folder} does not fit the dump: {reason}", hint=_RECORD_AGAIN
    ) from cause


def _run_again(
    env: TransformedEnv, policy: NamedPolicy, writer: DumpWriter, checkpointer: Checkpointer
) -> TensorDictBase:
    """Run the stored steps again, compare their checksums, and return the next root ``[*B]``."""
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


class _ChunkStream:
    """Cuts the chunks of one rollout to its goal, and prepares what is written with them."""

    def __init__(
        self,
        env: TransformedEnv,
        writer: DumpWriter,
        checkpointer: Checkpointer,
        on_chunk: OnChunk,
        can_resume: bool,
    ) -> None:
        self._env, self._writer, self._on_chunk = env, writer, on_chunk
        self._checkpointer, self._can_resume = checkpointer, can_resume
        manifest = writer.manifest
        self._dim = len(manifest.batch_size)
        self._finite = FiniteCheck(self._dim)
        self._keys = manifest.flags or EpisodeKeys.of(env)
        self._goal, self._chunk_steps = manifest.goal, manifest.chunk_steps
        # The writing thread changes the manifest, so that its counts cannot be read here.
        self._first_step = self.steps = manifest.steps
        self.episodes = len(manifest.episodes)

    @property
    def is_over(self) -> bool:
        """True if the goal is reached."""
        goal = self._goal
        if goal.steps is not None:
            return self.steps >= goal.steps
        return goal.episodes is not None and self.episodes >= goal.episodes

    def add(self, chunk: TensorDictBase) -> Callable[[], None]:
        """Count a chunk ``[*B, T]``; returns the task that writes it."""
        length, expected = int(chunk.shape[self._dim]), self._chunk_steps
        if self._goal.steps is not None:
            expected = min(expected, self._goal.steps - self.steps)
        partial = length < expected
        base = self._env.base_env
        raw = base.pop_steps() if isinstance(base, RecordingEnv) else None
        steps = self._count_steps(chunk)
        if steps < length:
            has_equal_length = raw is not None and raw.shape == chunk.shape
            index = (*[slice(None)] * self._dim, slice(0, steps))
            chunk = chunk[index]
            raw = raw[index] if raw is not None and has_equal_length else raw
        start = self.steps
        self.steps += steps
        has_state = self._can_resume and not partial and not self.is_over
        state = self._checkpointer.save(chunk, self.steps) if has_state else None
        transforms = None if partial else self._checkpointer.describe_changes()
        progress = Progress(self.steps, self.episodes, self._goal, self.steps - self._first_step)

        def write() -> None:
            if transforms is not None:
                self._writer.manifest.transforms = transforms
            self._writer.append(chunk, raw, state, partial=partial)
            self._finite.check(self._writer.select(chunk), start)
            self._on_chunk(progress)

        return write

    def _count_steps(self, chunk: TensorDictBase) -> int:
        """Return how many steps of a chunk belong to the rollout, and count its episodes."""
        ended = self._keys.read(chunk, self._dim)[1].sum(0).cumsum(0)
        left = None if self._goal.episodes is None else self._goal.episodes - self.episodes
        steps = len(ended)
        if left is not None and int(ended[-1]) >= left:
            steps = int((ended >= left).nonzero()[0]) + 1
        self.episodes += int(ended[steps - 1])
        return steps


def stream_rollout(
    env: TransformedEnv,
    policy: NamedPolicy,
    writer: DumpWriter,
    checkpointer: Checkpointer,
    start: TensorDictBase | None,
    on_chunk: OnChunk,
    *,
    can_resume: bool = True,
) -> Manifest:
    """Roll out until the goal of a dump is reached.

    The rollout starts at the root ``start``, ``[*B]``, or with a reset. ``on_chunk`` is called in
    the writing thread after each chunk is on the disk.
    """
    manifest = writer.manifest
    stream = _ChunkStream(env, writer, checkpointer, on_chunk, can_resume)
    writing: Future[None] | None = None
    with torch.no_grad(), ThreadPoolExecutor(1, "tdx-dump") as background:
        if not stream.is_over:
            chunks = env.iter_rollout(
                None if manifest.goal.steps is None else manifest.goal.steps - stream.steps,
                policy.start_at(stream.steps),
                chunk_steps=manifest.chunk_steps,
                auto_reset=start is None,
                tensordict=start,
            )
            for chunk in chunks:
                task = stream.add(chunk)
                if writing is not None:
                    # One chunk is written while the next one is recorded.
                    writing.result()
                writing = background.submit(task)
                if stream.is_over:
                    break
        if writing is not None:
            writing.result()
        writer.finish()
    return manifest
