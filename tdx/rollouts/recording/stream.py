"""Roll out an env into a dump chunk by chunk: one is written while the next one is computed."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Self

import torch
from tensordict import TensorDictBase

from tdx.core import TransformedEnv
from tdx.envs import EnvBase
from tdx.rollouts.dump.episodes import EpisodeKeys
from tdx.rollouts.dump.manifest import Goal, Manifest
from tdx.rollouts.dump.writer import DumpWriter
from tdx.rollouts.policies.policy import NamedPolicy
from tdx.rollouts.recording.checkpoint import Checkpointer
from tdx.rollouts.recording.raw_envs import RecordingEnv


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a rollout.

    Args:
        steps: Number of steps of each env so far.
        episodes: Number of episodes that ended so far.
        goal: Length of the whole rollout.
        new_steps: Number of steps since the rollout was started or resumed.
    """

    steps: int
    episodes: int
    goal: Goal
    new_steps: int


OnChunk = Callable[[Progress], None]


def ignore_progress(progress: Progress) -> None:
    """Do nothing: the default of every progress callback."""


def find_episode_keys(env: EnvBase) -> EpisodeKeys:
    """Return the keys of an env's rewards and done flags."""
    return EpisodeKeys(tuple(env.reward_keys), tuple(env.done_keys))


class _BackgroundWriter:
    """Runs tasks in one thread, in order; at most one is pending.

    An error in a task is raised by the next call.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "tdx-dump")
        self._last: Future[None] | None = None

    def submit(self, task: Callable[[], None]) -> None:
        """Wait for the previous task, and start this one."""
        self.wait()
        self._last = self._pool.submit(task)

    def wait(self) -> None:
        """Wait for the pending task."""
        last, self._last = self._last, None
        if last is not None:
            last.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown(wait=True)


class _ChunkStream:
    """Cuts the chunks of one rollout to its goal, and prepares what is written with them."""

    def __init__(
        self,
        env: TransformedEnv,
        writer: DumpWriter,
        checkpointer: Checkpointer,
        on_chunk: OnChunk,
    ) -> None:
        self._env, self._writer, self._on_chunk = env, writer, on_chunk
        self._checkpointer = checkpointer
        manifest = writer.manifest
        self._dim = len(manifest.batch_size)
        self._keys = find_episode_keys(env)
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
            chunk = self._cut(chunk, steps)
            raw = self._cut(raw, steps) if raw is not None and raw.shape == chunk.shape else raw
        self.steps += steps
        state = None if partial or self.is_over else self._checkpointer.save(chunk, self.steps)
        transforms = None if partial else self._checkpointer.describe_changes()
        return self._write_task(chunk, raw, state, transforms, partial)

    def _write_task(
        self,
        chunk: TensorDictBase,
        raw: TensorDictBase | None,
        state: dict[str, Any] | None,
        transforms: dict[str, Any] | None,
        partial: bool,
    ) -> Callable[[], None]:
        progress = Progress(self.steps, self.episodes, self._goal, self.steps - self._first_step)

        def write() -> None:
            if transforms is not None:
                self._writer.manifest.transforms = transforms
            self._writer.append(chunk, raw, state, partial=partial)
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

    def _cut(self, data: TensorDictBase, steps: int) -> TensorDictBase:
        return data[(*[slice(None)] * self._dim, slice(0, steps))]


def stream_rollout(
    env: TransformedEnv,
    policy: NamedPolicy,
    writer: DumpWriter,
    checkpointer: Checkpointer,
    start: TensorDictBase | None,
    on_chunk: OnChunk,
) -> Manifest:
    """Roll out until the goal of a dump is reached.

    Args:
        env: Env with its chain.
        policy: Policy of the rollout.
        writer: Writer of the dump.
        checkpointer: Saves the state after each chunk.
        start: Root of the first step, ``[*B]``; ``None``: the rollout starts with a reset.
        on_chunk: Called in the writing thread after each chunk is on the disk.
    """
    manifest = writer.manifest
    stream = _ChunkStream(env, writer, checkpointer, on_chunk)
    with torch.no_grad(), _BackgroundWriter() as background:
        if not stream.is_over:
            chunks = env.iter_rollout(
                None if manifest.goal.steps is None else manifest.goal.steps - stream.steps,
                policy.start_at(stream.steps),
                chunk_steps=manifest.chunk_steps,
                auto_reset=start is None,
                tensordict=start,
            )
            for chunk in chunks:
                background.submit(stream.add(chunk))
                if stream.is_over:
                    break
        background.wait()
        writer.finish()
    return manifest
