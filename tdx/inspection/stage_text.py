"""What the stages of a chain are called in a report."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tdx.pipeline import Pipeline, format_stage

if TYPE_CHECKING:
    from tdx.core.transforms import Transform
    from tdx.envs import EnvBase

_MAX_LENGTH = 100


def env_stage_count(env: EnvBase, pipeline: Pipeline) -> int:
    """Return how many stages the env of a pipeline has before those of the pipeline.

    There are some where the function that makes the env returns a ``TransformedEnv``. They come
    first, so this is the index of the pipeline's first stage in the whole chain.

    Args:
        env: Env of the pipeline, with its chain.
        pipeline: The pipeline.
    """
    from tdx.core.chain_specs import stage_count

    return max(stage_count(env) - len(pipeline.transforms), 0)


def stage_texts(env: EnvBase, pipeline: Pipeline, *, expanded: bool = False) -> tuple[str, ...]:
    """Return one line for each stage of an env's whole chain, innermost first.

    Stages of the pipeline are written as in a pipeline file, those that the env itself has as
    their representation.

    Args:
        env: Env of the pipeline, with its chain.
        pipeline: The pipeline.
        expanded: List the stages inside a ``Compose`` one by one, as a plan does.

    Example:
        >>> from tdx.pipeline import build_env
        >>> pipeline = Pipeline.of("Pendulum-v1", "RewardScaling(0.0, 0.1)")
        >>> stage_texts(build_env(pipeline), pipeline)
        ('RewardScaling(0.0, 0.1)',)
    """
    from tdx.core.chain_specs import chain_stages

    stages = chain_stages(env)
    own = len(stages) - len(pipeline.transforms)
    texts: list[str] = []
    for index, stage in enumerate(stages):
        parts = list(_parts(stage)) if expanded else [stage]
        if parts != [stage]:
            texts += map(_text, parts)
        elif index < own:
            texts.append(_text(stage))
        else:
            texts.append(format_stage(pipeline.transforms[index - own]))
    return tuple(texts)


def _parts(stage: Transform) -> Iterator[Transform]:
    from tdx.core.transforms import Compose

    if type(stage) is Compose:
        for inner in stage:
            yield from _parts(inner)
    else:
        yield stage


def _text(stage: Transform) -> str:
    text = repr(stage)
    return type(stage).__name__ if "\n" in text or len(text) > _MAX_LENGTH else text
