"""Joins, limits, targets and counters against the oracle's, value by value."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from tensordict import TensorDict

import tdx
from tests.parity.twins import (
    ORACLE,
    Actions,
    Doubles,
    Stages,
    assert_same_values,
    chained,
    fixed_rollout,
    leaves,
)
from tests.programs import sampled


def cubed(value: torch.Tensor) -> torch.Tensor:
    return value**3


pytestmark = pytest.mark.filterwarnings("ignore")

COPY = (["observation"], ["copy"])

PENDULUM: dict[str, Stages] = {
    "CatTensors": lambda m: [m.CatTensors(["observation"], "vector")],
    "CatTensors-several": lambda m: [
        m.RenameTransform(*COPY, create_copy=True),
        m.CatTensors(["observation", "copy"], "vector", del_keys=False),
    ],
    "CatTensors-unsorted": lambda m: [
        m.RenameTransform(*COPY, create_copy=True),
        m.ObservationNorm(1.0, 2.0, ["copy"]),
        m.CatTensors(["observation", "copy"], "observation", sort=False),
    ],
    "CatTensors-counter": lambda m: [
        m.StepCounter(7),
        m.CatTensors(["observation", "step_count"], "vector", del_keys=False),
    ],
    "ClipTransform": lambda m: [
        m.ClipTransform(["observation", "reward"], ["clipped", "reward"], low=-1, high=0.25)
    ],
    "ClipTransform-low": lambda m: [m.ClipTransform(["observation"], low=0.0)],
    "ClipTransform-inverse": lambda m: [m.ClipTransform(in_keys_inv=["action"], high=0.5)],
    "SignTransform": lambda m: [m.SignTransform(["observation", "reward"])],
    "SignTransform-inverse": lambda m: [m.SignTransform(in_keys_inv=["action"])],
    "TargetReturn": lambda m: [m.StepCounter(7), m.TargetReturn(10.0)],
    "TargetReturn-constant": lambda m: [
        m.StepCounter(7),
        m.TargetReturn(10.0, "constant", ["reward"], ["goal"]),
    ],
    "TimeMaxPool": lambda m: [m.StepCounter(7), m.TimeMaxPool(T=3)],
    "TimeMaxPool-one": lambda m: [m.TimeMaxPool(["observation"], ["highest"])],
    "LineariseRewards": lambda m: [m.LineariseRewards(["reward"], ["total"], weights=[0.3])],
    "UnaryTransform": lambda m: [
        m.UnaryTransform(["observation", "reward"], ["cubed", "reward"], fn=cubed),
    ],
    "UnaryTransform-inverse": lambda m: [
        m.UnaryTransform([], [], ["action"], ["action"], fn=torch.clone, inv_fn=torch.neg),
    ],
    "FiniteTensorDictCheck": lambda m: [m.FiniteTensorDictCheck()],
    "gSDENoise": lambda m: [m.gSDENoise(expand_specs=True)],
    "RemoveEmptySpecs": lambda m: [m.RemoveEmptySpecs()],
    "Stack": lambda m: [
        m.RenameTransform(*COPY, create_copy=True),
        m.Stack(["observation", "copy"], "both", dim=-2),
    ],
}


def assert_same_shapes(ours: Any, theirs: Any) -> None:
    """The same keys with the same shapes and dtypes; bounds may be narrower here."""
    for part in ("observation", "reward", "done", "action"):
        mine, wanted = (leaves(getattr(env, f"full_{part}_spec")) for env in (ours, theirs))
        assert {key: (spec.shape, spec.dtype) for key, spec in mine.items()} == {
            key: (spec.shape, spec.dtype) for key, spec in wanted.items()
        }


@pytest.mark.parametrize("workers", [None, 2], ids=["single", "serial"])
@pytest.mark.parametrize("name", PENDULUM)
@sampled(3)
def test_rollouts(name: str, workers: int | None) -> None:
    ours, theirs = (chained(m, "Pendulum-v1", PENDULUM[name], workers) for m in (tdx, ORACLE))
    if name != "CatTensors-counter":  # there the oracle declares the dtype of the first entry
        assert_same_shapes(ours, theirs)
    assert_same_values(fixed_rollout(ours, 30), fixed_rollout(theirs, 30))


def test_vectors_of_an_env_are_found() -> None:
    """Of a single env: in a batch the oracle takes the batch dim for a feature."""
    ours, theirs = (
        chained(m, "Pendulum-v1", lambda m: [m.InitTracker(), m.CatTensors()], None)
        for m in (tdx, ORACLE)
    )
    assert_same_values(fixed_rollout(ours, 5), fixed_rollout(theirs, 5))
    assert ours.transform[1].in_keys == theirs.transform[1].in_keys


@pytest.mark.parametrize(
    "arguments",
    [
        {"in_keys": ["b", "a"]},
        {"in_keys": ["b", "a"], "sort": False, "del_keys": False},
        {"in_keys": ["a", ("n", "c")], "out_key": ("n", "d")},
        {"in_keys": ["a", "b"], "dim": -2, "unsqueeze_if_oor": True},
        {"in_keys": ["a", "b"], "dim": 1, "unsqueeze_if_oor": True},
    ],
)
def test_stored_entries_are_concatenated(arguments: dict[str, Any]) -> None:
    data = TensorDict(a=torch.rand(3), b=torch.rand(3), n=TensorDict(c=torch.rand(3)))
    ours, theirs = (m.CatTensors(**arguments)(data.clone()) for m in (tdx, ORACLE))
    assert_same_values(ours, theirs)


def test_noise_of_given_sizes_has_their_spec() -> None:
    """Its values are random."""
    stages: Stages = lambda m: [m.gSDENoise(3, 1, expand_specs=True)]  # noqa: E731
    assert_same_shapes(*(chained(m, "Pendulum-v1", stages, 2) for m in (tdx, ORACLE)))


def test_groups_without_entries() -> None:
    data = TensorDict({"a": {"b": {"c": {}}}, "d": {"e": {}, "f": torch.ones(3)}})
    ours, theirs = (m.RemoveEmptySpecs()(data.clone()) for m in (tdx, ORACLE))
    assert set(ours.keys(True)) == set(theirs.keys(True)) == {"d", ("d", "f")}


def test_stacked_groups_and_their_parts() -> None:
    agents = {name: {"seen": torch.rand(3), "map": torch.rand(2, 4)} for name in ("a", "b")}
    data = TensorDict(agents | {"rest": torch.rand(1)})
    for kwargs in ({}, {"dim": 0, "allow_positive_dim": True}, {"del_keys": False}):
        stages = [m.Stack(["a", "b"], "team", "team", ["a", "b"], **kwargs) for m in (tdx, ORACLE)]
        ours, theirs = (stage(data.clone()) for stage in stages)
        assert_same_values(ours, theirs)
        assert_same_values(stages[0].inv(ours), stages[1].inv(theirs))


@pytest.mark.parametrize("place", [{}, {"top": 2, "left": 1}, {"h": 4, "left": 6}, {"top": 6}])
def test_crops(place: dict[str, int]) -> None:
    image = torch.rand(2, 3, 9, 10)
    ours, theirs = (m.Crop(5, **place)(TensorDict(pixels=image)) for m in (tdx, ORACLE))
    assert_same_values(ours, theirs)


@pytest.mark.parametrize("weights", [None, [0.5, -2.0, 0.1]])
def test_objectives(weights: Any) -> None:
    data = TensorDict(reward=torch.randn(5, 3), batch_size=[5])
    ours, theirs = (m.LineariseRewards(["reward"], weights=weights) for m in (tdx, ORACLE))
    assert_same_values(ours(data.clone()), theirs(data.clone()))
    low, high = torch.tensor([-1.0, 0.0, 2.0]), torch.tensor([1.0, 3.0, 2.5])
    mine, wanted = (
        transform.transform_reward_spec(m.Composite(reward=m.Bounded(low, high)))["reward"]
        for transform, m in ((ours, tdx), (theirs, ORACLE))
    )
    torch.testing.assert_close(mine.low, wanted.space.low)
    torch.testing.assert_close(mine.high, wanted.space.high)


@pytest.mark.parametrize("workers", [None, 2], ids=["single", "serial"])
def test_numbers_of_episodes(workers: int | None) -> None:
    """From the first number on: the libraries reset a different number of times before."""
    rollouts = []
    for m in (tdx, ORACLE):
        env = chained(m, "Pendulum-v1", lambda m: [m.StepCounter(3), m.TrajCounter()], workers)
        numbers = fixed_rollout(env, 10)
        numbers = numbers.select("traj_count", ("next", "traj_count"))
        rollouts.append(numbers.apply(partial(torch.sub, other=numbers["traj_count"].min())))
    assert_same_values(rollouts[0], rollouts[1])


def test_random_lengths() -> None:
    """The same first lengths from the same seed; later ones do not depend on the device here."""
    rollouts = []
    for m in (tdx, ORACLE):
        env = chained(m, "Pendulum-v1", lambda m: [m.StepCounter()], 3)
        env.set_seed(5, static_seed=True)
        env.reset()
        env.append_transform(m.RandomTruncationTransform(3, 9))
        torch.manual_seed(0)
        rollout = env.rollout(60, Actions(env), break_when_any_done=False)
        rollouts.append(rollout.select(("next", "truncated"), ("next", "done"), "step_count"))
    assert_same_values(rollouts[0], rollouts[1])


def steps_of_episodes(batch: tuple[int, ...], steps: int) -> TensorDict:
    torch.manual_seed(0)
    size = [*batch, steps]
    done = torch.rand(*size, 1) < 0.2
    following = {
        "observation": torch.rand(*size, 3),
        "reward": torch.rand(*size, 1),
        "done": done,
        "terminated": done,
    }
    entries = {"observation": torch.rand(*size, 3), "action": torch.rand(*size, 2)}
    return TensorDict({**entries, "next": following}, size).auto_batch_size_(len(size))


@pytest.mark.parametrize("batch", [(), (3,)], ids=str)
@pytest.mark.parametrize("arguments", [{}, {"n_steps": 1}, {"n_steps": 5, "gamma": 0.5}])
def test_steps_look_ahead(batch: tuple[int, ...], arguments: dict[str, Any]) -> None:
    """Written in one piece, and in several: the oracle returns nothing where it only waits."""
    arguments = {"n_steps": 3, "gamma": 0.9, **arguments}
    data = steps_of_episodes(batch, 30)
    for split in (30, 10, 7, 2):
        ours, theirs = (m.MultiStepTransform(**arguments) for m in (tdx, ORACLE))
        for part in data.split(split, len(batch)):
            mine, wanted = ours.inv(part), theirs.inv(part)
            if wanted is None:
                assert not mine.shape[-1]
                continue
            assert_same_values(mine, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("done_key", ["done", None])
@pytest.mark.parametrize("size", [1, 4])
def test_chunks_of_actions(size: int, done_key: Any) -> None:
    data = steps_of_episodes((3,), 12)
    ours, theirs = (m.ActionChunkTransform(size, done_key=done_key) for m in (tdx, ORACLE))
    assert_same_values(ours(data.clone()), theirs(data.clone()))


@pytest.mark.parametrize("workers", [None, 2], ids=["single", "serial"])
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"decay": 0.9, "eps": 1e-2},
        {"decay": 1.0},
        {"decay": 0.9, "reduce_batch_dims": True},
        {"decay": 0.9, "in_keys": ["observation"], "stateful": False},
    ],
    ids=str,
)
def test_statistics_of_each_env(arguments: dict[str, Any], workers: int | None) -> None:
    """In float64, in which the oracle averages too, apart from a correction in float32."""
    rollouts = []
    for m in (tdx, ORACLE):
        make = partial(doubles_of, m)
        env = m.TransformedEnv(make() if workers is None else m.SerialEnv(workers, make))
        env.set_seed(5, static_seed=True)
        if m is tdx:
            env.reset()
        env.append_transform(m.VecNormV2(**{"in_keys": ["observation", "reward"], **arguments}))
        rollout = env.rollout(40, Actions(env), break_when_any_done=False)
        # The first values have no variance, so rounding decides what the scale is.
        rollouts.append(rollout[..., 4:].contiguous())
    assert_same_values(rollouts[0], rollouts[1], rtol=5e-4, atol=1e-4)


def doubles_of(m: Any) -> Any:
    return m.GymWrapper(Doubles())


class Videos:
    """A logger that keeps what it is given."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

    def log_video(self, **kwargs: Any) -> None:
        self.calls.append(kwargs)


