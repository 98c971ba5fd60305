"""Large columns lie in huge pages, without visible effect."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase

import tdx
from tdx.core.transforms import kernels


@pytest.fixture(autouse=True)
def _all_columns_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_LARGE", 0)


def make(planned: bool = True, rows: int = 0, *stages: Any) -> Any:
    def single() -> tdx.EnvBase:
        return tdx.GymEnv("CartPole-v1")

    base = tdx.SerialEnv(rows, single) if rows else single()
    chain = stages or (tdx.CatFrames(4, dim=-1, in_keys=["observation"]),)
    env = tdx.TransformedEnv(base, tdx.Compose(*chain), planned=planned)
    env.set_seed(0)
    torch.manual_seed(0)
    return env


def rollout(steps: int = 8, planned: bool = True) -> TensorDictBase:
    data: TensorDictBase = make(planned).rollout(steps, break_when_any_done=False)
    return data


@pytest.mark.parametrize("rows", [0, 3])
@pytest.mark.parametrize(
    "stages",
    [
        (),
        (tdx.CatFrames(3, dim=-1, in_keys=["observation"], out_keys=["stack"]),),
        (tdx.TimeMaxPool(in_keys=["observation"], out_keys=["most"], T=3),),
        (
            tdx.CatFrames(2, dim=-1, in_keys=["observation"]),
            tdx.ObservationNorm(0.0, 2.0, in_keys=["observation"]),
            tdx.CatFrames(2, dim=-1, in_keys=["observation"], padding="constant"),
        ),
    ],
    ids=["in place", "own key", "maximum", "mapped in between"],
)
@pytest.mark.parametrize("steps", [1, 8, 60])
def test_rollouts_equal_single_steps(rows: int, stages: tuple[Any, ...], steps: int) -> None:
    planned, eager = (
        make(planned, rows, *(stage.clone() for stage in stages)).rollout(
            steps, break_when_any_done=False
        )
        for planned in (True, False)
    )
    assert bool((planned == eager).all())
    assert all(value.is_contiguous() for value in planned.values(True, True))
    if steps == 60:
        assert bool(planned["next", "done"].any())


@pytest.mark.parametrize("written", ["observation", ("next", "observation")])
def test_writing_to_one_leaves_the_other(written: Any) -> None:
    data, wanted = rollout(), rollout().clone()
    other: Any = "observation" if isinstance(written, tuple) else ("next", "observation")
    data[written][2:] += 1
    assert torch.equal(data[other], wanted[other])
    assert torch.equal(data[written][2:], wanted[written][2:] + 1)
    assert torch.equal(data[written][:2], wanted[written][:2])


def test_writing_to_an_array_of_one_leaves_the_other() -> None:
    data, wanted = rollout(), rollout().clone()
    data["next", "observation"].numpy()[:] = 0
    assert torch.equal(data["observation"], wanted["observation"])
    assert not data["next", "observation"].any()


def test_chunks_continue_their_columns() -> None:
    parts = list(make().iter_rollout(40, chunk_steps=3))
    assert bool((TensorDict.cat(parts) == rollout(40, planned=False)).all())
