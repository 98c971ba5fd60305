"""The terminal app: first screen, response to keys under load, live steps and memory."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from tdx.foundation.processes import usable_cores
from tests.benchmarks.bars import (
    APP_BUSY,
    APP_IDLE,
    APP_IDLE_KEYS,
    APP_KEYS,
    APP_MEMORY,
    APP_PACE,
    APP_PEAK,
    APP_START,
    APP_TABS,
)
from tests.benchmarks.conftest import Note
from tests.benchmarks.driven_app import DrivenApp, app
from tests.processes import family

ENV = ("--env", "Pendulum-v1")
STAGES = (
    *("RewardScaling(0.0, 0.9)", "RewardClipping(-5, 5)", "RewardSum", "DoubleToFloat"),
    *("InitTracker(init_key='first_{}')", "StepCounter(step_count_key='count_{}')"),
)
CHAIN = tuple(word for n in range(30) for word in ("--t", STAGES[n % len(STAGES)].format(n)))
SHORT = ("--t", "RewardSum", "--t", "StepCounter(max_steps=200)")
CHAIN_COLUMNS = range(1, 48)
DOWN, UP, ESCAPE = b"\x1b[B", b"\x1b[A", b"\x1b"
HOUR = 3600 * 20
"""Number of steps in an hour at the initial rate of a session."""


def begin(tdx: DrivenApp) -> None:
    """Open the live tab."""
    tdx.sees(" keys")
    tdx.press(b"3")
    tdx.sees("step 0")


def test_time_to_the_first_screen(note: Note, tmp_path: Path) -> None:
    times = []
    for _ in range(7):
        start = time.perf_counter()
        with app(("--env", "Pendulum-v1", "--t", "RewardSum"), tmp_path) as tdx:
            tdx.sees("Catalog", "RewardSum", "^p")
            times.append(time.perf_counter() - start)
    note(APP_START, "tdx", min(times))


def test_response_to_keys_during_a_rollout_and_a_profile(note: Note, tmp_path: Path) -> None:
    with app((*ENV, *CHAIN), tmp_path) as tdx:
        begin(tdx)
        tdx.press(b"++++")
        tdx.press(b" ")
        tdx.sees("/s · step")
        tdx.press(b"4")
        tdx.sees("to measure what each")
        tdx.press(b"n")
        tdx.rest(0.5)
        tdx.press(b"\x15" + b"20000\r")
        tdx.sees("measur")
        tdx.press(ESCAPE)
        tdx.rest(0.5)
        tdx.press(b"3")
        tdx.rest(2)
        tdx.press(ESCAPE)
        tdx.rest(1)
        note(APP_KEYS, "tdx", response_to_keys(tdx))


def test_response_to_keys_of_the_idle_app(note: Note, tmp_path: Path) -> None:
    with app((*ENV, *CHAIN), tmp_path) as tdx:
        tdx.sees(" keys")
        tdx.rest(5)
        # What follows a key, such as the form of a stage, is drawn before the next one.
        note(APP_IDLE_KEYS, "tdx", response_to_keys(tdx, 0.3, 0.5))


def response_to_keys(tdx: DrivenApp, shortest: float = 0.03, longest: float = 0.15) -> float:
    """Return the 95th percentile of the seconds until the chain has drawn a walk of its cursor.

    A key comes ``shortest`` to ``longest`` seconds after the answer to the one before.
    """
    times = []
    for n in range(120):
        tdx.rest(random.Random(n).uniform(shortest, longest))
        times.append(tdx.answered(UP if n // 20 % 2 else DOWN, CHAIN_COLUMNS))
    return sorted(times)[int(0.95 * len(times))]


def test_rate_of_live_steps(note: Note, tmp_path: Path) -> None:
    with app((*ENV, "--from-pixels", *SHORT), tmp_path) as tdx:
        begin(tdx)
        tdx.press(b"++++")
        tdx.rest(1)
        tdx.press(b" ")
        tdx.rest(3)
        first, start = steps(tdx), time.perf_counter()
        tdx.rest(8)
        made = steps(tdx) - first
        pace = made / (time.perf_counter() - start)
        assert made > 0
    note(APP_PACE, "tdx", pace)


def test_memory_over_an_hour_of_steps(note: Note, tmp_path: Path) -> None:
    with app((*ENV, *SHORT), tmp_path) as tdx:
        begin(tdx)
        tdx.press(b"++++++++")
        tdx.rest(1)
        tdx.press(b" ")
        sizes = []
        while (made := steps(tdx)) < HOUR:
            tdx.rest(1)
            if made > HOUR // 6:
                sizes.append(tdx.resident())
    note(APP_MEMORY, "tdx", max(sizes) - sizes[0])


PONG = ("--env", "ALE/Pong-v5", "--t", "ToTensorImage", "--t", "GrayScale", "--t", "Resize(84, 84)")
TRAINING = """
import torch
torch.set_num_threads(1)
network = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Tanh(), torch.nn.Linear(256, 4))
optimizer = torch.optim.Adam(network.parameters())
while True:
    optimizer.zero_grad()
    network(torch.randn(256, 64)).square().mean().backward()
    optimizer.step()
