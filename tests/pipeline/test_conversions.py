"""Text, file, options and Python program of a pipeline are equivalent."""

from __future__ import annotations

import builtins
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tdx.foundation.errors import PipelineError
from tdx.pipeline import (
    Call,
    EnvConfig,
    Pipeline,
    StageConfig,
    format_stage,
    from_flags,
    parse_stage,
    read_pipeline,
    to_command,
    to_flags,
    to_python,
    write_pipeline,
)
from tdx.pipeline.arguments import name_arguments
from tests.pipeline.strategies import KNOWN_STAGES, PIPELINES, exactly
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


class Called(NamedTuple):
    """A call that a program makes."""

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Name:
    """A dotted name of a program, whose calls are recorded instead of made."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Name:
        return Name(f"{self._name}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> Called:
        return Called(self._name, args, kwargs)


class Scope(dict[str, Any]):
    def __missing__(self, name: str) -> Name:
        if hasattr(builtins, name):
            raise KeyError(name)
        return Name(name)


def plain(value: object) -> object:
    """Return calls as tuples, and lists too."""
    if isinstance(value, StageConfig | Call):
        return value.name.replace(":", "."), plain(value.args), plain(value.kwargs)
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    return tuple(map(plain, value)) if isinstance(value, list | tuple) else value


@given(st.lists(KNOWN_STAGES, max_size=3))
def test_python(stages: list[StageConfig]) -> None:
    text = to_python(Pipeline.of("Pendulum-v1", *stages))
    lines = [line for line in text.splitlines() if not line.startswith(("import ", "from "))]
    scope = Scope()
    exec("\n".join(lines), {}, scope)
    _, chain = scope["env"].args
    assert plain(chain) == ("Compose", plain(stages), {})


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


@pytest.mark.parametrize(
    "env",
    [
        EnvConfig("tdx/Pendulum", num_envs=3, seed=1),
        EnvConfig("Pendulum-v1", {"g": 5.0}),
        EnvConfig("Pendulum-v1", num_envs=2),
        EnvConfig("Pendulum-v1", {"g": 5.0}, num_envs=2, batching="serial"),
    ],
)
def test_the_program_builds_the_same_env(env: EnvConfig) -> None:
    from tdx.pipeline import build_checked_env

    pipeline = Pipeline.of(env, "StepCounter(max_steps=5)", "RewardSum")
    scope: dict[str, Any] = {}
    exec(to_python(pipeline), scope)
    theirs, ours = scope["env"], build_checked_env(pipeline)
    assert type(theirs.base_env) is type(ours.base_env)
    assert theirs.output_spec == ours.output_spec
    assert theirs.input_spec == ours.input_spec


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
