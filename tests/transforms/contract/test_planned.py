"""Planned equals eager: a planned rollout equals the eager one."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDictBase

from tdx import SerialEnv, TdxError, TransformedEnv
from tdx.core.envs import EnvBase
from tdx.core.plan import plan_of
from tests.core.planned.split_env import SplitEnv
from tests.programs import sampled
from tests.transforms.contract.examples import EXAMPLES, example_of, made
from tests.transforms.fixed_rollouts import assert_same

EAGER = {"BatchSizeTransform", "FrameSkipTransform", "NoopResetEnv", "TerminateTransform"}
"""Transforms that depend on any entry, or step the env themselves."""


def rolled_out(
    base: EnvBase, name: str, which: str, planned: bool, stop: bool
) -> tuple[TensorDictBase, str]:
    """Return two consecutive rollouts, and how they were run."""
    env = TransformedEnv(base, made(name, which), planned=planned)
    env.set_seed(3)
    torch.manual_seed(5)
    first = env.rollout(7, break_when_any_done=stop)
    again = env.rollout(4, break_when_any_done=stop)
    return torch.cat((first, again), first.ndim - 1), plan_of(env).executor


def known_env(name: str, which: str, batch_size: tuple[int, ...]) -> EnvBase:
    """Return the env of an example, which declares to read only the action."""
    example = EXAMPLES[name]
    kind = example.groups if which == "nested" else example.rows
    return type(kind.__name__, (kind,), {"step_reads": ()})(batch_size)


# Each form occurs, and each pair of a batch size and stopping or not.
ODD = [((), True), ((4,), False)]


@pytest.mark.parametrize(
    ("which", "runs"), [("arguments", ODD), ("nested", [((4,), True)]), ("out", [((), False)])]
)
def test_planned_is_eager(name: str, which: str, runs: list[tuple[tuple[int, ...], bool]]) -> None:
    example = example_of(name)
    if example.offline or not getattr(example, which):
        pytest.skip("it refuses an env" if example.offline else "no example has this form")
    for batch_size, stop in runs:
        results = []
        for planned in (True, False):
            base = known_env(name, which, batch_size)
            results.append(rolled_out(base, name, which, planned, stop))
        (mine, how), (other, _) = results
        assert_same(mine, other)
        assert how == "eager" or name not in EAGER


@sampled(3)
def test_rows_can_run_separately(name: str) -> None:
    """Worker processes run groups of rows, unless a stage declares that it mixes rows."""
    example = example_of(name)
    if example.offline:
        pytest.skip("it refuses an env")

    def make() -> EnvBase:
        return known_env(name, "arguments", ())

    results = []
    for base in (SerialEnv(3, make), SplitEnv((1, 2), make)):
        try:
            rollout, _ = rolled_out(base, name, "arguments", True, False)
        except TdxError as error:
            rollout = type(error)
        results.append(rollout)
    assert isinstance(base, SplitEnv)
    runs_apart = plan_of(TransformedEnv(base, made(name, "arguments"))).why_stepwise == ""
    assert bool(base.chunks) == (runs_apart and isinstance(rollout, TensorDictBase))
    together, apart = results
    if isinstance(together, type) or isinstance(apart, type):
        assert together == apart
    else:
        assert_same(apart, together)
