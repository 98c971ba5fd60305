"""Roll out a pipeline into a dump, and go on with one that was interrupted."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDictBase

from tdx.engine import TransformedEnv
from tdx.engine.planned.chunk_size import chunk_steps_for
from tdx.errors import ArgumentError, EnvError, StorageError, UnknownNameError, did_you_mean
from tdx.pipeline import Pipeline, build_env, read_pipeline, write_pipeline
from tdx.rollouts.border import Border
from tdx.rollouts.episodes import EpisodeIndex
from tdx.rollouts.lock import only_writer
from tdx.rollouts.manifest import MANIFEST, Goal, Manifest, package_versions
from tdx.rollouts.policies import NamedPolicy, check_length, check_policy, named_policy
from tdx.rollouts.recording import RecordingEnv
from tdx.rollouts.spec_entries import spec_entries
from tdx.rollouts.streaming import OnChunk, flags_of, run_chunks, silent
from tdx.rollouts.writer import DumpWriter, all_keys, check_target, names_of, target


@dataclass(frozen=True, slots=True)
class DumpRequest:
    """What to roll out.

    Args:
        pipeline: the env and its chain.
        goal: how long.
        seed: of the env and of the actions; a fresh one by default.
        policy: ``random``, ``zero``, ``sequence:FILE``, ``module:FILE``, or ``module:name`` in
            Python code.
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
        with target(folder):
            writer = DumpWriter.create(folder, manifest, flags_of(env), force)
            if manifest.keeps_raw:
                env.base_env = RecordingEnv(env.base_env)
            return run_chunks(env, policy, writer, Border(env, not policy.is_code), None, on_chunk)


def prepared(request: DumpRequest, env: TransformedEnv, seed: int) -> tuple[NamedPolicy, Manifest]:
    """The policy, and the manifest of a dump without a step."""
    name = request.policy or request.pipeline.policy or "random"
    policy = named_policy(name, env, request.allow_code)
    check_policy(policy, env)
    goal = _goal(request, policy)
    keys = request.keys
    if keys is not None:
        _check_keys(keys, env)
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


def resume(folder: Path, *, allow_code: bool = False, on_chunk: OnChunk = silent) -> Manifest:
    """Go on with a dump that was interrupted, to what it would have been without.

    Args:
        folder: of the dump.
        allow_code: whether Python objects that its pipeline names may be imported.
        on_chunk: called after each chunk.

    Raises:
        TdxError: it cannot be gone on with exactly; the message says why.
    """
    Manifest.load(folder)
    with only_writer(folder):
        return _resumed(folder, Manifest.load(folder), allow_code, on_chunk)


def _resumed(folder: Path, manifest: Manifest, allow_code: bool, on_chunk: OnChunk) -> Manifest:
    if manifest.complete:
        return manifest
    if manifest.source is not None:
        raise ArgumentError(
            f"{folder} is a replay, which is not resumed", hint="replay again with --force"
        )
    pipeline = read_pipeline(manifest.pipeline, str(folder / MANIFEST))
    with seeded_env(pipeline, manifest.seed, allow_code) as (env, _):
        policy = named_policy(manifest.policy, env, allow_code)
        if policy.sha256 != manifest.policy_sha256:
            raise ArgumentError(
                f"{manifest.policy} is another file than the one that the dump was begun with",
                hint="put that file back, or roll out anew with --force",
            )
        check_policy(policy, env)
        writer = DumpWriter(folder, manifest, flags_of(env))
        writer.drop_partial()
        if manifest.keeps_raw:
            env.base_env = RecordingEnv(env.base_env)
        border = Border(env, not policy.is_code)
        state = writer.state()
        if state is None:
            return run_chunks(env, policy, writer, border, None, on_chunk)
        _check_steps(manifest, state, folder)
        if state["env"] is None:
            start = _made_again(env, policy, writer, border)
        else:
            start = border.restore(state)
        return run_chunks(env, policy, writer, border, start, on_chunk)


def _check_steps(manifest: Manifest, state: dict[str, Any], folder: Path) -> None:
    if state["steps"] != manifest.steps:
        raise StorageError(
            f"the state in {folder} is that after {state['steps']} steps, "
            f"{manifest.steps} are stored",
            hint="roll out anew: --force overwrites the dump",
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
        policy: ``random``, ``zero``, ``sequence:FILE`` or ``module:FILE``; random by default.
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
