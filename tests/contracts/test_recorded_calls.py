"""Contracts replay each stage on its recorded calls, while the env inside runs along."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ale_py
import cv2
import gymnasium as gym
import minigrid  # noqa: F401 - registers its envs
import numpy as np
import pytest
import stable_baselines3.common.atari_wrappers as atari
import torch
from gymnasium import spaces, wrappers
from minigrid.wrappers import FullyObsWrapper, ImgObsWrapper, RGBImgPartialObsWrapper
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecFrameStack

import tdx
from tdx.contracts import ContractReport
from tdx.foundation.errors import ArgumentError, StorageError, TdxError
from tdx.inspection.values_report import inspect_values
from tests.contracts import envs as made
from tests.programs import exhaustive, sampled
from tests.stacks.torchrl.chains import make_chain
from tests.stacks.wrapper_recipes import ENVS, RECIPES, VECTOR_RECIPES, chosen, make_wrapped
from tests.transforms.contract.examples import made as made_transform
from tests.transforms.contract.examples import online, rows_of

gym.register_envs(ale_py)


def pong(
    *,
    noops: int = 4,
    skip: type[Any] | None = atari.MaxAndSkipEnv,
    lives: bool = True,
    fire: bool = True,
    warp: type[Any] = atari.WarpFrame,
    clip: bool = True,
    outer: Callable[[Any], Any] = lambda env: env,
) -> Any:
    """The usual stack of Atari, with sticky actions; each no-op is a frame to replay."""
    env: Any = gym.make("ALE/Pong-v5", frameskip=1)
    env = atari.NoopResetEnv(env, noops) if noops else env
    env = env if skip is None else skip(env)
    env = atari.EpisodicLifeEnv(env) if lives else env
    env = atari.FireResetEnv(env) if fire else env
    env = atari.ClipRewardEnv(warp(env)) if clip else warp(env)
    return wrappers.FrameStackObservation(outer(env), 4)


class Nearest(atari.WarpFrame):
    """Resamples by another method than training."""

    def observation(self, frame: Any) -> Any:
        gray = cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY)
        return cv2.resize(gray, (84, 84), interpolation=cv2.INTER_NEAREST)[:, :, None]


class LastFrame(atari.MaxAndSkipEnv):
    """Skips frames without the maximum over the last two."""

    def step(self, action: Any) -> Any:
        total = 0.0
        for _ in range(self._skip):
            frame, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            if terminated or truncated:
                break
        return frame, total, terminated, truncated, info


class ThreeFrames(atari.MaxAndSkipEnv):
    def __init__(self, env: Any) -> None:
        super().__init__(env, 3)


class Shifted(gym.ActionWrapper[Any, Any, Any]):
    """Passes on another action than the policy chose."""

    def action(self, action: Any) -> Any:
        return (action + 1) % 6


@pytest.fixture(scope="module")
def contract() -> tdx.Contract:
    return tdx.freeze(pong())


def differing(report: ContractReport) -> list[tuple[str, str, str | None]]:
    return [(each.kind, each.name, each.key) for each in report.differences]


@exhaustive
def test_stage_below_which_a_random_number_of_calls_is_made_is_not_random(
    contract: tdx.Contract,
) -> None:
    assert {each.name for each in contract.stages if each.random == "excluded"} == set()
    report = tdx.check_contract(pong(), contract)
    assert report.verdict == "same"
    assert report.coverage.values == report.coverage.all_values
    assert report.coverage.stages == report.coverage.all_stages


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (
            lambda: pong(skip=LastFrame, warp=Nearest),
            [("value", "LastFrame", "observation"), ("value", "Nearest", "observation")],
        ),
        (lambda: pong(fire=False), [("missing stage", "FireResetEnv", None)]),
        (lambda: pong(outer=Shifted), [("missing stage", "Shifted", "action")]),
    ],
    ids=["no maximum and nearest", "no fire", "another action"],
)
@exhaustive
def test_faults_of_an_atari_stack_are_named_where_they_are(
    contract: tdx.Contract,
    make: Callable[[], Any],
    expected: list[tuple[str, str, str | None]],
) -> None:
    assert differing(tdx.check_contract(make(), contract)) == expected


@exhaustive
def test_another_number_of_inner_calls_is_named(contract: tdx.Contract) -> None:
    report = tdx.check_contract(pong(skip=ThreeFrames), contract)
    assert {each.name for each in report.differences} == {"ThreeFrames"}
    texts = [each.message for each in (*report.differences, *report.follows)]
    assert any("it makes 3 instead of 4 inner calls" in text for text in texts)


@exhaustive
def test_stages_of_a_training_are_listed_apart(contract: tdx.Contract) -> None:
    def evaluation(**faults: Any) -> Any:
        return pong(noops=0, lives=False, clip=False, **faults)

    report = tdx.check_contract(evaluation(), contract, evaluation=True)
    assert report.verdict == "same"
    assert [each.name for each in report.training_only] == ["NoopResetEnv", "EpisodicLifeEnv"]
    plain = tdx.check_contract(evaluation(), contract)
    assert (plain.verdict, plain.differences) == ("different", ())
    faulty = tdx.check_contract(evaluation(warp=Nearest), contract)
    assert faulty.first is not None
    assert faulty.first.name == "Nearest"


@exhaustive
def test_env_in_use_and_a_new_one_are_the_same(contract: tdx.Contract) -> None:
    used = pong()
    used.reset(seed=3)
    for _ in range(40):
        used.step(2)
    assert tdx.check_contract(used, contract).same


@exhaustive
def test_contract_on_disk_has_the_calls(contract: tdx.Contract, tmp_path: Path) -> None:
    tdx.save_contract(contract, tmp_path / "c")
    loaded = tdx.load_contract(tmp_path / "c")
    report = tdx.check_contract(pong(warp=Nearest), loaded)
    assert differing(report) == [("value", "Nearest", "observation")]
    assert report.coverage.values == report.coverage.all_values


# Wrappers that read the env inside


@pytest.mark.parametrize(
    "make",
    [
        lambda: ImgObsWrapper(RGBImgPartialObsWrapper(gym.make("MiniGrid-Empty-5x5-v0"))),
        lambda: FullyObsWrapper(gym.make("MiniGrid-DoorKey-5x5-v0")),
        lambda: wrappers.AddRenderObservation(gym.make("CartPole-v1", render_mode="rgb_array")),
    ],
    ids=["MiniGrid frame", "MiniGrid grid", "rendered frame"],
)
@exhaustive
def test_wrapper_that_reads_the_env_inside_is_compared(make: Callable[[], Any]) -> None:
    report = tdx.check_contract(make(), tdx.freeze(make()))
    assert report.verdict == "same"
    assert report.coverage.values == report.coverage.all_values > 0


class Counting(gym.Wrapper[Any, Any, Any, Any]):
    """Adds the number of steps to the observation; counts from a given number."""

    def __init__(self, env: Any, first: int = 0) -> None:
        super().__init__(env)
        self.taken = 0
        self.offset = first * 10

    def reset(self, **kwargs: Any) -> Any:
        observation, info = self.env.reset(**kwargs)
        return observation + self.offset + self.taken, info

    def step(self, action: Any) -> Any:
        self.taken += 1
        observation, *rest = self.env.step(action)
        return observation + self.offset + self.taken, *rest


@exhaustive
def test_counters_of_an_episode_may_differ_and_settings_may_not() -> None:
    used = Counting(made.pendulum())
    used.reset(seed=0)
    used.step(np.zeros(1, np.float32))
    assert tdx.check_contract(Counting(made.pendulum()), tdx.freeze(used)).same
    assert used.taken == 1
    shifted = tdx.check_contract(Counting(made.pendulum(), first=1), tdx.freeze(used))
    assert shifted.first is not None
    assert shifted.first.name == "Counting"


# Random stages

_MODULE_GENERATOR = np.random.default_rng(0)


class HiddenNoise(gym.ObservationWrapper[Any, Any, Any]):
    """Adds noise of a generator that belongs to no object of the stack."""

    def observation(self, observation: Any) -> Any:
        return (observation + _MODULE_GENERATOR.normal(size=3)).astype(np.float32)


@exhaustive
def test_stages_after_a_random_one_are_compared() -> None:
    def make(scale: float) -> Any:
        noisy = HiddenNoise(made.pendulum())
        return made.Mapped(noisy, lambda value: (value * scale).astype(np.float32))

    contract = tdx.freeze(make(1.0))
    assert [each.random for each in contract.stages[-2:]] == ["excluded", None]
    report = tdx.check_contract(make(1.0), contract)
    assert report.verdict == "same"
    assert report.coverage.stages < report.coverage.all_stages
    assert report.coverage.values < report.coverage.all_values
    assert "HiddenNoise" in report.excluded[0]
    assert differing(tdx.check_contract(make(2.0), contract)) == [
        ("scale", "Mapped", "observation")
    ]


def test_stack_of_which_nothing_can_be_compared_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"the stack does not repeat itself.*HiddenNoise"):
        tdx.freeze(HiddenNoise(made.Pendulum64()))


def test_less_than_half_is_not_comparable() -> None:
    def make() -> Any:
        return tdx.TransformedEnv(
            tdx.GymEnv("Pendulum-v1"),
            tdx.CallableTransform(
                lambda data: data.set("observation", data["observation"] + hidden_noise())
            ),
        )

    def hidden_noise() -> float:
        return float(_MODULE_GENERATOR.normal())

    with pytest.raises(ArgumentError, match="compared 0 of"):
        tdx.freeze(make())


class Failing(gym.ObservationWrapper[Any, Any, Any]):
    """Fails in its fourth call."""

    calls = 0

    def observation(self, observation: Any) -> Any:
        self.calls += 1
        if self.calls > 3:
            raise ValueError("the camera is gone")
        return observation


@exhaustive
def test_stage_that_fails_while_it_is_recorded_or_replayed_is_named() -> None:
    with pytest.raises(TdxError, match=r"ValueError in a step: the camera is gone") as caught:
        tdx.freeze(Failing(made.pendulum()))
    assert (caught.value.where.stage, caught.value.where.transform) == (3, "Failing")
    report = tdx.check_contract(Failing(made.pendulum()), tdx.freeze(made.pendulum()))
    assert report.first is not None
    assert report.first.name == "Failing"
    assert "the camera is gone" in report.first.message


# Names


@exhaustive
def test_step_of_a_vec_env_counts_as_one_call() -> None:
    def make(stack: bool) -> Any:
        env = make_vec_env(made.pendulum, n_envs=2)
        return VecFrameStack(env, 2) if stack else env

    first = tdx.check_contract(make(False), tdx.freeze(make(True))).first
    assert first is not None
    assert "it changed 14 of 14 recorded calls" in first.message


class NewSpaces(gym.Env[Any, Any]):
    """Creates its spaces anew in each reset, and rewards two objectives."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-1, 1, (2,), np.float32)
        self._make_space()

    def _make_space(self) -> None:
        self.action_space = spaces.Discrete(100)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._make_space()
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        observation = np.full(2, action / 100, np.float32)
        return observation, np.array([1.0, action]), bool(action > 80), False, {}


