"""Count what each stage of a chain does to a GPU, on a machine without one.

The env is built and stepped on a :mod:`simulated device <tdx.foundation.simulated_cuda>`. Counts
are those of the thread of the rollout: workers of a parallel env compute on the host.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, cast

from tdx.core.chain import flatten_chain
from tdx.core.envs import EnvBase
from tdx.core.meter import CONVERSION, TRANSFERS, AnyFunction, Part
from tdx.envs.batched.parallel import ParallelEnv
from tdx.foundation.errors import TdxError, summarize_error
from tdx.foundation.serialization import Entries, Result
from tdx.foundation.simulated_cuda import DEVICE, CallKind, DeviceCall, SimulatedCuda
from tdx.stacks.native_times import list_transformed_envs, timed_env

MEASURING = (str(Path(__file__)), str(Path(__file__).parents[1] / "foundation" / "patches.py"))
"""Files that call what is measured."""


@dataclass(frozen=True, slots=True)
class DeviceLine(Result):
    """A line of code that makes the host wait, or that copies between host and device.

    Args:
        part: The part of the rollout that the line runs in, such as ``2 CatFrames``.
        stage: Index of the stage; ``None`` for the env, the policy or the engine.
        kind: ``wait``, ``to device`` or ``to host``.
        call: What the line calls, such as ``item()``.
        location: ``file:line``.
        per_step: Number per step.
        bytes_per_step: Copied bytes per step.
    """

    json_entries: ClassVar[Entries] = (
        *("part", "stage", "kind", "call", "location", "per_step", "bytes_per_step"),
    )

    part: str
    stage: int | None
    kind: CallKind
    call: str
    location: str
    per_step: float
    bytes_per_step: float


@dataclass(frozen=True, slots=True)
class DevicePart(Result):
    """What a part of a rollout does to the device, per step.

    Args:
        label: Its name, such as ``2 CatFrames`` or ``env Pendulum-v1``.
        stage: Index of the stage; ``None`` for the env, the policy or the engine.
        launches: Operators on the device: at least as many kernels are launched.
        to_device_bytes: Bytes copied from the host.
        to_host_bytes: Bytes copied to the host.
        waits: How often the host waits for the device.
    """

    json_entries: ClassVar[Entries] = (
        *("label", "stage", "launches", "to_device_bytes", "to_host_bytes", "waits"),
    )

    label: str
    stage: int | None
    launches: float
    to_device_bytes: float
    to_host_bytes: float
    waits: float


@dataclass(frozen=True, slots=True)
class DeviceCalls(Result):
    """Launches, copies and waits of a rollout, by stage and line.

    Args:
        subject: What ran.
        steps: Counted steps.
        envs: Number of envs in a batch.
        parts: The env, the policy and the rollout, then all stages of the chain.
        lines: Lines that copy or wait, most frequent first.
        setup_waits: Waits while the env was built, moved, and stepped for the first time.
        error: Why the run ended early; ``None`` if it did not.
        error_stage: Index of the stage that raised it, if one did.
        notes: What is not counted, each a sentence.
    """

    json_entries: ClassVar[Entries] = (
        *("subject", "steps", "envs", "parts", "lines", "setup_waits"),
        *("error", "error_stage", "notes"),
    )

    subject: str
    steps: int
    envs: int
    parts: tuple[DevicePart, ...]
    lines: tuple[DeviceLine, ...]
    setup_waits: int
    error: str | None = None
    error_stage: int | None = None
    notes: tuple[str, ...] = ()


class _PartMeter:
    """Knows the innermost part that runs; see :class:`~tdx.core.meter.Meter`."""

    def __init__(self) -> None:
        self.open: list[Part] = []
        self.failed: Part | None = None
        """The part that raised an error."""

    def timed(
        self, part: Part, function: AnyFunction, steps: Callable[..., int] | None = None
    ) -> AnyFunction:
        def run(*args: Any, **kwargs: Any) -> Any:
            self.open.append(part)
            try:
                return function(*args, **kwargs)
            except Exception:
                self.failed = self.failed or part
                raise
            finally:
                self.open.pop()

        return cast(AnyFunction, run)

    def in_turn(self, functions: Sequence[AnyFunction]) -> Sequence[AnyFunction]:
        return functions


class CallCounter:
    """Counts what is done to a simulated device, by part of the run and line of code.

    ``current`` returns the label of the part that runs, and the index of its stage if it is one.
    """

    def __init__(self, current: Callable[[], tuple[str, int | None]]) -> None:
        self._current = current
        self._lines: Counter[tuple[str, int | None, CallKind, str, str]] = Counter()
        self._nbytes: Counter[tuple[str, int | None, CallKind, str, str]] = Counter()
        self._setup_waits = 0
        self.is_counting = False
        """False during the set-up, of which only the waits are counted."""

    def report(self, call: DeviceCall) -> None:
        if not self.is_counting:
            self._setup_waits += call.kind == "wait"
            return
        key = (*self._current(), call.kind, call.name, call.location)
        self._lines[key] += 1
        self._nbytes[key] += call.nbytes

    def result(
        self,
        subject: str,
        steps: int,
        envs: int,
        stages: Sequence[str],
        error: str | None,
        error_stage: int | None,
        notes: tuple[str, ...],
    ) -> DeviceCalls:
        """Return the counts per step, with all stages, also those that never touch the device.

        The arguments are fields of the result.
        """
        of = max(steps, 1)
        totals: dict[tuple[str, int | None], Counter[CallKind]] = {
            (f"{index} {name}", index): Counter() for index, name in enumerate(stages)
        }
        for key, count in self._lines.items():
            label, stage, kind, *_ = key
            amount = count if kind in ("launch", "wait") else self._nbytes[key]
            totals.setdefault((label, stage), Counter())[kind] += amount
        parts = tuple(
            DevicePart(
                *(label, stage),
                launches=total["launch"] / of,
                to_device_bytes=total["to device"] / of,
                to_host_bytes=total["to host"] / of,
                waits=total["wait"] / of,
            )
            for (label, stage), total in sorted(
                totals.items(), key=lambda item: -1 if item[0][1] is None else item[0][1]
            )
        )
        lines = tuple(
            DeviceLine(*key, per_step=count / of, bytes_per_step=self._nbytes[key] / of)
            for key, count in self._lines.most_common()
            if key[2] != "launch"
        )
        return DeviceCalls(
            *(subject, steps, envs, parts, lines, self._setup_waits, error, error_stage, notes)
        )


def count_device_calls(
    build: Callable[[], EnvBase],
    *,
    subject: str = "",
    steps: int = 20,
    load_policy: Callable[[EnvBase], Any] | None = None,
    seed: int | None = 0,
    planned: bool = True,
) -> DeviceCalls:
    """Run an env on a simulated device and count what each of its parts does to it.

    ``build`` is called while the device exists, to which the env is then moved; the env is not
    closed. ``steps`` are counted after a warm-up of two.
    """
    meter, steps_run = _PartMeter(), 0

    def current() -> tuple[str, int | None]:
        part = meter.open[-1] if meter.open else None
        return _label(part), _stage(part)

    counter = CallCounter(current)
    error, error_stage = None, None
    with ExitStack() as opened:
        opened.enter_context(SimulatedCuda(counter.report, skipped=MEASURING))
        env = build().to(DEVICE)
        policy = None if load_policy is None else load_policy(env)
        if seed is not None:
            env.set_seed(seed)
        base, stages = flatten_chain(env)
        for level in list_transformed_envs(env):
            level.planned = planned
        name = subject or base.display_name
        envs = max(env.batch_size.numel(), 1)
        try:
            with timed_env(env, meter):
                for _ in env.iter_rollout(2, policy):
                    pass
                counter.is_counting = True
                for chunk in env.iter_rollout(steps, policy):
                    steps_run += int(chunk.shape[-1])
        except Exception as raised:
            error = raised.message if isinstance(raised, TdxError) else summarize_error(raised)
            error_stage = _stage(meter.failed)
        counter.is_counting = False
    names = [type(stage).__name__ for stage in stages]
    is_parallel = isinstance(base, ParallelEnv)
    notes = ("what the worker processes do is not counted",) if is_parallel else ()
    return counter.result(name, steps_run, envs, names, error, error_stage, notes)


def _label(part: Part | None) -> str:
    if part in (CONVERSION, TRANSFERS):
        return "env conversion"
    return "rollout" if part is None or part.work == "engine" else part.label


def _stage(part: Part | None) -> int | None:
    return part.index if part is not None and part.work == "stage" else None
