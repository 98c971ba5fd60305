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
from tdx.core.transformed_env import TransformedEnv
from tdx.envs.batched.parallel import ParallelEnv
from tdx.foundation.errors import TdxError, summarize_error
from tdx.foundation.serialization import Entries, Result
from tdx.foundation.simulated_cuda import DEVICE, CallKind, DeviceCall, SimulatedCuda
from tdx.stacks.native_times import timed_env

_MEASURING = (str(Path(__file__)), str(Path(__file__).parents[1] / "foundation" / "patches.py"))
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

    Args:
        build: Creates the env with its chain; called while the device exists, to which the env is
            then moved. It is not closed.
        subject: Title. Empty: the name of the env.
        steps: Steps to count, after a warm-up of two.
        load_policy: Returns the policy for the env. ``None``: random actions.
        seed: Seed of the env. ``None``: not seeded.
        planned: Run as rollouts run by default; otherwise step by step.

    Raises:
        TdxError: The env cannot be created on the device.

    Example:
        >>> from tdx import FiniteTensorDictCheck, PendulumEnv, TransformedEnv
        >>> def build():
        ...     return TransformedEnv(PendulumEnv(), FiniteTensorDictCheck())
        >>> calls = count_device_calls(build)
        >>> calls.lines[0].part, calls.lines[0].kind, calls.lines[0].per_step
        ('0 FiniteTensorDictCheck', 'wait', 1.05)
    """
    lines: Counter[tuple[str, int | None, CallKind, str, str]] = Counter()
    nbytes: Counter[tuple[str, int | None, CallKind, str, str]] = Counter()
    meter = _PartMeter()
    setup_waits, is_counting, steps_run = 0, False, 0

    def report(call: DeviceCall) -> None:
        nonlocal setup_waits
        if not is_counting:
            setup_waits += call.kind == "wait"
            return
        part = meter.open[-1] if meter.open else None
        key = (_label(part), _stage(part), call.kind, call.name, call.location)
        lines[key] += 1
        nbytes[key] += call.nbytes

    error, error_stage = None, None
    with ExitStack() as opened:
        opened.enter_context(SimulatedCuda(report, skipped=_MEASURING))
        env = build().to(DEVICE)
        policy = None if load_policy is None else load_policy(env)
        if seed is not None:
            env.set_seed(seed)
        base, stages = flatten_chain(env)
        level: EnvBase = env
        while isinstance(level, TransformedEnv):
            level.planned = planned
            level = level.base_env
        name = subject or getattr(base, "_name", None) or type(base).__name__
        envs = max(env.batch_size.numel(), 1)
        try:
            with timed_env(env, meter):
                for _ in env.iter_rollout(2, policy):
                    pass
                is_counting = True
                for chunk in env.iter_rollout(steps, policy):
                    steps_run += int(chunk.shape[-1])
        except Exception as raised:
            error = raised.message if isinstance(raised, TdxError) else summarize_error(raised)
            error_stage = _stage(meter.failed)
        is_counting = False
    of = max(steps_run, 1)
    # Also stages that never touch the device.
    totals: dict[tuple[str, int | None], Counter[CallKind]] = {
        (f"{index} {type(stage).__name__}", index): Counter() for index, stage in enumerate(stages)
    }
    for key, count in lines.items():
        label, stage, kind, *_ = key
        amount = count if kind in ("launch", "wait") else nbytes[key]
        totals.setdefault((label, stage), Counter())[kind] += amount
    return DeviceCalls(
        name,
        steps_run,
        envs,
        tuple(
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
        ),
        tuple(
            DeviceLine(*key, per_step=count / of, bytes_per_step=nbytes[key] / of)
            for key, count in lines.most_common()
            if key[2] != "launch"
        ),
        setup_waits,
        error,
        error_stage,
        ("what the worker processes do is not counted",) if isinstance(base, ParallelEnv) else (),
    )


def _label(part: Part | None) -> str:
    if part in (CONVERSION, TRANSFERS):
        return "env conversion"
    return "rollout" if part is None or part.work == "engine" else part.label


def _stage(part: Part | None) -> int | None:
    return part.index if part is not None and part.work == "stage" else None
