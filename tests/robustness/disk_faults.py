"""Fail calls, and lose power, while tdx writes: ``python -m tests.robustness.disk_faults``.

Each state is a run in which one call fails, or a folder as a power loss leaves it. A fault is a
state that is neither old nor new, an exit code or a sentence that is not true, a temporary file
that stays, or a state from which the same command does not reach the result of an undisturbed run.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, TypeVar

from tdx.foundation.errors import ExitCode
from tests.robustness.interposer import (
    ERRORS_OF,
    Call,
    Fault,
    Interposer,
    Outcome,
    restart_interposed,
)
from tests.robustness.power_loss import (
    LOSSES,
    Disk,
    Loss,
    age,
    check_recording,
    read_tree,
    write_tree,
)

if TYPE_CHECKING:
    from tests.robustness.writers import Writer

_Item = TypeVar("_Item")
_SAYS_NEW = re.compile(r"(was|were|is|are) (written|replaced|saved|complete|repaired)")
_LEAKS = re.compile(r"Traceback \(most recent call last\)|unexpected \w|Fatal Python error")


@dataclass
class Tally:
    """Result of one writer.

    Args:
        errors: Number of runs with a failing call.
        losses: Number of different folders after a power loss.
        faults: Number of faults by kind.
        shown: Whether each fault is printed.
    """

    name: str
    errors: int = 0
    losses: int = 0
    faults: Counter[str] = field(default_factory=Counter)

    def add(self, problems: Iterable[str], state: str, err: str) -> None:
        """Count and print faults."""
        for problem in problems:
            self.faults[re.sub(r"\b[0-9a-f]{16}\b|\d+", "N", problem)] += 1
            print(f"{self.name}: {state}: {problem}")
            if err.strip():
                print("    " + err.strip()[-600:].replace("\n", "\n    "))
            sys.stdout.flush()


class Trial:
    """Runs one writer in a folder.

    Args:
        interposer: Runs it.
        writer: The writer.
        folder: Empty working directory.
    """

    def __init__(self, interposer: Interposer, writer: Writer, folder: Path) -> None:
        self._interposer, self._writer = interposer, writer
        self._start, self._work = folder / "start", folder / "work"
        self._start.mkdir()
        ended = interposer.run(writer.prepare, self._start, quiet=True)
        if ended.code:
            raise RuntimeError(f"{writer.name} cannot be prepared: {ended.err}")
        old = read_tree(self._start)
        self._begin()
        disk = Disk(self._work)
        self._whole = interposer.run(writer.write, self._work)
        if self._whole.code not in (0, 1):
            raise RuntimeError(f"{writer.name} fails without a fault: {self._whole.err}")
        new = read_tree(self._work)
        if missed := check_recording(disk, self._whole.calls, new):
            raise RuntimeError(f"{writer.name}: the recorded calls do not explain {missed}")
        writer.remember(self._work, old, new)

    def _begin(self) -> None:
        shutil.rmtree(self._work, ignore_errors=True)
        shutil.copytree(self._start, self._work)

    def faults(self) -> list[Fault]:
        """Return every fault of every call."""
        faults = []
        for call in self._whole.calls:
            if call.number:
                faults += [Fault(call.number, error) for error in ERRORS_OF[call.kind]]
                if call.kind == "w":
                    faults += [
                        Fault(call.number, error, lasting=True) for error in ("ENOSPC", "EIO")
                    ]
        return faults

    def fail(self, fault: Fault, tally: Tally, losses: Sequence[Loss]) -> None:
        """Run with a failing call, judge what is left, continue, and judge the result.

        If a call of fsync failed, or the process was killed, the power is lost afterwards: what was
        not synced then must have been synced since.
        """
        self._begin()
        disk = Disk(self._work)
        outcome = self._interposer.run(self._writer.write, self._work, fault)
        tally.errors += 1
        calls = [*outcome.calls, *self._whole.calls]
        call = next((call for call in calls if call.number == fault.number), None)
        name = f"{fault.error}{' from then on' if fault.lasting else ''} at {call}"
        problems = list(self._judge(outcome, call, is_killed=fault.error == "killed"))
        tally.add(problems, name, outcome.err)
        calls = list(outcome.calls)
        tally.add(self._judge_rest(outcome.err, calls), name, outcome.err)
        if fault.error == "killed" or (call and call.kind == "s" and not fault.lasting):
            for each in calls:
                disk.replay(each)
            # A command that had nothing to do promises nothing.
            has_written = any(each.kind in "wn" for each in calls[len(outcome.calls) :])
            name += ", continued, power loss"
            self._lose(disk, name, tally, losses, must_be_new=has_written)

    def _judge(self, outcome: Outcome, call: Call | None, *, is_killed: bool) -> Iterator[str]:
        tree = read_tree(self._work)
        state = self._writer.state(self._work, tree)
        if state.startswith(("torn", "lost")):
            yield state
        if is_killed:
            return
        if outcome.code not in set(ExitCode):
            yield f"exit code {outcome.code}"
        if leak := _LEAKS.search(outcome.err):
            yield leak[0]
        has_failed = outcome.code != self._whole.code
        if has_failed and "hint:" not in outcome.err:
            yield "no hint"
        if not has_failed and state in ("old", "part"):
            yield f"exit code {outcome.code}, but the state is {state}"
        says_new = _SAYS_NEW.search(outcome.err)
        if has_failed and state == "new" and not says_new:
            yield "an error that does not say that the new state is there"
        if has_failed and state == "old" and says_new:
            yield "an error that says that the new state is there"
        left = self._writer.leftovers(tree)
        if left and not says_new and not (call and call.kind in "ou"):
            yield f"left: {left[0]}"

    def _judge_rest(self, err: str, calls: list[Call]) -> Iterator[str]:
        """Yield what is wrong after the user has continued, and add the calls of that."""
        age(self._work)
        before = self._writer.state(self._work, read_tree(self._work))
        for work in self._writer.follow_ups(err):
            ended = self._interposer.run(work, self._work)
            calls += ended.calls
            if ended.code == self._whole.code:
                break
        else:
            yield f"cannot continue: exit code {ended.code}: {ended.err.strip()}"
            return
        tree = read_tree(self._work)
        state = self._writer.state(self._work, tree)
        if state != "new":
            yield f"continued: the state is {state}"
        if before != "new" and (left := self._writer.leftovers(tree)):
            yield f"continued: left: {left[0]}"

    def lose(
        self, states: int | None, random: Random, tally: Tally, at_end: Sequence[Loss]
    ) -> None:
        """Judge folders that a power loss leaves after each call of an undisturbed run.

        Args:
            states: Number of folders; ``None``: all.
            random: Chooses them.
            tally: Gets the faults.
            at_end: What may be lost after the last call.
        """
        self._begin()
        disk = Disk(self._work)
        calls = self._interposer.run(self._writer.write, self._work).calls
        pairs = [(number, loss) for number in range(len(calls)) for loss in LOSSES]
        chosen = set(choose(pairs, states, random))
        seen: set[int] = set()
        for number, call in enumerate(calls):
            if disk.replay(call):
                losses = [loss for loss in LOSSES if (number, loss) in chosen]
                name = f"power loss after {call}"
                self._lose(disk, name, tally, losses, must_be_new=False, seen=seen)
        self._lose(disk, "power loss at the end", tally, at_end, must_be_new=True)

    def _lose(
        self,
        disk: Disk,
        name: str,
        tally: Tally,
        losses: Sequence[Loss],
        *,
        must_be_new: bool,
        seen: set[int] | None = None,
    ) -> None:
        known = set() if seen is None else seen
        for loss in losses:
            tree = disk.remains(loss, Random(f"{name}{loss.name}"))
            key = hash(tuple(tree.items()))
            if key in known:
                continue
            known.add(key)
            tally.losses += 1
            shutil.rmtree(self._work)
            write_tree(tree, self._work)
            state = self._writer.state(self._work, read_tree(self._work))
            problems = []
            if state.startswith(("torn", "lost")):
                problems.append(state)
            elif must_be_new and state != "new":
                problems.append(f"reported as written, but the state is {state}")
            problems += self._judge_rest("", [])
            tally.add(problems, f"{loss.name}, {name}", "")


def choose(items: Sequence[_Item], number: int | None, random: Random) -> Sequence[_Item]:
    """Return some items in their order; all for ``None``."""
    if number is None or number >= len(items):
        return items
    return [items[index] for index in sorted(random.sample(range(len(items)), number))]


def main() -> int:
    """Run all writers; return 1 if there was a fault."""
    restart_interposed()
    # Imported after the restart, which would import torch and the writers twice.
    import torch

    from tests.robustness.writers import make_writers

    torch.set_num_threads(1)
    writers = make_writers()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", choices=list(writers), help="repeatable")
    parser.add_argument("--states", type=int, help="states of each kind; by default all")
    parser.add_argument("--kind", choices=("errors", "losses"), help="by default both")
    options = parser.parse_args()
    interposer = Interposer()
    has_faults = False
    try:
        for name in options.only or writers:
            tally, random = Tally(name), Random(name)
            with tempfile.TemporaryDirectory() as folder:
                trial = Trial(interposer, writers[name], Path(folder).resolve())
                losses = choose(LOSSES, options.states, random)
                if options.kind != "losses":
                    for fault in choose(trial.faults(), options.states, random):
                        trial.fail(fault, tally, losses)
                if options.kind != "errors":
                    trial.lose(options.states, random, tally, losses)
            print(
                f"{name:17} {tally.errors} failing calls  {tally.losses} power losses  "
                f"faults: {dict(tally.faults) or 0}"
            )
            sys.stdout.flush()
            has_faults = has_faults or bool(tally.faults)
    finally:
        interposer.close()
    return has_faults


if __name__ == "__main__":
    sys.exit(main())
