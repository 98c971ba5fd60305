"""Untrusted pipelines: cost is bounded, errors are one sentence and a hint."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tdx import EnvConfig, Pipeline, PipelineFile, TdxError
from tdx.foundation.untrusted import (
    MAX_ENVS,
    MAX_NESTING,
    MAX_PIPELINE_BYTES,
    MAX_STAGES,
    MAX_VALUES,
)
from tdx.pipeline import (
    build_checked_env,
    check_arguments,
    from_flags,
    from_python,
    parse_kwargs,
    parse_stage,
    parse_value,
    read_pipeline,
)
from tdx.pipeline.envs import plan_env
from tdx.pipeline.policies import parse_policy

DEEP = 20_000
HEAD = "version: 1\nenv: Pendulum-v1\n"


def bomb(levels: int, last: str) -> str:
    lines = ["a0: &a0 [x,x,x,x,x,x,x,x,x,x]"]
    lines += [f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 10)}]" for n in range(1, levels)]
    return f"{{{', '.join([*lines, last])}}}"


TOO_DEEP = "nested more than 100 levels deep"
DIGITS = "an integer has too many digits"
FILES = {
    "open brackets": (HEAD + "transforms: " + "[" * DEEP, TOO_DEEP),
    "brackets": (HEAD + "transforms: " + "[" * DEEP + "]" * DEEP, TOO_DEEP),
    "maps": ("version: 1\nenv: " + "{a: " * DEEP + "}" * DEEP, TOO_DEEP),
    "lists": ("- " * DEEP + "a", TOO_DEEP),
    "block": ("".join(f"{' ' * depth}a:\n" for depth in range(300)), TOO_DEEP),
    "value": (HEAD + f"transforms: [CatFrames: {{N: '={'[' * DEEP}'}}]", "nested parentheses"),
    "stage": (HEAD + f"transforms: ['{'CatFrames(' * DEEP}']", "nested parentheses"),
    "aliases": (
        f"version: 1\nenv: {{id: x, kwargs: {bomb(12, 'z: 1')}}}\n",
        "too many values",
    ),
    "a value inside itself": (
        "version: 1\nenv: &e {id: x, kwargs: {a: *e}}\n",
        "is inside the value that it refers to",
    ),
    "values": (f"version: [{'1,' * (MAX_VALUES + 1)}]", "more than 10,000 values"),
    "bytes": (HEAD + "#" * MAX_PIPELINE_BYTES, "at most 262,144 bytes"),
    "envs": ("version: 1\nenv: {id: x, num_envs: 100000000}", "num_envs must be at most 65,536"),
    "seed": (f"version: 1\nenv: {{id: x, seed: 1{'0' * 30}}}", "seed must be at most"),
    "stages": (
        HEAD + "transforms:\n" + "  - RewardSum\n" * (MAX_STAGES + 1),
        "has 501 stages, the limit is 500",
    ),
    "decimal": (HEAD + f"transforms: [StepCounter: {{max_steps: {'9' * 5_000}}}]", DIGITS),
    "short decimal": (HEAD + f"transforms: [RewardSum: {{x: {'9' * 400}}}]", DIGITS),
    "hexadecimal": (HEAD + f"transforms: [StepCounter: {{max_steps: 0x{'F' * 9_999}}}]", DIGITS),
    "bare env": (f"version: 1\nenv: {'x' * 9_999}", "at most 1,000 characters"),
    "env": (f"version: 1\nenv: {{id: {'x' * 9_999}}}", "at most 1,000 characters"),
}


@pytest.mark.parametrize("name", FILES)
def test_oversized_files_are_refused(name: str) -> None:
    text, message = FILES[name]
    with pytest.raises(TdxError) as caught:
        read_pipeline(text, "f.yaml")
    error = caught.value
    assert message in error.message
    assert error.hint
    assert error.where.file == "f.yaml"
    assert len(str(error)) < 1_000


def test_files_at_the_limit_are_accepted() -> None:
    text = HEAD + "transforms:\n" + "  - RewardSum\n" * MAX_STAGES
    assert len(read_pipeline(text, "f.yaml").transforms) == MAX_STAGES
    deep = "[" * 40 + "]" * 40
    env = read_pipeline(f"version: 1\nenv: {{id: x, kwargs: {{a: {deep}}}}}", "f.yaml").env
    assert env.kwargs


def test_merge_keys_are_not_expanded() -> None:
    lines = ["a0: &a0 {k: 1}"]
    for level in range(1, 40):
        merged = ",".join([f"*a{level - 1}"] * 10)
        lines.append(f"a{level}: &a{level} {{<<: [{merged}]}}")
    with pytest.raises(TdxError, match="has no key a0"):
        read_pipeline(HEAD + "\n".join(lines), "f.yaml")


def test_a_long_comment_is_not_a_disabled_stage() -> None:
    text = HEAD + "transforms:\n  - RewardSum\n  # off: " + "a # " * 50_000 + "\n"
    assert read_pipeline(text, "f.yaml").off == ()


TEXTS = {
    "calls": "C(" * DEEP,
    "closed calls": "C(" * DEEP + ")" * DEEP,
    "brackets": "C(" + "[" * DEEP + "]" * DEEP + ")",
    "minus": "C(" + "-" * DEEP + "1)",
    "fewer minus": "C(" + "-" * (MAX_NESTING + 1) + "1)",
    "names": "C(a" + ".a" * DEEP + ")",
    "sums": "C(" + "1+" * 300 + "1)",
    "not": "C(" + "not " * DEEP + "1)",
    "decimal": "C(" + "9" * 5_000 + ")",
    "short decimal": "C(" + "9" * 400 + ")",
    "hexadecimal": "C(0x" + "F" * 99_999 + ")",
    "negative": "C(-0x" + "F" * 99_999 + ")",
    "key": "C({0x" + "F" * 99_999 + ": 1})",
    "operator": "C(1 + 0x" + "F" * 99_999 + ")",
    "float": "C(float(0x" + "F" * 999 + "))",
    "length": "C(" + " " * MAX_PIPELINE_BYTES + ")",
}


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("parse", [parse_stage, parse_value, parse_kwargs])
def test_oversized_texts_are_refused(parse: Any, name: str) -> None:
    with pytest.raises(TdxError) as caught:
        parse(TEXTS[name])
    assert caught.value.hint
    assert len(str(caught.value)) < 1_000


@pytest.mark.parametrize("text", ["mlp(" * DEEP, "mlp([" * 99, "mlp:", "mlp(1)", "=", "a" * 9_999])
def test_oversized_policies_are_refused(text: str) -> None:
    with pytest.raises(TdxError) as caught:
        parse_policy(text)
    assert caught.value.hint


@pytest.mark.parametrize("text", ["(" * DEEP, "-" * DEEP + "1", "x = 0", "env = 1" + "0" * 5_000])
def test_oversized_programs_are_refused(text: str) -> None:
    with pytest.raises(TdxError) as caught:
        from_python(text)
    assert caught.value.hint


@pytest.mark.parametrize(
    "flags",
    [
        ["--env", "x", "--num-envs", "9" * 5_000],
        ["--env", "x", "--num-envs", "100000000"],
        ["--env", "x", "--seed", "9" * 29],
        ["--env", "x", "--worker-timeout", "soon"],
        ["--env"],
        ["--nonsense"],
        [],
    ],
)
def test_oversized_flags_are_refused(flags: list[str]) -> None:
    with pytest.raises(TdxError) as caught:
        from_flags(flags)
    assert caught.value.hint


def test_python_has_the_same_limits_of_envs() -> None:
    for batching, most in (("vector", MAX_ENVS), ("serial", MAX_ENVS), ("parallel", 1_024)):
        config: Any = EnvConfig("Pendulum-v1", num_envs=most + 1, batching=batching)  # type: ignore[arg-type]
        (error,) = check_arguments(Pipeline.of(config))
        assert (f"the limit is {most:,}" in error.message, bool(error.hint)) == (True, True)
        plan_env(EnvConfig("Pendulum-v1", num_envs=most, batching=batching))  # type: ignore[arg-type]


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/urandom"])
def test_an_endless_file_is_refused(device: str) -> None:
    with pytest.raises(TdxError, match="at most 262,144 bytes") as caught:
        PipelineFile.load(Path(device))
    assert caught.value.hint


@pytest.mark.parametrize(
    "stage",
    [
        *("NoopResetEnv(noops=10**11)", "FrameSkipTransform(100000)", "CatFrames(10**9, dim=-1)"),
        *("TimeMaxPool(T=10**9)", "Resize(10**6)", "ActionDiscretizer(10**9)"),
        *("ActionDiscretizer((5, 10**9))", "Compose(NoopResetEnv(10**6))"),
    ],
)
def test_counts_of_stages_are_limited(stage: str) -> None:
    stage = re.sub(r"10\*\*(\d+)", lambda match: str(10 ** int(match[1])), stage)
    (error,) = check_arguments(Pipeline.of("Pendulum-v1", stage))
    assert "must be at most" in error.message
    assert error.hint


@pytest.mark.parametrize(
    "stages",
    [
        ("FrameSkipTransform(1000)", "FrameSkipTransform(1000)"),
        ("FrameSkipTransform(1000)", "NoopResetEnv(1000)"),
        ("Compose(FrameSkipTransform(1000), FrameSkipTransform(1000))",),
    ],
)
def test_counts_of_all_stages_together_are_limited(stages: tuple[str, ...]) -> None:
    (error,) = check_arguments(Pipeline.of("Pendulum-v1", *stages))
    assert error.message == "one step takes up to 1,000,000 steps of the env, the limit is 100,000"


def test_usual_counts_are_below_the_limits() -> None:
    stages = ("NoopResetEnv(30)", "FrameSkipTransform(4)", "Resize(224)", "CatFrames(64, dim=-3)")
    assert check_arguments(Pipeline.of("Pendulum-v1", *stages)) == []


@pytest.mark.parametrize("name", ["frame_skip", "frameskip"])
@pytest.mark.parametrize("value", [10**11, (2, 10**11)])
def test_counts_of_the_env_are_limited(name: str, value: Any) -> None:
    (error,) = check_arguments(Pipeline.of(EnvConfig("Pendulum-v1", kwargs={name: value})))
    assert f"{name} of the env must be at most 10,000" in error.message


def test_async_envs_are_processes() -> None:
    env = EnvConfig("Pendulum-v1", {"vectorization_mode": "async"}, num_envs=1_025)
    (error,) = check_arguments(Pipeline.of(env))
    assert error.message == "num_envs is 1,025, the limit is 1,024 processes"


def test_entries_larger_than_the_memory_are_refused_before_a_step() -> None:
    primer = "TensorDictPrimer(large=Unbounded(shape=(10000000, 10000000)))"
    with pytest.raises(TdxError, match="more than this machine holds"):
        build_checked_env(Pipeline.of("Pendulum-v1", primer))