"""


def test_idle_app(note: Note, tmp_path: Path) -> None:
    with app((*ENV, *SHORT), tmp_path) as tdx:
        tdx.sees(" keys")
        # What it computes after the start.
        tdx.rest(20)
        before = cpu_seconds(tdx)
        tdx.rest(60)
        note(APP_IDLE, "tdx", (cpu_seconds(tdx) - before) / 60)


def test_memory_with_specs_live_and_profile(note: Note, tmp_path: Path) -> None:
    with app(PONG, tmp_path) as tdx:
        begin(tdx)
        tdx.press(b" ")
        tdx.rest(3)
        tdx.press(b" 2")
        tdx.rest(3)
        tdx.press(b"4")
        tdx.sees("to measure what each")
        before = len(family(tdx.pid))
        tdx.press(b"r")
        while len(family(tdx.pid)) == before:
            tdx.rest(0.1)
        # A worker measures, another one tries changes; both end when they are done.
        sizes, ended = [], 0
        while ended < 20:
            tdx.rest(0.25)
            sizes.append(family_memory(tdx.pid))
            ended = 0 if len(family(tdx.pid)) > before else ended + 1
        for bar, figures in ((APP_TABS, sizes[-1]), (APP_PEAK, map(max, zip(*sizes, strict=True)))):
            for contestant, figure in zip(("tdx", "bare"), figures, strict=True):
                note(bar, contestant, figure)


def test_live_steps_on_a_busy_machine(note: Note, tmp_path: Path) -> None:
    with app(PONG, tmp_path) as tdx:
        begin(tdx)
        tdx.press(b"++++")
        tdx.rest(1)
        tdx.press(b" ")
        tdx.rest(5)
        idle = seconds_of_steps(tdx, 50)
        command = [sys.executable, "-c", TRAINING]
        trainings = [subprocess.Popen(command) for _ in range(usable_cores())]
        try:
            # They import torch first.
            tdx.rest(15)
            busy = seconds_of_steps(tdx, 50)
        finally:
            for training in trainings:
                training.kill()
                training.wait()
    note(APP_BUSY, "bare", idle)
    note(APP_BUSY, "tdx", busy)


def seconds_of_steps(tdx: DrivenApp, count: int) -> float:
    """Return the duration of a number of live steps."""
    first, start = steps(tdx), time.perf_counter()
    while (made := steps(tdx) - first) < count:
        pass
    return (time.perf_counter() - start) * count / made


def cpu_seconds(tdx: DrivenApp) -> float:
    """Return the CPU time of the app and its workers."""
    ticks = 0
    for pid in family(tdx.pid):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def family_memory(pid: int) -> tuple[int, int]:
    """Return the bytes of memory of a process and its descendants, counted in two ways.

    First, each page counts once, as if no other program ran. Second, the sum of the proportional
    set sizes: in it, a library counts less if a program outside of the family has loaded it too.
    """
    kib: Counter[str] = Counter()
    files: dict[tuple[str, str], int] = {}
    for member in family(pid):
        try:
            totals = Path(f"/proc/{member}/smaps_rollup").read_text().splitlines()[1:]
            maps = Path(f"/proc/{member}/smaps").read_text().splitlines()
        except OSError:  # it has ended
            continue
        for line in totals:
            kib[line.partition(":")[0]] += int(line.split()[1])
        mapping, resident = ("", ""), 0
        for line in maps:
            name, *words = line.split()
            if not name.endswith(":"):
                mapping = words[1], " ".join(words[4:])  # offset and file
            elif name == "Rss:":
                resident = int(words[0])
            elif name == "Anonymous:":
                # Of the processes that have a part of a file, the one that uses most of it counts.
                files[mapping] = max(files.get(mapping, 0), resident - int(words[0]))
    once = kib["Pss_Anon"] + kib["Pss_Shmem"] + sum(files.values())
    return 1024 * once, 1024 * kib["Pss"]


def steps(tdx: DrivenApp) -> int:
    """Return the number of steps that the live tab shows."""
    tdx.rest(0.1)
    return int((tdx.latest(r"step (\d[\d,]*)") or "0").replace(",", ""))
