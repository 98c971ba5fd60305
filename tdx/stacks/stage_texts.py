"""The stages of a chain of tdx as text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tdx.pipeline import format_stage

if TYPE_CHECKING:
    from tdx.core.transforms import Transform
    from tdx.envs import EnvBase
    from tdx.pipeline import Pipeline

_MAX_LENGTH = 100


def format_stages(
    env: EnvBase, pipeline: Pipeline | None = None, *, expanded: bool = False
) -> tuple[str, ...]:
    """Return one line for each stage of an env's whole chain, innermost first.

    Stages of the pipeline are written as in a pipeline file, those of the env as their ``repr``.

    Args:
        env: Env of the pipeline, with its chain.
        pipeline: The pipeline. ``None``: all stages are those of the env.
        expanded: List the stages inside a ``Compose`` one by one, as a plan does.

    Example:
        >>> from tdx.pipeline import Pipeline, build_env
        >>> pipeline = Pipeline.of("Pendulum-v1", "RewardScaling(0.0, 0.1)")
        >>> format_stages(build_env(pipeline), pipeline)
        ('RewardScaling(0.0, 0.1)',)
    """
    from tdx.core.chain import chain_stages

    stages = chain_stages(env)
    configs = () if pipeline is None else pipeline.transforms
    own = len(stages) - len(configs)
    texts: list[str] = []
    for index, stage in enumerate(stages):
        parts = list(_flatten_compose(stage)) if expanded else [stage]
        if parts != [stage]:
            texts += map(_stage_repr, parts)
        elif index < own:
            texts.append(_stage_repr(stage))
        else:
            texts.append(format_stage(configs[index - own]))
    return tuple(texts)


def _flatten_compose(stage: Transform) -> Iterator[Transform]:
    from tdx.core.transforms import Compose

    if type(stage) is Compose:
        for inner in stage:
            yield from _flatten_compose(inner)
    else:
        yield stage


def _stage_repr(stage: Transform) -> str:
    text = repr(stage)
    return type(stage).__name__ if "\n" in text or len(text) > _MAX_LENGTH else text
