"""Put a mended chain into the draft, so that stages which stay are known as the same."""

from __future__ import annotations

from dataclasses import replace

from tdx.pipeline.editing.draft import Draft, DraftStage
from tdx.pipeline.model import Pipeline
from tdx.pipeline.values import StageConfig


def mended(draft: Draft, pipeline: Pipeline) -> Draft:
    """A draft with the chain of a pipeline; stages that are off stay behind those before them.

    Args:
        draft: the draft.
        pipeline: the chain that it is to have.

    Example:
        >>> draft = Draft.of(Pipeline.of("A-v0", "B", "C", "D"))
        >>> [each.number for each in mended(draft, Pipeline.of("A-v0", "D", "B")).stages]
        [2, 0]
    """
    left = [stage for stage in draft.stages if stage.enabled]
    following = _off_behind(draft)
    number = max((stage.number for stage in draft.stages), default=-1)
    stages = list(following.pop(None, []))
    for config in pipeline.transforms:
        found = _same(left, config)
        if found is None:
            number += 1
            found = DraftStage(number, config)
        else:
            left.remove(found)
        stages += [replace(found, config=config), *following.pop(found.number, [])]
    stages += [stage for rest in following.values() for stage in rest]
    return replace(draft, env=pipeline.env, stages=tuple(stages))


def _same(left: list[DraftStage], config: StageConfig) -> DraftStage | None:
    """The stage that one of the new chain was: with the same arguments, or of the same name."""
    equal = (stage for stage in left if stage.config == config)
    named = (stage for stage in left if stage.config.name == config.name)
    return next(equal, None) or next(named, None)


def _off_behind(draft: Draft) -> dict[int | None, list[DraftStage]]:
    """The stages that are off, by the number of the stage before them that is on."""
    found: dict[int | None, list[DraftStage]] = {}
    last: int | None = None
    for stage in draft.stages:
        if stage.enabled:
            last = stage.number
        else:
            found.setdefault(last, []).append(stage)
    return found
