"""Kill rollouts and buffer saves at random times: ``python -m tests.robustness.kills``.

A step is lost if it was reported as written and is not in the dump after the kill, or if the
resumed dump differs from one that was never interrupted.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random

import torch
from tensordict import TensorDict, TensorDictBase

from tdx import LazyTensorStorage, Pipeline, ReplayBuffer, open_dump
from tdx.foundation.errors import StorageError
from tdx.pipeline.model import Batching
from tdx.rollouts import DumpRequest, Goal, Manifest, Progress, resume, roll_out, verify
from tests.processes import fork

_STAGES = ("RewardSum", "StepCounter")


def _request(
    env: str,
    goal: Goal,
    chunk: int,
    *,
    raw: bool = False,
    num_envs: int | None = None,
    batching: Batching = "vector",
) -> DumpRequest:
    pipeline = Pipeline.of(env, *_STAGES)
    pipeline = replace(pipeline, env=replace(pipeline.env, num_envs=num_envs, batching=batching))
    return DumpRequest(pipeline, goal, seed=3, chunk_steps=chunk, raw=raw)


CONFIGURATIONS: dict[str, DumpRequest] = {
    "single": _request("CartPole-v1", Goal(steps=3_000), 100),
    "serial": _request("CartPole-v1", Goal(steps=3_000), 100, num_envs=3, batching="serial"),
    "vector": _request("CartPole-v1", Goal(steps=1_500), 100, num_envs=3, batching="vector"),
    "parallel": _request("CartPole-v1", Goal(steps=300), 30, num_envs=2, batching="parallel"),
    "mujoco": _request("InvertedPendulum-v5", Goal(steps=2_000), 100),
    "raw": _request("CartPole-v1", Goal(steps=2_000), 100, raw=True),
    "episodes": _request("CartPole-v1", Goal(episodes=100), 100),
}


@dataclass
class Tally:
    """Results of one configuration.

    Args:
        kills: Number of processes that were killed before they ended.
        runs: Number of dumps that were completed and compared.
        lost: Descriptions of losses.
    """

    kills: int = 0
    runs: int = 0
    lost: list[str] | None = None

    def fault(self, text: str) -> None:
        """Record a loss."""
        self.lost = [*(self.lost or []), text]


Report = Callable[[int], object]


def start_in_fork(work: Callable[[Report], None]) -> tuple[int, int]:
    """Start ``work`` in a child process; return its ID and a pipe of reported numbers."""
    reading, writing = os.pipe()
    child = fork()
    if child:
        os.close(writing)
        return child, reading
    code = 1
    try:
        os.setpgid(0, 0)
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        work(lambda number: os.write(writing, f"{number}\n".encode()))
        code = 0
    finally:
        os._exit(code)


def kill_after(child: int, reading: int, seconds: float) -> tuple[bool, int]:
    """Kill a process group after a delay; return True if it was running, and its last report."""
    time.sleep(seconds)
    ended, _ = os.waitpid(child, os.WNOHANG)
    if not ended:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    with os.fdopen(reading, "rb") as pipe:
        reports = pipe.read().split()
    return not ended, int(reports[-1]) if reports else 0


def kill_rollouts(request: DumpRequest, kills: int, folder: Path, random: Random) -> Tally:
    """Repeatedly kill and resume rollouts.

    Args:
        request: Request of the rollouts.
        kills: Number of kills.
        folder: Empty working directory.
        random: Generator of the delays before each kill.
    """
    start = time.monotonic()
    # Use a child process, so that no worker of this process survives a kill.
    child, reading = start_in_fork(partial(_resume_dump, request, folder / "whole"))
    os.waitpid(child, 0)
    span = (time.monotonic() - start) * 0.7
    whole = open_dump(folder / "whole")
    tally = Tally()
    while tally.kills < kills:
        dump = folder / f"dump{tally.runs}"
        stored = 0
        while tally.kills < kills:
            child, reading = start_in_fork(partial(_resume_dump, request, dump))
            was_running, reported = kill_after(child, reading, random.uniform(0, span))
            tally.kills += was_running
            stored = max(stored, reported)
            if not (dump / "manifest.json").exists():
                if stored:
                    tally.fault(f"{stored} steps: no manifest")
                continue
            found = Manifest.load(dump)
            if found.steps < stored:
                tally.fault(f"{found.steps} of {stored} reported steps")
            if found.steps and (wrong := verify(dump).problems):
                tally.fault(f"verify: {wrong[0]}")
            if not was_running:
                break
        child, reading = start_in_fork(partial(_resume_dump, request, dump))
        if os.waitpid(child, 0)[1]:
            tally.fault("resuming failed")
        elif not same_steps(whole.data, open_dump(dump).data):
            tally.fault("the resumed dump differs from the uninterrupted one")
        if (dump / "state").is_dir() and any((dump / "state").iterdir()):
            tally.fault("a stale state file is left")
        tally.runs += 1
    return tally


def _resume_dump(request: DumpRequest, dump: Path, report: Report) -> None:
    def on_chunk(progress: Progress) -> None:
        report(progress.steps)

    if (dump / "manifest.json").exists():
        resume(dump, on_chunk=on_chunk)
    else:
        roll_out(request, dump, on_chunk=on_chunk)


def same_steps(one: TensorDictBase, other: TensorDictBase) -> bool:
    return one.shape == other.shape and bool((one == other).all())


def kill_saves(kills: int, folder: Path, random: Random) -> Tally:
    """Repeatedly kill processes that overwrite a saved buffer."""
    tally = Tally()
    target = folder / "buffer"
    buffers = [_buffer(number) for number in range(_VARIANTS)]
    buffers[0].dumps(target)
    low = 0
    while tally.kills < kills:
        child, reading = start_in_fork(partial(_save_often, buffers, target, low))
        was_running, reported = kill_after(child, reading, random.uniform(0, 0.3))
        tally.kills += was_running
        low = max(low, reported)
        try:
            found = _load(target)
        except StorageError as error:
            tally.fault(str(error))
            buffers[low % _VARIANTS].dumps(target)
            continue
        if found not in (low % _VARIANTS, (low + 1) % _VARIANTS):
            tally.fault(f"save {found} was found, {low % _VARIANTS} was reported")
        low += found != low % _VARIANTS
        tally.runs += 1
    return tally


_VARIANTS = 5


def _buffer(number: int) -> ReplayBuffer:
    # The buffers differ in size.
    rows = 1_000 + number
    buffer = ReplayBuffer(storage=LazyTensorStorage(2_000), batch_size=10)
    buffer.extend(TensorDict({"a": torch.full((rows, 50), float(number))}, [rows]))
    return buffer


def _save_often(buffers: list[ReplayBuffer], target: Path, number: int, report: Report) -> None:
    while True:
        number += 1
        buffers[number % _VARIANTS].dumps(target)
        report(number)


def _load(target: Path) -> int:
    buffer = ReplayBuffer(storage=LazyTensorStorage(2_000), batch_size=10)
    buffer.loads(target)
    values = buffer[:]["a"].unique()
    if len(values) != 1 or len(buffer) != 1_000 + int(values):
        raise StorageError("two saves are mixed", hint="this is a fault of ReplayBuffer.dumps")
    return int(values)


def main() -> int:
    """Run all configurations; return 1 if anything was lost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=25, help="kills of each rollout")
    parser.add_argument("--buffer-kills", type=int, default=40)
    parser.add_argument("--only", choices=[*CONFIGURATIONS, "buffer"])
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    lost = 0
    for name in [*CONFIGURATIONS, "buffer"]:
        if options.only not in (None, name):
            continue
        random = Random(f"{name}{options.seed}")
        with tempfile.TemporaryDirectory() as folder:
            if name == "buffer":
                tally = kill_saves(options.buffer_kills, Path(folder), random)
            else:
                request = CONFIGURATIONS[name]
                tally = kill_rollouts(request, options.kills, Path(folder), random)
        print(f"{name:9} {tally.kills} kills  {tally.runs} compared  lost: {tally.lost or 0}")
        sys.stdout.flush()
        lost += bool(tally.lost)
    return bool(lost)


if __name__ == "__main__":
    sys.exit(main())
