"""What an env may declare about its steps, so that rollouts need less work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from tensordict import TensorDictBase

from tdx.keys import NestedKey

StepFields = Callable[[TensorDictBase], tuple[dict[str, Any], Any]]


class EnvCapabilities:
    """Capabilities of an env, which plans, batches and checks ask for. Each of them is optional.

    The defaults hold for any env. A subclass overrides what it can do.
    """

    _writes_all_outputs: ClassVar[bool] = False
    """True if ``_step`` and ``_reset`` write every declared reward and flag as the spec says."""

    auto_complete_done_specs: ClassVar[bool] = True
    """If True, done flags that declare only ``done`` or ``terminated`` get the other one."""

    _steps_some_rows: bool = False
    """True if ``_step`` leaves rows alone whose ``_step`` entry, a mask ``[*B]``, is false."""

    _is_verified: ClassVar[bool] = False
    """True if the tests of the class prove that it writes none of its inputs in place."""

    planned: bool = True
    """If False, rollouts run step by step instead of by a plan."""

    @property
    def _step_fields(self) -> StepFields | None:
        """:meth:`_step` as a function to a dict of root entries and the info, if it has one."""
        return None

    @property
    def _resets_by_mask(self) -> bool:
        """True if resetting with an all-false mask is a no-op."""
        return False

    @property
    def _step_reads(self) -> tuple[NestedKey, ...] | None:
        """Keys that ``_step`` and ``_reset`` read besides actions and masks. ``None``: any."""
        return None

    @property
    def _raw_rows(self) -> Any:
        """A :class:`~tdx.core.planned.collectors.RawRows`: steps without TensorDicts, if any."""
        return None

    def _uses_global_generator(self) -> bool | None:
        """True if steps or resets draw from torch's global generator. ``None``: unknown."""
        return None
