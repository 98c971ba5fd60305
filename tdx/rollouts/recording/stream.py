"""Roll out an env into a dump chunk by chunk: one is written while the next one is computed."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import torch
from tensordict import TensorDictBase

from tdx.core import TransformedEnv
from tdx.envs import EnvBase
from tdx.rollouts.dump.episodes import Flags
from tdx.rollouts.dump.manifest import Goal, Manifest
from tdx.rollouts.dump.writer import DumpWriter
from tdx.rollouts.policies.policy import NamedPolicy
from tdx.rollouts.recording.checkpoint import Border
from tdx.rollouts.recording.raw_envs import RecordingEnv


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a rollout is.

    Args:
        steps: of each env, so far.
        episodes: that ended, so far.
        goal: what it is to reach.
        new_steps: how many of the steps were made now, and not before it was resumed.
    """

    steps: int
    episodes: int
    goal: Goal
    new_steps: int


OnChunk = Callable[[Progress], None]


def silent(progress: Progress) -> None:
    """Tell nobody."""


def flags_of(env: EnvBase) -> Flags:
    """The keys of an env's rewards and ends."""
    return Flags(tuple(env.reward_keys), tuple(env.done_keys))


class _Behind:
    """Does one thing after another in a thread of its own; at most one waits.

    What it raises is raised by the next call.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "tdx-dump")
        self._last: Future[None] | None = None

    def __call__(self, task: Callable[[], None]) -> None:
        self.wait()
        self._last = self._pool.submit(task)

    def wait(self) -> None:
        """Until nothing is left to do."""
        last, self._last = self._last, None
        if last is not None:
            last.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._pool.shutdown(wait=True)


class _Stream:
    """Takes the chunks of one rollout."""

    def __init__(
        self, env: TransformedEnv, writer: DumpWriter, border: Border, on_chunk: OnChunk
    ) -> None:
        self._env, self._writer, self._border, self._on_chunk = env, writer, border, on_chunk
        manifest = writer.manifest
        self._dim = len(manifest.batch_size)
        self._flags = flags_of(env)
        self._goal, self._chunk_steps = manifest.goal, manifest.chunk_steps
        # The manifest belongs to the thread that writes.
        self.begun = self.steps = manifest.steps
        self.episodes = len(manifest.episodes)

    @property
    def is_over(self) -> bool:
        """Whether the goal is reached."""
        goal = self._goal
        if goal.steps is not None:
            return self.steps >= goal.steps
        return goal.episodes is not None and self.episodes >= goal.episodes

    def take(self, chunk: TensorDictBase) -> Callable[[], None]:
        """Take in a chunk ``[*B, T]``; returns what writes it."""
        length, wanted = int(chunk.shape[self._dim]), self._chunk_steps
        if self._goal.steps is not None:
            wanted = min(wanted, self._goal.steps - self.steps)
        failed = length < wanted
        base = self._env.base_env
        raw = base.take() if isinstance(base, RecordingEnv) else None
        kept = self._kept_steps(chunk)
        if kept < length:
            chunk = self._cut(chunk, kept)
            raw = self._cut(raw, kept) if raw is not None and raw.shape == chunk.shape else raw
        self.steps += kept
        state = None if failed or self.is_over else self._border.state(chunk, self.steps)
        readable = None if failed else self._border.readable()
        return self._writing(chunk, raw, state, readable, failed)

    def _writing(
        self,
        chunk: TensorDictBase,
        raw: TensorDictBase | None,
        state: dict[str, Any] | None,
        readable: dict[str, Any] | None,
        failed: bool,
    ) -> Callable[[], None]:
        progress = Progress(self.steps, self.episodes, self._goal, self.steps - self.begun)

        def write() -> None:
            if readable is not None:
                self._writer.manifest.transforms = readable
            self._writer.append(chunk, raw, state, partial=failed)
            self._on_chunk(progress)

        return write

    def _kept_steps(self, chunk: TensorDictBase) -> int:
        """How many steps of the chunk belong to the rollout; counts its episodes."""
        ended = self._flags.read(chunk, self._dim)[1].sum(0).cumsum(0)
        left = None if self._goal.episodes is None else self._goal.episodes - self.episodes
        kept = len(ended)
        if left is not None and int(ended[-1]) >= left:
            kept = int((ended >= left).nonzero()[0]) + 1
        self.episodes += int(ended[kept - 1])
        return kept

    def _cut(self, data: TensorDictBase, steps: int) -> TensorDictBase:
        return data[(*[slice(None)] * self._dim, slice(0, steps))]


def run_chunks(
    env: TransformedEnv,
    policy: NamedPolicy,
    writer: DumpWriter,
    border: Border,
    start: TensorDictBase | None,
    on_chunk: OnChunk,
) -> Manifest:
    """Roll out until the goal of a dump is reached.

    Args:
        env: the env.
        policy: what it acts by.
        writer: of the dump.
        border: takes down the state after each chunk.
        start: the root of the first step, ``[*B]``; none for a reset.
        on_chunk: called after each chunk is on the disk, in the thread that writes.
    """
    manifest = writer.manifest
    stream = _Stream(env, writer, border, on_chunk)
    with torch.no_grad(), _Behind() as behind:
        if not stream.is_over:
            chunks = env.iter_rollout(
                None if manifest.goal.steps is None else manifest.goal.steps - stream.steps,
                policy.after(stream.steps),
                chunk_steps=manifest.chunk_steps,
                auto_reset=start is None,
                tensordict=start,
            )
            for chunk in chunks:
                behind(stream.take(chunk))
                if stream.is_over:
                    break
        behind.wait()
        writer.finish()
    return manifest
