"""Measure a pipeline with many settings, and fit how each cost grows with them."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch

from tdx.core.envs import EnvBase
from tdx.core.meter import UNATTRIBUTED, Lane
from tdx.core.planned.columns import step_bytes
from tdx.engines import LocalEngine, run_tasks
from tdx.foundation.errors import DeviceError, TdxError, WorkerError, summarize_error
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
from tdx.profiling.result import MODES, Mode, Profile
from tdx.profiling.run import ProfilePlan, profile_env
from tdx.profiling.saved import ProfileReport, profile_to_json
from tdx.profiling.sweep_axes import SweepAxis, SweepPoint, apply_point, format_setting, list_points
from tdx.stacks.building import build_env


@dataclass(frozen=True)
class SweepCell(Result):
    """One combination of settings.

    Args:
        point: Settings by name.
        profile: Its profile. ``None``: it could not be measured.
        problem: Why it was not measured completely. ``None``: no problem.
    """

    json_entries: ClassVar[Entries] = (
        Entry("point", "plain_point"),
        "problem",
        Entry("profile", convert=profile_to_json, type=ProfileReport | None),
    )

    point: SweepPoint
    profile: Profile | None
    problem: str | None = None

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


def run_sweep(
    pipeline: Pipeline,
    axes: Sequence[SweepAxis],
    modes: Sequence[Mode] = ("planned",),
    plan: ProfilePlan | None = None,
    *,
    allow_code: bool = False,
    policy_of: Callable[[EnvBase], Any] | None = None,
    on_cell: Callable[[SweepCell], None] | None = None,
    own_processes: bool = False,
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
        own_processes: Measure each cell in a process of its own, one after the other: one that the
            system kills fails alone.

    Raises:
        ArgumentError: The cells cannot be sent to other processes.

    Example:
        >>> from tdx.profiling.sweep_axes import parse_sweep
        >>> pipeline = Pipeline.of("tdx/Pendulum", "RewardSum")
        >>> axes = parse_sweep(["num_envs=2,8"], pipeline)
        >>> result = run_sweep(pipeline, axes, plan=ProfilePlan(steps=5, warmup=0, repeats=1))
        >>> [cell.label for cell in result.cells]
        ['num_envs=2', 'num_envs=8']
    """
    points = list_points(axes)
    job = SweepJob(pipeline, points, tuple(modes), plan or ProfilePlan(), allow_code, policy_of)
    outcomes: Generator[tuple[int, SweepCell | WorkerError]]
    if own_processes:
        job = replace(job, plan=replace(job.plan, on_progress=None))
        outcomes = run_tasks(LocalEngine(job, workers=1, reuse=False), deque(range(len(points))))
    else:
        outcomes = ((task, job.measure(point)) for task, point in enumerate(points))
    cells: list[SweepCell] = []
    interrupted = False
    try:
        with closing(outcomes):
            for task, result in outcomes:
                cell = result
                if isinstance(cell, WorkerError):
                    cell = SweepCell(points[task], None, str(cell))
                cells.append(cell)
                if own_processes and plan is not None:
                    plan.report_progress(f"measured {cell.label}", len(cells), len(points))
                interrupted = cell.problem == "interrupted"
                if on_cell is not None:
                    on_cell(cell)
                if interrupted:
                    break
    except KeyboardInterrupt:
        interrupted = True
    return SweepResult(tuple(axes), tuple(cells), interrupted)


@dataclass(frozen=True, slots=True)
class SweepJob:
    """Measures the points of a sweep; it can be sent to other processes.

    Args:
        pipeline: The pipeline.
        points: Combinations of settings.
        modes: Modes of each cell, unless ``mode`` is swept.
        plan: Settings of each profile.
        allow_code: Allow importing Python objects that the pipeline names.
        policy_of: Creates the policy for the env of a cell. ``None``: the policy of the plan.
    """

    noun: ClassVar[str] = "setting"
    pipeline: Pipeline
    points: Sequence[SweepPoint]
    modes: tuple[Mode, ...]
    plan: ProfilePlan
    allow_code: bool = False
    policy_of: Callable[[EnvBase], Any] | None = None

    def __call__(self, task: int, /) -> SweepCell:
        """Measure a point in a process of its own."""
        try:
            return self.measure(self.points[task])
        except (Exception, SystemExit) as error:
            return SweepCell(self.points[task], None, summarize_error(error))

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


def fit_growth(sweep: SweepResult) -> tuple[CostGrowth, ...]:
    """Fit the growth of each part's cost along each numeric axis.

    Args:
        sweep: Result of a sweep.
    """
    return tuple(growth for axis in sweep.axes for growth in _fit_axis(axis, sweep.cells))


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
        # Cost for each value of the setting, by mode and part.
        costs: dict[Mode, dict[CostKey, list[tuple[float, float]]]] = {}
        for cell in group:
            value = cell.point[axis.name]
            assert isinstance(value, (int, float))
            for mode in () if cell.profile is None else cell.profile.modes:
                if mode.error is not None:
                    continue
                table = costs.setdefault(mode.mode, {})
                table.setdefault(TOTAL_KEY, []).append((float(value), mode.step_us))
                counts: Counter[CostKey] = Counter()
                for row in mode.rows:
                    part = row.part
                    if part.name == UNATTRIBUTED:
                        continue
                    # Stages without their index, which may differ.
                    name = part.name if part.work == "stage" else part.label
                    counts[name, part.lane] += 1
                    number = counts[name, part.lane]
                    label = name if number == 1 else f"{name} ({number})"
                    cost = (float(value), mode.step_share_us(row))
                    table.setdefault((label, part.lane), []).append(cost)
        for name_of_mode, table in costs.items():
            for (label, lane), points in table.items():
                values, step_us = (tuple(column) for column in zip(*points, strict=True))
                slope = fit_exponent(values, step_us)
                yield CostGrowth(
                    axis.name, others, name_of_mode, label, lane, values, step_us, slope
                )
