"""YAML text in and out, with the errors of a pipeline file."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tdx.errors import PipelineError, Where, first_line

if TYPE_CHECKING:
    from ruamel.yaml import YAML

_NEVER_WRAP = 1_000_000


def load_yaml(text: str) -> Any:
    """The document, as ruamel's containers, which know comments and lines.

    Raises:
        PipelineError: it does not parse; its place holds line and column, from 1.
    """
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        return _yaml().load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = " ".join(str(error.problem or error.context).split())
        if problem.startswith("but ") and error.context:
            problem = f"{error.context}, {problem}"
        where = Where(line=mark.line + 1, column=mark.column + 1) if mark else None
        raise PipelineError(f"not YAML: {problem}", where=where, hint=_hint(problem)) from error
    except YAMLError as error:
        raise PipelineError(
            f"not YAML: {first_line(error, type(error).__name__)}", where=_position(text, error)
        ) from error
    except (ValueError, RecursionError) as error:
        raise PipelineError(f"not YAML: {first_line(error, type(error).__name__)}") from error


def dump_yaml(node: Any) -> str:
    """The text of a document."""
    stream = io.StringIO()
    _yaml().dump(node, stream)
    return stream.getvalue()


def _yaml() -> YAML:
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = _NEVER_WRAP
    yaml.allow_duplicate_keys = False
    yaml.indent(mapping=2, sequence=4, offset=2)
    return yaml


def _hint(problem: str) -> str | None:
    if "\\t" in problem or "'\t'" in problem:
        return "indent with spaces, not tabs"
    if "duplicate key" in problem:
        return "keep one of them"
    return None


def _position(text: str, error: Exception) -> Where | None:
    """The place of a character that YAML does not allow."""
    position = getattr(error, "position", None)
    if not isinstance(position, int):
        return None
    before = text[:position]
    return Where(line=before.count("\n") + 1, column=position - (before.rfind("\n") + 1) + 1)


def styled(data: Any, block_depth: int = 0) -> Any:
    """Plain data as ruamel's containers; below the first ``block_depth`` levels on one line."""
    from ruamel.yaml.comments import CommentedMap, CommentedSeq

    inner = block_depth - 1
    node: CommentedMap | CommentedSeq
    if isinstance(data, dict):
        node = CommentedMap((_quoted(key), styled(item, inner)) for key, item in data.items())
    elif isinstance(data, list):
        node = CommentedSeq(styled(item, inner) for item in data)
    else:
        return _quoted(data)
    if block_depth <= 0:
        node.fa.set_flow_style()
    return node


def _quoted(value: Any) -> Any:
    """The value, in quotes if ruamel would write it so that a map on one line is cut there."""
    from ruamel.yaml.scalarstring import DoubleQuotedScalarString

    cut = isinstance(value, str) and value.startswith(":")
    return DoubleQuotedScalarString(value) if cut else value


@contextmanager
def located(node: Any, key: object = None, *, index: int | None = None) -> Iterator[None]:
    """Give a pipeline error that leaves here the line and column of a key or an item."""
    try:
        yield
    except PipelineError as error:
        line, column = line_and_column(node, key, index=index)
        if error.where.line is None:
            raise PipelineError(
                error.message, hint=error.hint, where=_moved(error.where, line, column)
            ) from error
        raise


def _moved(where: Where, line: int | None, column: int | None) -> Where:
    """The place in the file, instead of one inside a value's own text."""
    found = Where(stage=where.stage, transform=where.transform, file=where.file)
    return found.merged(Where(line=line, column=column))


def line_and_column(
    node: Any, key: object = None, *, index: int | None = None
) -> tuple[int | None, int | None]:
    """Where a key of a map, or an item of a list, starts, from 1; none where that is unknown."""
    marks = getattr(node, "lc", None)
    if marks is None or marks.data is None:
        return None, None
    if index is None and key not in marks.data:
        return None, None
    line, column = marks.item(index) if index is not None else marks.key(key)
    return line + 1, column + 1
