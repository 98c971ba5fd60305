"""Roll out a pipeline into a dump, and go on with one that was interrupted."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDictBase

from tdx.core import TransformedEnv
from tdx.core.planned.executor import chunk_steps_for
from tdx.errors import (
    ArgumentError,
    EnvError,
    StorageError,
    TdxError,
    UnknownNameError,
    did_you_mean,
    summarize_error,
)
from tdx.pipeline import Pipeline, build_env, read_pipeline, write_pipeline
from tdx.rollouts.border import Border
from tdx.rollouts.episodes import EpisodeIndex
from tdx.rollouts.fields import DAMAGED, MAX_COUNT
from tdx.rollouts.index import Position
from tdx.rollouts.manifest import MANIFEST, Goal, Manifest, package_versions
from tdx.rollouts.policies import (
    NamedPolicy,
    check_length,
    check_policy,
    named_policy,
    resumed_policy,
)
from tdx.rollouts.policy_files import PolicyRequest
from tdx.rollouts.recording import RecordingEnv
from tdx.rollouts.spec_entries import spec_entries
from tdx.rollouts.storable import check_storable
from tdx.rollouts.streaming import OnChunk, flags_of, run_chunks, silent
from tdx.rollouts.writer import (
    DumpWriter,
    all_keys,
    check_target,
    names_of,
    new_dump,
    remove_leftovers,
    resumed_dump,
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
                remove_leftovers(root, manifest)
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
            remove_leftovers(root, manifest)
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
        raise _unfit(writer.folder, summarize_error(error)) from error


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
