"""Every error that tdx raises on purpose: one line, a hint, and where it happened.

Example:
    >>> from tdx.errors import ArgumentError, Where
    >>> where = Where(stage=2, transform="CatFrames")
    >>> print(ArgumentError("N must be at least 1, got 0", where=where))
    stage 2 (CatFrames): N must be at least 1, got 0
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from typing import Any, ClassVar, Self, overload

from tdx.keys import NestedKey, format_key


class ExitCode(IntEnum):
    """What a ``tdx`` process ends with."""

    OK = 0
    FINDINGS = 1
    USAGE = 2
    ENVIRONMENT = 3
    TIMED_OUT = 4
    INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Where:
    """The place that an error speaks of; what is unknown stays ``None``.

    Args:
        stage: index of the stage in the chain, from 0.
        transform: class name of the transform at that stage.
        key: the key of the TensorDict.
        step: the step of a rollout, from 0.
        env: the env, as the user named it.
        file: the pipeline file.
        line: line in that file, from 1.
        column: column in that line, from 1.
    """

    stage: int | None = None
    transform: str | None = None
    key: NestedKey | None = None
    step: int | None = None
    env: str | None = None
    file: str | None = None
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        parts = [self._file_part(), self._stage_part()]
        if self.step is not None:
            parts.append(f"step {self.step}")
        if self.env is not None:
            parts.append(f"env {self.env}")
        if self.key is not None:
            parts.append(f"key {format_key(self.key)!r}")
        return ", ".join(part for part in parts if part)

    def _file_part(self) -> str:
        if self.file is not None:
            numbers = (str(number) for number in (self.line, self.column) if number is not None)
            return ":".join([self.file, *numbers])
        named = (("line", self.line), ("column", self.column))
        return ", ".join(f"{name} {number}" for name, number in named if number is not None)

    def _stage_part(self) -> str:
        if self.stage is None:
            return self.transform or ""
        return f"stage {self.stage}" + (f" ({self.transform})" if self.transform else "")

    def merged(self, other: Where) -> Where:
        """This place, with what it leaves open taken from ``other``."""
        unknown = {
            field.name: getattr(other, field.name)
            for field in fields(self)
            if getattr(self, field.name) is None
        }
        return replace(self, **unknown)


class TdxError(Exception):
    """The family's root.

    Args:
        message: one line that says what is wrong.
        hint: one line that says what to do about it.
        where: the place it speaks of.
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
        place = str(self.where)
        text = f"{place}: {self.message}" if place else self.message
        return f"{text} ({self.hint})" if self.hint else text

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.hint, self.where)

    def at(self, **place: Any) -> Self:
        """Fill in what is not yet known of the place; returns this same error."""
        self.where = self.where.merged(Where(**place))
        return self

    def to_dict(self) -> dict[str, Any]:
        """The error as plain data, for ``--format json``."""
        place = {
            field.name: getattr(self.where, field.name)
            for field in fields(self.where)
            if getattr(self.where, field.name) is not None
        }
        if "key" in place:
            place["key"] = format_key(place["key"])
        return {
            "code": self.code,
            "error": type(self).__name__,
            "message": self.message,
            "hint": self.hint,
            "where": place,
        }


def _rebuild(kind: type[TdxError], message: str, hint: str | None, where: Where) -> TdxError:
    error = kind.__new__(kind)
    TdxError.__init__(error, message, hint=hint, where=where)
    return error


class ArgumentError(TdxError, ValueError):
    """An argument has a wrong type, value or range."""

    code = "TDX101"


class KeyNotFoundError(TdxError, KeyError):
    """A key is not where it was looked for."""

    code = "TDX102"


class UnknownNameError(TdxError, LookupError):
    """A name of a transform, argument, column or enum value that does not exist."""

    code = "TDX103"


class SpecError(TdxError, ValueError):
    """A spec cannot be built or combined, or a value is outside it."""

    code = "TDX201"


