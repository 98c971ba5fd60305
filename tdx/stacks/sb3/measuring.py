"""Measure the time of every VecEnv and of the wrappers in its sub-envs, without their values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from tdx.core.meter import Lane, Meter, Part, Work
from tdx.stacks.gymnasium.hooks import METHODS, Wrap, replaced_methods
from tdx.stacks.gymnasium.levels import Level
from tdx.stacks.sb3.levels import passes_actions_on, vec_methods

_LANES: dict[str, Lane] = {
    "reset": "reset",
    "step": "step",
    "step_async": "inverse",
    "step_wait": "step",
}


@contextmanager
def measured_levels(levels: Sequence[Level], env_name: str, meter: Meter) -> Iterator[None]:
    """Measure the resets and steps of every level in a block.

    ``step_wait`` is the step; ``step_async`` is measured where it does more than pass the actions
    on.

    Args:
        levels: Levels of a stack, the env inside first.
        env_name: Name of the env inside.
        meter: Measures the calls.
    """
    counts: Counter[str] = Counter()
    with ExitStack() as stack:
        for level in levels:
            name = env_name if level.index < 0 else level.name
            counts[name] += 1
            shown = name if counts[name] == 1 else f"{name} ({counts[name]})"
            wrap = _wrap_for(meter, level.index, shown)
            for owner in {id(owner): owner for owner in level.owners}.values():
                names = METHODS if level.in_rows else _measured_methods(owner)
                stack.enter_context(replaced_methods([(owner, wrap)], names))
        yield


def _measured_methods(owner: Any) -> tuple[str, ...]:
    names = vec_methods(owner)
    if "step" in names:
        return ("reset", "step")
    if passes_actions_on(owner):
        return tuple(name for name in names if name != "step_async")
    return names


def _wrap_for(meter: Meter, index: int, name: str) -> Wrap:
    work: Work = "env" if index < 0 else "wrapper"

    def wrap(owner: Any, method: str, original: Callable[..., Any]) -> Callable[..., Any]:
        return meter.timed(Part(work, index, name, _LANES[method]), original)

    return wrap
