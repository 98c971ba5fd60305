"""Measure a pipeline with many settings, and fit how each cost grows with them."""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from tdx.core.envs import EnvBase
from tdx.core.meter import UNATTRIBUTED, Lane
from tdx.core.planned.columns import step_bytes
from tdx.engines import Engine, find_engine
from tdx.foundation.errors import DeviceError, TdxError, summarize_error
from tdx.foundation.serialization import Entries, Entry, Result
from tdx.pipeline import Pipeline
from tdx.pipeline.envs import check_device
from tdx.profiling.compare import TOTAL_KEY
from tdx.profiling.machine import (
    STEP_COPIES,
    find_free_memory,
    format_bytes,
    is_out_of_memory,
    release_memory,
)
from tdx.profiling.result import MODES, Mode, ModeProfile, Profile
from tdx.profiling.run import ProfilePlan, profile_env
from tdx.profiling.saved import ProfileEntries, profile_to_json
from tdx.profiling.sweep_axes import SweepAxis, SweepPoint, apply_point, format_setting, list_points
from tdx.stacks.building import build_env

_POLL_SECONDS = 0.5


def _text_or_none(text: str) -> str | None:
    return text or None


@dataclass(frozen=True)
class SweepCell(Result):
    """One combination of settings.

    Args:
        point: Settings by name.
        profile: Its profile. ``None``: it could not be measured.
        problem: Why it was not measured completely. ``None``: no problem.
        host: Machine that measured it. Empty: this one.
    """

    json_entries: ClassVar[Entries] = (
        Entry("point", "plain_point"),
        Entry("host", convert=_text_or_none),
        "problem",
        Entry("profile", convert=profile_to_json, type=ProfileEntries | None),
    )

    point: SweepPoint
    profile: Profile | None
    problem: str | None = None
    host: str = ""

    @property
    def plain_point(self) -> dict[str, Any]:
        """Settings as plain data; values that JSON does not have are text."""
        return {
            name: value if isinstance(value, bool | int | float | str) else format_setting(value)
            for name, value in self.point.items()
        }

    @property
    def label(self) -> str:
        """Settings as text, ``num_envs=8 device=cpu``."""
        return " ".join(f"{name}={format_setting(value)}" for name, value in self.point.items())


@dataclass(frozen=True)
class SweepResult:
    """Measurements of all combinations of settings.

    Args:
        axes: Settings and their values.
        cells: Combinations in order, as far as measured.
        interrupted: Whether Ctrl-C ended the sweep early.
    """

    axes: tuple[SweepAxis, ...]
    cells: tuple[SweepCell, ...]
    interrupted: bool = False

    def list_host_differences(self) -> list[str]:
        """Describe the machines, if several measured the cells: their times are not comparable.

        Returns:
            Names of the machines, then each property that differs from the first one. Empty: one
            machine measured all cells.
        """
        machines = {each.host: each.profile.machine for each in self.cells if each.profile}
        if len(machines) < 2:
            return []
        (first, machine), *others = machines.items()
        return [", ".join(machines)] + [
            f"{first} and {host}: {difference}"
            for host, other in others
            for difference in machine.differences(other)
        ]


def run_sweep(
    pipeline: Pipeline,
    axes: Sequence[SweepAxis],
    modes: Sequence[Mode] = ("planned",),
    plan: ProfilePlan | None = None,
    *,
    allow_code: bool = False,
    policy_of: Callable[[EnvBase], Any] | None = None,
    on_cell: Callable[[SweepCell], None] | None = None,
    engine: str | None = None,
    workers: int | None = None,
) -> SweepResult:
    """Measure a pipeline with each combination of settings.

    A cell whose device does not exist, that does not fit into memory or that raises has a problem;
    the sweep continues. With many envs, memory is estimated from the specs beforehand.

    Args:
        pipeline: The pipeline.
        axes: Settings, from :func:`~tdx.profiling.sweep_axes.parse_sweep`.
        modes: Modes of each cell, unless ``mode`` is swept.
        plan: Settings of each profile.
        allow_code: Allow importing Python objects that the pipeline names.
        policy_of: Creates the policy for the env of a cell. ``None``: the policy of the plan.
        on_cell: Called with each cell when it is complete.
        engine: ``local``, ``ray`` or ``slurm``: measures each cell in its own process, on a machine
            that runs no other cell. ``None``: measured in this process.
        workers: Number of cells at a time. ``None``: one per machine.

    Raises:
        TdxError: The engine is not available.

    Example:
        >>> from tdx.profiling.sweep_axes import parse_sweep
        >>> pipeline = Pipeline.of("tdx/Pendulum", "RewardSum")
        >>> axes = parse_sweep(["num_envs=2,8"], pipeline)
        >>> found = run_sweep(pipeline, axes, plan=ProfilePlan(steps=5, warmup=0, repeats=1))
        >>> [cell.label for cell in found.cells]
        ['num_envs=2', 'num_envs=8']
    """
    points = list_points(axes)
    job = SweepJob(
        pipeline,
        points,
        tuple(modes),
        plan or ProfilePlan(),
        str(Path.cwd()),
        allow_code,
        policy_of,
    )
    if engine is None:
        measured = ((task, job.measure(point)) for task, point in enumerate(points))
    else:
        job = replace(job, plan=replace(job.plan, on_progress=None))
        measured = _measure_on(find_engine(engine)(job, workers), points)
    cells: dict[int, SweepCell] = {}
    interrupted = False
    try:
        with closing(measured):
            for task, cell in measured:
                cells[task] = cell
                if engine is not None and plan is not None:
                    plan.report_progress(f"measured {cell.label}", len(cells), len(points))
                interrupted = cell.problem == "interrupted"
                if on_cell is not None:
                    on_cell(cell)
                if interrupted:
                    break
    except KeyboardInterrupt:
        interrupted = True
    return SweepResult(tuple(axes), tuple(cells[task] for task in sorted(cells)), interrupted)


