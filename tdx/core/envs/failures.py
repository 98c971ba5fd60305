"""What a user reads where an env, a stage or a policy raises in a rollout."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tdx.errors import ChainError, EnvError, TdxError, Where, summarize_error
from tdx.keys import NestedKey

if TYPE_CHECKING:
    from tdx.core.envs.env_base import EnvBase

OWN_ERROR = "the error is the env's own; --debug, or the __cause__, shows where it was raised"
_STAGE = "_tdx_stage"
_KEY = "_tdx_key"


def at_step(error: Exception, step: int) -> Exception:
    """The error, with the number of the step of the rollout at which it was raised.

    Args:
        error: one of the family, or of anybody's, which gets a note.
        step: from 0.
    """
    if isinstance(error, TdxError):
        return error.at(step=step)
    note = f"tdx: raised at step {step} of the rollout"
    if note not in getattr(error, "__notes__", ()):
        error.add_note(note)
    return error


def failed(env: EnvBase, doing: str, error: Exception) -> TdxError:
    """The error to raise where an env or a stage of its chain raised.

    Args:
        env: the env.
        doing: ``step`` or ``reset``.
        error: what was raised.
    """
    if isinstance(error, TdxError):
        return error
    stage: Where | None = getattr(error, _STAGE, None)
    made: TdxError
    if stage is not None:
        made = stage_failed(error, stage)
    else:
        where = Where(env=type(_innermost(env)).__name__)
        made = EnvError(f"{doing} raised {summarize_error(error)}", hint=OWN_ERROR, where=where)
    made.__cause__ = error
    return made


def stage_failed(error: Exception, stage: Where) -> ChainError:
    """The error to raise where a stage raised something of its own."""
    made = ChainError(
        f"it raised {summarize_error(error)}",
        hint="the __cause__ shows where; env.step(...) with the same data raises it again",
        where=stage,
    )
    made.__cause__ = error
    return made


def from_stage(error: Exception, index: int, name: str) -> None:
    """Remember with an error that is none of the family which stage raised it."""
    if getattr(error, _STAGE, None) is None:
        setattr(error, _STAGE, Where(stage=index, transform=name))


def from_key(error: Exception, key: NestedKey) -> None:
    """Remember with an error at which key of its stage it was raised."""
    if getattr(error, _KEY, None) is None:
        setattr(error, _KEY, key)


def key_of(error: Exception) -> NestedKey | None:
    """The key at which a stage raised; none where that is not known."""
    key: NestedKey | None = getattr(error, _KEY, None)
    return key


def _innermost(env: EnvBase) -> EnvBase:
    inner = env._modules.get("base_env")
    while inner is not None:
        env = inner  # type: ignore[assignment]
        inner = env._modules.get("base_env")
    return env
