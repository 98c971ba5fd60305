"""Errors for an env, a stage or a policy that raises in a reset or a step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from tdx.core.envs.env_base import EnvBase
from tdx.foundation.errors import (
    ChainError,
    EnvError,
    TdxError,
    Where,
    get_first_line,
    summarize_error,
)
from tdx.foundation.keys import NestedKey

ENV_ERROR_HINT = "the error comes from the env; --debug or the __cause__ shows where it was raised"
_STAGE = "_tdx_stage"
_KEY = "_tdx_key"
_ROW = "_tdx_row"


def with_step(error: Exception, step: int) -> Exception:
    """Return the error with the step of the rollout, from 0; one not of tdx gets a note."""
    if isinstance(error, TdxError):
        return error.at(step=step)
    note = f"tdx: raised at step {step} of the rollout"
    if note not in getattr(error, "__notes__", ()):
        error.add_note(note)
    return error


def note_row(error: Exception, row: int) -> None:
    """Record in an exception which env of a batch raised it, unless it is recorded already."""
    if isinstance(error, TdxError):
        error.at(row=row)
    elif failed_row(error) is None:
        setattr(error, _ROW, row)
        error.add_note(f"tdx: raised by env {row} of the batch")


def failed_row(error: BaseException) -> int | None:
    """Return the row of the batch whose env raised; ``None`` if it is not recorded."""
    row: int | None = error.where.row if isinstance(error, TdxError) else getattr(error, _ROW, None)
    return row


def with_stage(error: Exception, index: int, name: str) -> TdxError:
    """Return the error with the stage that raised it."""
    if isinstance(error, TdxError):
        return error.at(stage=index, transform=name)
    return stage_failure(error, Where(stage=index, transform=name))


def env_failure(env: EnvBase, phase: str, error: Exception) -> TdxError:
    """Return the error to raise if an env or a stage of its chain raised."""
    if isinstance(error, TdxError):
        return error
    stage: Where | None = getattr(error, _STAGE, None)
    failure: TdxError
    if stage is not None:
        failure = stage_failure(error, stage)
    else:
        base: nn.Module = env
        while (inner := base._modules.get("base_env")) is not None:
            base = inner
        where = Where(env=type(base).__name__, row=failed_row(error))
        failure = EnvError(
            f"{phase} raised {summarize_error(error)}", hint=ENV_ERROR_HINT, where=where
        )
    failure.__cause__ = error
    return failure


@contextmanager
def env_errors(env: EnvBase, method: str, step: int | None = None) -> Iterator[None]:
    """Convert what an env raises to an ``EnvError`` with the method and the step."""
    try:
        yield
    except TdxError as error:
        raise error.at(step=step) from error.__cause__
    except Exception as error:
        raise EnvError(
            f"the env raised {type(error).__name__} in {method}: {get_first_line(error)}",
            hint=ENV_ERROR_HINT,
            where=Where(env=type(env).__name__, step=step),
        ) from error


def stage_failure(error: Exception, stage: Where) -> ChainError:
    """Return the error to raise if a stage raised something other than an error of tdx."""
    failure = ChainError(
        f"it raised {summarize_error(error)}",
        hint="the __cause__ shows where; env.step(...) with the same data raises it again",
        where=stage,
    )
    failure.__cause__ = error
    return failure


def note_stage(error: Exception, index: int, name: str) -> None:
    """Record in an exception which stage raised it, unless it is recorded already."""
    if getattr(error, _STAGE, None) is None:
        setattr(error, _STAGE, Where(stage=index, transform=name))


def note_key(error: Exception, key: NestedKey) -> None:
    """Record in an exception at which key of its stage it was raised, unless it is recorded."""
    if getattr(error, _KEY, None) is None:
        setattr(error, _KEY, key)


def noted_key(error: Exception) -> NestedKey | None:
    """Return the key at which a stage raised; ``None`` if it is not recorded."""
    key: NestedKey | None = getattr(error, _KEY, None)
    return key
