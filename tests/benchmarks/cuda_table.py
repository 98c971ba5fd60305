"""Costs of stages on a CUDA device: ``python -m tests.benchmarks.cuda_table``.

Prints Markdown tables for a chain of pixel stages over 1, 64 and 1,024 frames at a time, and for
chain 6 over 4,096 native envs. Without a GPU, it prints a message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase

from tdx import (
    CartPoleEnv,
    CatFrames,
    Compose,
    GrayScale,
    PendulumEnv,
    Resize,
    ToTensorImage,
    TransformedEnv,
)
from tdx.core.envs import EnvBase
from tdx.profiling.result import DeviceUse, ModeProfile, Profile
from tdx.profiling.run import ProfilePlan, profile_env
from tdx.specs import Bounded, Composite, Unbounded
from tests.benchmarks.chains import chain_6

PIXEL_BATCHES = (1, 64, 1024)
NATIVE_BATCH = 4096
HEAD = (
    *("part", "lane", "host µs", "span µs", "busy µs", "wait µs", "kernels", "kernel µs"),
    *("launches", "to device", "to host", "added", "peak", "syncs", "bound by"),
)


class FramesEnv(EnvBase):
    """Env that returns the same random frames in each step, so that only the chain takes time.

    Args:
        batch: Number of frames.
        device: Device of the frames.
    """

    def __init__(self, batch: int, device: str) -> None:
        super().__init__(device=device, batch_size=torch.Size((batch,)))
        shape = (batch, 210, 160, 3)
        self.observation_spec = Composite(
            pixels=Bounded(0, 255, shape, device=device, dtype=torch.uint8),
            shape=(batch,),
            device=device,
        )
        self.action_spec = Bounded(-1.0, 1.0, (batch, 1), device=device)
        self.reward_spec = Unbounded((batch, 1), device=device)
        self.frames = torch.randint(0, 256, shape, dtype=torch.uint8, device=device)
        self.never = torch.zeros((batch, 1), dtype=torch.bool, device=device)

    def _entries(self) -> dict[str, Any]:
        return {"pixels": self.frames, "done": self.never, "terminated": self.never}

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        entries = {**self._entries(), "reward": tensordict["action"] * 2}
        return TensorDict(entries, self.batch_size, device=self.device)

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        return TensorDict(self._entries(), self.batch_size, device=self.device)

    def _set_seed(self, seed: int | None) -> None:
        pass


def pixel_chain() -> Compose:
    """Return transforms that convert frames to floats, then to small, stacked gray frames."""
    return Compose(
        ToTensorImage(), GrayScale(), Resize(84, 84), CatFrames(4, dim=-3, in_keys=["pixels"])
    )


def pixels(batch: int, device: str) -> TransformedEnv:
    """Return the env of frames with the pixel stages."""
    return TransformedEnv(FramesEnv(batch, device), pixel_chain())


def native(kind: Callable[..., EnvBase], device: str) -> TransformedEnv:
    """Return native envs with chain 6."""
    made = kind(batch_size=[NATIVE_BATCH], device=device)
    return TransformedEnv(made, chain_6("tdx"))


def cases(device: str) -> Iterator[tuple[str, Callable[[], TransformedEnv]]]:
    """Yield the names and factories of the measured envs.

    Args:
        device: Device of the envs.
    """
    for batch in PIXEL_BATCHES:
        yield f"pixel stages, batch {batch:,}", partial(pixels, batch, device)
    for kind in (PendulumEnv, CartPoleEnv):
        name = f"chain 6, {kind.__name__}, batch {NATIVE_BATCH:,}"
        yield name, partial(native, kind, device)


def markdown(profile: Profile) -> str:
    """Return one table per mode; all figures are per step."""
    return "\n\n".join(_mode_table(mode) for mode in profile.modes)


def _mode_table(mode: ModeProfile) -> str:
    lines = [f"{mode.mode}: {mode.step_us:,.1f} µs a step, {mode.noise.message}"]
    lines += [mode.error] if mode.error else []
    lines += ["", _line(HEAD), _line(["---"] * len(HEAD))]
    hosts = {row.key: f"{mode.step_share_us(row):,.1f}" for row in mode.rows}
    for key in dict.fromkeys([*hosts, *mode.on_device]):
        use = mode.on_device.get(key)
        cells = _cells(use) if use is not None else [""] * (len(HEAD) - 3)
        lines.append(_line([*key, hosts.get(key, ""), *cells]))
    device = sum(use.time_us for use in mode.on_device.values())
    host = sum(mode.step_share_us(row) for row in mode.rows)
    busy = "" if mode.device is None else f"{mode.device.busy_us:,.1f}"
    totals = ["all", "", f"{host:,.1f}", f"{device:,.1f}", busy]
    lines.append(_line([*totals, *[""] * (len(HEAD) - len(totals))]))
    return "\n".join([*lines, *(f"\n{note}" for note in mode.notes)])


def _cells(use: DeviceUse) -> list[str]:
    return [
        f"{use.time_us:,.1f}",
        f"{use.busy_us:,.1f}",
        f"{use.wait_us:,.1f}",
        f"{use.kernels:.2f}",
        f"{use.kernel_us:,.1f}",
        f"{use.launches:.2f}",
        f"{use.to_device_bytes:,.0f}",
        f"{use.to_host_bytes:,.0f}",
        f"{use.allocated_bytes:,.0f}",
        f"{use.peak_bytes:,}",
        ", ".join(f"{place} {count:.2f}" for place, count in use.syncs.items()),
        use.bound_by or "",
    ]


def _line(cells: Any) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Measure and print the tables."""
    if not torch.cuda.is_available():
        print("no GPU: torch finds no CUDA device on this machine")
        return
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    plan = ProfilePlan(steps=100, warmup=20, repeats=5, seed=0, passes=("device",))
    for name, make in cases("cuda:0"):
        env = make()
        print(
            f"\n## {name}\n\n{markdown(profile_env(env, ['eager', 'planned'], plan))}", flush=True
        )
        env.close()
        del env
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
