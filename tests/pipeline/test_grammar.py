"""Parsing and formatting of ``--t`` text."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from types import EllipsisType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tdx.foundation.errors import PipelineError
from tdx.pipeline import (
    Call,
    Dtype,
    StageConfig,
    format_stage,
    format_value,
    parse_kwargs,
    parse_stage,
    parse_value,
)
from tdx.pipeline.grammar import shorten
from tdx.pipeline.values import Value
from tests.pipeline.strategies import STAGES, VALUES, exactly


@pytest.mark.parametrize(
    ("text", "stage"),
    [
        ("StepCounter", StageConfig("StepCounter")),
        ("StepCounter()", StageConfig("StepCounter")),
        ("  StepCounter( max_steps = 200 ) ", StageConfig("StepCounter", (), {"max_steps": 200})),
        ("tdx.RewardSum", StageConfig("RewardSum")),
        ("CatFrames(4, dim=-1)", StageConfig("CatFrames", (4,), {"dim": -1})),
        ("my.code:Thing", StageConfig("my.code:Thing")),
        ("my.code:Thing(1)", StageConfig("my.code:Thing", (1,))),
        ("A(\n  1,\n  x='y',\n)", StageConfig("A", (1,), {"x": "y"})),
    ],
)
def test_stages(text: str, stage: StageConfig) -> None:
    assert parse_stage(text) == stage


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("-3", -3),
        ("+1.5", 1.5),
        ("-inf", -math.inf),
        ("float('inf')", math.inf),
        ("torch.inf", math.inf),
        ("1e-7", 1e-7),
        ("None", None),
        ("null", None),
        ("true", True),
        ("'a' 'b'", "ab"),
        ("[('agents', 'reward'), 'b']", (("agents", "reward"), "b")),
        ("{'a': 1, ('b', 'c'): 2}", {"a": 1, ("b", "c"): 2}),
        ("float32", Dtype("float32")),
        ("torch.double", Dtype("float64")),
        ("Unbounded(shape=(3,))", Call("Unbounded", (), {"shape": (3,)})),
        ("Composite({'h': Bounded(-1, 1)})", Call("Composite", ({"h": Call("Bounded", (-1, 1))},))),
        ("torch.tensor([1., 2.])", Call("tensor", ((1.0, 2.0),))),
        (
            "Compose(RewardSum, StepCounter(3))",
            Call("Compose", (Call("RewardSum"), Call("StepCounter", (3,)))),
        ),
    ],
)
def test_values(text: str, value: Value) -> None:
    assert exactly(parse_value(text)) == exactly(value)


@pytest.mark.parametrize(
    ("text", "column", "problem"),
    [
        ("", 1, "it is empty"),
        ("3", 1, "not a call"),
        ("'StepCounter'", 1, "not a call"),
        ("StepCounter(", 12, "'(' was never closed"),
        ("StepCounter(max_steps=)", None, "invalid syntax"),  # 3.12 counts otherwise
        ("  StepCounter(a=1, a=2)", 20, "a is given twice"),
        ("StepCounter(a=1, 2)", 19, "positional argument follows keyword argument"),
        ("S(in_keys=[observation])", 12, "the name observation is not a literal"),
        ("S(é='x', b=foo)", 12, "the name foo is not a literal"),
        ("S(a=1+2)", 5, "1 + 2 is not a literal"),
        ("S(a=-'b')", 5, "-'b' is not a literal"),
        ("S(a=lambda: 1)", 5, "lambda: 1 is not a literal"),
        ("S(__import__('os').remove('x'))", 3, "not a name"),
        ("S(eval('1'))", 3, "eval('1') is not a literal"),
        ("S(a=b'x')", 5, "b'x' is not a literal"),
        ("S(a=f'{x}')", 5, "f'{x}' is not a literal"),
        ("S(a={1.5: 2})", 6, "1.5 cannot be a key of a dict"),
        ("S(*a)", 3, "*a is not a literal"),
        ("S(**a)", 5, "** is not a literal"),
        ("S(\n  a=b)", 8, "the name b is not a literal"),
        ("a.b.S()", 1, "a.b.S has dots in it"),
        ("my.code:Thing(x)", 15, "the name x is not a literal"),
        ("S(torch.flot32)", 3, "torch.flot32 is not a dtype"),
        ("S(" + "[" * 500, None, "too many nested parentheses"),
    ],
)
def test_errors_name_the_text_the_column_and_the_problem(
    text: str, column: int | None, problem: str
) -> None:
    with pytest.raises(PipelineError) as caught:
        parse_stage(text)
    assert caught.value.message == f"cannot read {shorten(text, 200)!r}: {problem}"
    if column is not None:
        assert caught.value.where.column == column
    assert caught.value.hint


def test_a_misspelled_dtype_gets_a_suggestion() -> None:
    with pytest.raises(PipelineError) as caught:
        parse_stage("ToTensorImage(dtype=flaot32)")
    assert caught.value.hint is not None
    assert "float32" in caught.value.hint


def test_nothing_is_evaluated() -> None:
    with pytest.raises(PipelineError):
        parse_stage("S(a=__import__('antigravity'))")
    assert "antigravity" not in sys.modules


@pytest.mark.parametrize(
    "text", ["g=9.8, name='x'", '{"g": 9.8, "name": "x"}', "{'g': 9.8, 'name': 'x'}"]
)
def test_kwargs(text: str) -> None:
    assert parse_kwargs(text) == {"g": 9.8, "name": "x"}


@pytest.mark.parametrize(
    ("text", "column"), [("1", None), ("a=,", ...), ("a=b", 3), ("{1: 2}", 1), ("a=1)", 4)]
)
def test_kwargs_errors(text: str, column: int | EllipsisType | None) -> None:
    with pytest.raises(PipelineError) as caught:
        parse_kwargs(text)
    assert repr(text) in caught.value.message
    if column is not ...:  # Python's own, which differs from release to release
        assert caught.value.where.column == column


def test_formatting() -> None:
    stage = parse_stage("A([1], ('b', ('c', 'd')), x=Unbounded(shape=[3], dtype=half), y='\"')")
    assert format_stage(stage) == (
        'A([1], ["b", ("c", "d")], x=Unbounded(shape=(3,), dtype=torch.float16), y=\'"\')'
    )


@given(STAGES)
def test_parsing_a_stage_inverts_formatting(stage: StageConfig) -> None:
    assert exactly(parse_stage(format_stage(stage))) == exactly(stage)


@given(VALUES)
def test_parsing_a_value_inverts_formatting(value: Value) -> None:
    assert exactly(parse_value(format_value(value))) == exactly(value)


def test_nan_survives() -> None:
    assert format_stage(parse_stage("A(nan)")) == "A(nan)"


@given(st.text(st.sampled_from("AbS(){}[]'\"=,.:*-1 \n\\é#\x00torch"), max_size=20))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    for parse in (parse_stage, parse_value, parse_kwargs):
        column = refused_at(parse, text)
        assert column is None or 1 <= column <= len(text) + 1


def refused_at(parse: Callable[[str], object], text: str) -> int | None:
    try:
        parse(text)
    except PipelineError as error:
        return error.where.column
    return None
