"""Running statistics, ends, resets, batch shapes and burn-in against the oracle's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

import tdx
from tests.parity.twins import (
    ORACLE,
    Stages,
    assert_same_specs,
    assert_same_values,
    chained,
    fixed_rollout,
)
from tests.transforms.envs import Adding, sequences

pytestmark = pytest.mark.filterwarnings("ignore")


def upright(tensordict: TensorDictBase) -> Tensor:
    reached: Tensor = tensordict["observation"][..., 0] > 0.3
    return reached


def leaning(tensordict: TensorDictBase) -> Tensor:
    reached: Tensor = tensordict["observation"][..., :1].abs() > 0.05
    return reached


EXACT: dict[str, tuple[str, Stages]] = {
    "Terminate": ("Pendulum-v1", lambda m: [m.TerminateTransform(upright)]),
    "Terminate-flags": ("CartPole-v1", lambda m: [m.TerminateTransform(leaning)]),
    "Terminate-never": ("CartPole-v1", lambda m: [m.TerminateTransform(lambda td: False)]),
    "Terminate-not-done": (
        "Pendulum-v1",
        lambda m: [m.TerminateTransform(upright, write_done=False)],
    ),
    "ExpandAs": ("Pendulum-v1", lambda m: [m.ExpandAs("reward", "observation")]),
    "ExpandAs-key": ("CartPole-v1", lambda m: [m.ExpandAs("reward", "observation", "wide")]),
    "ExpandAs-flag": ("CartPole-v1", lambda m: [m.ExpandAs("done", "observation", "wide")]),
}


def test_what_a_partial_reset_leaves_of_the_old_episode() -> None:
    def stages(m: Any) -> list[Any]:
        return [m.ExpandAs("reward", "observation", ("group", "wide"))]

    roots = []
    for m in (tdx, ORACLE):
        env = chained(m, "CartPole-v1", stages, 2)
        root = m.step_mdp(env.step(env.reset().set("action", torch.tensor([[0, 1], [1, 0]]))))
        root["_reset"] = torch.tensor([[True], [False]])
        roots.append(env.reset(root)["group", "wide"])
    assert torch.equal(*roots)
    assert roots[0].tolist() == [[0.0] * 4, [1.0] * 4]


@pytest.mark.parametrize("workers", [None, 2], ids=["single", "serial"])
@pytest.mark.parametrize("name", EXACT)
def test_specs_and_rollouts(name: str, workers: int | None) -> None:
    env_id, stages = EXACT[name]
    ours, theirs = (chained(m, env_id, stages, workers) for m in (tdx, ORACLE))
    assert_same_specs(ours, theirs)
    assert_same_values(fixed_rollout(ours, 30), fixed_rollout(theirs, 30))


@pytest.mark.parametrize("size", [[1], [1, 1]])
def test_batch_sizes(size: list[int]) -> None:
    """Rollouts of a single env: the oracle reshapes neither reset masks nor every spec."""
    ours, theirs = (
        chained(
            m,
            "CartPole-v1",
            lambda m: [m.BatchSizeTransform(reshape_fn=lambda td: td.reshape(size))],
            None,
        )
        for m in (tdx, ORACLE)
    )
    assert_same_values(fixed_rollout(ours, 30), fixed_rollout(theirs, 30))


# VecNorm


@pytest.mark.parametrize("workers", [None, 2], ids=["single", "serial"])
@pytest.mark.parametrize("arguments", [{}, {"decay": 0.9, "eps": 1e-2}], ids=["default", "given"])
def test_running_statistics(arguments: dict[str, Any], workers: int | None) -> None:
    """Equal up to the oracle's rounding: it adds up in float32."""
    envs = [chained(m, "Pendulum-v1", lambda m: [], workers) for m in (tdx, ORACLE)]
    norms = [
        tdx.VecNorm(["observation", "reward"], **arguments),
        ORACLE.VecNorm(["observation", "reward"], **arguments),
    ]
    for env, norm in zip(envs, norms, strict=True):
        env.append_transform(norm)
    assert_same_specs(*envs)
    assert_same_values(steps(envs[0], 40), steps(envs[1], 40), rtol=1e-3, atol=2e-3)
    ours, theirs = norms
    for key in ("observation", "reward"):
        torch.testing.assert_close(ours.loc[key].float(), theirs.loc[key], rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(ours.scale[key].float(), theirs.scale[key], rtol=1e-3, atol=1e-3)


def steps(env: Any, count: int) -> TensorDictBase:
    """One rollout, whose reset is the only one: what comes before it would count too."""
    env.transform[0].freeze()
    env.set_seed(5, static_seed=True)
    if isinstance(env, tdx.TransformedEnv):
        env.reset()
    env.transform[0].unfreeze()
    generator = torch.Generator().manual_seed(3)

    def policy(tensordict: TensorDictBase) -> TensorDictBase:
        return tensordict.set(
            "action", 4 * torch.rand(env.action_spec.shape, generator=generator) - 2
        )

    rollout = env.rollout(count, policy)
    assert isinstance(rollout, TensorDictBase)
    return rollout


def test_statistics_of_stored_data() -> None:
    stored = TensorDict(observation=torch.randn(20, 3) * 3 + 1, batch_size=[20])
    ours, theirs = (m.VecNorm(["observation"])(stored.clone()) for m in (tdx, ORACLE))
    assert_same_values(ours, theirs, rtol=1e-5, atol=1e-5)


# BurnInTransform


class Module(Adding, TensorDictModuleBase):  # type: ignore[misc]
    """``Adding`` as the oracle wants a module to be."""


@pytest.mark.parametrize("burn_in", [0, 1, 4])
@pytest.mark.parametrize("out_keys", [None, ["hidden"]])
def test_burn_in(burn_in: int, out_keys: Any) -> None:
    ours, theirs = (
        m.BurnInTransform([Module()], burn_in, out_keys)(sequences()) for m in (tdx, ORACLE)
    )
    assert ours.batch_size == theirs.batch_size
    assert_same_values(ours, theirs)
