"""Errors that tdx raises: a one-line message, a hint with the next step, and the location.

Example:
    >>> from tdx.foundation.errors import ArgumentError, Where
    >>> where = Where(stage=2, transform="CatFrames")
    >>> print(ArgumentError("N must be at least 1, got 0", where=where))
    stage 2 (CatFrames): N must be at least 1, got 0
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from pathlib import Path
from typing import Any, ClassVar, Self, TypedDict, overload

from tdx.foundation.keys import NestedKey, format_key

_PACKAGE = str(Path(__file__).parents[1])
_LIBRARIES = ("site-packages", "dist-packages")


class ExitCode(IntEnum):
    """Exit code of a ``tdx`` process."""

    OK = 0
    FINDINGS = 1
    USAGE = 2
    ENVIRONMENT = 3
    TIMED_OUT = 4
    INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Where:
    """Location of an error. Unknown parts are ``None``.

    Args:
        stage: Index of the stage in the chain, from 0.
        transform: Class name of the transform at that stage.
        key: Key in the TensorDict.
        step: Step of the rollout, from 0.
        env: Name of the env, as the user gave it.
        file: Path of the pipeline file.
        line: Line in that file, from 1.
        column: Column in that line, from 1.
        row: Index of the env in its batch, from 0.
    """

    stage: int | None = None
    transform: str | None = None
    key: NestedKey | None = None
    step: int | None = None
    env: str | None = None
    file: str | None = None
    line: int | None = None
    column: int | None = None
    row: int | None = None

    def __str__(self) -> str:
        numbers = {"line": self.line, "column": self.column}
        known = {name: str(number) for name, number in numbers.items() if number is not None}
        if self.file is not None:
            parts = [":".join([self.file, *known.values()])]
        else:
            parts = [f"{name} {number}" for name, number in known.items()]
        if self.stage is not None:
            name = f" ({self.transform})" if self.transform else ""
            parts.append(f"stage {self.stage}{name}")
        elif self.transform:
            parts.append(self.transform)
        if self.step is not None:
            parts.append(f"step {self.step}")
        if self.row is not None:
            parts.append(f"env {self.row}" + (f" ({self.env})" if self.env else ""))
        elif self.env is not None:
            parts.append(f"env {self.env}")
        if self.key is not None:
            parts.append(f"key {format_key(self.key)!r}")
        return ", ".join(parts)

    def merge(self, other: Where) -> Where:
        """Return this location with its unknown parts taken from ``other``."""
        unknown = {
            field.name: getattr(other, field.name)
            for field in fields(self)
            if getattr(self, field.name) is None
        }
        return replace(self, **unknown)


class WhereEntries(TypedDict, total=False):
    """JSON entries of the known parts of a location."""

    stage: int
    transform: str
    key: str
    step: int
    env: str
    file: str
    line: int
    column: int
    row: int


class ErrorEntries(TypedDict):
    """JSON entries of an error."""

    code: str
    error: str
    message: str
    hint: str | None
    where: WhereEntries


class TdxError(Exception):
    """Base class of all errors that tdx raises.

    Args:
        message: What is wrong, on one line.
        hint: What to do about it, on one line.
        where: Location of the error.
    """

    code: ClassVar[str] = "TDX000"
    exit_code: ClassVar[ExitCode] = ExitCode.USAGE

    def __init__(
        self, message: str, *, hint: str | None = None, where: Where | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.where = where or Where()

    def __str__(self) -> str:
        location = str(self.where)
        text = f"{location}: {self.message}" if location else self.message
        return f"{text} ({self.hint})" if self.hint else text

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.hint, self.where)

    def at(self, **location: Any) -> Self:
        """Set parts of the location that are still unknown, and return the error itself.

        Args:
            **location: Fields of :class:`Where`.
        """
        self.where = self.where.merge(Where(**location))
        return self

    def to_dict(self) -> ErrorEntries:
        """Convert the error to plain data, for ``--format json``."""
        location: Any = {
            field.name: getattr(self.where, field.name)
            for field in fields(self.where)
            if getattr(self.where, field.name) is not None
        }
        if "key" in location:
            location["key"] = format_key(location["key"])
        return {
            "code": self.code,
            "error": type(self).__name__,
            "message": self.message,
            "hint": self.hint,
            "where": location,
        }


def _rebuild(cls: type[TdxError], message: str, hint: str | None, where: Where) -> TdxError:
    error = cls.__new__(cls)
    TdxError.__init__(error, message, hint=hint, where=where)
    return error


class ArgumentError(TdxError, ValueError, RuntimeError):
    """An argument has an invalid type or value."""

    code = "TDX101"


class KeyNotFoundError(TdxError, KeyError):
    """A key does not exist."""

    code = "TDX102"


class UnknownNameError(TdxError, LookupError):
    """A transform, argument, column or enum value does not exist."""

    code = "TDX103"


class SpecError(TdxError, ValueError, RuntimeError):
    """A spec cannot be built or combined, or a value is outside it."""

    code = "TDX201"


class SpecIndexError(SpecError, IndexError):
    """An index does not fit the shape of a spec."""

    code = "TDX206"


class AttributeKeyError(SpecError, AttributeError):
    """An attribute of a spec is set like an entry."""

    code = "TDX207"


class ChainError(TdxError, ValueError, RuntimeError):
    """A chain cannot be built or run."""

    code = "TDX202"


class StageIndexError(ChainError, IndexError):
    """A chain has no stage at an index."""

    code = "TDX209"


class StoredDataError(ChainError, ArgumentError, NotImplementedError):
    """A transform cannot map stored data, or not in this order."""

    code = "TDX208"


class PipelineError(TdxError, ValueError):
    """A pipeline file or a ``-t`` value cannot be parsed."""

    code = "TDX203"


class CodeNotAllowedError(PipelineError):
    """A pipeline refers to Python code, which the user has not allowed."""

    code = "TDX204"


class CheckError(TdxError, AssertionError):
    """An env or a stage violates its spec."""

    code = "TDX205"
    exit_code = ExitCode.FINDINGS


class EnvError(TdxError, RuntimeError):
    """An env failed during construction, reset or step."""

    code = "TDX301"
    exit_code = ExitCode.ENVIRONMENT


class EnvNotFoundError(EnvError):
    """No env with the given id is registered."""

    code = "TDX302"
    exit_code = ExitCode.USAGE


class MissingPackageError(EnvError, ImportError):
    """A required package is not installed."""

    code = "TDX303"


class DeviceError(TdxError, RuntimeError):
    """A device is not available, or does not support an operation."""

    code = "TDX304"
    exit_code = ExitCode.ENVIRONMENT


class OutputError(TdxError, OSError):
    """Output cannot be written."""

    code = "TDX307"
    exit_code = ExitCode.ENVIRONMENT


class WorkerError(EnvError):
    """A worker process of ``ParallelEnv`` raised an error, exited or timed out."""

    code = "TDX305"


class WorkerTimeoutError(WorkerError, TimeoutError):
    """A worker process did not respond within the timeout."""

    code = "TDX306"
    exit_code = ExitCode.TIMED_OUT


class StorageError(TdxError, OSError):
    """A file cannot be read, written or parsed, for example because the disk is full."""

    code = "TDX308"
    exit_code = ExitCode.ENVIRONMENT


class PluginError(TdxError, ImportError):
    """A plugin of another package cannot be used."""

    code = "TDX309"
    exit_code = ExitCode.ENVIRONMENT


def get_first_line(error: BaseException, otherwise: str = "no message") -> str:
    """Return the first line of an error's message, or ``otherwise`` if it is empty."""
    return next(iter(str(error).strip().splitlines()), otherwise)


