"""Limits of the counts in a pipeline that decide how long a step takes and how large an entry is.

A file must not keep ``tdx check`` busy forever or fill the memory. The limits are far above what a
chain needs; Python code that calls a transform itself has none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from tdx.foundation.errors import ArgumentError, TdxError
from tdx.foundation.untrusted import MAX_REPEATS, MAX_SIZE
from tdx.pipeline.grammar import shorten
from tdx.pipeline.values import iterate_values

if TYPE_CHECKING:
    from tdx.pipeline.arguments import BoundStage

_REPEATS = ("noops", "frame_skip", "frameskip")
"""Arguments of stages and envs: how many steps one step or reset of the env takes."""
_SIZES = ("N", "T", "chunk_size", "num_intervals", "w", "h", "size")
"""Arguments of stages: how often a value is stored, or the length of a dimension."""


def find_excess(bound: BoundStage) -> Iterator[TdxError]:
    """Yield an error for each count of a stage that is above its limit."""
    for names, most in ((_REPEATS, MAX_REPEATS), (_SIZES, MAX_SIZE)):
        for name, value in bound.given.items():
            if name in names and any(number > most for number in _integers(value)):
                yield _excess_error(f"{name} must be at most {most:,} in a pipeline", value)


def find_env_excess(arguments: Mapping[str, object]) -> Iterator[TdxError]:
    """Yield an error for each count of an env that is above its limit."""
    for name, value in arguments.items():
        if name in _REPEATS and any(number > MAX_REPEATS for number in _integers(value)):
            yield _excess_error(f"{name} of the env must be at most {MAX_REPEATS:,}", value)


def _excess_error(problem: str, value: object) -> ArgumentError:
    shown = shorten(f"{value:,}" if isinstance(value, int) else str(value), 40)
    return ArgumentError(f"{problem}, got {shown}", hint="use a smaller number")


def count_repeats(stages: Iterable[BoundStage], arguments: Mapping[str, object]) -> int:
    """Return how many steps of the env one step or reset of the whole chain may take.

    ``stages`` have those inside of other stages.
    """
    total = 1
    for given in (arguments, *(stage.given for stage in stages)):
        for name in _REPEATS:
            total *= max([1, *_integers(given.get(name))])
    return total


def _integers(value: object) -> Iterator[int]:
    for inner in iterate_values(value):
        if isinstance(inner, int) and not isinstance(inner, bool):
            yield inner
