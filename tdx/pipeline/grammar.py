"""Read the text of ``--t``: one call with literals, parsed and never evaluated.

Example:
    >>> from tdx.pipeline import parse_stage
    >>> stage = parse_stage('CatFrames(4, dim=-1, in_keys=["observation"])')
    >>> stage.name, stage.args, stage.kwargs["in_keys"]
    ('CatFrames', (4,), ('observation',))
"""

from __future__ import annotations

import ast
import math
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import NoReturn

from tdx.errors import PipelineError, Where, did_you_mean
from tdx.pipeline.model import StageConfig
from tdx.pipeline.values import DTYPES, TENSOR, Call, DictKey, Dtype, Value

_CODE_STAGE = re.compile(r"\s*([A-Za-z_][\w.]*:[A-Za-z_][\w.]*)\s*(?=\(|$)")
_NAMED: Mapping[str, Value] = {
    **{"inf": math.inf, "nan": math.nan, "torch.inf": math.inf, "torch.nan": math.nan},
    **{"math.inf": math.inf, "math.nan": math.nan, "np.inf": math.inf, "np.nan": math.nan},
    **{"true": True, "false": False, "null": None},
}
_SYNTAX = (
    *("'(' was never closed", "'[' was never closed", "'{' was never closed"),
    *("unterminated string literal", "too many nested parentheses"),
    *("positional argument follows keyword argument", "unmatched ')'"),
)
_STAGE_FORM = "write a stage as Name or Name(argument=value)"
_LITERALS = "a value is a number, a string in quotes, True, None, a list, a dict, a dtype or a spec"


def parse_stage(text: str) -> StageConfig:
    """The stage that ``text`` spells.

    Args:
        text: ``Name``, ``Name(argument=value, …)`` or ``module:name(…)``.

    Raises:
        PipelineError: it is not one call with literals; its place holds the column, from 1.
    """
    code = _CODE_STAGE.match(text)
    if code:
        start, end = code.span(1)
        stand_in = " " * start + "X" * (end - start) + text[end:]
        call = _Reader(text, stand_in).stage()
        return StageConfig(code.group(1), call.args, call.kwargs)
    call = _Reader(text).stage()
    return StageConfig(call.name, call.args, call.kwargs)


def parse_value(text: str) -> Value:
    """The value that ``text`` spells, such as ``Unbounded(shape=(3,))``.

    Raises:
        PipelineError: it is not a literal.

    Example:
        >>> parse_value("(-inf, 'agents', torch.float32)")
        (-inf, 'agents', Dtype(name='float32'))
    """
    return _Reader(text).whole_value()


def parse_kwargs(text: str) -> dict[str, Value]:
    """Named values: ``g=9.8, render_mode="human"``, or the same as a dict or JSON object.

    Raises:
        PipelineError: it is neither.

    Example:
        >>> parse_kwargs('g=9.8, sutton=True') == parse_kwargs('{"g": 9.8, "sutton": true}')
        True
    """
    if text.lstrip().startswith("{"):
        return _Reader(text).names_map()
    prefix = "kwargs("
    reader = _Reader(text, f"{prefix}{text})", shift=len(prefix))
    call = reader.stage()
    if call.args:
        reader.fail("each value needs a name", hint="write name=value, name=value")
    return dict(call.kwargs)


