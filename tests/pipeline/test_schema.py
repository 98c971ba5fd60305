"""The JSON Schema accepts and refuses the same files as tdx."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from ruamel.yaml import YAML

from tdx.pipeline import Pipeline, check_arguments, load_catalog, read_pipeline, write_pipeline
from tdx.pipeline.generate import SCHEMA_FILE
from tests.pipeline.strategies import KNOWN_STAGES
from tests.programs import examples, exhaustive

SAMPLES = Path(__file__).parents[2] / "sample_pipelines"
SCHEMA: dict[str, Any] = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))
VALIDATOR = Draft202012Validator(SCHEMA)


def problems(text: str) -> list[str]:
    document = YAML(typ="safe", pure=True).load(io.StringIO(text))
    return [error.json_path for error in VALIDATOR.iter_errors(document)]


def with_stage(stage: str) -> str:
    return f"version: 1\nenv: {{id: Pendulum-v1}}\ntransforms:\n  - {stage}\n"


def objects(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        if schema.get("type") == "object":
            yield schema
        for value in schema.values():
            yield from objects(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from objects(value)


@exhaustive
def test_the_schema_is_valid() -> None:
    Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("path", sorted(SAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_samples(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert problems(text) == []
    assert check_arguments(read_pipeline(text, path.name), allow_code=True) == []


@pytest.mark.parametrize(
    "stage",
    [
        "StepCounter",
        "StepCounter:",
        "StepCounter: {}",
        "StepCounter: {max_steps: 200}",
        "StepCounter: [200]",
        "StepCounter(max_steps=200)",
        "CatFrames: {N: 4, dim: -1, in_keys: [observation, [agents, pixels]]}",
        "CatFrames: {N: 4, dim: -1, in_keys: observation}",
        "RewardClipping: {clamp_max: .inf}",
        "ObservationNorm: {loc: [0.0, 1.0], scale: 1}",
        "Compose: [RewardSum, {StepCounter: {max_steps: 3}}, StepCounter(3)]",
        "my.code:Thing",
        "my.code:Thing: {anything: [1, {a: 2}]}",
    ],
)
def test_valid_stages(stage: str) -> None:
    assert problems(with_stage(stage)) == []
    pipeline = read_pipeline(with_stage(stage), "f")
    assert check_arguments(pipeline, allow_code=True) == []


@pytest.mark.parametrize(
    "stage",
    [
        "StepCouter",
        "StepCounter: {max_stesp: 200}",
        "StepCounter: {max_steps: ten}",
        "StepCounter: {max_steps: 1.5}",
        "StepCounter: [1, a, b, true, 5]",
        "CatFrames",
        "CatFrames: {N: 4}",
        "CatFrames: [4]",
        "RewardSum: {in_keys: [3]}",
        "StepCouter(3)",
        "Compose: [3]",
    ],
)
def test_invalid_stages(stage: str) -> None:
    assert problems(with_stage(stage)) == ["$.transforms[0]"]
    assert check_arguments(read_pipeline(with_stage(stage), "f"))


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("env: x", "$"),
        ("version: 1", "$"),
        ("version: 2\nenv: x", "$.version"),
        ("version: 1\nenv: {}", "$.env"),
        ("version: 1\nenv: {id: x, num_envs: 0}", "$.env"),
        ("version: 1\nenv: {id: x, batching: seriel}", "$.env"),
        ("version: 1\nenv: {id: x, device: 3}", "$.env"),
        ("version: 1\nenv: {id: x, worker_timeout: 0}", "$.env"),
        ("version: 1\nenv: x\ntransform: []", "$"),
        ("version: 1\nenv: x\npolicy: 3", "$.policy"),
        ("version: 1\nenv: x\nrollout: {max_steps: 0}", "$.rollout.max_steps"),
    ],
)
def test_invalid_files(text: str, place: str) -> None:
    assert problems(text) == [place]


@settings(max_examples=examples(50))
@given(KNOWN_STAGES)
def test_written_pipelines_match_the_schema(stage: Any) -> None:
    assert problems(write_pipeline(Pipeline.of("Pendulum-v1", stage))) == []


def test_every_object_is_closed() -> None:
    closed = [
        each
        for each in objects(SCHEMA)
        if "properties" in each and each.get("additionalProperties") is not False
    ]
    open_by_design = [info.name for info in load_catalog().transforms if _takes_any_name(info)]
    assert len(closed) == len(open_by_design)


def _takes_any_name(info: Any) -> bool:
    return any(each.kind == "var_keyword" for each in info.parameters)


def test_arguments_have_descriptions() -> None:
    arguments = SCHEMA["$defs"]["StepCounter"]["anyOf"][0]["properties"]
    assert arguments["max_steps"]["default"] is None
    assert arguments["step_count_key"]["default"] == "step_count"
    assert arguments["max_steps"]["description"]
