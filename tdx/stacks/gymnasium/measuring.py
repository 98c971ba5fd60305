"""Measure the time of every level of a stack, without its values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from threading import get_ident
from typing import Any

from tdx.core.meter import Lane, Meter, Part, Work
from tdx.foundation.errors import EnvError
from tdx.stacks.gymnasium.hooks import Wrap, replaced_methods
from tdx.stacks.gymnasium.levels import Level

LANES: Mapping[str, Lane] = {"reset": "reset", "step": "step"}
"""Methods of a Gymnasium env, and the lane that each is measured in."""


def lanes_of(level: Level, owner: Any) -> Mapping[str, Lane]:
    """Return the methods of a Gymnasium env or wrapper that are measured, with their lanes."""
    return LANES


@contextmanager
def measured_levels(
    levels: Sequence[Level],
    env_name: str,
    meter: Meter,
    lanes: Callable[[Level, Any], Mapping[str, Lane]] = lanes_of,
) -> Iterator[None]:
    """Measure the resets and steps of every level in a block.

    Args:
        levels: Levels of a stack, the env inside first.
        env_name: Name of the env inside.
        meter: Measures the calls.
        lanes: Returns the methods of an object that are measured, with their lanes.

    Raises:
        EnvError: Several threads stepped the env, so the times are not those of its stages.
    """
    threads: set[int] = set()
    counts: Counter[str] = Counter()
    names: dict[int, str] = {}
    for level in levels:
        name = env_name if level.index < 0 else level.name
        counts[name] += 1
        names[level.index] = name if counts[name] == 1 else f"{name} ({counts[name]})"
    with ExitStack() as stack:
        for level in levels:
            shown = names[level.index]
            # The same object may be several sub-envs.
            for owner in {id(owner): owner for owner in level.owners}.values():
                measured = lanes(level, owner)
                wrap = _wrap_for(meter, level.index, shown, measured)
                if level is levels[-1]:
                    wrap = _noting_threads(wrap, threads)
                stack.enter_context(replaced_methods([(owner, wrap)], tuple(measured)))
        yield
    if len(threads) > 1:
        raise several_threads_error(len(threads), env_name)


def several_threads_error(count: int, env_name: str) -> EnvError:
    """Return the error for an env that several threads stepped while it was measured.

    Args:
        count: Number of threads.
        env_name: Name of the env inside.
    """
    return EnvError(
        f"{count} threads stepped {env_name} while it was measured",
        hint="let one thread step the env, or measure an env of each thread",
    )


def _noting_threads(wrap: Wrap, threads: set[int]) -> Wrap:
    """Add the threads that call a measured method to a set."""

    def wrap_both(owner: Any, method: str, original: Callable[..., Any]) -> Callable[..., Any]:
        timed = wrap(owner, method, original)

        def run(*args: Any, **kwargs: Any) -> Any:
            threads.add(get_ident())
            return timed(*args, **kwargs)

        return run

    return wrap_both


def _wrap_for(meter: Meter, index: int, name: str, lanes: Mapping[str, Lane]) -> Wrap:
    work: Work = "env" if index < 0 else "wrapper"

    def wrap(owner: Any, method: str, original: Callable[..., Any]) -> Callable[..., Any]:
        return meter.timed(Part(work, index, name, lanes[method]), original)

    return wrap
