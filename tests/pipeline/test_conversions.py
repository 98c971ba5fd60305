"""Text, file, options and Python program of a pipeline are equivalent."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tdx.foundation.errors import PipelineError
from tdx.pipeline import (
    EnvConfig,
    Pipeline,
    StageConfig,
    format_stage,
    from_flags,
    from_python,
    parse_stage,
    read_pipeline,
    to_command,
    to_flags,
    to_python,
    write_pipeline,
)
from tdx.pipeline.arguments import name_arguments
from tests.pipeline.strategies import ENVS, KNOWN_STAGES, PIPELINES, exactly
from tests.programs import examples


def fully_named(pipeline: Pipeline) -> Pipeline:
    return pipeline.with_stages(*map(name_arguments, pipeline.transforms))


def without_places(pipeline: Pipeline) -> Pipeline:
    stages = (replace(stage, line=None, column=None) for stage in pipeline.transforms)
    return replace(pipeline.with_stages(*stages), file=None)


@settings(max_examples=examples(50))
@given(PIPELINES)
def test_file(pipeline: Pipeline) -> None:
    read = read_pipeline(write_pipeline(pipeline), "f.yaml")
    assert exactly(without_places(read)) == exactly(fully_named(pipeline))


@settings(max_examples=examples(50))
@given(PIPELINES)
def test_flags(pipeline: Pipeline) -> None:
    assert exactly(from_flags(to_flags(pipeline))) == exactly(pipeline)


def _gym(env: EnvConfig) -> EnvConfig:
    """Keep only settings that the env's class accepts."""
    kwargs = {name: value for name, value in env.kwargs.items() if isinstance(value, int | str)}
    if env.from_pixels and env.id in ("Pendulum-v1", "ALE/Pong-v5"):
        return replace(env, kwargs=kwargs)
    return replace(env, kwargs=kwargs, from_pixels=False, pixels_only=True)


@given(ENVS.map(_gym), st.lists(KNOWN_STAGES, max_size=3))
def test_python(env: EnvConfig, stages: list[StageConfig]) -> None:
    if env.code is not None and env.batching == "vector":
        env = replace(env, num_envs=None)
    if env.num_envs is None:
        env = replace(env, batching="vector")
    if env.batching != "parallel":
        env = replace(env, worker_timeout=None)
    pipeline = Pipeline(env, tuple(stages))
    assert exactly(from_python(to_python(pipeline))) == exactly(pipeline)


def test_program() -> None:
    pipeline = Pipeline.of(
        EnvConfig("Pendulum-v1", {"g": 9.8}, num_envs=2, batching="serial", device="cpu", seed=7),
        "CatFrames(4, dim=-1, in_keys=[('a', 'b')], padding_value=inf)",
        "ObservationNorm([0.0, 1.0], 2)",
        "my.code:Primer(hidden=Unbounded(shape=(3,), dtype=float32))",
        "my.code:Thing(1)",
    )
    text = to_python(replace(pipeline, policy="my.agent:act"))
    assert text.splitlines()[:-11] == [
        "from functools import partial",
        "",
        "import my.agent",
        "import my.code",
        "import torch",
        "",
        "from tdx import CatFrames, Compose, GymEnv, ObservationNorm, SerialEnv, "
        "TransformedEnv, Unbounded",
        "",
    ]
    assert text.splitlines()[-11:] == [
        "env = TransformedEnv(",
        '    SerialEnv(2, partial(GymEnv, "Pendulum-v1", g=9.8), device="cpu"),',
        "    Compose(",
        '        CatFrames(4, dim=-1, in_keys=[("a", "b")], padding_value=float("inf")),',
        "        ObservationNorm(torch.tensor([0.0, 1.0]), 2.0),",
        "        my.code.Primer(hidden=Unbounded(shape=(3,), dtype=torch.float32)),",
        "        my.code.Thing(1),",
        "    ),",
        ")",
        "env.set_seed(7)",
        "policy = my.agent.act",
    ]


def test_the_program_builds_the_same_env() -> None:
    from tdx.pipeline import build_checked_env

    pipeline = Pipeline.of(
        EnvConfig("tdx/Pendulum", num_envs=3, seed=1), "StepCounter(max_steps=5)", "RewardSum"
    )
    scope: dict[str, object] = {}
    exec(to_python(pipeline), scope)
    theirs, ours = scope["env"], build_checked_env(pipeline)
    assert theirs.output_spec == ours.output_spec  # type: ignore[attr-defined]
    assert theirs.input_spec == ours.input_spec  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "source", ["x = 1", "env = 3", "env = TransformedEnv(make(), Compose())", "env = ("]
)
def test_other_programs_are_refused(source: str) -> None:
    with pytest.raises(PipelineError):
        from_python(source)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "no env is given"),
        (["--env"], "--env needs a value"),
        (["--evn", "x"], "unknown option --evn"),
        (["--env", "x", "--seed", "a"], "--seed must be a whole number, got a"),
        (["--env", "x", "--batching", "seriel"], "unknown batching 'seriel'"),
        (["--env", "x", "--num-envs", "0"], "num_envs must be a whole number of at least 1, got 0"),
    ],
)
def test_flag_errors(flags: list[str], message: str) -> None:
    with pytest.raises(PipelineError) as caught:
        from_flags(flags)
    assert caught.value.message == message


def test_text_stays_short() -> None:
    text = "StepCounter(max_steps=200)"
    assert format_stage(parse_stage(text)) == text


def test_command_names_the_env_as_its_argument() -> None:
    pipeline = Pipeline.of("Pendulum-v1", "RewardSum")
    assert to_command(pipeline, "tdx check") == "tdx check Pendulum-v1 -t RewardSum"
    assert to_command(Pipeline.of("-odd")) == "tdx inspect spec --env -odd"
