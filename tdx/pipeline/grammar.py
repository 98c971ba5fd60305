"""Parse and format the text form of stages and values, as ``-t`` takes it.

A stage is one call with literals; it is parsed and never evaluated.

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
from collections.abc import Callable, Mapping
from typing import NoReturn

from tdx.foundation.errors import PipelineError, Where, did_you_mean
from tdx.foundation.untrusted import MAX_INTEGER_BITS, MAX_NESTING, MAX_PIPELINE_BYTES
from tdx.pipeline.values import (
    DTYPES,
    TENSOR,
    Call,
    CodeReference,
    DictKey,
    Dtype,
    StageConfig,
    Value,
)

_CODE_STAGE = re.compile(r"\s*([A-Za-z_][\w.]*:[A-Za-z_][\w.]*)\s*(?=\(|$)")
_CONSTANTS: Mapping[str, Value] = {
    **{"inf": math.inf, "nan": math.nan, "torch.inf": math.inf, "torch.nan": math.nan},
    **{"math.inf": math.inf, "math.nan": math.nan, "np.inf": math.inf, "np.nan": math.nan},
    **{"true": True, "false": False, "null": None},
}
_SYNTAX_PROBLEMS = (
    *("'(' was never closed", "'[' was never closed", "'{' was never closed"),
    *("unterminated string literal", "too many nested parentheses"),
    *("positional argument follows keyword argument", "unmatched ')'"),
)
_MAX_SHOWN = 200
_TOO_DEEP = f"it is nested more than {MAX_NESTING} levels deep"
_NO_NESTING = "a stage needs no such nesting"
_STAGE_FORM = "write a stage as Name or Name(argument=value)"
_LITERALS = "a value is a number, a string in quotes, True, None, a list, a dict, a dtype or a spec"


def parse_stage(text: str) -> StageConfig:
    """Parse the text of a stage.

    Args:
        text: ``Name``, ``Name(argument=value, …)`` or ``module:name(…)``.

    Raises:
        PipelineError: ``text`` is not one call with literals; the error has the column, from 1.
    """
    code = _CODE_STAGE.match(text)
    if code:
        start, end = code.span(1)
        placeholder = " " * start + "X" * (end - start) + text[end:]
        call = _Parser(text, placeholder).stage()
        return StageConfig(code.group(1), call.args, call.kwargs)
    call = _Parser(text).stage()
    return StageConfig(call.name, call.args, call.kwargs)


def parse_value(text: str) -> Value:
    """Parse the text of a value, such as ``Unbounded(shape=(3,))``.

    Raises:
        PipelineError: ``text`` is not a literal.

    Example:
        >>> parse_value("(-inf, 'agents', torch.float32)")
        (-inf, 'agents', Dtype(name='float32'))
    """
    parser = _Parser(text)
    return parser.value(parser.tree())


def parse_kwargs(text: str) -> dict[str, Value]:
    """Parse named values: ``g=9.8, render_mode="human"``, or a dict or JSON object.

    Raises:
        PipelineError: ``text`` has neither form.

    Example:
        >>> parse_kwargs('g=9.8, sutton=True') == parse_kwargs('{"g": 9.8, "sutton": true}')
        True
    """
    if text.lstrip().startswith("{"):
        parser = _Parser(text)
        node = parser.tree()
        value = parser.value(node)
        if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
            parser.fail("not a mapping of names to values", node, "write name=value, name=value")
        return value
    prefix = "kwargs("
    reader = _Parser(text, f"{prefix}{text})", shift=len(prefix))
    call = reader.stage()
    if call.args:
        reader.fail("each value needs a name", hint="write name=value, name=value")
    return dict(call.kwargs)


def check_integer(value: int) -> int:
    """Refuse an integer that no argument can take, before it is converted or printed."""
    if value.bit_length() > MAX_INTEGER_BITS:
        raise PipelineError(_TOO_LARGE, hint=_FLOAT)
    return value


_TOO_LARGE, _FLOAT = "an integer has too many digits", "write a float, such as 1e300"


class _Parser:
    """Convert the syntax tree of one text to values; every error has its column."""

    def __init__(self, text: str, source: str | None = None, shift: int = 0) -> None:
        self.text = text
        self.source = text if source is None else source
        self.shift = shift
        self._indent = len(self.source) - len(self.source.lstrip())

    def stage(self) -> Call:
        node = self.tree()
        if isinstance(node, ast.Name | ast.Attribute):
            return Call(self._call_name(node))
        if isinstance(node, ast.Call):
            return self._call(node)
        self.fail("not a call", node, _STAGE_FORM)

    def fail(
        self,
        problem: str,
        node: ast.AST | None = None,
        hint: str = _LITERALS,
        column: int | None = None,
    ) -> NoReturn:
        """Raise a :class:`PipelineError` at ``column`` or at the column of ``node`` (from 1)."""
        if node is not None:
            column = self._column(node)
        message = f"cannot read {shorten(self.text, _MAX_SHOWN)!r}: {problem}"
        raise PipelineError(message, hint=hint or _STAGE_FORM, where=Where(column=column))

    def _column(self, node: ast.AST) -> int:
        lineno, offset = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
        lines = self.source.lstrip().splitlines(keepends=True) or [""]
        before = "".join(lines[: lineno - 1])
        inside = lines[lineno - 1].encode()[:offset].decode(errors="ignore")
        return max(1, self._indent + len(before) + len(inside) - self.shift + 1)

    def tree(self) -> ast.expr:
        if not self.text.strip() and not self.shift:
            self.fail("it is empty", column=1, hint=_STAGE_FORM)
        if len(self.text) > MAX_PIPELINE_BYTES:
            self.fail("it is too long", column=1, hint="is it a stage?")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tree = ast.parse(self.source.lstrip(), mode="eval").body
        except SyntaxError as error:
            if "integer string conversion" in error.msg:
                self.fail(_TOO_LARGE, column=1, hint=_FLOAT)
            lines = self.source.lstrip().splitlines(keepends=True) or [""]
            before = sum(len(line) for line in lines[: (error.lineno or 1) - 1])
            column = self._indent + before + (error.offset or 1) - self.shift
            column = min(max(1, column), len(self.text) + (0 if self.shift else 1))
            problem = next((text for text in _SYNTAX_PROBLEMS if text in error.msg), None)
            self.fail(problem or "invalid syntax", column=column, hint=_STAGE_FORM)
        except (RecursionError, MemoryError):
            self.fail(_TOO_DEEP, column=1, hint=_NO_NESTING)
        except ValueError as error:
            self.fail(str(error), column=1)
        level: list[ast.AST] = [tree]
        for _ in range(MAX_NESTING + 1):
            level = [child for node in level for child in ast.iter_child_nodes(node)]
            if not level:
                return tree
        self.fail(_TOO_DEEP, column=1, hint=_NO_NESTING)

    def _call(self, node: ast.Call) -> Call:
        name = self._call_name(node.func)
        args = tuple(self.value(argument) for argument in node.args)
        kwargs: dict[str, Value] = {}
        for keyword in node.keywords:
            if keyword.arg is None:
                self.fail("** is not a literal", keyword.value, _LITERALS)
            if keyword.arg in kwargs:
                self.fail(f"{keyword.arg} is given twice", keyword, "give it once")
            kwargs[keyword.arg] = self.value(keyword.value)
        return Call(name, args, kwargs)

    def _call_name(self, node: ast.expr) -> str:
        name = dotted_name(node)
        if name is None:
            self.fail("not a name", node, _STAGE_FORM)
        if name == f"torch.{TENSOR}":
            return TENSOR
        bare = name.removeprefix("tdx.")
        if "." in bare:
            hint = "write the class name alone, or module:name for Python code"
            self.fail(f"{name} has dots in it", node, hint)
        return bare

    def value(self, node: ast.expr) -> Value:
        if isinstance(node, ast.Constant):
            constant = node.value
            if isinstance(constant, int) and constant.bit_length() > MAX_INTEGER_BITS:
                self.fail(_TOO_LARGE, node, _FLOAT)
            if constant is None or isinstance(constant, bool | int | float | str):
                return constant
        if isinstance(node, ast.UnaryOp):
            operand = self.value(node.operand)
            if isinstance(operand, int | float) and not isinstance(operand, bool):
                if isinstance(node.op, ast.USub):
                    return -operand
                if isinstance(node.op, ast.UAdd):
                    return operand
        if isinstance(node, ast.List | ast.Tuple):
            return tuple(self.value(item) for item in node.elts)
        if isinstance(node, ast.Dict):
            return self._dict(node)
        if isinstance(node, ast.Call):
            if dotted_name(node.func) == "float" and len(node.args) == 1:
                argument = self.value(node.args[0])
                try:
                    return float(argument)  # type: ignore[arg-type]
                except (TypeError, ValueError, OverflowError):
                    self.fail(f"{_shown_source(node)} is not a number", node, _LITERALS)
            call = self._call(node)
            if call.name[0].isupper() or call.name == TENSOR:
                return call
        if isinstance(node, ast.Name | ast.Attribute):
            return self._parse_name(node)
        self.fail(f"{_shown_source(node)} is not a literal", node, _LITERALS)

    def _dict(self, node: ast.Dict) -> dict[DictKey, Value]:
        result: dict[DictKey, Value] = {}
        for key_node, value_node in zip(node.keys, node.values, strict=True):
            if key_node is None:
                self.fail("** is not a literal", value_node, _LITERALS)
            key = self.value(key_node)
            strings = key if isinstance(key, tuple) else ()
            names = tuple(part for part in strings if isinstance(part, str))
            if isinstance(key, str) or (isinstance(key, int) and not isinstance(key, bool)):
                result[key] = self.value(value_node)
            elif names and len(names) == len(strings):
                result[names] = self.value(value_node)
            else:
                hint = "a key of a dict is a string, a tuple of strings or a whole number"
                self.fail(f"{_shown_source(key_node)} cannot be a key of a dict", key_node, hint)
        return result

    def _parse_name(self, node: ast.expr) -> Value:
        name = dotted_name(node)
        if name is None:
            self.fail(f"{_shown_source(node)} is not a literal", node, _LITERALS)
        if name in _CONSTANTS:
            return _CONSTANTS[name]
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


def dotted_name(node: ast.expr) -> str | None:
    """Return ``a.b.c`` as text; ``None`` for an expression that is not a name."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        owner = dotted_name(node.value)
        return f"{owner}.{node.attr}" if owner else None
    return None


