"""Arguments are checked against their declaration."""

from __future__ import annotations

import pytest

from tdx.foundation.errors import ArgumentError, TdxError, UnknownNameError
from tdx.pipeline import (
    Call,
    Catalog,
    CodeReference,
    Dtype,
    Parameter,
    StageConfig,
    TransformInfo,
    parse_stage,
)
from tdx.pipeline.arguments import bind_stage, name_arguments
from tdx.pipeline.coercion import MismatchError, coerce
from tdx.pipeline.transform_info import Type, make_union
from tdx.pipeline.values import Value

NUMBER_OR_TENSOR = make_union([Type("float"), Type("tensor")])
MODES = Type("literal", values=("fast", "exact"))


@pytest.mark.parametrize(
    ("text", "kind", "message", "hint"),
    [
        (
            "StepCouter",
            UnknownNameError,
            "unknown transform StepCouter",
            "did you mean StepCounter?",
        ),
        (
            "Xyz",
            UnknownNameError,
            "unknown transform Xyz",
            "`tdx list transforms` prints all of them",
        ),
        (
            "StepCounter(max_stesp=3)",
            UnknownNameError,
            "StepCounter has no argument max_stesp",
            "did you mean max_steps?",
        ),
        (
            "InitTracker(zzz=3)",
            UnknownNameError,
            "InitTracker has no argument zzz",
            "it has init_key",
        ),
        (
            "StepCounter(max_steps='ten')",
            ArgumentError,
            'max_steps must be a whole number or None, got "ten"',
            "write a whole number or None",
        ),
        (
            "StepCounter(max_steps='10')",
            ArgumentError,
            'max_steps must be a whole number or None, got "10"',
            "write it without quotes",
        ),
        (
            "StepCounter(max_steps=2.0)",
            ArgumentError,
            "max_steps must be a whole number or None, got 2.0",
            "write 2",
        ),
        (
            "StepCounter(max_steps=True)",
            ArgumentError,
            "max_steps must be a whole number or None, got True",
            "write a whole number or None",
        ),
        (
            "StepCounter(update_done=1)",
            ArgumentError,
            "update_done must be True or False, got 1",
            "write True or False",
        ),
        (
            "InitTracker(float32)",
            ArgumentError,
            "init_key must be a string, got torch.float32",
            "put a string in quotes",
        ),
        (
            "RewardSum(in_keys=['a', 3])",
            ArgumentError,
            "in_keys holds 3, expected a key (a string or a tuple of strings)",
            "write a list of keys or None",
        ),
        (
            "TensorDictPrimer({'a': Unbonded(3)})",
            ArgumentError,
            "primers holds Unbonded(3), expected a spec such as Unbounded(shape=(3,))",
            "did you mean Unbounded or Bounded?",
        ),
        (
            "InitTracker('a', 'b')",
            ArgumentError,
            "InitTracker takes 1 positional argument, got 2",
            "InitTracker(init_key: str = 'is_init')",
        ),
        (
            "StepCounter(3, max_steps=4)",
            ArgumentError,
            "max_steps is given twice, by position and by name",
            "pass it once",
        ),
        (
            "CatFrames(4)",
            ArgumentError,
            "CatFrames needs the argument dim",
            "dim is a whole number",
        ),
        (
            "Compose(RewardSum, StepCouter(3))",
            UnknownNameError,
            "unknown transform StepCouter",
            "did you mean StepCounter?",
        ),
        (
            "Compose(RewardSum, 3)",
            ArgumentError,
            "transforms must be a transform, got 3",
            "write a transform",
        ),
        (
            "Compose(a=3)",
            UnknownNameError,
            "Compose has no argument a",
            "it has no arguments",
        ),
    ],
)
def test_errors(text: str, kind: type[TdxError], message: str, hint: str) -> None:
    errors = bind_stage(parse_stage(text)).errors
    assert [(type(error), error.message, error.hint) for error in errors] == [(kind, message, hint)]