def _measure_on(
    engine: Engine[SweepCell], points: Sequence[SweepPoint]
) -> Generator[tuple[int, SweepCell]]:
    """Measure points with an engine; yield the cells in the order in which they are complete."""
    waiting, running = list(range(len(points))), 0
    try:
        while waiting or running:
            free = len(waiting) if engine.slots is None else engine.slots - running
            engine.submit(waiting[:free])
            running += len(waiting[:free])
            del waiting[:free]
            for task, found in engine.collect(_POLL_SECONDS):
                running -= 1
                if isinstance(found, TdxError):
                    yield task, SweepCell(points[task], None, str(found))
                else:
                    yield task, found
    finally:
        engine.close()


@dataclass(frozen=True, slots=True)
class SweepJob:
    """Measures the points of a sweep; it can be sent to other processes.

    Args:
        pipeline: The pipeline.
        points: Combinations of settings.
        modes: Modes of each cell, unless ``mode`` is swept.
        plan: Settings of each profile.
        folder: Folder of relative paths in the pipeline, which all machines reach.
        allow_code: Allow importing Python objects that the pipeline names.
        policy_of: Creates the policy for the env of a cell. ``None``: the policy of the plan.
    """

    noun: ClassVar[str] = "setting"
    is_exclusive: ClassVar[bool] = True
    pipeline: Pipeline
    points: Sequence[SweepPoint]
    modes: tuple[Mode, ...]
    plan: ProfilePlan
    folder: str
    allow_code: bool = False
    policy_of: Callable[[EnvBase], Any] | None = None

    @property
    def log_folder(self) -> Path:
        """Folder for the logs of Slurm."""
        return Path(self.folder, "tdx-sweep-slurm")

    @property
    def gpus(self) -> int:
        """One if a point needs a GPU."""
        devices = [self.pipeline.env.device, *(each.get("device") for each in self.points)]
        return int(any(str(each).startswith("cuda") for each in devices))

    def __call__(self, task: int, /) -> SweepCell:
        """Measure a point in this process, whose machine the cell names."""
        try:
            os.chdir(self.folder)
            return replace(self.measure(self.points[task]), host=platform.node())
        except (Exception, SystemExit) as error:
            return SweepCell(self.points[task], None, summarize_error(error), platform.node())

    def measure(self, point: SweepPoint) -> SweepCell:
        """Measure a point in this process."""
        try:
            profile = self._profile(point)
        except TdxError as error:
            return SweepCell(point, None, str(error))
        except Exception as error:
            if not (isinstance(error, MemoryError) or is_out_of_memory(str(error))):
                raise
            return SweepCell(point, None, "does not fit into memory")
        finally:
            release_memory()
        problem = next((mode.error for mode in profile.modes if mode.error is not None), None)
        if problem is not None and is_out_of_memory(problem):
            problem = "does not fit into memory"
        return SweepCell(point, profile, problem)

    def _profile(self, point: SweepPoint) -> Profile:
        changed = apply_point(self.pipeline, point)
        self._check_memory(changed)
        env = build_env(changed, self.allow_code)
        try:
            changes: dict[str, Any] = {
                name: point[name] for name in ("steps", "threads") if name in point
            }
            if self.policy_of is not None:
                changes["policy"] = self.policy_of(env)
            modes = [mode for mode in MODES if mode == point.get("mode")] or self.modes
            return profile_env(env, modes, replace(self.plan, **changes))
        finally:
            env.close()

    def _check_memory(self, pipeline: Pipeline) -> None:
        """Refuse a cell that cannot fit into memory.

        Raises:
            DeviceError: It cannot fit, or its device does not exist.
        """
        if pipeline.env.device is not None:
            check_device(pipeline.env.device)
        many = pipeline.env.num_envs
        device = torch.device(pipeline.env.device or "cpu")
        if many is None or many < 2:
            return
        few = replace(pipeline, env=replace(pipeline.env, num_envs=1, device=None))
        probe = build_env(few, self.allow_code)
        try:
            needed = step_bytes(probe) * many * STEP_COPIES
        finally:
            probe.close()
        free = find_free_memory(device)
        if free is not None and needed > free:
            raise DeviceError(
                f"does not fit into memory: {many} envs need {format_bytes(needed)} for a step, "
                f"{format_bytes(free)} are free",
                hint="take fewer envs",
            )


