"""Untrusted pipelines: cost is bounded, errors are one sentence and a hint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tdx import EnvConfig, Pipeline, PipelineFile, TdxError
from tdx.pipeline import (
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
from tdx.untrusted import MAX_ENVS, MAX_NESTING, MAX_PIPELINE_BYTES, MAX_STAGES, MAX_VALUES

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
