"""A rollout that is there already, as a dump."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tensordict import TensorDictBase

from tdx.core.planned.executor import chunk_steps_for
from tdx.envs import EnvBase
from tdx.errors import ArgumentError
from tdx.pipeline.file.yaml_format import write_pipeline
from tdx.pipeline.model import Pipeline
from tdx.rollouts.border import as_plain, chain_state
from tdx.rollouts.episodes import EpisodeIndex
from tdx.rollouts.manifest import Goal, Manifest, package_versions
from tdx.rollouts.spec_entries import spec_entries
from tdx.rollouts.streaming import flags_of
from tdx.rollouts.writer import whole_dump

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
