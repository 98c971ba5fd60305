"""Schedulers of a sampler's parameters."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict

from tdx import (
    LambdaScheduler,
    LazyTensorStorage,
    LinearScheduler,
    ParameterScheduler,
    PrioritizedSampler,
    RandomSampler,
    SchedulerList,
    StepScheduler,
    TensorDictPrioritizedReplayBuffer,
)
from tdx.foundation.errors import ArgumentError


def sampler(**arguments: Any) -> PrioritizedSampler:
    return PrioritizedSampler(**{"max_capacity": 9, "alpha": 0.8, "beta": 0.5, **arguments})


def values(scheduler: ParameterScheduler, steps: int) -> list[float]:
    result = []
    for _ in range(steps):
        scheduler.step()
        result.append(float(getattr(scheduler.sampler, scheduler.param_name)))
    return result


def test_values_of_each_scheduler() -> None:
    assert values(LinearScheduler(sampler(), "alpha", 0.0, 4), 5) == pytest.approx(
        [0.6, 0.4, 0.2, 0, 0]
    )
    step = StepScheduler(sampler(), "beta", 0.3, 2, "additive", max_value=1.0)
    assert values(step, 5) == pytest.approx([0.5, 0.8, 0.8, 1.0, 1.0])
    assert values(StepScheduler(sampler(), "beta", 0.5, min_value=0.2), 3) == [0.25, 0.2, 0.2]
    assert values(LambdaScheduler(sampler(), "beta", lambda n: 1 / n), 2) == [0.5, 0.25]


def test_a_tensor_stays_a_tensor() -> None:
    beta: Any = torch.tensor(0.5)
    scheduler = StepScheduler(sampler(beta=beta), "beta", 2.0, max_value=0.75)
    scheduler.step()
    assert torch.equal(scheduler.sampler.beta, torch.tensor(0.75))
    assert beta == 0.5


def test_a_buffer_samples_with_the_new_exponent() -> None:
    buffer = TensorDictPrioritizedReplayBuffer(
        alpha=1.0, beta=1.0, storage=LazyTensorStorage(4), batch_size=400
    )
    buffer.extend(TensorDict(a=torch.arange(4), batch_size=[4]))
    buffer.update_priority(torch.arange(4), torch.tensor([1.0, 0.0, 0.0, 0.0]))
    assert set(buffer.sample()["a"].tolist()) == {0}
    SchedulerList([LinearScheduler(buffer, "alpha", 0.0, 1)]).step()
    assert set(buffer.sample()["a"].tolist()) == {0, 1, 2, 3}


def test_a_restored_scheduler_continues() -> None:
    first = LinearScheduler(sampler(), "beta", 1.0, 5)
    values(first, 2)
    second = LinearScheduler(sampler(), "beta", 1.0, 5)
    second.load_state_dict(first.state_dict())
    assert values(second, 1) == pytest.approx([0.8])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LinearScheduler(RandomSampler(), "beta", 1.0, 5), "RandomSampler has no attribu"),
        (lambda: LinearScheduler("buffer", "beta", 1.0, 5), "got str"),  # type: ignore[arg-type]
        (lambda: LinearScheduler(sampler(), "beta", 1.0, 0), "num_steps must be at least 1"),
        (lambda: StepScheduler(sampler(), "beta", n_steps=0), "n_steps must be at least 1"),
        (lambda: StepScheduler(sampler(), "beta", mode="both"), "unknown mode 'both'"),
    ],
)
def test_invalid_arguments_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make()
