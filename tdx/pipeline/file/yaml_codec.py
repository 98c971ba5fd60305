"""Load and dump YAML text, and convert its nodes to the values of a pipeline.

In a YAML file, a string that spells a dtype (``torch.float32``) or a call
(``Unbounded(shape=(3,))``) is that dtype or call. A string that starts with ``=`` is parsed as the
text after it. Any other value is written that way, and so is a string that looks like a call.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

from tdx.foundation.errors import PipelineError, Where, get_first_line
from tdx.foundation.untrusted import MAX_NESTING, MAX_PIPELINE_BYTES, MAX_VALUES
from tdx.pipeline.grammar import check_integer, format_value, parse_value, quote, shorten
from tdx.pipeline.values import Call, CodeReference, DictKey, Dtype, Value

if TYPE_CHECKING:
    from ruamel.yaml import YAML
    from ruamel.yaml.composer import Composer
    from ruamel.yaml.scanner import RoundTripScanner


_NO_WRAP = 1_000_000
_DEFAULT_HINT = "correct the file here; `tdx init` writes one to compare with"
_PROBLEM_HINTS = {
    "'\\t'": "indent with spaces, not tabs",
    "'\t'": "indent with spaces, not tabs",
    "duplicate key": "keep one of them",
    "is inside the value": "write the value out",
    "the file has more than": "a pipeline needs no such number: use the file only if you trust it",
    "levels deep": "write fewer brackets and indents inside each other",
    "undefined alias": "define it before as &name, or put the value in quotes",
    "alphabetic or numeric": "put a value that begins with * or & in quotes",
    "cannot start any token": "put a value that begins with @, ` or % in quotes",
    "mapping values are not allowed": "put a value with a colon in it in quotes",
    "could not find expected ':'": "write key: value, with a colon and a space after it",
    "expected ',' or": "close the bracket, or put a comma between the values",
    "expected <block end>": "align the keys of a map, and the items of a list, in one column",
    "block sequence entries": "put the list on lines of its own, below its key",
    "found unexpected end of stream": "close the quotes",
    "expected a single document": "keep one document, without --- between",
    "tag": "remove the tag that begins with !",
    "unknown escape": "double the backslash, or use single quotes",
    "unacceptable character": "remove the control character",
    "special characters are not allowed": "remove the control character",
}


def load_yaml(text: str) -> Any:
    """Load a document as ruamel's containers, which keep comments and lines."""
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    if len(text) > MAX_PIPELINE_BYTES:
        raise too_long_error()
    try:
        return _make_yaml().load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = Where(line=mark.line + 1, column=mark.column + 1) if mark else None
        if error.problem == _TOO_DEEP:
            hint = "a pipeline needs no such nesting: use the file only if you trust it"
            raise PipelineError(_TOO_DEEP, hint=hint, where=where) from None
        problem = " ".join(str(error.problem or error.context).split())
        if problem.startswith("but ") and error.context:
            problem = f"{error.context}, {problem}"
        raise PipelineError(
            f"not YAML: {problem}", where=where, hint=_find_hint(problem)
        ) from error
    except YAMLError as error:
        # The position of a character that YAML does not allow.
        position, where = getattr(error, "position", None), None
        if isinstance(position, int):
            before = text[:position]
            line, column = before.count("\n") + 1, position - before.rfind("\n")
            where = Where(line=line, column=column)
        raise PipelineError(
            f"not YAML: {get_first_line(error, type(error).__name__)}",
            where=where,
            hint=_find_hint(str(error)),
        ) from error
    except RecursionError as error:
        hint = "write fewer brackets and indents inside each other"
        raise PipelineError("not YAML: the values are nested too deeply", hint=hint) from error
    except _BAD_SCALAR as error:
        # ruamel raises these for invalid scalars, such as a date with month 13.
        if "integer string conversion" in str(error):
            raise PipelineError(
                "an integer has too many digits", hint="write a float, such as 1.0e+300"
            ) from None
        raise PipelineError("not YAML: a value cannot be read", hint=_DEFAULT_HINT) from error


