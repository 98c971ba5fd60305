"""Golden inputs: recorded results of an env, and an env that returns them again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tdx.contracts.model import DONE_KEYS, Segment
from tdx.errors import EnvError
from tdx.keys import NestedKey
from tdx.stacks.replay import Entries

if TYPE_CHECKING:
    from tdx.core import StepTrace
    from tdx.stacks import Stack

MAX_ROWS = 2
"""Sub-envs of a vector env whose values are recorded."""
STEPS = 12
"""Golden steps by default."""
_MAX_CALLS = 64


def collect_inputs(
    stack: Stack, read_actions: Callable[[StepTrace], Entries], seed: int, steps: int = STEPS
) -> tuple[Segment, ...]:
    """Step a stack with random actions, and record what its env returns.

    The flags of the inputs are false: the golden episodes do not end by themselves. There are two,
    for the second one shows what a reset leaves behind.

    Args:
        stack: The stack; its env is reset and stepped.
        read_actions: Returns the actions of the policy in a trace.
        seed: Seed of the env and of the actions.
        steps: Number of steps.

    Raises:
        TdxError: The env or a stage raised.
    """
    recorder = _Recorder()
    actions: list[list[Entries]] = []
    with stack.seeded(seed), stack.replaced_env(recorder):
        for length in (-(-steps * 2 // 3), steps // 3):
            if not length:
                continue
            traces: list[StepTrace] = []
            recorder.begin()
            driver = stack.driver()
            with located_errors(traces), stack.attach(traces.append):
                driver.reset(None)
                for _ in range(length):
                    driver.step()
                    if driver.reset_due:
                        break
            found = [read_actions(each) for each in traces if each.phase == "step"]
            actions.append([_first_rows(each) for each in found])
    return tuple(
        Segment(recorder.stacked(index), _stack(taken)) for index, taken in enumerate(actions)
    )


class located_errors:  # noqa: N801 - a context manager that is used like a function
    """Replace an error in a block by the error of the last trace, which names the stage."""

    def __init__(self, traces: Sequence[StepTrace]) -> None:
        self._traces = traces

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if isinstance(error, Exception):
            found = self._traces[-1].error if self._traces else None
            if found is not None:
                raise found from error


class _Recorder:
    """Runs the env, and keeps what it returned for the first rows."""

    def __init__(self) -> None:
        self._segments: list[dict[int, list[Entries]]] = []

    def begin(self) -> None:
        """Start the next episode."""
        self._segments.append({})

    def answer(self, rows: Sequence[int], method: str, run: Callable[[], Entries]) -> Entries:
        """Return the result of the env."""
        entries = run()
        for place, row in enumerate(rows):
            calls = self._segments[-1].setdefault(row, [])
            is_first = method == "reset" and not calls
            if row < MAX_ROWS and len(calls) < _MAX_CALLS and (is_first or method == "step"):
                calls.append({key: value[place].clone() for key, value in entries.items()})
        return entries

    def stacked(self, index: int) -> Mapping[NestedKey, Tensor]:
        """Return the calls of an episode by key, ``[C, R, ...]``."""
        rows = [calls for row, calls in sorted(self._segments[index].items()) if row < MAX_ROWS]
        if not rows or not rows[0]:
            raise EnvError(
                "the steps did not reach the env inside the stack",
                hint="pass the outermost wrapper, whose step and reset are called",
            )
        count = min(len(calls) for calls in rows)
        found: dict[NestedKey, Tensor] = {}
        for key in dict.fromkeys(key for call in rows[0] for key in call):
            parts = [[_found(key, call, calls) for call in calls[:count]] for calls in rows]
            values = [[_zero_flag(key, each) for each in part] for part in parts]
            if len({(each.shape, each.dtype) for part in values for each in part}) == 1:
                found[key] = torch.stack([torch.stack(part) for part in values], 1)
        return found


def _found(key: NestedKey, call: Entries, calls: Sequence[Entries]) -> Tensor:
    """Return an entry of a call; a reset has no reward, and no flags."""
    known = (
        next(each[key] for each in calls if key in each)
        if any(key in each for each in calls)
        else torch.zeros(())
    )
    return call[key] if key in call else torch.zeros_like(known)


def _zero_flag(key: NestedKey, value: Tensor) -> Tensor:
    is_flag = (key if isinstance(key, str) else key[-1]) in DONE_KEYS
    return torch.zeros_like(value) if is_flag else value


def _first_rows(entries: Entries) -> Entries:
    return {key: value[:MAX_ROWS] for key, value in entries.items()}


def _stack(records: Sequence[Entries]) -> Mapping[NestedKey, Tensor]:
    keys = records[0] if records else {}
    return {key: torch.stack([each[key] for each in records]) for key in keys}


class Replay:
    """Answers the calls of an env with golden inputs.

    Args:
        segments: The inputs.
    """

    def __init__(self, segments: Sequence[Segment]) -> None:
        self._segments = segments
        self._current = segments[0]
        self._places: dict[int, int] = {}

    def begin(self, index: int) -> None:
        """Start an episode."""
        self._current = self._segments[index]
        self._places = {}

    def answer(self, rows: Sequence[int], method: str, run: Callable[[], Entries]) -> Entries:
        """Return the next recorded result; the steps repeat if there are too few."""
        count = min(len(each) for each in self._current.calls.values())
        for row in rows:
            place = self._places.get(row, 0) + 1
            self._places[row] = 0 if method == "reset" else place if place < count else 1 % count
        return {
            key: torch.stack(
                [value[self._places[row], row % value.shape[1]] for row in rows]
            ).clone()
            for key, value in self._current.calls.items()
        }
