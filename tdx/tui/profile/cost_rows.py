"""What a profile becomes for the table: rows of plain numbers."""

from __future__ import annotations

from dataclasses import asdict, replace
from math import isfinite
from typing import Any

import numpy as np

from tdx.profiling import marginal as marginals
from tdx.profiling.machine import Machine
from tdx.profiling.passes.host import SLOWDOWN_NOTE
from tdx.profiling.result import ModeProfile, Numbers, Profile, Row
from tdx.tui.profile.requests import (
    BINS,
    CostRow,
    Costs,
    Marginal,
    ModeCosts,
    OperatorCost,
    Sync,
)

_FIGURES = ("mean", "p50", "p90", "p95", "p99", "max")
_MOST_OPERATORS = 40


def joined(found: list[Costs]) -> Costs:
    """Several modes as one; nothing where none was measured."""
    if not found:
        return Costs((), 1, "", "")
    modes = tuple(mode for each in found for mode in each.modes)
    return Costs(modes, found[0].num_envs, found[0].device, found[0].machine)


def costs_of(profile: Profile) -> Costs:
    """The profile, for the table."""
    modes = tuple(_mode(mode) for mode in profile.modes)
    settings = profile.settings
    return Costs(modes, settings.num_envs, settings.device, _machine(profile.machine))


def with_marginals(costs: Costs, found: marginals.MarginalCosts) -> Costs:
    """The costs of a mode with what each stage costs the whole chain.

    It stands at the dearest row of a stage, or of the function that it has become a part of.
    """
    (mode,) = costs.modes
    rows = list(mode.rows)
    for stage in found.stages:
        mine = [row for row in rows if row.covers(stage.index)]
        if mine:
            at = rows.index(max(mine, key=lambda row: row.step_us))
            told = {**rows[at].marginals, stage.index: _marginal(stage)}
            rows[at] = replace(rows[at], marginals=told)
    notes = (*mode.notes, f"without each stage: {found.error}") if found.error else mode.notes
    error = found.error if found.error == "interrupted" else mode.error
    return replace(costs, modes=(replace(mode, rows=tuple(rows), notes=notes, error=error),))


def _marginal(stage: marginals.MarginalCost) -> Marginal:
    cost = stage.cost
    known = cost is not None and isfinite(cost.saved_us)
    if cost is None or not known:
        return Marginal(stage.name, None, needed=stage.needed)
    noise = cost.noise_us if isfinite(cost.noise_us) else cost.before_us
    return Marginal(stage.name, cost.saved_us, noise, stage.needed)


def _mode(mode: ModeProfile) -> ModeCosts:
    noise = mode.noise
    return ModeCosts(
        mode=mode.mode,
        rows=tuple(_row(mode, row) for row in mode.rows if len(row.times_ns)),
        step_us=mode.step_us,
        frames_per_second=mode.frames_per_second,
        steps=int(mode.steps.sum()),
        noise=noise.spread,
        judgement=noise.judgement,
        noise_text=noise.message,
        notes=tuple(
            note for note in mode.notes if note != SLOWDOWN_NOTE
        ),  # the face says so itself
        error=mode.error,
    )


def _row(mode: ModeProfile, row: Row) -> CostRow:
    statistics = asdict(row.statistics)
    counts, low, high = _histogram(row.samples_us)
    memory, device = mode.memory.get(row.key), mode.on_device.get(row.key)
    more: dict[str, Any] = {}
    if device is not None:
        more["device_us"], more["kernels"] = device.time_us, device.kernels
        more["launch_bound"] = device.launch_bound
        more["syncs"] = tuple(Sync(where, often) for where, often in device.syncs.items())
    if mode.operators:
        uses = mode.operators.get(row.key, ())[:_MOST_OPERATORS]
        more["operators"] = tuple(OperatorCost(u.name, u.calls, u.time_us) for u in uses)
    return CostRow(
        work=row.part.work,
        index=row.part.index,
        upto=row.part.upto,
        name=row.part.name,
        lane=row.part.lane,
        n=int(statistics["n"]),
        figures={name: float(statistics[name]) for name in _FIGURES},
        step_us=mode.step_share_us(row),
        share=mode.share(row),
        per_step=row.covers_many,
        counts=counts,
        low_us=low,
        high_us=high,
        error_us=_error_us(mode, row),
        allocated_bytes=None if memory is None else memory.allocated_bytes,
        **more,
    )


def _error_us(mode: ModeProfile, row: Row) -> float:
    """Two standard errors of a row's part of the step, from how much its calls differ."""
    calls, steps = len(row.times_ns), int(mode.steps.sum())
    if calls < 2 or not steps:
        return mode.step_share_us(row)
    return float(2 * np.std(row.times_ns, ddof=1) * calls**0.5 / steps / 1000)


def _histogram(samples: Numbers) -> tuple[tuple[int, ...], float, float]:
    """Counts between the shortest time and the 99th percentile; the last bin has the rest too."""
    low, high = float(samples.min()), float(np.quantile(samples, 0.99, method="higher"))
    high = high if high > low else low + 1e-3
    bins = int(np.clip(2 * len(samples) ** 0.5, 4, BINS))
    counts, _ = np.histogram(np.minimum(samples, high), bins, (low, high))
    return tuple(counts.tolist()), low, high


def _machine(machine: Machine) -> str:
    parts = [machine.processor, f"{machine.cores} cores", *machine.accelerators]
    return ", ".join(part for part in parts if part)