def too_long_error() -> PipelineError:
    """Return the error for a text longer than any pipeline."""
    return PipelineError(
        f"a pipeline file has at most {MAX_PIPELINE_BYTES:,} bytes",
        hint="this file has more: is it a pipeline file?",
    )


def dump_yaml(node: Any) -> str:
    """Return the text of a document."""
    stream = io.StringIO()
    _make_yaml().dump(node, stream)
    return stream.getvalue()


def _make_yaml() -> YAML:
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.Composer = _limited_composer()
    yaml.Scanner = _limited_scanner()
    yaml.preserve_quotes = True
    yaml.width = _NO_WRAP
    yaml.allow_duplicate_keys = False
    yaml.indent(mapping=2, sequence=4, offset=2)
    return yaml


@cache
def _limited_composer() -> type[Composer]:
    """Return a composer that stops after a maximum number or depth of values.

    It stops before the rest is scanned.
    """
    from ruamel.yaml.composer import Composer, ComposerError
    from ruamel.yaml.events import AliasEvent

    class LimitedComposer(Composer):
        def __init__(self, loader: Any = None) -> None:
            super().__init__(loader)
            self._values = self._depth = 0
            self._open: set[str] = set()

        def compose_node(self, parent: Any, index: Any) -> Any:
            event = self.parser.peek_event()
            self._values += 1
            if self._values > MAX_VALUES:
                raise ComposerError(
                    None, None, f"{_TOO_MANY} {MAX_VALUES:,} values", event.start_mark
                )
            if isinstance(event, AliasEvent) and event.anchor in self._open:
                raise ComposerError(None, None, f"*{event.anchor} {_CYCLE}", event.start_mark)
            if self._depth >= MAX_NESTING and not isinstance(event, AliasEvent):
                raise ComposerError(None, None, _TOO_DEEP, event.start_mark)
            opened = {event.anchor} - {None} - self._open
            self._open |= opened
            self._depth += 1
            node = super().compose_node(parent, index)
            self._depth -= 1
            self._open -= opened
            return node

    return LimitedComposer


@cache
def _limited_scanner() -> type[RoundTripScanner]:
    """Return a scanner that stops at deeply nested brackets, for which it needs quadratic time."""
    from ruamel.yaml.error import MarkedYAMLError
    from ruamel.yaml.scanner import RoundTripScanner

    class LimitedScanner(RoundTripScanner):
        def fetch_flow_collection_start(self, TokenClass: Any, to_push: str) -> None:
            if len(self.flow_context) >= MAX_NESTING:
                raise MarkedYAMLError(None, None, _TOO_DEEP, self.reader.get_mark())
            super().fetch_flow_collection_start(TokenClass, to_push)

    return LimitedScanner


_TOO_MANY = "the file has more than"
_TOO_DEEP = f"values are nested more than {MAX_NESTING} levels deep"
_CYCLE = "is inside the value that it refers to"
_BAD_SCALAR = (
    *(ValueError, ArithmeticError, TypeError, LookupError, AttributeError, AssertionError),
)


def _find_hint(problem: str) -> str:
    return next((hint for part, hint in _PROBLEM_HINTS.items() if part in problem), _DEFAULT_HINT)


def apply_style(data: Any, block_depth: int = 0) -> Any:
    """Convert plain data to ruamel's containers; below ``block_depth`` levels in flow style."""
    from ruamel.yaml.comments import CommentedMap, CommentedSeq

    inner = block_depth - 1
    node: CommentedMap | CommentedSeq
    if isinstance(data, dict):
        node = CommentedMap(
            (_quote_if_needed(key), apply_style(item, inner)) for key, item in data.items()
        )
    elif isinstance(data, list):
        node = CommentedSeq(apply_style(item, inner) for item in data)
    else:
        return _quote_if_needed(data)
    if block_depth <= 0:
        node.fa.set_flow_style()
    return node


def _quote_if_needed(value: Any) -> Any:
    """Quote a string that ruamel would otherwise write so that a flow mapping is cut there."""
    from ruamel.yaml.scalarstring import DoubleQuotedScalarString

    cut = isinstance(value, str) and value.startswith(":")
    return DoubleQuotedScalarString(value) if cut else value


