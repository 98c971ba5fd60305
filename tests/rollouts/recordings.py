"""Short rollouts, comparisons of dumps, and envs that fail."""

from __future__ import annotations

import hashlib
import itertools
import os
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from tensordict import TensorDictBase

from tdx import EnvConfig, Pipeline, open_dump
from tdx.foundation.keys import NestedKey
from tdx.rollouts import DumpRequest, Goal, Manifest, Progress, roll_out
from tdx.rollouts.dump.entries import list_keys
from tests.processes import fork

CHAIN = ("StepCounter(max_steps=30)", "RewardSum", 'CatFrames(2, dim=-1, in_keys=["observation"])')
STEPS, CHUNK, SEED = 130, 25, 3


def in_memory() -> tempfile.TemporaryDirectory[str]:
    """Return a folder in memory if possible: dumps are slow on a real disk."""
    place = "/dev/shm"
    return tempfile.TemporaryDirectory(
        prefix="tdx-", dir=place if os.access(place, os.W_OK) else None
    )


def request(env: str = "CartPole-v1", *stages: str, **options: Any) -> DumpRequest:
    """Return a request for a short rollout.

    Args:
        env: ID of the env.
        stages: Stages of the chain. Defaults to :data:`CHAIN`.
        options: Fields of the request or of the env. ``bare=True``: no stages.
    """
    goal = options.pop("goal", Goal(steps=STEPS))
    chain = () if options.pop("bare", False) else stages or CHAIN
    known = DumpRequest.__dataclass_fields__
    fields = {name: options.pop(name) for name in list(options) if name in known}
    pipeline = Pipeline.of(EnvConfig(env, **options), *chain)
    return DumpRequest(pipeline, goal, **{"seed": SEED, "chunk_steps": CHUNK, **fields})


def record(folder: Path, env: str = "CartPole-v1", *stages: str, **options: Any) -> Manifest:
    """Write a short rollout into a folder."""
    return roll_out(request(env, *stages, **options), folder)


def same(one: TensorDictBase | None, other: TensorDictBase | None) -> bool:
    """Return True if all keys and values are equal."""
    if one is None or other is None:
        return one is other
    keys = set(one.keys(True, True))
    return keys == set(other.keys(True, True)) and bool((one == other).all())


def bits(values: torch.Tensor) -> torch.Tensor:
    """Return a tensor as bytes, where NaN equals itself and 0 differs from -0."""
    return values.contiguous().reshape(-1).view(torch.uint8)


def assert_same_bits(one: TensorDictBase, other: TensorDictBase) -> None:
    """Check that two TensorDicts have the same entries, bit for bit."""
    keys: list[NestedKey] = list_keys(one)
    assert set(keys) == set(list_keys(other))
    for key in keys:
        left, right = one.get(key), other.get(key)
        assert (left.dtype, left.shape) == (right.dtype, right.shape), key
        assert torch.equal(bits(left), bits(right)), key
    assert one.batch_size == other.batch_size


def assert_same_dump(folder: str | Path, wanted: str | Path) -> None:
    """Check that two dumps have the same data, bit for bit, and the same manifest."""
    found, other = open_dump(folder), open_dump(wanted)
    assert_same_bits(found.data, other.data)
    assert (found.raw is None) == (other.raw is None)
    if found.raw is not None and other.raw is not None:
        assert_same_bits(found.raw, other.raw)
    assert found.manifest.to_dict() == other.manifest.to_dict()
    if "agents" in other.data.keys():
        assert found.data.get("agents").batch_size == other.data.get("agents").batch_size


def hash_tree(folder: Path) -> str:
    """Return a checksum of the names and contents of all files below a folder."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        digest.update(f"{path.relative_to(folder)}\0".encode())
        if path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()


class CutError(Exception):
    """Error that interrupts a rollout between two chunks."""


def interrupt_after(chunks: int) -> Callable[[Progress], None]:
    """Return a callback that interrupts a rollout after a number of chunks."""
    numbers = itertools.count(1)

    def on_chunk(progress: Progress) -> None:
        if next(numbers) == chunks:
            raise CutError

    return on_chunk


def run_and_kill_at(die_at: int | None, job: Callable[[], object]) -> int:
    """Run a job in a child process that kills itself before a call that changes the disk.

    Args:
        die_at: Number of the call, counted from 1. ``None``: the job finishes.
        job: Job to run.

    Returns:
        Number of calls. -1 if the process was killed.
    """
    reading, writing = os.pipe()
    child = fork()
    if child == 0:
        calls = 0

        def counted(call: Any) -> Any:
            def counting(*args: Any, **kwargs: Any) -> Any:
                nonlocal calls
                calls += 1
                if calls == die_at:
                    os.kill(os.getpid(), signal.SIGKILL)
                return call(*args, **kwargs)

            return counting

        for name in ("fsync", "replace", "pwrite", "unlink", "rmdir", "mkdir"):
            setattr(os, name, counted(getattr(os, name)))
        job()
        os.write(writing, str(calls).encode())
        os._exit(0)
    os.close(writing)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    count = os.read(reading, 100)
    os.close(reading)
    assert status in (0, -signal.SIGKILL)
    return int(count) if count else -1


class Fragile(gymnasium.Env[Any, Any]):
    """Env that fails at step TDX_TEST_BREAK_AT while the file TDX_TEST_BREAK exists."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self) -> None:
        self.count = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.np_random.uniform(-1, 1, self.observation_space.shape).astype(np.float32), {}

    def step(self, action: Any) -> Any:
        self.count += 1
        breaks_at = int(os.environ.get("TDX_TEST_BREAK_AT", "50"))
        if self.count == breaks_at and os.path.exists(os.environ.get("TDX_TEST_BREAK", "")):
            raise RuntimeError("the belt slipped")
        size = self.observation_space.shape
        observation = self.np_random.uniform(-1, 1, size).astype(np.float32)
        return observation, float(action[0]), self.count % 20 == 0, False, {}


class Killing(Fragile):
    """Env that kills its process or the driver once for each file in TDX_TEST_KILLS.

    A file named ``driver`` contains the ID of the process to kill.
    """

    def step(self, action: Any) -> Any:
        kills = Path(os.environ.get("TDX_TEST_KILLS", "missing"))
        if self.count == 20 and kills.is_dir():
            for token in sorted(kills.iterdir()):
                content = token.read_text()
                try:
                    token.unlink()
                except FileNotFoundError:
                    continue
                if token.name != "driver":
                    os.kill(os.getpid(), signal.SIGKILL)
                os.kill(int(content), signal.SIGKILL)
                time.sleep(60)
        return super().step(action)


class Wide(Fragile):
    """Env whose observation is larger than a page of memory."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (4096,), np.float32)


class Talking(gymnasium.Env[Any, Any]):
    """Env with text observations."""

    observation_space = gymnasium.spaces.Text(8)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return "hello", {}

    def step(self, action: Any) -> Any:
        return "world", 1.0, False, False, {}


class Handle:
    """Object that cannot be saved."""


class Opaque(Fragile):
    """Env whose state cannot be saved."""

    def __init__(self) -> None:
        super().__init__()
        self.handle = Handle()


class Unrepeatable(Opaque):
    """Env with random rewards that ignore the seed."""

    def step(self, action: Any) -> Any:
        observation, _, *rest = super().step(action)
        return observation, float(os.urandom(1)[0]), *rest