def test_random_actions_follow_the_seed_if_each_reset_creates_the_space() -> None:
    def actions() -> list[Any]:
        report = inspect_values(NewSpaces(), steps=30, seed=0)
        (policy,) = (each for each in report.phases[-1].stages if each.kind == "policy")
        return [value.to_dict() for value in policy.values]

    assert actions() == actions()


@exhaustive
def test_reward_of_several_objectives_is_frozen() -> None:
    contract = tdx.freeze(Halved(NewSpaces()), compare=("observation", "reward"))
    report = tdx.check_contract(Halved(NewSpaces()), contract)
    assert report.same
    assert tdx.check_contract(Third(NewSpaces()), contract).verdict == "different"


class Halved(gym.ObservationWrapper[Any, Any, Any]):
    def observation(self, observation: Any) -> Any:
        return (observation / 2).astype(np.float32)


class Divided(Halved):
    """Does the same under another name."""


class Third(Halved):
    def observation(self, observation: Any) -> Any:
        return (observation / 3).astype(np.float32)


@exhaustive
def test_renamed_class_is_compared_with_the_one_at_its_place() -> None:
    contract = tdx.freeze(Halved(made.pendulum()))
    report = tdx.check_contract(Divided(made.pendulum()), contract)
    assert report.same
    assert "stage 3 (Divided) of the target stands for stage 3 (Halved) of the contract" in (
        report.notes
    )
    assert differing(tdx.check_contract(Third(made.pendulum()), contract)) == [
        ("scale", "Third", "observation")
    ]


