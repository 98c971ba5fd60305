"""A pipeline measured with many settings: a profile for each, and how the costs grow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from tdx.core.envs import EnvBase
from tdx.core.planned.executor import step_bytes
from tdx.errors import DeviceError, TdxError
from tdx.pipeline import Pipeline, build_env
from tdx.pipeline.env_making import check_device
from tdx.profiling.result import MODES, Mode, Profile
from tdx.profiling.room import TIMES, free_bytes, freed, in_words, is_out_of_memory
from tdx.profiling.run import ProfilePlan, profile_env
from tdx.profiling.sweep_axes import Axis, Point, placed, points_of, shown


@dataclass(frozen=True)
class Cell:
    """One combination of settings.

    Args:
        point: the settings by name.
        profile: what was measured; ``None`` where it could not be.
        problem: why it was not measured, or not to its end; ``None`` for nothing.
    """

    point: Point
    profile: Profile | None
    problem: str | None = None

    @property
    def label(self) -> str:
        """``num_envs=8 device=cpu``."""
        return " ".join(f"{name}={shown(value)}" for name, value in self.point.items())


@dataclass(frozen=True)
class Sweep:
    """All combinations of some settings, measured.

    Args:
        axes: the settings and their values.
        cells: the combinations in order, as far as it got.
        interrupted: whether Ctrl-C ended it early.
    """

    axes: tuple[Axis, ...]
    cells: tuple[Cell, ...]
    interrupted: bool = False


def sweep(
    pipeline: Pipeline,
    axes: Sequence[Axis],
    modes: Sequence[Mode] = ("planned",),
    plan: ProfilePlan | None = None,
    *,
    allow_code: bool = False,
    policy_of: Callable[[EnvBase], Any] | None = None,
    on_cell: Callable[[Cell], None] | None = None,
) -> Sweep:
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
        >>> found = sweep(pipeline, axes, plan=ProfilePlan(steps=5, warmup=0, repeats=1))
        >>> [cell.label for cell in found.cells]
        ['num_envs=2', 'num_envs=8']
    """
    running = _Running(pipeline, tuple(modes), plan or ProfilePlan(), allow_code, policy_of)
    cells: list[Cell] = []
    interrupted = False
    try:
        for point in points_of(axes):
            cells.append(running.cell(point))
            interrupted = cells[-1].problem == "interrupted"
            if on_cell is not None:
                on_cell(cells[-1])
            if interrupted:
                break
    except KeyboardInterrupt:
        interrupted = True
    return Sweep(tuple(axes), tuple(cells), interrupted)


@dataclass(slots=True)
class _Running:
    """What is the same for all cells."""

    pipeline: Pipeline
    modes: tuple[Mode, ...]
    plan: ProfilePlan
    allow_code: bool
    policy_of: Callable[[EnvBase], Any] | None

    def cell(self, point: Point) -> Cell:
        """Measure one combination."""
        try:
            profile = self._profile(point)
        except TdxError as error:
            return Cell(point, None, str(error))
        except Exception as error:
            if not (isinstance(error, MemoryError) or is_out_of_memory(str(error))):
                raise
            return Cell(point, None, "does not fit into memory")
        finally:
            freed()
        problem = next((mode.error for mode in profile.modes if mode.error is not None), None)
        if problem is not None and is_out_of_memory(problem):
            problem = "does not fit into memory"
        return Cell(point, profile, problem)

    def _profile(self, point: Point) -> Profile:
        made = placed(self.pipeline, point)
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
            needed = step_bytes(probe) * many * TIMES
        finally:
            probe.close()
        free = free_bytes(device)
        if free is not None and needed > free:
            raise DeviceError(
                f"does not fit into memory: {many} envs need {in_words(needed)} for a step, "
                f"{in_words(free)} are free",
                hint="take fewer envs",
            )
