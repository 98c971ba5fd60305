"""A dump as one side of a comparison."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tdx.errors import ArgumentError
from tdx.inspection.diff import DiffSide, PipelineSide
from tdx.rollouts import Dump, open_dump

if TYPE_CHECKING:
    from tensordict import TensorDictBase

    from tdx.inspection.diff.sides import Leaves
    from tdx.pipeline import Pipeline


class DumpSide:
    """What is stored.

    Args:
        dump: the dump.
        allow_code: whether Python objects that its pipeline names may be imported.

    Raises:
        TdxError: its env cannot be made, which is needed for the specs.
    """

    def __init__(self, dump: Dump, allow_code: bool = False) -> None:
        self.name = str(dump.path)
        self.dump = dump
        self._built = PipelineSide(self.name, dump.pipeline, allow_code)
        # The seed is that of the rollout: it says nothing about the pipeline.
        env = replace(dump.pipeline.env, seed=None)
        self.pipeline: Pipeline = replace(dump.pipeline, env=env)

    def specs(self) -> tuple[Leaves, Leaves]:
        """The specs before and after the chain."""
        return self._built.specs()

    def rollout(self, steps: int, seed: int) -> TensorDictBase:
        """The first steps that are stored, ``[*B, T]``."""
        return first_steps(self.dump, steps)

    def close(self) -> None:
        """Close the env."""
        self._built.close()


class FollowingSide(PipelineSide):
    """A pipeline that is given the seed and the actions of a dump.

    Args:
        name: what it is called.
        pipeline: the pipeline.
        dump: whose actions it takes.
        allow_code: whether Python objects that it names may be imported.
    """

    def __init__(self, name: str, pipeline: Pipeline, dump: Dump, allow_code: bool = False) -> None:
        unseeded = replace(pipeline, env=replace(pipeline.env, seed=None))
        super().__init__(name, unseeded, allow_code)
        self._dump = dump

    def rollout(self, steps: int, seed: int) -> TensorDictBase:
        """A rollout with the first actions that are stored, ``[*B, T]``."""
        from tdx.envs import ActionSequence
        from tdx.inspection.seeded import seeded_run

        env = self._env
        stored = first_steps(self._dump, steps)
        keys = set(stored.keys(True, True))
        if not keys.issuperset(env.action_keys):
            raise ArgumentError(
                f"{self._dump.path} holds no actions to follow", hint="roll out without --keys"
            )
        actions = ActionSequence(stored.select(*env.action_keys))
        with seeded_run(env, self._dump.manifest.seed):
            result: TensorDictBase = env.rollout(steps, actions, break_when_any_done=False)
        return result if self._dump.manifest.keys is None else result.select(*keys, strict=False)


def first_steps(dump: Dump, steps: int) -> TensorDictBase:
    """The first steps of a dump, ``[*B, T]``.

    Raises:
        ArgumentError: there are not so many.
    """
    held = dump.manifest.steps
    if steps > held:
        raise ArgumentError(f"{dump.path} has {held:,} steps, not {steps:,}", hint="--steps fewer")
    return dump.data[..., :steps]


def sides(a: str, b: str, allow_code: bool) -> list[DiffSide]:
    """Both sides of a comparison: dumps, and pipelines that follow the dump.

    Args:
        a: a folder or a pipeline file.
        b: another one.
        allow_code: whether Python objects that a pipeline names may be imported.
    """
    from tdx.pipeline import PipelineFile

    dumps = {path: open_dump(path) for path in (a, b) if Path(path).is_dir()}
    found: list[DiffSide] = []
    try:
        for path in (a, b):
            if path in dumps:
                found.append(DumpSide(dumps[path], allow_code))
                continue
            file = PipelineFile.load(path)
            dump = next(iter(dumps.values()))
            found.append(FollowingSide(file.name, file.pipeline, dump, allow_code))
    except BaseException:
        for side in found:
            side.close()
        raise
    return found
