"""Measure the time of every wrapper, without its values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from gymnasium import wrappers

from tdx.core.meter import Meter, Part
from tdx.stacks.gymnasium.hooks import Wrap, replaced_methods
from tdx.stacks.gymnasium.levels import Level

THIN_WRAPPERS = (wrappers.OrderEnforcing, wrappers.TimeLimit, wrappers.PassiveEnvChecker)
"""Wrappers added by ``gymnasium.make``; reading the clock around them takes longer than they do."""


@contextmanager
def measured_levels(
    levels: Sequence[Level], env_name: str, meter: Meter, *, all_stages: bool
) -> Iterator[None]:
    """Measure ``step`` and ``reset`` of every level in a block.

    Args:
        levels: Levels of a stack, the env inside first.
        env_name: Name of the env inside.
        meter: Measures the calls.
        all_stages: Include the thin wrappers that ``gymnasium.make`` adds if there are no others.
    """
    stages = levels[1:]
    if not all_stages and all(type(level.owner) in THIN_WRAPPERS for level in stages):
        owners = [(levels[-1].owner, _wrap_for(meter, "env", -1, env_name))]
    else:
        owners = []
        counts: Counter[str] = Counter()
        for level in levels:
            name = env_name if level.index < 0 else level.name
            counts[name] += 1
            shown = name if counts[name] == 1 else f"{name} ({counts[name]})"
            work = "env" if level.index < 0 else "wrapper"
            wrap = _wrap_for(meter, work, level.index, shown)
            owners += [(owner, wrap) for owner in level.owners]
    with replaced_methods({id(owner): (owner, wrap) for owner, wrap in owners}.values()):
        yield


def _wrap_for(meter: Meter, work: Any, index: int, name: str) -> Wrap:
    def wrap(owner: Any, method: str, original: Callable[..., Any]) -> Callable[..., Any]:
        return meter.timed(
            Part(work, index, name, "step" if method == "step" else "reset"), original
        )

    return wrap
