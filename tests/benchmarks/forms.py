"""What each form of execution gains that exists for speed only.

```sh
python -m tests.benchmarks.forms
```

runs the same rollout with a form and without it, in turns, and prints the median of the paired
ratios with its quartiles. Ratios of processor time hold on a machine that is busy too, except for
worker processes, which are measured in wall time and need two idle processors.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import pytest
import torch

import tdx
from tdx.core import eager_program, transformed_env
from tdx.core.plan import build
from tdx.core.planned import executor, immediate
from tdx.core.transforms import kernels
from tests.benchmarks.chains import ENV, chain_6, chain_6_env, policy_of_stacks
from tests.benchmarks.test_pixels import ENV as PONG
from tests.benchmarks.test_pixels import FRAME_SKIP, pixel_chain, pixels_env

ROUNDS = 21
Without = Callable[[pytest.MonkeyPatch], None]


def without_dict_steps(patch: pytest.MonkeyPatch) -> None:
    """Call the hooks of each stage of an eager step on TensorDicts."""
    program = eager_program.EagerProgram

    def by_hooks(*args: Any, **options: Any) -> Any:
        return program(*args, **{**options, "by_hooks": True})

    patch.setattr(transformed_env, "EagerProgram", by_hooks)


def without_array_kernels(patch: pytest.MonkeyPatch) -> None:
    """Run every immediate stage on dicts of tensors."""
    patch.setattr(immediate, "_array_kernels", lambda forms, array_forms: None)


def without_fused_images(patch: pytest.MonkeyPatch) -> None:
    """Defer image stages like any other stage."""
    patch.setattr(build, "fuse_images", lambda base, stages: None)


def without_huge_pages(patch: pytest.MonkeyPatch) -> None:
    """Leave the memory of every column in small pages."""
    patch.setattr(kernels, "_LARGE", float("inf"))


def without_worker_chunks(patch: pytest.MonkeyPatch) -> None:
    """Request each step from the worker processes."""
    patch.setattr(executor, "run_in_workers", lambda env, program, inputs, run, start: run)


@contextmanager
def patched(without: Without | None) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if without is not None:
            without(patch)
        yield


def roll_out(env: Any, steps: int, policy: Any) -> None:
    env.rollout(steps, policy, break_when_any_done=False)


def step_by_hand(env: Any, steps: int, policy: Any) -> None:
    """Step the env in a loop of the user's own, with constant actions."""
    state = env.reset()
    for _ in range(steps):
        _, state = env.step_and_maybe_reset(state.set("action", torch.zeros(1)))


def compare(
    name: str,
    make: Callable[[], Any],
    without: Without,
    steps: int,
    policy: Any = None,
    clock: Callable[[], float] = time.process_time,
    run: Callable[[Any, int, Any], None] = roll_out,
    rounds: int = ROUNDS,
) -> None:
    """Print how many times longer a rollout takes without a form."""
    ratios = []
    # Plans are cached with an env, so each side has its own, made with its forms.
    envs: list[tuple[Any, Without | None]] = []
    for removed in (None, without):
        with patched(removed):
            envs.append((make(), removed))
    for number in range(rounds + 1):
        seconds: dict[Without | None, float] = {}
        for env, removed in envs if number % 2 else envs[::-1]:
            with patched(removed), torch.no_grad():
                start = clock()
                run(env, steps, policy)
                seconds[removed] = clock() - start
        if number:
            ratios.append(seconds[without] / seconds[None])
    low, _, high = statistics.quantiles(ratios, n=4)
    print(f"{name:40}{statistics.median(ratios):6.2f} x  ({low:.2f} to {high:.2f})", flush=True)
    for env, _ in envs:
        env.close()


def main() -> None:
    torch.set_num_threads(1)
    policy = policy_of_stacks()

    def make() -> Any:
        return chain_6_env("tdx")

    def make_parallel() -> Any:
        base = tdx.ParallelEnv(8, lambda: tdx.GymEnv(ENV), processes=2)
        return tdx.TransformedEnv(base, chain_6("tdx"))

    def make_vector() -> Any:
        base = tdx.GymEnv(PONG, num_envs=4, frameskip=FRAME_SKIP)
        return tdx.TransformedEnv(base, pixel_chain("tdx"))

    # Short turns and many of them: the difference is smaller than the noise of a busy machine.
    compare("dict steps, Pendulum", make, without_dict_steps, 40, run=step_by_hand, rounds=161)
    compare("array kernels, Pendulum, MLP policy", make, without_array_kernels, 1000, policy)
    if find_spec("ale_py"):
        import ale_py
        import gymnasium

        gymnasium.register_envs(ale_py)
        compare("fused images, Pong", lambda: pixels_env("tdx"), without_fused_images, 100)
        compare("fused images, 4 Pongs", make_vector, without_fused_images, 30)
        compare("huge pages, Pong", lambda: pixels_env("tdx"), without_huge_pages, 100, rounds=41)
    wall = time.perf_counter
    compare("worker chunks, 8 Pendulums", make_parallel, without_worker_chunks, 500, clock=wall)
    compare("worker chunks, MLP policy", make_parallel, without_worker_chunks, 500, policy, wall)


if __name__ == "__main__":
    main()
