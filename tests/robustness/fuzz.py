"""Run ``tdx`` on thousands of damaged inputs: ``python -m tests.robustness.fuzz --inputs 3400``.

Each input runs in a fork of this process. A fault is a traceback, an unexpected error, an error
without a hint, a control character in the output, an undocumented exit code, or a slow answer.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tdx.foundation.errors import ExitCode
from tests.cli.processes import start
from tests.robustness.cases import Case, make_case
from tests.robustness.seeds import make_seeds

_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_LEAKS = re.compile(
    r"NoneType|list index out of range|zip\(\) argument|__init__\(\)|object is not|"
    r"unexpected keyword|not subscriptable|has no attribute|Traceback"
)
_LONGEST_ANSWER_S = 5.0
_KILL_AFTER_S = 60
_MEMORY = 8 * 2**30


@dataclass(frozen=True)
class Answer:
    """Exit code, output, CPU seconds and wall seconds of a case."""

    code: int
    out: str
    err: str
    cpu_s: float
    wall_s: float


def answer(case: Case) -> Answer:
    """Run a case in a fork with limited time and memory."""
    out, err = (os.memfd_create(name) for name in ("out", "err"))
    began = time.monotonic()
    child = start(case.arguments, {1: out, 2: err}, lambda: _confine(case))
    _, status, usage = os.wait4(child, 0)
    wall = time.monotonic() - began
    texts = []
    for stream in (out, err):
        size = os.fstat(stream).st_size
        texts.append(os.pread(stream, min(size, 10_000_000), 0).decode("utf-8", "replace"))
        os.close(stream)
    code = os.waitstatus_to_exitcode(status)
    return Answer(code, texts[0], texts[1], usage.ru_utime + usage.ru_stime, wall)


def _confine(case: Case) -> None:
    os.chdir(case.folder)
    if (case.folder / "config.toml").exists():
        os.environ["TDX_CONFIG"] = "config.toml"
    signal.alarm(_KILL_AFTER_S)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + _MEMORY, used + _MEMORY))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)


def faults(found: Answer, *, timed: bool = False) -> Iterator[str]:
    """Yield descriptions of the faults of an answer."""
    if found.code not in set(ExitCode):
        yield f"exit code {found.code}"
    if "Traceback (most recent call last)" in found.err:
        yield "traceback"
    elif leak := _LEAKS.search(found.err):
        yield f"leaks Python: {leak[0]}"
    if re.search(r"error: unexpected \w", found.err):
        yield "unexpected error"
    if _UNSAFE.search(found.out + found.err):
        yield "control character"
    if found.code not in (ExitCode.OK, ExitCode.FINDINGS) and not found.out:
        if "error:" in found.err and "hint:" not in found.err:
            yield "no hint"
        if '"error"' not in found.err and "error:" not in found.err:
            yield "no error line"
    if timed and found.wall_s > _LONGEST_ANSWER_S:
        yield f"took {found.wall_s:.1f} s ({found.cpu_s:.1f} s of CPU)"


def main() -> int:
    """Run the fuzzer; return 1 if there was a fault."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=3400)
    parser.add_argument("--first", type=int, default=0, help="number of the first input")
    parser.add_argument("--show", action="store_true", help="print every answer")
    options = parser.parse_args()
    kinds: Counter[str] = Counter()
    codes: Counter[int] = Counter()
    slowest = 0.0
    with tempfile.TemporaryDirectory() as name:
        seeds = Path(name) / "seeds"
        seeds.mkdir()
        make_seeds(seeds)
        for number in range(options.first, options.first + options.inputs):
            with tempfile.TemporaryDirectory(dir=name) as folder:
                case = make_case(number, seeds, Path(folder))
                found = answer(case)
            codes[found.code] += 1
            slowest = max(slowest, found.wall_s)
            wrong = list(faults(found, timed=True))
            kinds.update(re.sub(r"[\d.]+", "N", each) for each in wrong)
            if wrong or options.show:
                shown = [word[:200] for word in case.arguments]
                print(f"{number}: {', '.join(wrong)}: {found.code} {shown!r}")
                print(f"  {found.err[:600]!r}")
                sys.stdout.flush()
    print(f"{options.inputs} inputs, exit codes {dict(codes)}, slowest answer {slowest:.1f} s")
    print(f"faults: {dict(kinds) or 0}")
    return bool(kinds)


if __name__ == "__main__":
    sys.exit(main())
