"""Every transform against the oracle's: specs, and rollouts of the same actions, value by value."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch

import tdx
from tests.parity.twins import (
    ORACLE,
    Doubles,
    Stages,
    assert_same_specs,
    assert_same_values,
    chained,
    fixed_rollout,
)
from tests.programs import sampled
from tests.transforms.contract.examples import NAMES, example_of

pytestmark = pytest.mark.filterwarnings("ignore")

LIBRARIES: tuple[Any, Any] = (tdx, ORACLE)

PENDULUM: dict[str, Stages] = {
    "ActionScaling": lambda m: [m.ActionScaling()],
    "ActionScaling-unit": lambda m: [m.ActionScaling(standard_normal=False)],
    "ActionScaling-given": lambda m: [m.ActionScaling(loc=0.5, scale=2.0)],
    "ActionScaling-renamed": lambda m: [m.ActionScaling(["action"], ["normal"])],
    "CatFrames": lambda m: [m.StepCounter(7), m.CatFrames(4, dim=-1, in_keys=["observation"])],
    "CatFrames-constant": lambda m: [
        m.StepCounter(7),
        m.CatFrames(3, -1, ["observation"], ["stack"], padding="constant", padding_value=0.25),
    ],
    "DoubleToFloat": lambda m: [m.DoubleToFloat()],
    "InitTracker": lambda m: [m.StepCounter(7), m.InitTracker()],
    "InitTracker-named": lambda m: [m.StepCounter(7), m.InitTracker("first")],
    "ObservationNorm": lambda m: [m.ObservationNorm(0.1, 2.0, in_keys=["observation"])],
    "ObservationNorm-standard": lambda m: [
        m.ObservationNorm(0.1, 2.5, ["observation"], ["normal"], standard_normal=True)
    ],
    "ObservationNorm-tensor": lambda m: [
        m.ObservationNorm(torch.tensor([0.0, 1.0, 2.0]), torch.full((3,), 0.3), ["observation"])
    ],
    "RenameTransform": lambda m: [
        m.RenameTransform(["observation", "reward"], ["seen", ("sums", "reward")])
    ],
    "RenameTransform-inverse": lambda m: [
        m.RenameTransform(["observation"], ["seen"], ["action"], [("moves", "action")])
    ],
    "RenameTransform-copy": lambda m: [
        m.RenameTransform(["observation"], ["seen"], create_copy=True)
    ],
    "RenameTransform-thrice": lambda m: [
        m.RenameTransform(["observation"], ["a"]),
        m.RenameTransform(["a"], ["b"]),
        m.RenameTransform(["b"], ["observation"]),
    ],
    "RewardClipping": lambda m: [m.RewardClipping(-2.0, -0.5)],
    "RewardClipping-key": lambda m: [m.RewardClipping(-2.0, 0.0, ["reward"], ["clipped"])],
    "RewardScaling": lambda m: [m.RewardScaling(0.5, 0.1)],
    "RewardScaling-standard": lambda m: [m.RewardScaling(-8.0, 4.0, standard_normal=True)],
    "RewardSum": lambda m: [m.StepCounter(7), m.RewardSum()],
    "RewardSum-key": lambda m: [m.StepCounter(7), m.RewardSum(["reward"], ["total"])],
    "StepCounter": lambda m: [m.StepCounter()],
    "StepCounter-max": lambda m: [m.StepCounter(max_steps=6)],
    "StepCounter-names": lambda m: [
        m.StepCounter(max_steps=6, step_count_key="count", update_done=False)
    ],
    "TensorDictPrimer": lambda m: [
        m.StepCounter(7),
        m.TensorDictPrimer(h=m.Unbounded((2,)), expand_specs=True),
    ],
    "TensorDictPrimer-value": lambda m: [
        m.StepCounter(7),
        m.TensorDictPrimer(
            {"h": m.Unbounded((2,)), ("n", "c"): m.Bounded(0, 9, (1,), dtype=torch.int64)},
            default_value={"h": 1.5, ("n", "c"): 4},
            expand_specs=True,
        ),
    ],
    "chain-6": lambda m: [
        m.ObservationNorm(0.1, 2.0, in_keys=["observation"]),
        m.RewardScaling(0.0, 0.1),
        m.RewardClipping(-1, 1),
        m.RewardSum(),
        m.InitTracker(),
        m.CatFrames(4, dim=-1, in_keys=["observation"]),
    ],
}
CARTPOLE: dict[str, Stages] = {
    name: PENDULUM[name]
    for name in (
        *("DoubleToFloat", "InitTracker", "ObservationNorm", "RenameTransform", "RewardScaling"),
        *("RewardSum", "StepCounter", "StepCounter-max", "TensorDictPrimer", "chain-6"),
        *("CatFrames", "CatFrames-constant", "RewardClipping"),
    )
}
CASES = [
    # By turns one env and a batch: the contract tests compare a batch with its rows.
    pytest.param(env_id, stages, workers, id=f"{env_id}-{name}")
    for env_id, cases, turns in (
        ("Pendulum-v1", PENDULUM, (None, 2)),
        ("CartPole-v1", CARTPOLE, (2, None)),
    )
    for (name, stages), workers in zip(cases.items(), itertools.cycle(turns), strict=False)
]


@pytest.mark.parametrize(("env_id", "stages", "workers"), CASES)
@sampled(3)
def test_specs_and_rollouts(env_id: str, stages: Stages, workers: int | None) -> None:
    ours, theirs = (chained(m, env_id, stages, workers) for m in (tdx, ORACLE))
    assert_same_specs(ours, theirs)
    assert_same_values(fixed_rollout(ours, 30), fixed_rollout(theirs, 30))


@pytest.fixture(scope="module", params=["Pendulum-v1", "CartPole-v1"])
def processes(request: pytest.FixtureRequest) -> Iterator[list[Any]]:
    """Two workers of an env in each of the libraries."""
    batches = [
        # A fork has imported both libraries already.
        m.ParallelEnv(2, partial(m.GymEnv, request.param), mp_start_method="fork")
        for m in LIBRARIES
    ]
    yield batches
    for batch in batches:
        batch.close()


AROUND = ("CatFrames", "InitTracker", "RewardSum", "StepCounter", "chain-6")
"""What depends on resets of single envs; the rest cannot tell workers from a batch."""


@pytest.mark.parametrize("name", AROUND)
def test_around_worker_processes(name: str, processes: list[Any]) -> None:
    ours, theirs = (
        m.TransformedEnv(batch, m.Compose(*PENDULUM[name](m)))
        for m, batch in zip(LIBRARIES, processes, strict=True)
    )
    assert_same_specs(ours, theirs)
    assert_same_values(fixed_rollout(ours, 20), fixed_rollout(theirs, 20))


# Doubles


@pytest.mark.parametrize(
    "stages",
    [
        lambda m: [m.DoubleToFloat()],
        lambda m: [m.DoubleToFloat(["observation"])],
        lambda m: [m.DoubleToFloat(["observation"], ["short"])],
        lambda m: [m.DoubleToFloat(in_keys_inv=["action"])],
        lambda m: [m.DoubleToFloat(in_keys=["observation"], in_keys_inv=["action"])],
        lambda m: [
            m.DoubleToFloat(),
            m.ActionScaling(),
            m.ObservationNorm(0.0, 3.0, ["observation"]),
        ],
    ],
    ids=["all", "one", "out-key", "inverse", "both", "chain"],
)
def test_doubles(stages: Stages) -> None:
    ours, theirs = (
        m.TransformedEnv(m.GymWrapper(Doubles()), m.Compose(*stages(m))) for m in (tdx, ORACLE)
    )
    assert_same_specs(ours, theirs)
    assert_same_values(fixed_rollout(ours, 12), fixed_rollout(theirs, 12))


# Signatures

OWN_DEFAULTS = {
    ("ObservationNorm", "eps"),
    ("R3MTransform", "in_keys"),
    ("SqueezeTransform", "dim"),
    ("UnsqueezeTransform", "dim"),
}
OWN_PARAMETERS = {
    ("NextObservationDelta", "out_keys"),
    ("SqueezeTransform", "allow_positive_dim"),
}


@pytest.mark.parametrize("name", NAMES)
def test_signatures(name: str) -> None:
    """The oracle's parameters in its order and with its defaults; it may have newer ones."""
    if example_of(name).no_twin is not None:
        assert not hasattr(ORACLE, name)
        return
    ours, theirs = (inspect.signature(getattr(m, name).__init__).parameters for m in (tdx, ORACLE))
    shared = {each: ours[each] for each in ours if (name, each) not in OWN_PARAMETERS}
    assert [each for each in theirs if each in ours] == list(shared)
    for each, parameter in shared.items():
        assert parameter.kind == theirs[each].kind, each
        if (name, each) not in OWN_DEFAULTS:
            assert parameter.default == theirs[each].default, each
