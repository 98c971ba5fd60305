"""Dumps as sides of ``tdx diff``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tdx.cli.pipelines import PipelineOptions, read_pipeline, with_target
from tdx.foundation.errors import ArgumentError
from tdx.inspection.diff import DiffReport, DiffSide, PipelineSide, compare_pipelines
from tdx.rollouts import Dump, open_dump

COMPARED_STEPS = 1_000
"""Steps of two dumps that are compared by default."""

if TYPE_CHECKING:
    from tensordict import TensorDictBase

    from tdx.cli.contract_runs import ReportFiles
    from tdx.cli.views import Block
    from tdx.contracts import Contract, ContractReport
    from tdx.inspection.diff import SideLeaves
    from tdx.pipeline import Pipeline
    from tdx.stacks import Stack


class DumpSide:
    """Stored steps of a dump, with the specs of its pipeline."""

    def __init__(self, dump: Dump, allow_code: bool = False, name: str | None = None) -> None:
        self.name = str(dump.path) if name is None else name
        self.dump = dump
        self._built = PipelineSide(self.name, dump.pipeline, allow_code)
        self.stages = self._built.stages
        # The seed belongs to the rollout, not to the pipeline.
        env = replace(dump.pipeline.env, seed=None)
        self.pipeline: Pipeline = replace(dump.pipeline, env=env)

    def specs(self) -> tuple[SideLeaves, SideLeaves]:
        """Return the specs before and after the chain."""
        return self._built.specs()

    def rollout(self, steps: int, seed: int) -> TensorDictBase:
        """Return the first stored steps, shape ``[*B, T]``."""
        return first_steps(self.dump, steps)

    def close(self) -> None:
        """Close the env."""
        self._built.close()


class ReplaySide(PipelineSide):
    """A pipeline that runs with the seed and the actions of a dump."""

    def __init__(self, name: str, pipeline: Pipeline, dump: Dump, allow_code: bool = False) -> None:
        unseeded = replace(pipeline, env=replace(pipeline.env, seed=None))
        super().__init__(name, unseeded, allow_code)
        self._dump = dump

    def rollout(self, steps: int, seed: int) -> TensorDictBase:
        """Return a rollout with the first stored actions, shape ``[*B, T]``."""
        from tdx.envs import ActionSequence
        from tdx.stacks.native import seed_run

        env = self._env
        stored = first_steps(self._dump, steps)
        keys = set(stored.keys(True, True))
        if not keys.issuperset(env.action_keys):
            raise ArgumentError(
                f"{self._dump.path} has no actions to repeat", hint="roll out without --keys"
            )
        actions = ActionSequence(stored.select(*env.action_keys))
        with seed_run(env, self._dump.manifest.seed):
            result: TensorDictBase = env.rollout(steps, actions, break_when_any_done=False)
        return result if self._dump.manifest.keys is None else result.select(*keys, strict=False)


def first_steps(dump: Dump, steps: int) -> TensorDictBase:
    """Return the first steps of a dump, shape ``[*B, T]``."""
    available = dump.manifest.steps
    if steps > available:
        message = f"{dump.path} has {available:,} steps, not {steps:,}"
        raise ArgumentError(message, hint=f"pass --steps {available} or less")
    return dump.data[..., :steps]


def open_sides(a: str, b: str, allow_code: bool) -> list[DiffSide]:
    """Open both sides of a comparison: dumps, or a dump and a pipeline that repeats its actions."""
    dumps = {path: open_dump(path) for path in (a, b) if Path(path).is_dir()}
    sides: list[DiffSide] = []
    try:
        for path in (a, b):
            if path in dumps:
                sides.append(DumpSide(dumps[path], allow_code))
                continue
            pipeline = read_pipeline(with_target(PipelineOptions(), path))
            dump = next(iter(dumps.values()))
            # A rollout repeats the first shard: the others have their own seeds.
            dump = dump.shards[0] if dump.shards else dump
            name = pipeline.file or pipeline.env.id
            sides.append(ReplaySide(name, pipeline, dump, allow_code))
    except BaseException:
        for side in sides:
            side.close()
        raise
    return sides


def compare_with_dump(
    sides: Sequence[DiffSide],
    steps: int | None,
    seed: int,
    noun: str,
    recorded_steps: int | None,
    files: ReportFiles,
    *,
    allow_code: bool,
) -> tuple[DiffReport, list[Block]]:
    """Compare two sides, at least one of them a dump, and explain what differs.

    ``recorded_steps`` is the number of steps that both sides have; ``None``: one of them is run.
    Returns the report, and what its page says about the smallest case, which is written.
    """
    from tdx.cli.contract_runs import explain_differences
    from tdx.stacks.building import build_stack

    smallest: list[Block] = []

    def write_smallest(target: Stack, contract: Contract, found: ContractReport) -> None:
        command = ["contract", "check", *(["--allow-code"] if allow_code else [])]
        smallest.extend(files.write_smallest(target, contract, found, command, sides[1].pipeline))

    report = compare_pipelines(*sides, steps=steps or None, seed=seed, explain_values=True)
    # Chains that are equal do not explain recorded values that differ.
    if steps != 0 and not replace(report, values=()).same:
        stacks = [partial(build_stack, side.pipeline, allow_code) for side in sides]
        report = explain_differences(report, stacks, seed, noun, write_smallest)
    if recorded_steps is not None and report.steps != recorded_steps:
        note = f"only {report.steps or 0:,} of {recorded_steps:,} steps are compared"
        report = replace(report, notes=(*report.notes, note))
    return report, smallest
