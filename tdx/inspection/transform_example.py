"""What a transform makes of an env that it fits, found by trying, or else of stored data."""

from __future__ import annotations

import ast
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tdx.errors import TdxError
from tdx.inspection.docstring_example import example_code, run_example
from tdx.inspection.spec_report import KeyChange, StageReport, inspect_spec
from tdx.pipeline import EnvConfig, Pipeline, StageConfig, format_stage, parse_stage

if TYPE_CHECKING:
    from tdx.pipeline.catalog import TransformInfo

_PIXELS = EnvConfig("Pendulum-v1", from_pixels=True)
_SETTINGS = (
    Pipeline(EnvConfig("Pendulum-v1")),
    Pipeline(EnvConfig("CartPole-v1")),
    Pipeline(EnvConfig("InvertedPendulum-v5")),
    Pipeline(_PIXELS),
    Pipeline(_PIXELS, (StageConfig("ToTensorImage"),)),
    Pipeline.of("Pendulum-v1", 'UnsqueezeTransform(-2, in_keys=["observation"])'),
    Pipeline.of("Pendulum-v1", 'UnsqueezeTransform(-2, in_keys_inv=["action"])'),
)
"""Envs, and stages that come before, from the most to the least common need."""

_KNOWN_KEYS = (("observation",), ("pixels",), ("reward",), ("action",), ("done",))


@dataclass(frozen=True, slots=True)
class TransformExample:
    """A transform at the end of a chain, or in the code of its docstring.

    Args:
        stage: what it did to the specs, or to stored data.
        pipeline: the env and the chain, whose last stage it is; none where no env fits.
        code: the Python code that shows it, where there is no pipeline.
    """

    stage: StageReport
    pipeline: Pipeline | None = None
    code: str | None = None

    @property
    def changes(self) -> tuple[KeyChange, ...]:
        """Every key before and after the transform."""
        return self.stage.changes

    @property
    def command(self) -> str | None:
        """The command that shows the same, where there is a pipeline."""
        if self.pipeline is None:
            return None
        env = self.pipeline.env
        words = ["tdx", "inspect", "spec", "--env", env.id]
        words += ["--from-pixels"] if env.from_pixels else []
        for stage in self.pipeline.transforms:
            words += ["--t", format_stage(stage)]
        return shlex.join(words)

    def to_dict(self) -> dict[str, Any]:
        """As plain data; there is ``code`` only where there is no command."""
        keys = [change.to_dict() for change in self.changes]
        shown = {"command": self.command} | ({"code": self.code} if self.code else {})
        return {**shown, "keys": keys}


def find_example(info: TransformInfo) -> TransformExample | None:
    """An env on which a transform can be shown, best one where it changes a spec.

    The transform's arguments are those of the example in its docstring. Where no env fits, the
    example itself is run.

    Args:
        info: the transform.

    Returns:
        None where it fits none of the envs that are tried, and its example uses none either.
    """
    fallback = None
    for stage in _calls(info):
        for setting in _SETTINGS:
            fitted = _fitted(stage, "pixels" if setting.env.from_pixels else "observation")
            example = _tried(setting.with_stages(*setting.transforms, fitted))
            if example and any(change.change != "same" for change in example.changes):
                return example
            fallback = fallback or example
    return fallback or _run(info)


def _run(info: TransformInfo) -> TransformExample | None:
    try:
        stage = run_example(info)
    except TdxError:
        return None
    return None if stage is None else TransformExample(stage, code=example_code(info.doc))


def _fitted(stage: StageConfig, key: str) -> StageConfig:
    """The stage, reading ``key`` where its one in-key is the name of no part of an env."""
    from tdx.pipeline.arguments import name_arguments

    kwargs = dict(name_arguments(stage).kwargs)
    if not isinstance(kwargs.get("in_keys"), tuple) or kwargs["in_keys"] in _KNOWN_KEYS:
        return stage
    return StageConfig(stage.name, (), {**kwargs, "in_keys": (key,)})


def _tried(pipeline: Pipeline) -> TransformExample | None:
    from tdx.pipeline import build_env

    try:
        env = build_env(pipeline)
    except TdxError:
        return None
    try:
        return TransformExample(inspect_spec(env).stages[-1], pipeline)
    except TdxError:
        return None
    finally:
        env.close()


def _calls(info: TransformInfo) -> Iterator[StageConfig]:
    """The transform as its docstring makes it, then without arguments."""
    for node in ast.walk(ast.parse(example_code(info.doc))):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == info.name:
            try:
                yield parse_stage(ast.unparse(node))
            except TdxError:
                continue
    if not any(parameter.required for parameter in info.parameters):
        yield StageConfig(info.name)