def test_keys_with_dots_are_shown_as_users_write_them() -> None:
    names = ("observation.state", "observation.velocity")
    contract = tdx.freeze(made.Join(made.Arm(names=names), names))
    report = tdx.check_contract(
        made.Join(made.Arm(names=("observation.state", "other")), ("observation.state", "other")),
        contract,
    )
    texts = [each.sentence for each in (*report.differences, *report.follows)]
    assert any("'observation.velocity'" in text for text in texts)
    assert not any("%2E" in text for text in (*texts, *report.notes))


def test_hint_for_the_innermost_stage_names_a_place_that_exists() -> None:
    contract = tdx.freeze(Halved(made.Pendulum64()))
    first = tdx.check_contract(made.Pendulum64(), contract).first
    assert first is not None
    assert first.hint == "add Halved to the target, directly around the env"
    assert "it changed 14 of 14 recorded calls" in first.message


@exhaustive
def test_env_that_differs_is_named_before_the_stage_that_reads_it() -> None:
    def make(name: str) -> gym.Env[Any, Any]:
        return ImgObsWrapper(RGBImgPartialObsWrapper(gym.make(name, disable_env_checker=True)))

    contract = tdx.freeze(make("MiniGrid-DoorKey-5x5-v0"))
    report = tdx.check_contract(make("MiniGrid-Empty-5x5-v0"), contract)
    assert [each.name for each in report.differences] == [
        "MiniGrid-Empty-5x5-v0",
        "RGBImgPartialObsWrapper",
    ]
    assert report.first is not None
    assert "does not repeat its recorded results" in report.first.message
    assert not report.notes


