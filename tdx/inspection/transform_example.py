"""Show what a transform does to an env that it fits, or to the data of its docstring."""

from __future__ import annotations

import ast
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from tdx.foundation.errors import TdxError
from tdx.foundation.serialization import Entries, Entry, Result
from tdx.inspection.spec_report import KeyChange, StageReport, inspect_spec
from tdx.pipeline import EnvConfig, Pipeline, StageConfig, format_stage, parse_stage
from tdx.pipeline.transform_info import Parameter, TransformInfo, Type
from tdx.specs.leaf import Domain, LeafSpec

if TYPE_CHECKING:
    from tensordict import TensorDictBase


_PIXELS = EnvConfig("Pendulum-v1", from_pixels=True)
_CONTEXTS = (
    Pipeline(EnvConfig("Pendulum-v1")),
    Pipeline(EnvConfig("CartPole-v1")),
    Pipeline(EnvConfig("InvertedPendulum-v5")),
    Pipeline(_PIXELS),
    Pipeline(_PIXELS, (StageConfig("ToTensorImage"),)),
    Pipeline.of("Pendulum-v1", 'UnsqueezeTransform(-2, in_keys=["observation"])'),
    Pipeline.of("Pendulum-v1", 'UnsqueezeTransform(-2, in_keys_inv=["action"])'),
)
"""Envs and preceding stages to try, in order."""
_KNOWN_KEYS = (("observation",), ("pixels",), ("reward",), ("action",), ("done",))
Sides = tuple[tuple[LeafSpec, ...], tuple[LeafSpec, ...]]


@dataclass(frozen=True, slots=True)
class TransformExample(Result):
    """A transform as the last stage of a chain, or in the code of its docstring.

    Args:
        stage: Changes of the specs, or of stored data.
        pipeline: Env and chain that end with the transform; ``None`` if no env fits.
        code: Python code of the example, without a pipeline.
    """

    json_entries: ClassVar[Entries] = (
        *("command", Entry("code", omit_none=True)),
        Entry("keys", "changes"),
    )

    stage: StageReport
    pipeline: Pipeline | None = None
    code: str | None = None

    @property
    def changes(self) -> tuple[KeyChange, ...]:
        """Every key before and after the transform."""
        return self.stage.changes

    @property
    def command(self) -> str | None:
        """Command that shows the same, if there is a pipeline."""
        if self.pipeline is None:
            return None
        env = self.pipeline.env
        words = ["tdx", "inspect", "spec", env.id]
        words += ["--from-pixels"] if env.from_pixels else []
        for stage in self.pipeline.transforms:
            words += ["-t", format_stage(stage)]
        return shlex.join(words)


@dataclass(frozen=True, slots=True)
class ArgumentRow(Result):
    """An argument of a transform; type and default are Python source.

    Args:
        parameter: The argument.
    """

    json_entries: ClassVar[Entries] = (
        *(Entry("name", "parameter.name"), Entry("type", "parameter.annotation")),
        Entry("words", "parameter.type", Type.words),
        *(Entry("default", "parameter.default"), Entry("required", "parameter.required")),
        *(Entry("parameter_kind", "parameter.kind"), Entry("help", "parameter.help")),
    )

    parameter: Parameter


@dataclass(frozen=True, slots=True)
class TransformDocument(Result):
    """The documentation of a transform.

    Args:
        info: Catalog entry.
        example: What it does to the specs of an env; ``None``: not asked for, or none fits.
    """

    json_entries: ClassVar[Entries] = (
        *(
            Entry(name, f"info.{name}")
            for name in ("name", "category", "time_behavior", "module", "signature", "summary")
        ),
        *(Entry("doc", "info.doc"), "arguments", "example"),
    )

    info: TransformInfo
    example: TransformExample | None

    @property
    def arguments(self) -> tuple[ArgumentRow, ...]:
        """Its arguments."""
        return tuple(map(ArgumentRow, self.info.parameters))


