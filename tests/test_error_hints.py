"""Every error that tdx raises has a hint."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import tdx
import tdx.errors
from tdx.errors import TdxError

ROOT = Path(tdx.__file__).parent
FAMILY = {
    name
    for name, value in vars(tdx.errors).items()
    if isinstance(value, type) and issubclass(value, TdxError)
}


def test_every_error_in_the_source_has_a_hint() -> None:
    found = [line for path in _modules() for line in _without_hint(path)]
    assert not found, "\n".join(["these errors have no hint:", *found])


@pytest.mark.parametrize(
    ("code", "has_hint"),
    [
        ("ArgumentError('a')", False),
        ("ArgumentError('a', hint='')", False),
        ("ArgumentError('a', hint=None)", False),
        ("errors.ArgumentError('a')", False),
        ("ArgumentError('a', hint=did_you_mean(name, known))", False),
        ("ArgumentError('a', hint='b' if c else None)", False),
        ("LocalError('a')", False),
        ("type(error)('a')", True),
        ("ArgumentError('a', hint='b')", True),
        ("ArgumentError('a', hint=_HINT)", True),
        ("ArgumentError('a', hint=did_you_mean(name, known, 'b'))", True),
        ("ArgumentError(message, **details)", True),
    ],
)
def test_missing_and_empty_hints_are_detected(code: str, has_hint: bool) -> None:
    tree = ast.parse(f"class LocalError(ArgumentError): ...\n{code}")
    found = list(_bare(tree, FAMILY | {"LocalError"}))
    assert bool(found) is not has_hint


def _modules() -> list[Path]:
    return sorted(ROOT.rglob("*.py"))


def _without_hint(path: Path) -> Iterator[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    own = {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        and any(isinstance(base, ast.Name) and base.id in FAMILY for base in node.bases)
    }
    for call in _bare(tree, FAMILY | own):
        yield f"{path.relative_to(ROOT.parent)}:{call.lineno}: {ast.unparse(call)[:100]}"


def _bare(tree: ast.Module, family: set[str]) -> Iterator[ast.Call]:
    """Yield the calls that create an error which may have no hint."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _name(node.func) in family:
            hints = [word.value for word in node.keywords if word.arg in ("hint", None)]
            if not hints or any(_may_be_empty(hint) for hint in hints):
                yield node


def _name(node: ast.expr) -> str | None:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", None)


def _may_be_empty(hint: ast.expr) -> bool:
    if isinstance(hint, ast.Constant):
        return not hint.value
    if isinstance(hint, ast.IfExp):
        return _may_be_empty(hint.body) or _may_be_empty(hint.orelse)
    if isinstance(hint, ast.Call) and _name(hint.func) == "did_you_mean":
        words = [word.value for word in hint.keywords if word.arg == "otherwise"]
        fallbacks = [*hint.args[2:], *words]
        return not fallbacks or _may_be_empty(fallbacks[0])
    return False