def _shown_source(node: ast.expr) -> str:
    """Return the source of an expression, shortened for a message."""
    try:
        return shorten(ast.unparse(node))
    except ValueError:
        return "a number with too many digits"


def format_stage(stage: StageConfig) -> str:
    """Return the ``-t`` text of a stage; the inverse of :func:`parse_stage`.

    Example:
        >>> format_stage(StageConfig("CatFrames", (4,), {"in_keys": ("pixels",)}))
        'CatFrames(4, in_keys=["pixels"])'
        >>> format_stage(StageConfig("RewardSum"))
        'RewardSum'
    """
    arguments = format_arguments(stage.args, stage.kwargs)
    return f"{stage.name}({arguments})" if arguments else stage.name


def format_arguments(args: tuple[Value, ...], kwargs: Mapping[str, Value]) -> str:
    """Return the text between the parentheses of a call."""
    positional = [format_argument(value) for value in args]
    named = [f"{name}={format_argument(value)}" for name, value in kwargs.items()]
    return ", ".join([*positional, *named])


def format_argument(value: Value) -> str:
    """Return the text of a value that is an argument; a sequence gets square brackets."""
    if isinstance(value, tuple):
        return f"[{', '.join(format_value(item) for item in value)}]"
    return format_value(value)


def format_value(value: Value) -> str:
    """Return the text of a value inside another one; the inverse of :func:`parse_value`.

    Example:
        >>> format_value({"hidden": Call("Unbounded", (), {"shape": (3,)})})
        '{"hidden": Unbounded(shape=(3,))}'
    """
    if isinstance(value, str):
        return quote(value)
    if isinstance(value, float):
        return "nan" if math.isnan(value) else repr(value)
    if isinstance(value, tuple):
        items = ", ".join(format_value(item) for item in value)
        return f"({items},)" if len(value) == 1 else f"({items})"
    if isinstance(value, Mapping):
        pairs = (f"{format_value(key)}: {format_value(item)}" for key, item in value.items())
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, Dtype):
        return f"torch.{value.name}"
    if isinstance(value, Call):
        named = (f"{name}={format_value(item)}" for name, item in value.kwargs.items())
        return f"{value.name}({', '.join([*map(format_value, value.args), *named])})"
    if isinstance(value, CodeReference):
        return quote(str(value))
    return repr(value)


def split_outside_brackets(text: str, is_separator: Callable[[str], bool]) -> list[str]:
    """Split a text at separators outside quotes and brackets.

    Example:
        >>> split_outside_brackets("1,[2,3],'a,b'", ",".__eq__)
        ['1', '[2,3]', "'a,b'"]
    """
    parts, depth, quote_mark = [""], 0, ""
    for sign in text:
        if quote_mark:
            quote_mark = "" if sign == quote_mark else quote_mark
        elif sign in "\"'":
            quote_mark = sign
        depth += 0 if quote_mark else (sign in "[({") - (sign in "])}")
        if is_separator(sign) and not quote_mark and depth <= 0:
            parts.append("")
        else:
            parts[-1] += sign
    return parts


def shorten(text: str, width: int = 60) -> str:
    """Cut a text that is too long for a message."""
    return text if len(text) <= width else f"{text[: width - 3]}..."


def quote(text: str) -> str:
    """Return a string literal, in double quotes unless that needs an escape."""
    literal = repr(text)
    if literal[0] == '"' or '"' in text:
        return literal
    return f'"{literal[1:-1]}"'
