"""Fail calls, and lose power, while tdx writes: ``python -m tests.robustness.disk_faults``.

Each state is a run in which one call fails, or a folder as a power loss leaves it. A fault is a
state that is neither old nor new, an exit code or a sentence that is not true, a temporary file
that stays, or a state from which the same command does not reach the result of an undisturbed run.
"""

from __future__ import annotations

import argparse
import re
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import torch

from tdx.errors import ExitCode
from tests.robustness.interposer import (
    ERRORS_OF,
    KINDS,
    NONE,
    Call,
    Fault,
    Interposer,
    Outcome,
    restart_interposed,
)
from tests.robustness.power_loss import (
    LOSSES,
    Disk,
    Tree,
    age,
    check_recording,
    read_tree,
    write_tree,
)
from tests.robustness.writers import Writer, leftovers, make_writers

_SAYS_NEW = re.compile(r"(was|were|is|are) (written|replaced|saved|complete)")
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

    def fail(self, fault: Fault, tally: Tally) -> None:
        """Run with a failing call, and judge what is left."""
        self._begin()
        disk = Disk(self._work)
        outcome = self._interposer.run(self._writer.write, self._work, fault)
        tally.errors += 1
        call = next((call for call in outcome.calls if call.number == fault.number), None)
        lasting = " from then on" if fault.lasting else ""
        name = f"{fault.error}{lasting} at {call}" if call else f"{fault.error} at no call"
        tally.add(self._judge_failure(outcome, call), name, outcome.err)
        if call is not None and call.kind == "s" and not fault.lasting:
            # What the failed call covered may be lost even if the user continues.
            ended = self._continue(outcome.err)
            for each in (*outcome.calls, *ended.calls):
                disk.replay(each)
            self._lose(disk, f"{name}, continued, power loss at the end", tally, must_be_new=True)

    def _judge_failure(self, outcome: Outcome, call: Call | None) -> Iterator[str]:
        tree = read_tree(self._work)
        state = self._writer.state(self._work, tree)
        whole = self._whole.code
        if outcome.code not in set(ExitCode):
            yield f"exit code {outcome.code}"
        if leak := _LEAKS.search(outcome.err):
            yield leak[0]
        if outcome.code not in (0, whole) and "hint:" not in outcome.err:
            yield "no hint"
        if ":" in state:
            yield state
        elif outcome.code == whole and state != "new":
            yield f"exit code {whole}, but the state is {state}"
        elif outcome.code != whole and state == "new" and not _SAYS_NEW.search(outcome.err):
            yield "an error that does not say that the new state is there"
        elif outcome.code != whole and state == "old" and _SAYS_NEW.search(outcome.err):
            yield "an error that says that the new state is there"
        if (left := leftovers(tree)) and not (call and call.kind in "ou"):
            yield f"left: {left[0]}"
        if call is not None and call.kind != "s":
            yield from self._judge_rest(outcome.err)

    def _judge_rest(self, err: str) -> Iterator[str]:
        """Yield what is wrong after the user has continued."""
        age(self._work)
        ended = self._continue(err)
        if ended.code != self._whole.code:
            yield f"cannot continue: exit code {ended.code}: {ended.err.strip()}"
            return
        tree = read_tree(self._work)
        state = self._writer.state(self._work, tree)
        if state != "new":
            yield f"continued: the state is {state}"
        if left := leftovers(tree):
            yield f"continued: left: {left[0]}"

    def _continue(self, err: str) -> Outcome:
        calls: list[Call] = []
        for work in self._writer.follow_ups(err):
            ended = self._interposer.run(work, self._work)
            calls += ended.calls
            if ended.code == self._whole.code:
                break
        return Outcome(ended.code, ended.out, ended.err, calls)

    def prefixes(self) -> Iterator[tuple[Disk, str, bool]]:
        """Yield the disk after each recorded call, the call, and whether it is the last one."""
        shutil.rmtree(self._work)
        self._begin()
        disk = Disk(self._work)
        calls = self._interposer.run(self._writer.write, self._work).calls
        for number, call in enumerate(calls):
            if disk.replay(call):
                yield disk, f"power loss after {call}", number == len(calls) - 1
        yield disk, "power loss at the end", True

    def lose(self, every: int, tally: Tally) -> None:
        """Judge folders after a power loss."""
        seen: set[int] = set()
        for disk, name, is_end in self.prefixes():
            self._lose(disk, name, tally, must_be_new=is_end, seen=seen, every=every)

    def _lose(
        self,
        disk: Disk,
        name: str,
        tally: Tally,
        *,
        must_be_new: bool,
        seen: set[int] | None = None,
        every: int = 1,
    ) -> None:
        known = set() if seen is None else seen
        for loss in LOSSES:
            tree = disk.remains(loss, Random(f"{name}{loss.name}"))
            key = hash((must_be_new, tuple(tree.items())))
            if key in known:
                continue
            known.add(key)
            if len(known) % every:
                continue
            tally.losses += 1
            shutil.rmtree(self._work)
            write_tree(tree, self._work)
            state = self._writer.state(self._work, read_tree(self._work))
            problems = []
            if ":" in state:
                problems.append(state)
            elif must_be_new and state != "new":
                problems.append(f"reported as written, but the state is {state}")
            problems += self._judge_rest("")
            tally.add(problems, f"{loss.name}, {name}", "")


def main() -> int:
    """Run all writers; return 1 if there was a fault."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="name of a writer")
    parser.add_argument("--every", type=int, default=1, help="try one of N states")
    parser.add_argument("--mode", choices=("all", "errors", "losses"), default="all")
    options = parser.parse_args()
    restart_interposed()
    torch.set_num_threads(1)
    interposer = Interposer()
    writers = make_writers()
    failed = False
    try:
        for name in [options.only] if options.only else writers:
            tally = Tally(name)
            with tempfile.TemporaryDirectory() as folder:
                trial = Trial(interposer, writers[name], Path(folder).resolve())
                if options.mode != "losses":
                    for fault in trial.faults()[:: options.every]:
                        trial.fail(fault, tally)
                if options.mode != "errors":
                    trial.lose(options.every, tally)
            print(
                f"{name:17} {tally.errors} failing calls  {tally.losses} power losses  "
                f"faults: {dict(tally.faults) or 0}"
            )
            sys.stdout.flush()
            failed = failed or bool(tally.faults)
    finally:
        interposer.close()
    return failed


if __name__ == "__main__":
    sys.exit(main())
