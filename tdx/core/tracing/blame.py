"""Whose fault an error in the middle of a traced step is."""

from __future__ import annotations

from tdx.core.envs.failures import key_of
from tdx.core.tracing.places import Place
from tdx.core.tracing.traces import Direction
from tdx.errors import ChainError, EnvError, TdxError, Where, get_first_line


def blamed(error: Exception, place: Place, direction: Direction, doing: str) -> TdxError:
    """The error as one of tdx that says in which step it was raised and by whom.

    Args:
        error: what was raised.
        place: who was called.
        direction: on the way in, or on the way out.
        doing: what was going on: ``step 3``.
    """
    during = doing
    if place.kind == "stage" and direction == "inverse":
        during = f"the way in of {doing}"
    stage = place.kind == "stage"
    if isinstance(error, TdxError):
        error.message = f"{error.message}, in {during}"
        return error.at(stage=place.index, transform=place.name) if stage else error
    what = f"raised {type(error).__name__} in {during}: {get_first_line(error)}"
    if stage:
        where = Where(stage=place.index, transform=place.name, key=key_of(error))
        return ChainError(
            f"it {what}", where=where, hint="correct the stage; --debug shows the traceback"
        )
    if place.kind == "env":
        return EnvError(
            f"the env {what}",
            where=Where(env=place.name),
            hint="correct the env; --debug shows the traceback",
        )
    return ChainError(f"the policy {place.name} {what}", hint="mend the policy")