class _Reader:
    """Turns the syntax tree of one text into values; every failure knows its column."""

    def __init__(self, text: str, source: str | None = None, shift: int = 0) -> None:
        self.text = text
        self.source = text if source is None else source
        self.shift = shift
        self._indent = len(self.source) - len(self.source.lstrip())

    def stage(self) -> Call:
        node = self._tree()
        if isinstance(node, ast.Name | ast.Attribute):
            return Call(self._call_name(node))
        if isinstance(node, ast.Call):
            return self._call(node)
        self.fail("not a call", node, _STAGE_FORM)

    def whole_value(self) -> Value:
        return self._value(self._tree())

    def names_map(self) -> dict[str, Value]:
        node = self._tree()
        value = self._value(node)
        if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
            self.fail("not a map from names to values", node, "write name=value, name=value")
        return value

    def fail(
        self,
        problem: str,
        node: ast.AST | None = None,
        hint: str | None = None,
        column: int | None = None,
    ) -> NoReturn:
        """Raise, with the column (from 1) of ``node`` or the one given."""
        if node is not None:
            column = self._column(node)
        message = f"cannot read {self.text!r}: {problem}"
        raise PipelineError(message, hint=hint, where=Where(column=column))

    def _column(self, node: ast.AST) -> int:
        lineno, offset = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
        lines = self.source.lstrip().splitlines(keepends=True) or [""]
        before = "".join(lines[: lineno - 1])
        inside = lines[lineno - 1].encode()[:offset].decode(errors="ignore")
        return max(1, self._indent + len(before) + len(inside) - self.shift + 1)

    def _tree(self) -> ast.expr:
        if not self.text.strip() and not self.shift:
            self.fail("it is empty", column=1, hint=_STAGE_FORM)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return ast.parse(self.source.lstrip(), mode="eval").body
        except SyntaxError as error:
            self._fail_syntax(error)
        except (RecursionError, MemoryError):
            self.fail("it is nested too deep", column=1)
        except ValueError as error:
            self.fail(str(error), column=1)

    def _fail_syntax(self, error: SyntaxError) -> NoReturn:
        lines = self.source.lstrip().splitlines(keepends=True) or [""]
        before = sum(len(line) for line in lines[: (error.lineno or 1) - 1])
        column = self._indent + before + (error.offset or 1) - self.shift
        column = min(max(1, column), len(self.text) + (0 if self.shift else 1))
        told = next((text for text in _SYNTAX if text in error.msg), "invalid syntax")
        self.fail(told, column=column, hint=_STAGE_FORM)

    def _call(self, node: ast.Call) -> Call:
        name = self._call_name(node.func)
        args = tuple(self._value(argument) for argument in node.args)
        kwargs: dict[str, Value] = {}
        for keyword in node.keywords:
            if keyword.arg is None:
                self.fail("** is not a literal", keyword.value, _LITERALS)
            if keyword.arg in kwargs:
                self.fail(f"{keyword.arg} is given twice", keyword)
            kwargs[keyword.arg] = self._value(keyword.value)
        return Call(name, args, kwargs)

    def _call_name(self, node: ast.expr) -> str:
        name = self._dotted(node)
        if name is None:
            self.fail("not a name", node, _STAGE_FORM)
        if name == f"torch.{TENSOR}":
            return TENSOR
        bare = name.removeprefix("tdx.")
        if "." in bare:
            hint = "write the class name alone, or module:name for Python code"
            self.fail(f"{name} has dots in it", node, hint)
        return bare

    def _dotted(self, node: ast.expr) -> str | None:
        if isinstance(node, ast.Name):
            return node.id
        if isinstance(node, ast.Attribute):
            owner = self._dotted(node.value)
            return f"{owner}.{node.attr}" if owner else None
        return None

    def _value(self, node: ast.expr) -> Value:
        if isinstance(node, ast.Constant):
            return self._constant(node)
        if isinstance(node, ast.UnaryOp):
            return self._signed(node)
        if isinstance(node, ast.List | ast.Tuple):
            return tuple(self._value(item) for item in node.elts)
        if isinstance(node, ast.Dict):
            return self._dict(node)
        if isinstance(node, ast.Call):
            return self._called(node)
        if isinstance(node, ast.Name | ast.Attribute):
            return self._named(node)
        self.fail(f"{ast.unparse(node)} is not a literal", node, _LITERALS)

    def _constant(self, node: ast.Constant) -> Value:
        value = node.value
        if value is None or isinstance(value, bool | int | float | str):
            return value
        self.fail(f"{ast.unparse(node)} is not a literal", node, _LITERALS)

    def _signed(self, node: ast.UnaryOp) -> Value:
        operand = self._value(node.operand)
        if isinstance(operand, int | float) and not isinstance(operand, bool):
            if isinstance(node.op, ast.USub):
                return -operand
            if isinstance(node.op, ast.UAdd):
                return operand
        self.fail(f"{ast.unparse(node)} is not a literal", node, _LITERALS)

    def _dict(self, node: ast.Dict) -> dict[DictKey, Value]:
        result: dict[DictKey, Value] = {}
        for key_node, value_node in zip(node.keys, node.values, strict=True):
            if key_node is None:
                self.fail("** is not a literal", value_node, _LITERALS)
            result[self._dict_key(key_node)] = self._value(value_node)
        return result

    def _dict_key(self, node: ast.expr) -> DictKey:
        key = self._value(node)
        if isinstance(key, str) or (isinstance(key, int) and not isinstance(key, bool)):
            return key
        strings = self._strings(key) if isinstance(key, tuple) else None
        if not strings:
            hint = "a key of a dict is a string, a tuple of strings or a whole number"
            self.fail(f"{ast.unparse(node)} cannot be a key of a dict", node, hint)
        return strings

    @staticmethod
    def _strings(items: Sequence[Value]) -> tuple[str, ...] | None:
        strings = tuple(item for item in items if isinstance(item, str))
        return strings if len(strings) == len(items) else None

    def _called(self, node: ast.Call) -> Value:
        if self._dotted(node.func) == "float" and len(node.args) == 1:
            argument = self._value(node.args[0])
            try:
                return float(argument)  # type: ignore[arg-type]
            except (TypeError, ValueError):
                self.fail(f"{ast.unparse(node)} is not a number", node, _LITERALS)
        call = self._call(node)
        if call.name[0].isupper() or call.name == TENSOR:
            return call
        self.fail(f"{ast.unparse(node)} is not a literal", node, _LITERALS)

    def _named(self, node: ast.expr) -> Value:
        name = self._dotted(node)
        if name is None:
            self.fail(f"{ast.unparse(node)} is not a literal", node, _LITERALS)
        if name in _NAMED:
            return _NAMED[name]
        dtype = Dtype.named(name)
        if dtype is not None:
            return dtype
        if name[0].isupper():
            return Call(self._call_name(node))
        if name.startswith("torch."):
            known = [f"torch.{dtype_name}" for dtype_name in DTYPES]
            self.fail(f"{name} is not a dtype", node, did_you_mean(name, known, _LITERALS))
        hint = did_you_mean(name, DTYPES, f'put a string in quotes: "{name}"')
        self.fail(f"the name {name} is not a literal", node, hint)
