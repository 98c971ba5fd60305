"""Request of a rollout: its env, policy and manifest, and an estimate of its size and time."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, TypedDict

import torch

from tdx.core import TransformedEnv
from tdx.core.planned.columns import chunk_steps_for
from tdx.envs import EnvBase
from tdx.foundation.errors import ArgumentError, UnknownNameError, did_you_mean
from tdx.foundation.serialization import Entries, Entry, Result
from tdx.pipeline import Pipeline, write_pipeline
from tdx.pipeline.build import check_arguments
from tdx.pipeline.envs import make_env
from tdx.rollouts.dump.entries import (
    check_storable,
    describe_specs,
    key_names,
    list_keys,
    select_entries,
)
from tdx.rollouts.dump.episodes import EpisodeIndex, EpisodeKeys
from tdx.rollouts.dump.folder import DATA, RAW
from tdx.rollouts.dump.manifest import Goal, Manifest, package_versions
from tdx.rollouts.dump.track import Track
from tdx.rollouts.dump.writing import check_target
from tdx.rollouts.policies.policy import (
    NamedPolicy,
    PolicyRequest,
    check_action_count,
    check_policy,
    load_policy,
)
from tdx.stacks.building import build_env, convert_to_env


@dataclass(frozen=True, slots=True)
class DumpRequest:
    """What to roll out.

    Args:
        pipeline: Env and chain.
        goal: Length of the rollout. ``None``: that of the pipeline, or of the policy.
        seed: Seed of the env and of the actions. ``None``: that of the pipeline, or a random one.
        policy: ``random``, ``zero``, ``sequence:FILE``, ``mlp:FILE``, ``module:FILE``, or
            ``module:name`` in Python code. ``None``: that of the pipeline.
        keys: Entries to store, as ``reward`` or ``next.reward``. ``None``: all.
        chunk_steps: Number of steps per chunk. ``None``: chosen by their size.
        raw: Whether to store the raw steps of the base env too, so that other chains can be
            replayed over them.
        allow_code: Whether Python objects may be imported.
        workers: Number of processes that run the envs of a ``parallel`` batch, which changes no
            value. ``None``: as many as cores.
    """

    pipeline: Pipeline
    goal: Goal | None = None
    seed: int | None = None
    policy: str | None = None
    keys: tuple[str, ...] | None = None
    chunk_steps: int | None = None
    raw: bool = False
    allow_code: bool = False
    workers: int | None = None


def choose_goal(steps: int | None, episodes: int | None) -> Goal | None:
    """Return the goal of at most one of two numbers."""
    if steps is not None and episodes is not None:
        raise ArgumentError("steps and episodes are both given", hint="give one of them")
    return None if steps is None and episodes is None else Goal(steps, episodes)


def prepare_dump(
    request: DumpRequest, env: TransformedEnv, seed: int
) -> tuple[NamedPolicy, Manifest]:
    """Load the policy, and return it with the manifest of a dump without steps."""
    policy = load_policy(
        PolicyRequest.of(request.pipeline, request.policy, request.allow_code), env
    )
    check_policy(policy, env)
    goal = request.goal
    if goal is None:
        steps = request.pipeline.rollout.max_steps or policy.steps
        if steps is None:
            raise ArgumentError("the rollout has no length", hint="pass --steps N or --episodes N")
        goal = Goal(steps=steps)
    if goal.steps is not None:
        check_action_count(policy, goal.steps)
    keys = request.keys
    if keys is not None:
        known = {name for key in list_keys(env.fake_tensordict()) for name in key_names(key)}
        for name in keys:
            if name not in known:
                listed = f"known entries: {', '.join(sorted(n for n in known if '.' not in n))}"
                hint = did_you_mean(name, known, listed)
                raise UnknownNameError(f"--keys: unknown entry {name!r}", hint=hint)
    check_storable(env, keys)
    pipeline = replace(request.pipeline, env=replace(request.pipeline.env, seed=seed))
    manifest = create_manifest(
        env,
        pipeline,
        goal,
        seed=seed,
        policy=policy.name,
        policy_sha256=policy.sha256,
        chunk_steps=chunk_steps_for(env, request.chunk_steps, None),
        keys=keys,
        keeps_raw=request.raw and bool(pipeline.transforms),
    )
    return policy, manifest


def create_manifest(env: EnvBase, pipeline: Pipeline, goal: Goal, **details: Any) -> Manifest:
    """Return the manifest of a dump without steps."""
    return Manifest(
        pipeline=write_pipeline(pipeline),
        goal=goal,
        batch_size=tuple(env.batch_size),
        specs=describe_specs(env),
        versions=package_versions(),
        flags=EpisodeKeys.of(env),
        episodes=EpisodeIndex(max(env.batch_size.numel(), 1)),
        **details,
    )


@contextmanager
def build_seeded_env(
    pipeline: Pipeline, seed: int | None, allow_code: bool, workers: int | None = None
) -> Iterator[tuple[TransformedEnv, int]]:
    """Build and seed an env; yields it with its seed, and restores torch's global random state.

    ``workers`` is the number of processes that run the envs of a ``parallel`` batch, by default as
    many as cores.
    """
    chosen = pipeline.env.seed if seed is None else seed
    if chosen is None:
        chosen = int.from_bytes(os.urandom(4), "little") >> 1
    base = None
    if workers is not None:
        for error in check_arguments(pipeline, allow_code):
            raise error
        base = make_env(pipeline.env, allow_code, convert_to_env, workers)
    env = build_env(pipeline, allow_code, base)
    devices = [env.main_device] if env.main_device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices=devices), torch.no_grad():
            torch.manual_seed(chosen)
            env.set_seed(chosen)
            yield env, chosen
    finally:
        env.close()


class FileSize(TypedDict):
    """JSON entries of a file of a dump."""

    file: str
    step_bytes: int


@dataclass(frozen=True, slots=True)
class Estimate(Result):
    """Size of a dump and duration of its rollout, before its first step.

    Args:
        path: Folder of the dump.
        manifest: Manifest without steps.
        step_bytes: Number of bytes per step of all envs.
        entries: Number of bytes per step, by file.
        steps_per_second: Measured speed, in steps of each env. ``None``: not measured.
    """

    json_entries: ClassVar[Entries] = (
        *("path", "goal", Entry("seed", "manifest.seed"), Entry("policy", "manifest.policy")),
        *(Entry("chunk_steps", "manifest.chunk_steps"), "step_bytes", Entry("bytes", "size")),
        *("seconds", "steps_per_second"),
        Entry("entries", "file_sizes"),
    )

    path: str
    manifest: Manifest
    step_bytes: int
    entries: dict[str, int]
    steps_per_second: float | None = None

    @property
    def goal(self) -> Goal:
        """Length of the rollout."""
        return self.manifest.goal

    @property
    def file_sizes(self) -> list[FileSize]:
        """Number of bytes per step of each file, as JSON entries."""
        return [{"file": file, "step_bytes": size} for file, size in self.entries.items()]

    @property
    def size(self) -> int | None:
        """Number of bytes in all; ``None`` if the goal is a number of episodes."""
        return None if self.goal.steps is None else self.goal.steps * self.step_bytes

    @property
    def seconds(self) -> float | None:
        """Estimated duration; ``None`` without a speed or if the goal is a number of episodes."""
        if self.goal.steps is None or self.steps_per_second is None:
            return None
        return round(self.goal.steps / self.steps_per_second, 3)


def estimate(
    request: DumpRequest, folder: Path, *, force: bool = False, measure: bool = True
) -> Estimate:
    """Estimate what :func:`~tdx.rollouts.recording.rollout.roll_out` writes and how long it takes.

    The folder is not created. With ``measure``, a few steps are run to measure the speed.

    Raises:
        TdxError: The request is invalid, or the env fails in the measured steps.
    """
    check_target(folder, force)
    with build_seeded_env(request.pipeline, request.seed, request.allow_code, request.workers) as (
        env,
        seed,
    ):
        policy, manifest = prepare_dump(request, env, seed)
        step = env.fake_tensordict()
        if manifest.keys is not None:
            step = select_entries(step, manifest.keys)
        track = Track.of(DATA, step.unsqueeze(step.ndim), step.ndim)
        entries = {track.file(path): track.step_bytes(path) for path in track.leaves}
        if manifest.keeps_raw:
            raw = env.base_env.fake_tensordict()
            track = Track.of(RAW, raw.unsqueeze(raw.ndim), raw.ndim)
            entries |= {track.file(path): track.step_bytes(path) for path in track.leaves}
        speed = measure_speed(env, policy, manifest) if measure else None
    return Estimate(str(folder), manifest, sum(entries.values()), entries, speed)


_MEASURED_SECONDS = 0.25


def measure_speed(env: TransformedEnv, policy: NamedPolicy, manifest: Manifest) -> float | None:
    """Measure the steps of each env per second of a rollout in chunks of growing size.

    The first chunk of each rollout resets the env and is not measured. ``None``: the rollout is
    shorter than two steps.
    """
    limits = [n for n in (manifest.goal.steps, policy.steps) if n is not None]
    longest = min([manifest.chunk_steps, *(n // 2 for n in limits)])
    start, size, speed = time.perf_counter(), 1, None
    while size <= longest and time.perf_counter() - start < _MEASURED_SECONDS:
        chunks = env.iter_rollout(2 * size, policy.start_at(0), chunk_steps=size, auto_reset=True)
        next(chunks)
        before = time.perf_counter()
        measured = next(chunks).shape[len(manifest.batch_size)]
        speed = measured / max(time.perf_counter() - before, 1e-9)
        size *= 2
    return None if speed is None else round(speed, 1)