@pytest.mark.parametrize("workers", [None, 3], ids=["single", "serial"])
@pytest.mark.parametrize(
    "arguments", [{}, {"skip": 3, "fps": 7, "center_crop": 20}, {"max_frames": 2}], ids=str
)
def test_videos(arguments: dict[str, Any], workers: int | None) -> None:
    loggers = []
    for m in (tdx, ORACLE):
        logger = Videos()
        env = chained(m, "CartPole-v1", lambda m: [], workers, from_pixels=True, pixels_only=False)
        env.set_seed(5, static_seed=True)
        if m is tdx:
            env.reset()
        env.append_transform(m.VideoRecorder(logger, "run", **arguments))
        env.rollout(6, Actions(env), break_when_any_done=False)
        env.transform.dump()
        env.transform.dump(suffix="empty")
        env.rollout(2, Actions(env), break_when_any_done=False)
        env.transform.dump(suffix="more")
        loggers.append(logger)
    ours, theirs = loggers
    assert len(ours.calls) == len(theirs.calls) == 2
    for mine, wanted in zip(ours.calls, theirs.calls, strict=True):
        assert torch.equal(mine.pop("video"), wanted.pop("video"))
        assert mine == wanted


@pytest.mark.parametrize(
    "shape", [(5, 3, 8, 9), (5, 8, 9, 3), (5, 1, 8, 9), (8, 9), (2, 5, 8, 9, 3)]
)
@pytest.mark.parametrize("make_grid", [None, True])
def test_videos_of_stored_images(shape: tuple[int, ...], make_grid: Any) -> None:
    images = torch.randint(256, shape, dtype=torch.uint8)
    ours, theirs = (m.VideoRecorder(None, "run", make_grid=make_grid) for m in (tdx, ORACLE))
    for recorder in (ours, theirs):
        recorder(TensorDict(pixels=images))
    assert torch.equal(torch.stack(ours.obs), torch.stack(theirs.obs))


@pytest.mark.parametrize("seed", [None, "salt"])
def test_hashes(seed: Any) -> None:
    data = TensorDict(text="north", number=torch.tensor(3))
    ours, theirs = (m.Hash(["text"], ["hash"], seed=seed)(data.clone()) for m in (tdx, ORACLE))
    assert torch.equal(ours["hash"], theirs["hash"])


def test_rendered_images() -> None:
    """Of a single env: in a batch the oracle declares a tensor and writes other objects."""
    rollouts = []
    for m in (tdx, ORACLE):
        env = chained(m, "CartPole-v1", lambda m: [], None, render_mode="rgb_array")
        env.append_transform(m.PixelRenderTransform())
        rollouts.append(fixed_rollout(env, 4))
    assert_same_values(rollouts[0], rollouts[1])
