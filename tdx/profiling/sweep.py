"""Measure a pipeline with many settings, and fit how each cost grows with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from tdx.core.envs import EnvBase
from tdx.core.meter import UNATTRIBUTED
from tdx.core.planned.chunk_size import step_bytes
from tdx.errors import DeviceError, TdxError
from tdx.pipeline import Pipeline, build_env
from tdx.pipeline.envs import check_device
from tdx.profiling.machine import (
    STEP_COPIES,
    find_free_memory,
    format_bytes,
    is_out_of_memory,
    release_memory,
)
from tdx.profiling.result import MODES, Mode, ModeProfile, Profile
from tdx.profiling.run import ProfilePlan, profile_env
from tdx.profiling.sweep_axes import SweepAxis, SweepPoint, apply_point, format_setting, list_points


@dataclass(frozen=True)
class SweepCell:
    """One combination of settings.

    Args:
        point: the settings by name.
        profile: what was measured; ``None`` where it could not be.
        problem: why it was not measured, or not to its end; ``None`` for nothing.
    """

    point: SweepPoint
    profile: Profile | None
    problem: str | None = None

    @property
    def label(self) -> str:
        """``num_envs=8 device=cpu``."""
        return " ".join(f"{name}={format_setting(value)}" for name, value in self.point.items())


@dataclass(frozen=True)
class SweepResult:
    """All combinations of some settings, measured.

    Args:
        axes: the settings and their values.
        cells: the combinations in order, as far as it got.
        interrupted: whether Ctrl-C ended it early.
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
) -> SweepResult:
    """Measure a pipeline with each combination of settings.

    A cell whose device is not there, that does not fit into memory or that raises says so, and
    the others go on. Memory is foretold from the specs where there are many envs.

    Args:
        pipeline: the pipeline.
        axes: the settings, from :func:`~tdx.profiling.sweep_axes.parse_sweep`.
        modes: how each cell runs, unless ``mode`` is swept.
        plan: what is measured of each cell.
        allow_code: whether Python objects that the pipeline names may be imported.
        policy_of: makes the policy for the env of a cell; that of the plan by default.
        on_cell: told of each cell as it is there.

    Example:
        >>> from tdx.profiling.sweep_axes import parse_sweep
        >>> pipeline = Pipeline.of("tdx/Pendulum", "RewardSum")
        >>> axes = parse_sweep(["num_envs=2,8"], pipeline)
        >>> found = run_sweep(pipeline, axes, plan=ProfilePlan(steps=5, warmup=0, repeats=1))
        >>> [cell.label for cell in found.cells]
        ['num_envs=2', 'num_envs=8']
    """
    running = _SweepRun(pipeline, tuple(modes), plan or ProfilePlan(), allow_code, policy_of)
    cells: list[SweepCell] = []
    interrupted = False
    try:
        for point in list_points(axes):
            cells.append(running.cell(point))
            interrupted = cells[-1].problem == "interrupted"
            if on_cell is not None:
                on_cell(cells[-1])
            if interrupted:
                break
    except KeyboardInterrupt:
        interrupted = True
    return SweepResult(tuple(axes), tuple(cells), interrupted)


@dataclass(slots=True)
class _SweepRun:
    """What is the same for all cells."""

    pipeline: Pipeline
    modes: tuple[Mode, ...]
    plan: ProfilePlan
    allow_code: bool
    policy_of: Callable[[EnvBase], Any] | None

    def cell(self, point: SweepPoint) -> SweepCell:
        """Measure one combination."""
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
        made = apply_point(self.pipeline, point)
        self._check_room(made)
        env = build_env(made, self.allow_code)
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

    def _check_room(self, pipeline: Pipeline) -> None:
        """Refuse what cannot fit, rather than let the machine run out of memory.

        Raises:
            DeviceError: it cannot, or the device is not there.
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


TOTAL_KEY = ("step", "step")
CostKey = tuple[str, str]


@dataclass(frozen=True, slots=True)
class CostGrowth:
    """How the cost of one part grows with one setting, where all others stay as they are.

    Args:
        axis: the setting.
        others: the other settings.
        mode: how it ran.
        label: whose cost; ``step`` for the whole.
        lane: which of its calls.
        values: the setting's values, as far as they were measured.
        step_us: what it takes of a step of all envs, for each of them.
        slope: the exponent ``a`` for which ``value ** a`` fits best: 0 for a cost that stays, 1
            for one that grows as the value does; ``None`` for fewer than two costs.
    """

    axis: str
    others: SweepPoint
    mode: Mode
    label: str
    lane: str
    values: tuple[float, ...]
    step_us: tuple[float, ...]
    slope: float | None


def fit_growth(found: SweepResult) -> tuple[CostGrowth, ...]:
    """How each part's cost grows along each numeric axis.

    Args:
        found: the cells of a sweep.
    """
    return tuple(growth for axis in found.axes for growth in _fit_axis(axis, found.cells))


def fit_exponent(values: Sequence[float], costs: Sequence[float]) -> float | None:
    """The exponent that fits best, by least squares over logarithms.

    Args:
        values: of the setting.
        costs: at each of them; those of nothing are left out.

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
    """What each part takes of a step; a stage by its name, as its place may differ."""
    seen: Counter[CostKey] = Counter()
    for row in mode.rows:
        part = row.part
        if part.name == UNATTRIBUTED:
            continue
        name = part.name if part.work == "stage" else part.label
        seen[name, part.lane] += 1
        number = seen[name, part.lane]
        label = name if number == 1 else f"{name} ({number})"
        yield (label, part.lane), mode.step_share_us(row)