CostKey = tuple[str, Lane]


def _format_point(point: SweepPoint) -> dict[str, str]:
    return {name: format_setting(value) for name, value in point.items()}


@dataclass(frozen=True, slots=True)
class CostGrowth(Result):
    """Growth of the cost of one part with one setting, all others fixed.

    Args:
        axis: Name of the setting.
        others: The other settings.
        mode: Mode of the rollouts.
        label: Label of the part; ``step`` for the whole step.
        lane: Lane of the part.
        values: Measured values of the setting.
        step_us: Cost per step of all envs, for each value.
        slope: Exponent ``a`` of the best fit ``value ** a``: 0 for a constant cost, 1 for a
            proportional one. ``None``: fewer than two costs.
    """

    json_entries: ClassVar[Entries] = (
        *("axis", Entry("others", convert=_format_point, type=dict[str, str]), "mode"),
        *("label", "lane", "values", "step_us", "slope"),
    )

    axis: str
    others: SweepPoint
    mode: Mode
    label: str
    lane: Lane
    values: tuple[float, ...]
    step_us: tuple[float, ...]
    slope: float | None


def fit_growth(found: SweepResult) -> tuple[CostGrowth, ...]:
    """Fit the growth of each part's cost along each numeric axis.

    Args:
        found: Result of a sweep.
    """
    return tuple(growth for axis in found.axes for growth in _fit_axis(axis, found.cells))


def fit_exponent(values: Sequence[float], costs: Sequence[float]) -> float | None:
    """Fit the exponent of a power law by least squares on logarithms.

    Args:
        values: Values of the setting.
        costs: Cost for each value; zero costs are ignored.

    Example:
        >>> round(fit_exponent([1, 10, 100], [3.0, 30.0, 300.0]), 6)
        1.0
    """
    pairs = [(x, y) for x, y in zip(values, costs, strict=True) if x > 0 and y > 0]
    if len({x for x, _ in pairs}) < 2:
        return None
    logs = np.log(np.array(pairs))
    return float(np.polyfit(logs[:, 0], logs[:, 1], 1)[0])


def _fit_axis(axis: SweepAxis, cells: Sequence[SweepCell]) -> Iterator[CostGrowth]:
    if not axis.is_numeric or len(axis.values) < 2:
        return
    groups: dict[tuple[tuple[str, str], ...], list[SweepCell]] = {}
    for cell in cells:
        key = tuple(
            (name, format_setting(at)) for name, at in cell.point.items() if name != axis.name
        )
        groups.setdefault(key, []).append(cell)
    for group in groups.values():
        others = {name: at for name, at in group[0].point.items() if name != axis.name}
        for mode, costs in _collect_costs(axis, group).items():
            for (label, lane), points in costs.items():
                values, step_us = (tuple(each) for each in zip(*points, strict=True))
                slope = fit_exponent(values, step_us)
                yield CostGrowth(axis.name, others, mode, label, lane, values, step_us, slope)


def _collect_costs(
    axis: SweepAxis, cells: Sequence[SweepCell]
) -> dict[Mode, dict[CostKey, list[tuple[float, float]]]]:
    found: dict[Mode, dict[CostKey, list[tuple[float, float]]]] = {}
    for cell in cells:
        value = cell.point[axis.name]
        assert isinstance(value, (int, float))
        for mode in () if cell.profile is None else cell.profile.modes:
            if mode.error is not None:
                continue
            table = found.setdefault(mode.mode, {})
            for key, cost in [(TOTAL_KEY, mode.step_us), *_iterate_costs(mode)]:
                table.setdefault(key, []).append((float(value), cost))
    return found


def _iterate_costs(mode: ModeProfile) -> Iterator[tuple[CostKey, float]]:
    """Yield each part's cost per step; stages without their index, which may differ."""
    counts: Counter[CostKey] = Counter()
    for row in mode.rows:
        part = row.part
        if part.name == UNATTRIBUTED:
            continue
        name = part.name if part.work == "stage" else part.label
        counts[name, part.lane] += 1
        number = counts[name, part.lane]
        label = name if number == 1 else f"{name} ({number})"
        yield (label, part.lane), mode.step_share_us(row)