def find_example(info: TransformInfo) -> TransformExample | None:
    """Find an env on which a transform can be shown, preferably one where it changes a spec.

    The arguments are those of the example in the docstring. If no env fits, the example itself is
    run.

    Returns:
        ``None`` if it fits none of the envs and its example uses none either.
    """
    from tdx.pipeline.arguments import name_arguments

    fallback = None
    for stage in _parse_calls(info):
        for context in _CONTEXTS:
            fitted, kwargs = stage, name_arguments(stage).kwargs
            in_keys = kwargs.get("in_keys")
            if isinstance(in_keys, tuple) and in_keys not in _KNOWN_KEYS:
                # The example reads a key that no env has.
                key = "pixels" if context.env.from_pixels else "observation"
                fitted = StageConfig(stage.name, (), {**kwargs, "in_keys": (key,)})
            example = _try(context.with_stages(*context.transforms, fitted))
            if example and any(change.change != "same" for change in example.changes):
                return example
            fallback = fallback or example
    if fallback is not None:
        return fallback
    try:
        report = run_example(info)
    except TdxError:
        return None
    return None if report is None else TransformExample(report, code=extract_example(info.doc))


def _try(pipeline: Pipeline) -> TransformExample | None:
    from tdx.pipeline import build_checked_env

    try:
        env = build_checked_env(pipeline)
    except TdxError:
        return None
    try:
        return TransformExample(inspect_spec(env).stages[-1], pipeline)
    except TdxError:
        return None
    finally:
        env.close()


def _parse_calls(info: TransformInfo) -> Iterator[StageConfig]:
    """Yield the transform as the docstring constructs it, then without arguments."""
    for node in ast.walk(ast.parse(extract_example(info.doc))):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == info.name:
            try:
                yield parse_stage(ast.unparse(node))
            except TdxError:
                continue
    if not any(parameter.required for parameter in info.parameters):
        yield StageConfig(info.name)


def extract_example(doc: str) -> str:
    """Return the code after the prompts of a docstring; empty if it is not valid Python."""
    lines = [line.strip() for line in doc.splitlines()]
    code = "\n".join(line[4:] for line in lines if line.startswith((">>> ", "... ")))
    try:
        ast.parse(code)
    except SyntaxError:
        return ""
    return code


def run_example(info: TransformInfo) -> StageReport | None:
    """Run the docstring example of a transform of tdx and record what the transform does.

    Returns:
        Changes of the specs of the env in the example, or of the TensorDict of the first call.
        ``None`` if the example has neither.
    """
    from tdx.core import TransformedEnv

    kind = getattr(import_module(info.module), info.name)
    names: dict[str, Any] = {}
    with _recorded_calls(kind) as calls:
        exec(compile(extract_example(info.doc), f"<example of {info.name}>", "exec"), names)
    for value in names.values():
        if isinstance(value, TransformedEnv):
            stages = inspect_spec(value).stages
            value.close()
            stage = next((stage for stage in stages if stage.name == info.name), None)
            if stage is not None:
                return stage
    if not calls:
        return None
    old, new = ({leaf.key: leaf for leaf in side} for side in calls[0])
    changes = (
        KeyChange("stored", key, old.get(key), new.get(key), (0,))
        for key in dict.fromkeys((*old, *new))
    )
    return StageReport(0, info.name, tuple(changes))


@contextmanager
def _recorded_calls(kind: Any) -> Iterator[list[Sides]]:
    """Record input and output of each call of a transform on a TensorDict."""
    calls: list[Sides] = []
    originals = {name: kind.__dict__.get(name) for name in ("forward", "inv")}

    def wrap(name: str) -> Any:
        original = getattr(kind, name)

        def call(self: Any, tensordict: TensorDictBase) -> TensorDictBase:
            before = _tensordict_leaves(tensordict)
            result: TensorDictBase = original(self, tensordict)
            calls.append((before, _tensordict_leaves(result)))
            return result

        return call

    try:
        for name in originals:
            setattr(kind, name, wrap(name))
        yield calls
    finally:
        for name, own in originals.items():
            if own is None:
                delattr(kind, name)
            else:
                setattr(kind, name, own)


def _tensordict_leaves(tensordict: TensorDictBase) -> tuple[LeafSpec, ...]:
    return tuple(
        LeafSpec(
            "stored",
            key,
            type(value).__name__,
            tuple(value.shape),
            str(value.dtype).removeprefix("torch."),
            str(value.device),
            Domain(),
        )
        for key, value in tensordict.items(include_nested=True, leaves_only=True)
    )