def describe_object(target: object) -> str:
    """Return the type of an object, for messages: ``an object of type int``, ``the class int``."""
    if target is None:
        return "None"
    if isinstance(target, type):
        return f"the class {target.__name__}"
    return f"an object of type {type(target).__name__}"


def explain_os_error(error: Exception) -> str:
    """Return why a call of the system failed, in lower case; else the message of an error."""
    return (getattr(error, "strerror", None) or str(error)).lower()


def summarize_error(error: BaseException) -> str:
    """Return the type of an error and the first line of its message: ``ValueError: bad``."""
    name = type(error).__name__
    message = get_first_line(error, "")
    return f"{name}: {message}" if message else name


def find_foreign_cause(error: BaseException) -> BaseException | None:
    """Return the error in the cause chain that is not a TdxError, which may be ``error`` itself."""
    cause: BaseException | None = error
    visited: set[int] = set()
    while cause is not None and id(cause) not in visited:
        if not isinstance(cause, TdxError):
            return cause
        visited.add(id(cause))
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return None


def find_user_line(error: BaseException) -> str | None:
    """Return the last line of user code in the traceback, as ``file:line``, if there is one."""
    # Not at the start of each command, which needs neither.
    import sysconfig
    import traceback

    def is_user_code(file: str) -> bool:
        if file.startswith("<") or file.startswith(_PACKAGE + os.sep):
            return False
        if any(part in _LIBRARIES for part in Path(file).parts):
            return False
        return not file.startswith(sysconfig.get_path("stdlib") + os.sep)

    cause = find_foreign_cause(error)
    frames = [] if cause is None else traceback.extract_tb(cause.__traceback__)
    own = next((frame for frame in reversed(frames) if is_user_code(frame.filename)), None)
    if own is None:
        return None
    path = min(own.filename, os.path.relpath(own.filename), key=len)
    return f"{path}:{own.lineno}"


