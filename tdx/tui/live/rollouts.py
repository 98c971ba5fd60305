"""Worker side of the Live tab: its sessions, of which the latest two are kept."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from tdx.inspection.live.stack_env import LiveStackTracer, StackEnv
from tdx.stacks.building import build_stack
from tdx.tui.backend.activity import ActivityRecord
from tdx.tui.backend.messages import Job
from tdx.tui.live.messages import RunSession
from tdx.tui.live.worker import LivePlayer, Push

if TYPE_CHECKING:
    from tdx.envs import EnvBase

OpenEnv = Callable[[RunSession, int, ExitStack], "EnvBase | StackEnv"]
_KEPT = 2


def run_session(request: RunSession, job: Job) -> None:
    """Step an env until the request is cancelled."""
    job.activity.begin(f"building {request.pipeline.env.id}", 0)
    player = job.get_cached("rollouts", lambda: Rollouts(activity=job.activity)).open(
        request, job.push
    )
    job.activity.end()
    tracer = player.session.tracer
    attached = tracer.attached() if isinstance(tracer, LiveStackTracer) else nullcontext()
    with attached, player.watch.running():
        while not job.is_cancelled:
            wait = player.run_once(job.receive())
            if wait > 0:
                job.wait(wait)


def open_env(request: RunSession, seed: int, closing: ExitStack) -> EnvBase | StackEnv:
    """Build and seed the env with its chain.

    Args:
        request: What to build.
        seed: Seed of the env and of the global generators, if the pipeline has none.
        closing: Closes the env.
    """
    stack = build_stack(request.pipeline, request.allow_code)
    closing.callback(stack.close)
    env = stack.chain_env
    own_seed = request.pipeline.env.seed
    if env is None:
        closing.enter_context(stack.seeded(seed if own_seed is None else own_seed))
        return StackEnv(stack)
    if own_seed is None:  # a chain of tdx is seeded when it is built
        env.set_seed(seed)
    torch.manual_seed(seed)
    return env


@dataclass(frozen=True, slots=True)
class Rollout:
    """A session with its env.

    Args:
        request: What it was opened with.
        seed: Seed of the env.
        player: Steps the env.
        closing: Closes the env.
    """

    request: RunSession
    seed: int
    player: LivePlayer
    closing: ExitStack


class Rollouts:
    """The current session and the one before it.

    A session of an edited chain can repeat the current one. Undoing the edit continues the one
    before it where it was left.

    Args:
        open_env: Builds an env.
        clock: Returns nanoseconds.
        activity: Where sessions record the running call. ``None``: nobody reads it.
    """

    def __init__(
        self,
        open_env: OpenEnv = open_env,
        clock: Callable[[], int] = time.perf_counter_ns,
        activity: ActivityRecord | None = None,
    ) -> None:
        self._open_env, self._clock, self._activity = open_env, clock, activity
        self._kept: list[Rollout] = []

    def open(self, request: RunSession, push: Push) -> LivePlayer:
        """Continue or start a session.

        Raises:
            TdxError: The env or the chain cannot be built; the kept sessions remain.
        """
        undone = next((each for each in self._kept if _is_same(each.request, request)), None)
        if request.repeat and request.until is None and undone is not None:
            self._keep(undone)
            undone.player.resume(request, push)
            return undone.player
        earlier = next((each for each in self._kept if each.player.is_worth_keeping), None)
        repeated = earlier if request.repeat else None
        seed = random.SystemRandom().randrange(2**31) if repeated is None else repeated.seed
        closing = ExitStack()
        try:
            env = self._open_env(request, seed, closing)
            session = None if repeated is None else repeated.player.session
            player = LivePlayer(env, request, push, self._clock, session, self._activity)
        except BaseException:
            closing.close()
            raise
        self._keep(Rollout(request, seed, player, closing))
        return player

    def close(self) -> None:
        """Close all envs."""
        while self._kept:
            self._kept.pop().closing.close()

    def _keep(self, current: Rollout) -> None:
        others = [each for each in self._kept if each is not current]
        kept = [each for each in others if each.player.is_worth_keeping][: _KEPT - 1]
        for each in others:
            if each not in kept:
                each.closing.close()
        self._kept = [current, *kept]


def _is_same(one: RunSession, other: RunSession) -> bool:
    return (one.pipeline, one.numbers) == (other.pipeline, other.numbers)
