"""Measure the time of every level of a stack, without its values.

The methods ``reset`` and ``step`` of each level are replaced in a block. One step then runs::

    env.step(action)                        the hook in the outermost object
    └─ record_thread                        outermost level only
       └─ the measured step of the meter    reads the clock before and after
          └─ the wrapper's own step
             └─ self.env.step(action)       the hook in the next object, and so on

The meter subtracts the time of the levels inside (``exclude_nested_time``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from tdx.core.meter import Meter, Part, Work
from tdx.foundation.errors import EnvError
from tdx.foundation.patches import recording_thread
from tdx.stacks.observe.levels import NestedLevels, Original, Slot


@contextmanager
def timed_levels(levels: NestedLevels, meter: Meter) -> Iterator[None]:
    """Measure the resets and steps of every level in a block."""
    threads: set[int] = set()
    counts: Counter[str] = Counter()
    names: dict[int, str] = {}
    for index in levels.forms():
        name = levels.name(index)
        counts[name] += 1
        names[index] = name if counts[name] == 1 else f"{name} ({counts[name]})"

    def wrap(slot: Slot, original: Original) -> Original | None:
        lane = levels.lane(slot)
        if lane is None:
            return None
        work: Work = "env" if slot.level < 0 else "wrapper"
        timed = meter.timed(Part(work, slot.level, names[slot.level], lane), original)
        return recording_thread(timed, threads) if slot.level == levels.top else timed

    with levels.attached(wrap):
        yield
    check_threads(threads, levels.name(-1))


def check_threads(threads: set[int], env_name: str) -> None:
    """Refuse times of an env that several threads stepped."""
    if len(threads) > 1:
        raise EnvError(
            f"{len(threads)} threads stepped {env_name} while it was measured",
            hint="let one thread step the env, or measure an env of each thread",
        )