def explain_call_error(error: BaseException) -> str:
    """Return why a call failed, without the name of the function and Python's own terms.

    Example:
        >>> explain_call_error(TypeError("f() got an unexpected keyword argument 'g'"))
        'got the unknown argument g'
    """
    text = re.sub(r"^[\w.<>]+\(\) ", "", get_first_line(error, "unknown reason"))
    text = re.sub(r"an unexpected keyword argument '(\w+)'", r"the unknown argument \1", text)
    return re.sub(r"multiple values for (?:keyword )?argument '(\w+)'", r"\1 twice", text)


def find_similar_names(
    name: str, known: Iterable[str], limit: int = 3, *, cutoff: float = 0.6
) -> list[str]:
    """Return the known names most similar to a misspelled one, best first, ignoring case.

    Names that are much less similar than the best one are left out. A nested key may be as
    similar as its last part. The smallest similarity, ``cutoff``, is from 0 to 1; many known names
    need a higher one.
    """
    by_folded = {candidate.casefold(): candidate for candidate in known}
    folded = difflib.get_close_matches(name.casefold(), by_folded, n=limit, cutoff=cutoff)
    scores = []
    for match in folded:
        parts = {match, match.rpartition(".")[2]}
        ratios = (difflib.SequenceMatcher(None, part, name.casefold()).ratio() for part in parts)
        scores.append(max(ratios))
    best = max(scores, default=0.0)
    near = zip(folded, scores, strict=True)
    return [by_folded[match] for match, score in near if score > best - 0.2]


def install_extra(*extras: str) -> str:
    """Return the hint that names the extras of tdx with a missing package.

    It names no package index, where ``tdx`` may be another project.
    """
    names = ", ".join(f"`{extra}`" for extra in extras)
    return f"install tdx with its extra{'s' if len(extras) > 1 else ''} {names}"


@overload
def did_you_mean(name: str, known: Iterable[str], otherwise: str) -> str: ...
@overload
def did_you_mean(name: str, known: Iterable[str], otherwise: None = None) -> str | None: ...
def did_you_mean(name: str, known: Iterable[str], otherwise: str | None = None) -> str | None:
    """Return a hint that suggests similar names, or ``otherwise`` if there are none."""
    similar = find_similar_names(name, known)
    return f"did you mean {' or '.join(similar)}?" if similar else otherwise
