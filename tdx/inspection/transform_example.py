"""What a transform makes of the specs of an env that it fits, found by trying."""

from __future__ import annotations

import ast
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tdx.errors import TdxError
from tdx.inspection.spec_report import KeyChange, StageReport, inspect_spec
from tdx.pipeline import EnvConfig, Pipeline, StageConfig, format_stage, parse_stage

if TYPE_CHECKING:
    from tdx.pipeline.entries import TransformInfo

_PIXELS = EnvConfig("Pendulum-v1", from_pixels=True)
_SETTINGS = (
    Pipeline(EnvConfig("Pendulum-v1")),
    Pipeline(EnvConfig("CartPole-v1")),
    Pipeline(EnvConfig("InvertedPendulum-v5")),
    Pipeline(_PIXELS),
    Pipeline(_PIXELS, (StageConfig("ToTensorImage"),)),
    Pipeline.of("Pendulum-v1", 'UnsqueezeTransform(-2, in_keys=["observation"])'),
)
"""Envs, and stages that come before, from the most to the least common need."""

_KNOWN_KEYS = (("observation",), ("pixels",), ("reward",), ("action",), ("done",))


@dataclass(frozen=True, slots=True)
class TransformExample:
    """A transform at the end of a chain.

    Args:
        pipeline: the env and the chain; the transform is its last stage.
        stage: what that stage did to the specs.
    """

    pipeline: Pipeline
    stage: StageReport

    @property
    def changes(self) -> tuple[KeyChange, ...]:
        """Every key before and after the transform."""
        return self.stage.changes

    @property
    def command(self) -> str:
        """The command that shows the same."""
        env = self.pipeline.env
        words = ["tdx", "inspect", "spec", "--env", env.id]
        words += ["--from-pixels"] if env.from_pixels else []
        for stage in self.pipeline.transforms:
            words += ["--t", format_stage(stage)]
        return shlex.join(words)

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        keys = [change.to_dict() for change in self.changes]
        return {"command": self.command, "keys": keys}


def find_example(info: TransformInfo) -> TransformExample | None:
    """An env on which a transform can be shown, best one where it changes a spec.

    The transform's arguments are those of the example in its docstring.

    Args:
        info: the transform.

    Returns:
        None where it fits none of the envs that are tried.
    """
    fallback = None
    for stage in _calls(info):
        for setting in _SETTINGS:
            fitted = _fitted(stage, "pixels" if setting.env.from_pixels else "observation")
            example = _tried(setting.with_stages(*setting.transforms, fitted))
            if example and any(change.change != "same" for change in example.changes):
                return example
            fallback = fallback or example
    return fallback


def _fitted(stage: StageConfig, key: str) -> StageConfig:
    """The stage, reading ``key`` where its one in-key is the name of no part of an env."""
    from tdx.pipeline.arguments import named

    kwargs = dict(named(stage).kwargs)
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
        return TransformExample(pipeline, inspect_spec(env).stages[-1])
    except TdxError:
        return None
    finally:
        env.close()


def _calls(info: TransformInfo) -> Iterator[StageConfig]:
    """The transform as its docstring makes it, then without arguments."""
    for node in ast.walk(_example_code(info.doc)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == info.name:
            try:
                yield parse_stage(ast.unparse(node))
            except TdxError:
                continue
    if not any(parameter.required for parameter in info.parameters):
        yield StageConfig(info.name)


def _example_code(doc: str) -> ast.Module:
    """The code after the prompts of a docstring; empty where it is no Python."""
    lines = [line.strip() for line in doc.splitlines()]
    code = "\n".join(line[4:] for line in lines if line.startswith((">>> ", "... ")))
    try:
        return ast.parse(code)
    except SyntaxError:
        return ast.Module([], [])
