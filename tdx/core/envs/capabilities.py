"""The internal interface of an env, and what the layers above it implement for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from tensordict import TensorDictBase

from tdx.core.envs.spec_attributes import SpecsAttribute
from tdx.core.meter import Meter, Part
from tdx.foundation.html_repr import repr_html
from tdx.foundation.keys import NestedKey
from tdx.specs.violations import SpecViolation

StepFields = Callable[[TensorDictBase], tuple[dict[str, Any], Any]]


class GymStepper(Protocol):
    """Steps a Gymnasium env, and caches its ``step``.

    ``finish`` completes a result of the env; ``None``: a result is complete.
    """

    env: Any
    finish: Any
    conversion: Any

    def use(self, conversion: Any) -> None:
        """Replace the conversion, and cache the ``step`` that the env has now."""
        ...


class EnvCapabilities:
    """The interface of an env for the modules that run, plan, batch, measure and check it.

    It is internal: a user of an env needs none of it. A subclass overrides what it can do; the
    defaults hold for any env. Beside it, the execution calls these methods of ``EnvBase``:
    ``completed_step`` and ``completed_reset`` (the hooks with the flags that they left out),
    ``move_to`` and ``record_threads``, and reads ``env_specs``. The interface of a stage is
    :class:`~tdx.core.transforms.chain_member.ChainMember`.
    """

    _repr_html_ = repr_html

    main_device = SpecsAttribute(
        lambda specs: specs.placed().main_device, "Device of every entry that no transform moves."
    )

    writes_all_outputs: ClassVar[bool] = False
    """True if ``_step`` and ``_reset`` write every declared reward and flag as the spec says."""

    auto_complete_done_specs: ClassVar[bool] = True
    """If True, done flags that declare only ``done`` or ``terminated`` get the other one."""

    _is_verified: ClassVar[bool] = False
    """True if the tests of the class prove that it writes none of its inputs in place."""

    planned: bool = True
    """If False, rollouts run step by step instead of by a plan."""

    # Plans (core/plan) and their execution (core/planned)

    @property
    def step_fields(self) -> StepFields | None:
        """:meth:`_step` as a function to a dict of root entries and the info, if it has one."""
        return None

    @property
    def step_reads(self) -> tuple[NestedKey, ...] | None:
        """Keys that ``_step`` and ``_reset`` read, without actions and masks. ``None``: any."""
        return None

    @property
    def resets_by_mask(self) -> bool:
        """True if resetting with an all-false mask is a no-op."""
        return False

    def shares_torch_rng(self) -> bool | None:
        """True if steps or resets draw from torch's global generator. ``None``: unknown."""
        return None

    @property
    def raw_rows(self) -> Any:
        """A :class:`~tdx.core.planned.collectors.RawRows`: steps without TensorDicts, or None."""
        return None

    # Batches (envs/batched)

    steps_some_rows: bool = False
    """True if ``_step`` leaves rows alone whose ``_step`` entry, a mask ``[*B]``, is false."""

    @property
    def chunk_workers(self) -> Any:
        """A :class:`~tdx.core.planned.workers.ChunkWorkers`: processes of its rows, or None."""
        return None

    @property
    def row_states(self) -> Any:
        """Object that saves and restores the states of rows in other processes, if any."""
        return None

    # Measuring (core/meter.py, stacks/native_times.py)

    @property
    def display_name(self) -> str:
        """Name in profiles: the id of a registered env, or the name of its class."""
        return type(self).__name__

    meter: Meter | None = None
    """The meter of a profiled env."""

    step_part: Part | None = None
    """The part to which its own work counts while the env inside is measured by itself."""

    @property
    def gym_steppers(self) -> Sequence[GymStepper]:
        """What steps the Gymnasium envs that this env runs in this process."""
        return ()


@dataclass(frozen=True, slots=True)
class EnvServices:
    """Functions that implement what ``EnvBase`` declares and cannot do itself.

    :mod:`tdx.core` sets them when it is imported, so that no module of this folder imports the
    layers above it.

    Args:
        rollout: Returns a whole rollout, ``[*B, T]``; see :meth:`~tdx.core.EnvBase.rollout`.
        iter_rollout: Returns an iterator over the chunks of a rollout, each ``[*B, t]``.
        append_transform: Returns a new env with a transform around an env.
        find_stage_violations: Returns the spec violations of the stages of an env's chain.
        check_env_specs: Checks that an env returns what its specs declare.
        create_auto_reset: Returns an env around one that resets itself.
    """

    rollout: Callable[..., TensorDictBase]
    iter_rollout: Callable[..., Iterator[TensorDictBase]]
    append_transform: Callable[..., Any]
    find_stage_violations: Callable[..., list[SpecViolation]]
    check_env_specs: Callable[..., None]
    create_auto_reset: Callable[..., Any]