@contextmanager
def add_location(node: Any, key: object = None, *, index: int | None = None) -> Iterator[None]:
    """Add the line and column of a key or an item to a pipeline error raised in the block."""
    try:
        yield
    except PipelineError as error:
        line, column = find_position(node, key, index=index)
        if error.where.line is None:
            # The column so far is that in the text of the value.
            place = replace(error.where, line=line, column=column)
            raise PipelineError(error.message, hint=error.hint, where=place) from error
        raise


def find_position(
    node: Any, key: object = None, *, index: int | None = None
) -> tuple[int | None, int | None]:
    """Return line and column, from 1, of a key or an item; ``None`` if unknown."""
    marks = getattr(node, "lc", None)
    if marks is None or marks.data is None:
        return None, None
    if index is None and key not in marks.data:
        return None, None
    line, column = marks.item(index) if index is not None else marks.key(key)
    return line + 1, column + 1


_CALL_PATTERN = re.compile(r"(?:[A-Z]\w*|tensor)\(.*\)", re.DOTALL)
_MAX_DEPTH = 50


def decode(node: object) -> Value:
    """Convert a loaded YAML node to a value.

    Example:
        >>> decode({"shape": [3], "spec": "Unbounded(shape=(3,))", "text": "='f(x)'"})["text"]
        'f(x)'
    """
    return _Decoder().value(node)


def encode(value: Value) -> object:
    """Convert a value to plain data for YAML; the inverse of :func:`decode`.

    Example:
        >>> encode((("agents", "reward"), Dtype("float32"), "A(b)"))
        [['agents', 'reward'], 'torch.float32', '="A(b)"']
    """
    if isinstance(value, tuple):
        return [encode(item) for item in value]
    if isinstance(value, Mapping):
        encoded = {}
        for key, item in value.items():
            name = encode(key)
            is_plain = isinstance(name, str | int)
            encoded[name if is_plain else f"={format_value(key)}"] = encode(item)
        return encoded
    if isinstance(value, str):
        return f"={quote(value)}" if _looks_like_value(value) else value
    if isinstance(value, Dtype):
        return f"torch.{value.name}"
    if isinstance(value, Call):
        text = format_value(value)
        return text if _CALL_PATTERN.fullmatch(text) else f"={text}"
    if isinstance(value, CodeReference):
        return str(value)
    return value


def _looks_like_value(text: str) -> bool:
    return (
        text.startswith("=")
        or (text.startswith("torch.") and Dtype.named(text) is not None)
        or _CALL_PATTERN.fullmatch(text) is not None
    )


class _Decoder:
    """Decodes nodes up to a limit, as a few aliases can expand to millions of values."""

    def __init__(self) -> None:
        self.count = 0

    def value(self, node: object, depth: int = 0) -> Value:
        self.count += 1
        if self.count > MAX_VALUES or depth > _MAX_DEPTH:
            raise PipelineError(
                "the file has too many values, or a value that contains itself",
                hint="check the aliases (*name); a pipeline needs few values",
            )
        if isinstance(node, str):
            text = str(node)
            return parse_value(text.removeprefix("=")) if _looks_like_value(text) else text
        if node is None or isinstance(node, bool):
            return node
        if isinstance(node, int):
            return check_integer(int(node))
        if isinstance(node, float):
            return float(node)
        if isinstance(node, list | tuple):
            return tuple(self.value(item, depth + 1) for item in node)
        if isinstance(node, Mapping):
            pairs = ((self.key(key), self.value(item, depth + 1)) for key, item in node.items())
            return dict(pairs)
        hint = "put it in quotes to make it a string"
        shown = shorten(str(node))
        raise PipelineError(f"{shown} is a {type(node).__name__}, not a value here", hint=hint)

    def key(self, node: object) -> DictKey:
        key = self.value(node)
        if isinstance(key, str | int) and not isinstance(key, bool):
            return key
        if isinstance(key, tuple):
            return tuple(str(part) for part in key)
        raise PipelineError(f"{shorten(str(key))} cannot be a key", hint="put it in quotes")
