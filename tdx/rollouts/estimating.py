"""How large a dump will be, before a step is made."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tdx.rollouts.manifest import Goal, Manifest
from tdx.rollouts.run import DumpRequest, prepared, seeded_env
from tdx.rollouts.track import Track
from tdx.rollouts.writer import check_target, selected


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
    """What :func:`~tdx.rollouts.run.roll_out` would write; nothing is stepped.

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
