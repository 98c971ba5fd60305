"""What a transform makes of the data in the example of its docstring."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tdx.inspection.leaf import Domain, LeafSpec
from tdx.inspection.spec_report import KeyChange, StageReport, inspect_spec

if TYPE_CHECKING:
    from tensordict import TensorDictBase

    from tdx.pipeline.catalog import TransformInfo

Sides = tuple[tuple[LeafSpec, ...], tuple[LeafSpec, ...]]


def example_code(doc: str) -> str:
    """The code after the prompts of a docstring; empty where it is no Python."""
    lines = [line.strip() for line in doc.splitlines()]
    code = "\n".join(line[4:] for line in lines if line.startswith((">>> ", "... ")))
    try:
        ast.parse(code)
    except SyntaxError:
        return ""
    return code


def run_example(info: TransformInfo) -> StageReport | None:
    """Run the example of a transform of tdx and look at what the transform does in it.

    Args:
        info: a transform of the catalogue.

    Returns:
        What it does to the specs of the env that the example puts it around, or else to the
        TensorDict that it is first called with; none where the example does neither.
    """
    from tdx.core import TransformedEnv

    kind = getattr(import_module(info.module), info.name)
    names: dict[str, Any] = {}
    with _calls_noted(kind) as calls:
        exec(compile(example_code(info.doc), f"<example of {info.name}>", "exec"), names)
    for value in names.values():
        if isinstance(value, TransformedEnv):
            found = [each for each in inspect_spec(value).stages if each.name == info.name]
            value.close()
            if found:
                return found[0]
    return StageReport(0, info.name, _paired(*calls[0])) if calls else None


@contextmanager
def _calls_noted(kind: Any) -> Iterator[list[Sides]]:
    """Note what goes into and comes out of each call of a transform on a TensorDict."""
    calls: list[Sides] = []
    kept = {name: kind.__dict__.get(name) for name in ("forward", "inv")}

    def noting(name: str) -> Any:
        original = getattr(kind, name)

        def call(self: Any, tensordict: TensorDictBase) -> TensorDictBase:
            before = _leaves(tensordict)
            result: TensorDictBase = original(self, tensordict)
            calls.append((before, _leaves(result)))
            return result

        return call

    try:
        for name in kept:
            setattr(kind, name, noting(name))
        yield calls
    finally:
        for name, own in kept.items():
            if own is None:
                delattr(kind, name)
            else:
                setattr(kind, name, own)


def _leaves(tensordict: TensorDictBase) -> tuple[LeafSpec, ...]:
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


def _paired(before: tuple[LeafSpec, ...], after: tuple[LeafSpec, ...]) -> tuple[KeyChange, ...]:
    old, new = ({leaf.key: leaf for leaf in side} for side in (before, after))
    return tuple(
        KeyChange("stored", key, old.get(key), new.get(key), (0,))
        for key in dict.fromkeys((*old, *new))
    )
