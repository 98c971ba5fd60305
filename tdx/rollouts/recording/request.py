"""What to roll out, and how large the dump will be."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from tdx.core import TransformedEnv
from tdx.core.planned.chunk_size import chunk_steps_for
from tdx.errors import (
    ArgumentError,
    UnknownNameError,
    did_you_mean,
)
from tdx.pipeline import Pipeline, build_env, write_pipeline
from tdx.rollouts.dump.creation import check_target
from tdx.rollouts.dump.entries import all_keys, check_storable, names_of, selected
from tdx.rollouts.dump.episodes import EpisodeIndex
from tdx.rollouts.dump.manifest import Goal, Manifest, package_versions
from tdx.rollouts.dump.specs import spec_entries
from tdx.rollouts.dump.track import Track
from tdx.rollouts.policies.policy import (
    NamedPolicy,
    PolicyRequest,
    check_length,
    check_policy,
    named_policy,
)


@dataclass(frozen=True, slots=True)
class DumpRequest:
    """What to roll out.

    Args:
        pipeline: the env and its chain.
        goal: how long.
        seed: of the env and of the actions; a fresh one by default.
        policy: ``random``, ``zero``, ``sequence:FILE``, ``mlp:FILE``, ``module:FILE``, or
            ``module:name`` in Python code; by default that of the pipeline.
        keys: the entries to store, as ``reward`` or ``next.reward``; all by default.
        chunk_steps: how many steps are written at a time; chosen by their size by default.
        raw: whether what the env itself gives is stored too, so that other chains can be
            replayed over it.
        allow_code: whether Python objects may be imported.
    """

    pipeline: Pipeline
    goal: Goal | None = None
    seed: int | None = None
    policy: str | None = None
    keys: tuple[str, ...] | None = None
    chunk_steps: int | None = None
    raw: bool = False
    allow_code: bool = False


def prepared(request: DumpRequest, env: TransformedEnv, seed: int) -> tuple[NamedPolicy, Manifest]:
    """The policy, and the manifest of a dump without a step."""
    asked = PolicyRequest.of(request.pipeline, request.policy, request.allow_code)
    policy = named_policy(asked, env)
    check_policy(policy, env)
    goal = _goal(request, policy)
    keys = request.keys
    if keys is not None:
        _check_keys(keys, env)
    check_storable(env, keys)
    pipeline = replace(request.pipeline, env=replace(request.pipeline.env, seed=seed))
    batch = tuple(env.batch_size)
    manifest = Manifest(
        pipeline=write_pipeline(pipeline),
        seed=seed,
        policy=policy.name,
        policy_sha256=policy.sha256,
        goal=goal,
        chunk_steps=chunk_steps_for(env, request.chunk_steps, None),
        keys=keys,
        batch_size=batch,
        specs=spec_entries(env),
        versions=package_versions(),
        keeps_raw=request.raw and bool(pipeline.transforms),
        episodes=EpisodeIndex(max(env.batch_size.numel(), 1)),
    )
    return policy, manifest


def _goal(request: DumpRequest, policy: NamedPolicy) -> Goal:
    goal = request.goal
    if goal is None:
        steps = request.pipeline.rollout.max_steps or policy.steps
        if steps is None:
            raise ArgumentError(
                "it is not said how long the rollout is to be", hint="add --steps N or --episodes N"
            )
        goal = Goal(steps=steps)
    if goal.steps is not None:
        check_length(policy, goal.steps)
    return goal


def _check_keys(keys: tuple[str, ...], env: TransformedEnv) -> None:
    known = {name for key in all_keys(env.fake_tensordict()) for name in names_of(key)}
    for name in keys:
        if name not in known:
            listed = f"there are {', '.join(sorted(n for n in known if '.' not in n))}"
            hint = did_you_mean(name, known, listed)
            raise UnknownNameError(f"--keys: no entry {name!r}", hint=hint)


@contextmanager
def seeded_env(
    pipeline: Pipeline, seed: int | None, allow_code: bool
) -> Iterator[tuple[TransformedEnv, int]]:
    """The env, with all its randomness seeded; torch's generator is afterwards as before."""
    chosen = pipeline.env.seed if seed is None else seed
    if chosen is None:
        chosen = int.from_bytes(os.urandom(4), "little") >> 1
    env = build_env(pipeline, allow_code)
    devices = [env.device] if env.device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices=devices), torch.no_grad():
            torch.manual_seed(chosen)
            env.set_seed(chosen)
            yield env, chosen
    finally:
        env.close()


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a rollout would write.

    Args:
        path: where to.
        manifest: of a dump without a step.
        step_bytes: how many bytes a step of all envs takes.
        entries: how many bytes each file gets for a step.
    """

    path: str
    manifest: Manifest
    step_bytes: int
    entries: dict[str, int]

    @property
    def goal(self) -> Goal:
        """How long it would be."""
        return self.manifest.goal

    @property
    def size(self) -> int | None:
        """How many bytes in all; unknown where episodes are counted."""
        return None if self.goal.steps is None else self.goal.steps * self.step_bytes

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "path": self.path,
            "goal": {"steps": self.goal.steps, "episodes": self.goal.episodes},
            "seed": self.manifest.seed,
            "policy": self.manifest.policy,
            "chunk_steps": self.manifest.chunk_steps,
            "step_bytes": self.step_bytes,
            "bytes": self.size,
            "entries": self.entries,
        }


def estimate(request: DumpRequest, folder: Path, *, force: bool = False) -> Estimate:
    """What :func:`~tdx.rollouts.recording.run.roll_out` would write; nothing is stepped.

    Raises:
        TdxError: the request cannot be met.
    """
    check_target(folder, force)
    with seeded_env(request.pipeline, request.seed, request.allow_code) as (env, seed):
        _, manifest = prepared(request, env, seed)
        step = env.fake_tensordict()
        if manifest.keys is not None:
            step = selected(step, manifest.keys)
        track = Track.of("data", step.unsqueeze(step.ndim), step.ndim)
        entries = {track.file(path): track.step_bytes(path) for path in track.leaves}
        if manifest.keeps_raw:
            raw = env.base_env.fake_tensordict()
            track = Track.of("raw", raw.unsqueeze(raw.ndim), raw.ndim)
            entries |= {track.file(path): track.step_bytes(path) for path in track.leaves}
    return Estimate(str(folder), manifest, sum(entries.values()), entries)