def test_all_errors_of_a_stage_are_found() -> None:
    bound = bind_stage(parse_stage("CatFrames('x', padding_valeu=1)"))
    assert [error.message for error in bound.errors] == [
        'N must be a whole number, got "x"',
        "CatFrames has no argument padding_valeu",
        "CatFrames needs the argument dim",
    ]


@pytest.mark.parametrize(
    ("kind", "value", "result"),
    [
        (Type("float"), 1, 1.0),
        (Type("any"), ("a", ("b", "c")), ["a", ("b", "c")]),
        (Type("key"), ("a", "b"), ("a", "b")),
        (Type("keys"), ("a", ("b", "c")), ["a", ("b", "c")]),
        (Type("keys"), "a", ["a"]),
        (Type("dtype"), "torch.long", Dtype("int64")),
        (Type("device"), "cuda:0", "cuda:0"),
        (Type("sequence", (Type("int"),)), (1, 2), [1, 2]),
        (Type("dict", (Type("spec"),)), {"h": "Unbounded(1)"}, {"h": Call("Unbounded", (1,))}),
        (Type("transform"), "RewardSum", Call("RewardSum")),
        (
            Type("transform"),
            {"StepCounter": {"max_steps": 3}},
            Call("StepCounter", (), {"max_steps": 3}),
        ),
        (Type("transform"), {"StepCounter": (3,)}, Call("StepCounter", (3,))),
        (Type("callable"), "a.b:c", CodeReference("a.b", "c")),
        (NUMBER_OR_TENSOR, 3, 3.0),
        (NUMBER_OR_TENSOR, ((1, 2), (3, 4)), Call("tensor", (((1, 2), (3, 4)),))),
        (MODES, "fast", "fast"),
        (make_union([Type("str"), Type("dtype")]), "float32", "float32"),
        (make_union([Type("int"), Type("sequence", (Type("int"),))]), (84, 84), [84, 84]),
        (Type("other", text="Mode"), "x:y", CodeReference("x", "y")),
    ],
)
def test_coercion(kind: Type, value: Value, result: object) -> None:
    found = coerce(kind, value)
    assert found == result
    assert type(found) is type(result)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Type("int"), True),
        (Type("int"), 1.5),
        (Type("float"), True),
        (Type("str"), 3),
        (Type("key"), ()),
        (Type("key"), ("a", 1)),
        (Type("dtype"), "flaot32"),
        (Type("spec"), Call("RewardSum")),
        (Type("spec"), "not a spec"),
        (Type("transform"), Call("Unbounded")),
        (Type("callable"), "no reference"),
        (Type("tensor"), ("a",)),
        (MODES, "fats"),
        (Type("none"), 0),
    ],
)
def test_mismatches(kind: Type, value: Value) -> None:
    with pytest.raises(MismatchError):
        coerce(kind, value)


def test_naming_positional_arguments() -> None:
    stage = name_arguments(parse_stage("CatFrames(4, -1, padding='same')"))
    assert stage == StageConfig("CatFrames", (), {"N": 4, "dim": -1, "padding": "same"})
    for text in ("Unknown(1)", "Compose(RewardSum)", "InitTracker('a', 'b')", "a:b(1)"):
        assert name_arguments(parse_stage(text)) == parse_stage(text)


def test_a_choice_gets_the_nearest_spelling(monkeypatch: pytest.MonkeyPatch) -> None:
    mode = Parameter("mode", "Mode", None, "", "positional", make_union([MODES, Type("none")]))
    info = TransformInfo("Scale", "m", "reward", "scan", "", "", (mode,))
    monkeypatch.setattr("tdx.pipeline.arguments.load_catalog", lambda: Catalog((info,)))
    errors = bind_stage(parse_stage("Scale('fats')")).errors
    assert [str(error) for error in errors] == [
        'mode must be one of "fast" or "exact" or None, got "fats" (did you mean fast?)'
    ]
    assert isinstance(errors[0], UnknownNameError)
    assert [str(error) for error in bind_stage(parse_stage("Scale(3)")).errors] == [
        'mode must be one of "fast" or "exact" or None, got 3'
        ' (write one of "fast" or "exact" or None)'
    ]
