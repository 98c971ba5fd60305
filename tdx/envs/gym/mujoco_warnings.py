"""What MuJoCo warns of while it compiles a model, logged once instead of strewn about."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any

_LOG = logging.getLogger(__name__)
_logged: set[str] = set()


@contextmanager
def logged_once(entry_point: object) -> Iterator[None]:
    """Log each text that MuJoCo warns of inside, once in this process.

    Left to itself MuJoCo writes it to stderr and to a file ``MUJOCO_LOG.TXT`` in the working
    directory, for every env of a batch.

    Args:
        entry_point: where the class of the env lives that is made inside.
    """
    mujoco = _loaded("mujoco" in str(entry_point))
    if mujoco is None or mujoco.get_mju_user_warning() is not None:
        yield
        return
    mujoco.set_mju_user_warning(_log)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(None)


def _loaded(needed: bool) -> Any:
    """MuJoCo where it is loaded or needed, in a version that hands its warnings over."""
    if needed:
        with suppress(ImportError):
            import_module("mujoco")
    module = sys.modules.get("mujoco")
    return module if hasattr(module, "get_mju_user_warning") else None


def _log(text: str) -> None:
    if text not in _logged:
        _logged.add(text)
        _LOG.warning("warning: MuJoCo: %s", text)