class ChainError(TdxError, RuntimeError):
    """The chain cannot be put together or run as it stands."""

    code = "TDX202"


class PipelineError(TdxError, ValueError):
    """A pipeline file or a ``--t`` text cannot be read."""

    code = "TDX203"


class CodeNotAllowedError(PipelineError):
    """A pipeline refers to Python code and the user did not allow it."""

    code = "TDX204"


class CheckError(TdxError, AssertionError):
    """A check found that an env or a stage does not keep what its spec promises."""

    code = "TDX205"
    exit_code = ExitCode.FINDINGS


class EnvError(TdxError, RuntimeError):
    """An env failed while it was made, reset or stepped."""

    code = "TDX301"
    exit_code = ExitCode.ENVIRONMENT


class EnvNotFoundError(EnvError):
    """No env of that id is registered."""

    code = "TDX302"


class MissingPackageError(EnvError, ImportError):
    """A package that is needed is not installed."""

    code = "TDX303"


class DeviceError(TdxError, RuntimeError):
    """The device is not there, or cannot do what was asked."""

    code = "TDX304"
    exit_code = ExitCode.ENVIRONMENT


class OutputError(TdxError, OSError):
    """What was to be written cannot be written."""

    code = "TDX307"
    exit_code = ExitCode.ENVIRONMENT


class WorkerError(EnvError):
    """A worker process of ``ParallelEnv`` raised, died or hung."""

    code = "TDX305"


class WorkerTimeoutError(WorkerError, TimeoutError):
    """A worker process did not answer in time."""

    code = "TDX306"
    exit_code = ExitCode.TIMED_OUT


class StorageError(TdxError, OSError):
    """A disk is full, or a file cannot be read, written or understood."""

    code = "TDX308"
    exit_code = ExitCode.ENVIRONMENT


def first_line(error: BaseException, otherwise: str = "no message") -> str:
    r"""The first line of what an error says, or ``otherwise`` where it says nothing.

    Example:
        >>> first_line(ValueError("bad\nand more"))
        'bad'
    """
    return next(iter(str(error).strip().splitlines()), otherwise)


def one_line(error: BaseException) -> str:
    r"""The error's type and the first line of what it says.

    Example:
        >>> one_line(ValueError("bad\nand more"))
        'ValueError: bad'
    """
    name = type(error).__name__
    told = first_line(error, "")
    return f"{name}: {told}" if told else name


def call_problem(error: BaseException) -> str:
    """Why a call refused its arguments, without the names of Python's own machinery.

    Example:
        >>> call_problem(TypeError("GymEnv.__init__() got an unexpected keyword argument 'g'"))
        'got the unknown argument g'
    """
    told = re.sub(r"^[\w.<>]+\(\) ", "", first_line(error, "it gives no reason"))
    told = re.sub(r"an unexpected keyword argument '(\w+)'", r"the unknown argument \1", told)
    return re.sub(r"multiple values for (?:keyword )?argument '(\w+)'", r"\1 twice", told)


def nearest(name: str, known: Iterable[str], most: int = 3) -> list[str]:
    """The known names closest to a misspelt one, best first, letter case ignored.

    Example:
        >>> nearest("StepCouter", ["StepCounter", "RewardSum"])
        ['StepCounter']
    """
    by_folded = {candidate.casefold(): candidate for candidate in known}
    folded = difflib.get_close_matches(name.casefold(), by_folded, n=most, cutoff=0.6)
    return [by_folded[match] for match in folded]


@overload
def did_you_mean(name: str, known: Iterable[str], otherwise: str) -> str: ...
@overload
def did_you_mean(name: str, known: Iterable[str], otherwise: None = None) -> str | None: ...
def did_you_mean(name: str, known: Iterable[str], otherwise: str | None = None) -> str | None:
    """A hint with the nearest spellings, or ``otherwise`` where nothing is near."""
    close = nearest(name, known)
    return f"did you mean {' or '.join(close)}?" if close else otherwise
