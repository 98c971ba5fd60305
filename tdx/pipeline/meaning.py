"""What tells two pipelines apart: also 1 and 1.0, not how their arguments are given."""

from __future__ import annotations

from collections.abc import Sequence

from tdx.pipeline.arguments import named
from tdx.pipeline.model import OffStage, Pipeline, StageConfig
from tdx.pipeline.values import Value


def pipeline_meaning(pipeline: Pipeline) -> str:
    """What a pipeline does, without the stages that are switched off."""
    stages = [stage_meaning(stage) for stage in pipeline.transforms]
    return repr((pipeline.env, stages, pipeline.policy, pipeline.rollout))


def off_meaning(off: Sequence[OffStage]) -> list[tuple[int, str]]:
    """The stages that are switched off, with their places."""
    return [(each.before, stage_meaning(each.stage)) for each in off]


def stage_meaning(stage: StageConfig) -> str:
    """A transform with its arguments."""
    full = named(stage)
    return repr((full.name, full.args, sorted(full.kwargs.items(), key=_by_name)))


def _by_name(item: tuple[str, Value]) -> str:
    return item[0]
