"""Write a pipeline as YAML."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from tdx.pipeline.arguments import named
from tdx.pipeline.formatting import format_stage
from tdx.pipeline.model import EnvConfig, Pipeline, RolloutConfig, StageConfig
from tdx.pipeline.policy_source import policy_settings
from tdx.pipeline.switched_off import with_off_stages
from tdx.pipeline.yaml_text import dump_yaml, load_yaml, styled
from tdx.pipeline.yaml_values import encode

BLOCK_DEPTHS = {"env": 1, "transforms": 2, "rollout": 1}


def write_pipeline(pipeline: Pipeline) -> str:
    """The YAML text of a pipeline; positional arguments get their names where they have one.

    Example:
        >>> from tdx.pipeline import Pipeline
        >>> print(write_pipeline(Pipeline.of("Pendulum-v1", "StepCounter(200)", "RewardSum")))
        version: 1
        env:
          id: Pendulum-v1
        transforms:
          - StepCounter: {max_steps: 200}
          - RewardSum
        <BLANKLINE>
    """
    document = document_of(pipeline)
    sections = {key: styled(node, BLOCK_DEPTHS.get(key, 0)) for key, node in document.items()}
    text = dump_yaml(sections)
    if not pipeline.off:
        return text
    return with_off_stages(text, load_yaml(text), pipeline.off) or text


def document_of(pipeline: Pipeline) -> dict[str, Any]:
    """The pipeline as the plain data of its file; what has its default is left out."""
    document: dict[str, Any] = {"version": pipeline.version, "env": env_node(pipeline.env)}
    document["transforms"] = [stage_node(stage) for stage in pipeline.transforms]
    if pipeline.policy is not None:
        settings = policy_settings(pipeline.policy)
        document["policy"] = {"mlp": encode(settings)} if settings else encode(pipeline.policy)
    rollout = rollout_node(pipeline)
    return {**document, "rollout": rollout} if rollout else document


def stage_node(stage: StageConfig) -> object:
    """One stage: its name, a map from its name to its arguments, or the text of ``--t``."""
    full = named(stage)
    if not full.args and not full.kwargs:
        return full.name
    if not full.args:
        return {full.name: {name: encode(value) for name, value in full.kwargs.items()}}
    if not full.kwargs:
        return {full.name: [encode(value) for value in full.args]}
    return format_stage(full)


def env_node(env: EnvConfig) -> dict[str, Any]:
    """The env, without what has its default."""
    node: dict[str, Any] = {"id": encode(env.id)}
    for field in fields(EnvConfig):
        value = getattr(env, field.name)
        default = {} if field.name == "kwargs" else field.default
        if field.name != "id" and value != default:
            node[field.name] = encode(value)
    return node


def rollout_node(pipeline: Pipeline) -> dict[str, Any]:
    """The defaults of a rollout that are set."""
    values = {field.name: getattr(pipeline.rollout, field.name) for field in fields(RolloutConfig)}
    return {name: value for name, value in values.items() if value is not None}