@exhaustive
def test_stage_that_fails_because_another_is_missing_is_no_cause() -> None:
    class Pair(gym.ObservationWrapper[Any, Any, Any]):
        def __init__(self, env: gym.Env[Any, Any]) -> None:
            super().__init__(env)
            self.observation_space = spaces.Box(-np.inf, np.inf, (1, 3), np.float32)

        def observation(self, observation: Any) -> Any:
            return observation[None]

    def make(flat: bool) -> gym.Env[Any, Any]:
        env: gym.Env[Any, Any] = Pair(made.pendulum())
        env = wrappers.FlattenObservation(env) if flat else env
        return wrappers.NormalizeObservation(env)

    report = tdx.check_contract(make(False), tdx.freeze(make(True)))
    assert [each.name for each in report.differences] == ["FlattenObservation"]


@exhaustive
def test_argument_without_effect_on_the_values_names_no_key() -> None:
    def make(epsilon: float) -> gym.Env[Any, Any]:
        return wrappers.NormalizeObservation(made.pendulum(), epsilon)

    first = tdx.check_contract(make(2e-8), tdx.freeze(make(1e-8))).first
    assert first is not None
    assert (first.kind, first.key) == ("argument", None)


class Longer(gym.ObservationWrapper[Any, Any, Any]):
    """Appends a number to the observation."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float32)

    def observation(self, observation: Any) -> Any:
        return np.append(observation, np.float32(1))


@exhaustive
def test_missing_stage_that_changes_shapes_has_no_size() -> None:
    contract = tdx.freeze(Longer(made.pendulum()))
    first = tdx.check_contract(made.pendulum(), contract).first
    assert first is not None
    assert first.message == (
        "the target has no such stage; it changed 14 of 14 recorded calls and the shape of the "
        "observation from [3] to [4]"
    )
    assert first.size is None


@exhaustive
def test_missing_stage_of_dict_observations_has_the_size_of_its_change() -> None:
    def make(offset: float | None) -> gym.Env[Any, Any]:
        env = wrappers.TimeAwareObservation(made.pendulum(), flatten=False)
        if offset is None:
            return env

        def shift(observation: dict[str, Any]) -> dict[str, Any]:
            return {**observation, "obs": observation["obs"] + np.float32(offset)}

        return wrappers.TransformObservation(env, shift, env.observation_space)

    first = tdx.check_contract(make(None), tdx.freeze(make(2.0))).first
    assert first is not None
    assert "it changed 14 of 14 recorded calls" in first.message
    assert first.size == pytest.approx(2.0, rel=1e-5)


@exhaustive
def test_missing_reward_stage_names_the_reward() -> None:
    contract = tdx.freeze(wrappers.ClipReward(made.pendulum(), -0.01, 0.0), compare=("reward",))
    (missing,) = tdx.check_contract(made.pendulum(), contract).training_only
    assert missing.key == "reward"
    assert missing.size is not None
    assert missing.size > 0


# Vector envs


@exhaustive
def test_rows_that_the_target_lacks_are_not_missed() -> None:
    def make(count: int) -> Any:
        return VecFrameStack(make_vec_env(made.pendulum, n_envs=count), 3)

    contract = tdx.freeze(make(2))
    for count in (1, 2, 5):
        report = tdx.check_contract(make(count), contract)
        assert report.verdict == "same"
        assert report.coverage.values == report.coverage.all_values


def per_env(count: int, seed: int = 1, warm: int = 20, **settings: Any) -> gym.vector.VectorEnv:
    """Return a vector env in which each sub-env normalizes with statistics of its own."""

    def make() -> gym.Env[Any, Any]:
        env = wrappers.NormalizeObservation(made.pendulum(), **settings)
        env.reset(seed=seed)
        for _ in range(warm):
            env.step(np.zeros(1, np.float32))
        return env

    return gym.vector.SyncVectorEnv([make] * count)


@exhaustive
def test_statistics_of_the_sub_envs_that_both_have_are_compared() -> None:
    contract = tdx.freeze(per_env(2))
    for count in (1, 2, 3):
        assert tdx.check_contract(per_env(count), contract).same
        first = tdx.check_contract(per_env(count, seed=2), contract).first
        assert first is not None
        assert (first.kind, first.name, first.key) == (
            "value",
            "NormalizeObservation",
            "obs_rms.mean",
        )
    fresh = tdx.check_contract(per_env(3, warm=0), contract).first
    assert fresh is not None
    assert fresh.name == "NormalizeObservation"


@pytest.mark.filterwarnings("ignore:.*precision lowered by casting:UserWarning")
@exhaustive
def test_dtype_of_a_buffer_follows_from_the_stage_that_is_missing() -> None:
    def vector(cast: bool) -> Any:
        def make() -> gym.Env[Any, Any]:
            env = made.Pendulum64(np.float64)
            return wrappers.DtypeObservation(env, np.float32) if cast else env

        return gym.vector.SyncVectorEnv([make])

    report = tdx.check_contract(vector(False), tdx.freeze(vector(True)))
    assert differing(report) == [("missing stage", "DtypeObservation", "observation")]
    assert [each.name for each in report.follows] == ["SyncVectorEnv"]


# The law


_CHEAPER = {"Pong, preprocessed": "MiniGrid, image"}
"""Envs whose stacks have other tests, and what stands for their images here."""


# Gymnasium compares the bounds of float32 with the range of float64.
@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
@pytest.mark.parametrize(
    ("env_name", "name", "num_envs"),
    [
        pytest.param(
            _CHEAPER.get(env_name, env_name),
            name,
            num_envs,
            id=f"{env_name}-{name}",
            marks=exhaustive if number % 3 else (),
        )
        for recipes, num_envs in ((RECIPES, None), (VECTOR_RECIPES, 2))
        for env_name in ENVS
        for number, name in enumerate(chosen(recipes, env_name))
    ],
)
@sampled(3)
def test_every_stack_passes_its_own_contract(
    env_name: str, name: str, num_envs: int | None
) -> None:
    recipe = (RECIPES if num_envs is None else VECTOR_RECIPES)[name]

    def make() -> Any:
        return make_wrapped(recipe, env_name, num_envs)

    report = tdx.check_contract(make(), tdx.freeze(make(), steps=6))
    assert report.differences == ()
    assert report.verdict == "same"
    assert report.coverage.values == report.coverage.all_values


@sampled(3)
@pytest.mark.parametrize("name", online())
def test_every_transform_passes_its_own_contract(name: str) -> None:
    def make() -> Any:
        return tdx.TransformedEnv(rows_of(name, (2,)), made_transform(name))

    # Weights of encoders are drawn.
    torch.manual_seed(0)
    contract = tdx.freeze(make(), steps=6)
    torch.manual_seed(0)
    report = tdx.check_contract(make(), contract)
    assert report.differences == ()
    assert report.verdict == "same"


@sampled(3)
@pytest.mark.parametrize("seed", [0, 2, 3, 4, 5, 6, 7, 8])
def test_chain_of_torchrl_passes_its_own_contract(seed: int) -> None:
    report = tdx.check_contract(make_chain(seed), tdx.freeze(make_chain(seed), steps=6))
    assert report.differences == ()
    assert report.verdict == "same"


# Data from strangers


def _small_contract(folder: Path) -> dict[str, Any]:
    tdx.save_contract(tdx.freeze(Halved(made.Pendulum64()), steps=2), folder)
    document: dict[str, Any] = json.loads((folder / "calls.json").read_text())
    return document


def _write(folder: Path, document: dict[str, Any]) -> None:
    from tdx.contracts.storage import content_hash

    before = content_hash((folder / "calls.json").read_bytes())
    data = json.dumps(document).encode()
    (folder / "calls.json").write_bytes(data)
    text = (folder / "contract.yaml").read_text()
    assert before in text
    (folder / "contract.yaml").write_text(text.replace(before, content_hash(data)))


def _set_event(position: int, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        document["events"][1][position] = value

    return change


HOSTILE: dict[str, Callable[[dict[str, Any]], None]] = {
    "no calls": lambda document: document.update(events=[]),
    "unknown section": lambda document: document.update(code="import os"),
    "caller that comes later": _set_event(0, 1_000),
    "stage that does not exist": _set_event(1, 7),
    "row that does not exist": _set_event(2, 9),
    "unknown method": _set_event(3, "__reduce__"),
    "number of another type": _set_event(4, "1"),
    "result without its parts": _set_event(7, None),
    "unknown value": _set_event(7, {"object": "os.system"}),
    "array that does not exist": _set_event(7, {"array": 10_000}),
    "unknown argument of a reset": lambda document: document["events"][0].__setitem__(
        6, {"dict": [["command", "x"]]}
    ),
    "unknown dtype": lambda document: document["arrays"][0].update(dtype="object"),
    "huge array": lambda document: document["arrays"][0].update(shape=[2**40], packed=True),
    "rows": lambda document: document.update(rows=10**9),
    "stage of a form": lambda document: document["forms"].update({"99": ["env", False]}),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_calls_get_a_sentence(name: str, tmp_path: Path) -> None:
    document = _small_contract(tmp_path / "c")
    HOSTILE[name](document)
    _write(tmp_path / "c", document)
    with pytest.raises(StorageError):
        tdx.load_contract(tmp_path / "c")


@pytest.mark.parametrize("value", [{"float": "nan"}, "text", {"opaque": True}, {"tuple": []}])
def test_recorded_values_of_a_stranger_do_not_crash_the_check(value: Any, tmp_path: Path) -> None:
    document = _small_contract(tmp_path / "c")
    for event in document["events"]:
        event[7]["tuple"][0] = value
    _write(tmp_path / "c", document)
    report = tdx.check_contract(Halved(made.Pendulum64()), tdx.load_contract(tmp_path / "c"))
    assert not report.same


def test_contract_of_the_first_version_is_read(tmp_path: Path) -> None:
    _small_contract(tmp_path / "c")
    text = (tmp_path / "c" / "contract.yaml").read_text()
    lines = [line for line in text.splitlines() if not line.strip().startswith("calls:")]
    (tmp_path / "c" / "contract.yaml").write_text(
        "\n".join(lines).replace("contract: 2", "contract: 1") + "\n"
    )
    (tmp_path / "c" / "calls.json").unlink()
    contract = tdx.load_contract(tmp_path / "c")
    assert contract.recording is None
    report = tdx.check_contract(Halved(made.Pendulum64()), contract)
    assert (report.verdict, report.coverage.stages) == ("same", 1)
    assert tdx.check_contract(Third(made.Pendulum64()), contract).first is not None


class Silent(gym.Env[Any, Any]):
    """Says something in text."""

    observation_space = spaces.Dict({"text": spaces.Text(20), "number": spaces.Discrete(3)})
    action_space = spaces.Discrete(2)

    def __init__(self, word: str = "go") -> None:
        self.word = word

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return {"text": self.word, "number": 1}, {}

    def step(self, action: Any) -> Any:
        return {"text": self.word, "number": 2}, 0.0, False, False, {}


class Upper(gym.ObservationWrapper[Any, Any, Any]):
    def observation(self, observation: Any) -> Any:
        return {**observation, "text": observation["text"].upper()}


class Title(Upper):
    def observation(self, observation: Any) -> Any:
        return {**observation, "text": observation["text"].title()}


@exhaustive
def test_texts_are_compared() -> None:
    contract = tdx.freeze(Upper(Silent()))
    assert tdx.check_contract(Upper(Silent()), contract).same
    first = tdx.check_contract(Title(Silent()), contract).first
    assert first is not None
    assert (first.name, first.key) == ("Title", "text")
