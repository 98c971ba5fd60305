"""Where an error of somebody else's code was raised, as text that can leave the process."""

from __future__ import annotations

import os
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path

from tdx.errors import TdxError

_PACKAGE = str(Path(__file__).parents[1])
_LIBRARIES = ("site-packages", "dist-packages")


def foreign_cause(error: BaseException) -> BaseException | None:
    """The error of other code that an error was raised from; itself, if it is one."""
    return next((each for each in _causes(error) if not isinstance(each, TdxError)), None)


def traceback_text(error: BaseException) -> str:
    """The traceback of an error with a foreign cause; empty for an error of tdx alone."""
    if foreign_cause(error) is None:
        return ""
    return "".join(traceback.format_exception(error)).strip("\n")


def user_line(error: BaseException) -> str | None:
    """The last line of the user's own code that raised, as ``file:line``.

    Returns:
        ``None`` if no frame is outside tdx, the standard library and installed packages.
    """
    cause = foreign_cause(error)
    frames = [] if cause is None else traceback.extract_tb(cause.__traceback__)
    own = next((frame for frame in reversed(frames) if _is_users(frame.filename)), None)
    if own is None:
        return None
    path = min(own.filename, os.path.relpath(own.filename), key=len)
    return f"{path}:{own.lineno}"


def _causes(error: BaseException) -> Iterator[BaseException]:
    each: BaseException | None = error
    seen: set[int] = set()
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        yield each
        each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)


def _is_users(file: str) -> bool:
    if file.startswith("<") or file.startswith(_PACKAGE + os.sep):
        return False
    if any(part in _LIBRARIES for part in Path(file).parts):
        return False
    return not file.startswith(sysconfig.get_path("stdlib") + os.sep)
