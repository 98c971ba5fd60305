"""Dump with all dtypes, shapes and unusual names, for the tests of exports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from tdx import Pipeline, write_pipeline
from tdx.rollouts import Goal, Manifest
from tdx.rollouts.dump.entries import SpecEntry
from tdx.rollouts.dump.episodes import EpisodeIndex, EpisodeKeys
from tdx.rollouts.dump.writing import create_dump
from tdx.rollouts.formats.registry import find_format

STEPS = 23
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
DTYPES = (
    *FLOATS,
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint16, torch.uint32, torch.uint64, torch.complex64, torch.complex128),
    torch.float8_e4m3fn,
)
NAMED = ("data", "tdx", "env", "episode", "step", "time", "a.b", "raw", "__metadata__")


def require_format(name: str) -> None:
    """Skip the test if a package of the format is missing."""
    for package in find_format(name).packages:
        pytest.importorskip(package)


def random_bits(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Return a tensor with random bits."""
    if dtype is torch.bool:
        return torch.rand(shape) < 0.5
    count = torch.Size(shape).numel() * dtype.itemsize
    return torch.randint(0, 256, (count,), dtype=torch.uint8).view(dtype).reshape(shape)


def create_step_data(batch: tuple[int, ...], steps: int) -> TensorDict:
    """Return a chunk ``[*B, T]`` with all dtypes, unusual names, nested groups and empty shapes."""
    size = (*batch, steps)
    entries: dict[str, Any] = {
        str(d).removeprefix("torch."): random_bits(d, *size, 2) for d in DTYPES
    }
    special = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 1e-45, 0.1])
    for dtype in FLOATS:
        entries[f"special_{dtype}".replace("torch.", "")] = (
            special.to(dtype).expand(*size, 6).clone()
        )
    entries |= {name: torch.randn(*size) for name in NAMED}
    agents = TensorDict({"position": torch.randn(*size, 3, 2)}, (*size, 3))
    entries |= {"agents": agents, "a": TensorDict({"b": torch.randn(*size, 1)}, size)}
    entries |= {"empty": torch.zeros(*size, 0), "picture": random_bits(torch.uint8, *size, 9, 8, 3)}
    observed = torch.randn(*batch, steps + 1, 4)
    entries["observation"] = observed[..., :-1, :].clone()
    entries["action"] = torch.nn.functional.one_hot(torch.randint(0, 3, size), 3)
    flags = torch.rand(3, *size, 1) < 0.2
    following = {
        "observation": observed[..., 1:, :].clone(),
        "reward": torch.randn(*size, 1),
        "terminated": flags[0],
        "truncated": flags[1],
        "done": flags[0] | flags[1],
    }
    return TensorDict({**entries, "next": TensorDict(following, size)}, size)


def create_dump_of_all_dtypes(folder: Path, batch: tuple[int, ...] = ()) -> Path:
    """Write a dump of :func:`create_step_data` in chunks of different lengths."""

    def spec(part: str, key: str, kind: str, *shape: int, dtype: str = "float32") -> SpecEntry:
        sizes = [*batch, *shape]
        return SpecEntry(
            part=part, key=[key], kind=kind, shape=sizes, dtype=dtype, low=None, high=None
        )

    ends = ("done", "terminated", "truncated")
    manifest = Manifest(
        pipeline=write_pipeline(Pipeline.of("Pendulum-v1")),
        seed=1,
        policy="random",
        policy_sha256=None,
        goal=Goal(steps=STEPS),
        chunk_steps=10,
        keys=None,
        batch_size=batch,
        specs=[
            spec("observation", "observation", "UnboundedContinuous", 4),
            spec("action", "action", "OneHot", 3, dtype="int64"),
            spec("reward", "reward", "UnboundedContinuous", 1),
        ],
        flags=EpisodeKeys(("reward",), ends),
        episodes=EpisodeIndex(torch.Size(batch).numel()),
    )
    data = create_step_data(batch, STEPS)
    with create_dump(folder, manifest) as writer:
        for start, stop in ((0, 10), (10, 20), (20, STEPS)):
            writer.append(data[..., start:stop], None, None)
        writer.finish()
    return folder
