"""Building the env of a pipeline, and validating a pipeline without a step."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tdx.core.transforms import Compose
from tdx.foundation.errors import (
    ArgumentError,
    ChainError,
    CodeNotAllowedError,
    DeviceError,
    EnvError,
    EnvNotFoundError,
    KeyNotFoundError,
    MissingPackageError,
    TdxError,
    UnknownNameError,
    WorkerTimeoutError,
)
from tdx.pipeline import (
    EnvConfig,
    Pipeline,
    build_checked_env,
    check_arguments,
    parse_stage,
    read_pipeline,
    validate,
)

CODE = """
    import gymnasium
    from tdx import PendulumEnv
    from tdx.transforms import Transform

    def native(**kwargs):
        return PendulumEnv(**kwargs)

    def gym():
        return gymnasium.make("CartPole-v1")

    def nothing():
        return 3

    def broken():
        raise RuntimeError("no physics today\\nmore")

    class Double(Transform):
        def __init__(self, key="reward", fail=False):
            super().__init__(in_keys=[key])
            if fail:
                raise RuntimeError("cannot be made")

        def _call(self, td):
            return td.set(self.in_keys[0], td[self.in_keys[0]] * 2)

    class BadSpecs(Double):
        def transform_output_spec(self, output_spec):
            raise ZeroDivisionError("no spec")

    one = Double()
"""


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "users_code.py").write_text(textwrap.dedent(CODE))
    (tmp_path / "users_broken.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop("users_code", None)


def the_error(pipeline: Pipeline, allow_code: bool = False) -> TdxError:
    """Error of building, which validation returns too."""
    with pytest.raises(TdxError) as caught:
        build_checked_env(pipeline, allow_code)
    assert str(validate(pipeline, allow_code)[0]) == str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    ("env", "batch_size"),
    [
        (EnvConfig("Pendulum-v1"), []),
        (EnvConfig("Pendulum-v1", {"g": 5.0}, num_envs=2), [2]),
        (EnvConfig("Pendulum-v1", num_envs=1), [1]),
        (EnvConfig("Pendulum-v1", num_envs=2, batching="serial", device="cpu"), [2]),
        (EnvConfig("Pendulum-v1", num_envs=2, batching="parallel"), [2]),
        (EnvConfig("tdx/Pendulum"), []),
        (EnvConfig("tdx/CartPole", num_envs=3), [3]),
        (EnvConfig("tdx/CartPole", num_envs=3, batching="serial"), [3]),
    ],
)
def test_envs(env: EnvConfig, batch_size: list[int]) -> None:
    pipeline = Pipeline.of(env, "StepCounter(max_steps=2)", "RewardSum")
    built = build_checked_env(pipeline)
    try:
        assert list(built.batch_size) == batch_size
        rollout = built.rollout(5)
        assert list(rollout.batch_size) == [*batch_size, 2]
        assert "episode_reward" in rollout.keys()
    finally:
        built.close()


def test_a_hung_worker_times_out_after_worker_timeout() -> None:
    config = EnvConfig("Pendulum-v1", num_envs=1, batching="parallel", worker_timeout=0.001)
    with pytest.raises(WorkerTimeoutError, match=r"within 0\.001 s") as caught:
        build_checked_env(Pipeline.of(config)).close()
    assert "worker_timeout" in str(caught.value.hint)
    patient = replace(config, batching="serial")
    build_checked_env(Pipeline.of(patient)).close()


def test_the_seed_fixes_the_first_observation() -> None:
    pipeline = Pipeline.of(EnvConfig("Pendulum-v1", seed=3))
    first, second = (build_checked_env(pipeline).reset()["observation"] for _ in range(2))
    other = build_checked_env(replace(pipeline, env=replace(pipeline.env, seed=4))).reset()[
        "observation"
    ]
    assert torch.equal(first, second)
    assert not torch.equal(first, other)


def test_values_are_resolved() -> None:
    env = build_checked_env(
        Pipeline.of(
            "Pendulum-v1",
            "Compose(RewardClipping(-1, 1), RewardSum)",
            "ObservationNorm([0.0, 1.0, 2.0], 2, in_keys=['observation'])",
        )
    )
    compose, norm = env.stages
    assert isinstance(compose, Compose)
    assert [type(stage).__name__ for stage in compose] == ["RewardClipping", "RewardSum"]
    assert norm.state_dict()["loc"].tolist() == [0.0, 1.0, 2.0]
    assert env.output_spec["full_reward_spec", "reward"].high == 1.0


@pytest.mark.parametrize(
    ("stages", "kind", "message"),
    [
        (
            ["RewardSum", "CatFrames(4, -1, in_keys=['pixels'])"],
            KeyNotFoundError,
            "stage 1 (CatFrames), key 'pixels': a reset of the env at this stage has no key"
            " 'pixels' (existing keys: done, episode_reward, observation, terminated, truncated;"
            " select one with in_keys)",
        ),
        (
            ["RewardScaling(0, 1, in_keys=['rewad'])"],
            KeyNotFoundError,
            "stage 0 (RewardScaling), key 'rewad': the env at this stage has no key 'rewad'"
            " (did you mean reward? existing keys: reward, done, observation, terminated,"
            " truncated)",
        ),
        (
            [
                "RenameTransform(['observation'], [('state', 'angle')])",
                "ObservationNorm(0, 1, in_keys=['state.angle'])",
            ],
            KeyNotFoundError,
            "stage 1 (ObservationNorm), key 'state.angle': the env at this stage has no key"
            " 'state.angle' (a nested key is a tuple: ('state', 'angle'))",
        ),
        (
            [
                "RenameTransform(['observation'], [('state', 'angle')])",
                "ObservationNorm(0, 1, in_keys=[('state', 'angel')])",
            ],
            KeyNotFoundError,
            "stage 1 (ObservationNorm), key 'state.angel': the env at this stage has no key"
            " 'state.angel' (did you mean ('state', 'angle')? existing keys: ('state', 'angle'),"
            " done, reward, terminated, truncated)",
        ),
        (
            ["ObservationNorm(0, 1, in_keys=['observation'], out_keys=['reward'])"],
            ChainError,
            "stage 0 (ObservationNorm), key 'reward': this key is both observation and reward"
            " after this stage (choose another out-key)",
        ),
        (
            ["InitTracker", "RewardClipping(3, 1)"],
            ArgumentError,
            "stage 1 (RewardClipping): clamp_min (3.0) is above clamp_max (1.0) (swap the two)",
        ),
        (
            ["InitTracker", "StepCouter"],
            UnknownNameError,
            "stage 1 (StepCouter): unknown transform StepCouter (did you mean StepCounter?)",
        ),
    ],
)
def test_errors_in_specs(stages: list[str], kind: type[TdxError], message: str) -> None:
    error = the_error(Pipeline.of("Pendulum-v1", *stages))
    assert isinstance(error, kind)
    assert str(error) == message


def test_nothing_is_stepped(monkeypatch: pytest.MonkeyPatch) -> None:
    from tdx.envs import EnvBase

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("stepped")

    monkeypatch.setattr(EnvBase, "step", refuse)
    monkeypatch.setattr(EnvBase, "reset", refuse)
    assert validate(Pipeline.of("tdx/Pendulum", "StepCounter", "CatFrames(2, -1, ['x'])"))


def test_errors_have_the_line_of_the_file() -> None:
    text = "version: 1\nenv: Pendulum-v1\ntransforms:\n  - RewardSum\n  - {}\n"
    for stage in (
        "StepCouter",
        "StepCounter: {max_steps: a}",
        "RewardClipping: [2, 1]",
        "ObservationNorm: {loc: 0, scale: 1, in_keys: [x]}",
    ):
        error = the_error(read_pipeline(text.format(stage), "p.yaml"))
        assert str(error).startswith(f"p.yaml:5, stage 1 ({stage.partition(':')[0]})")


@pytest.mark.parametrize(
    ("env", "kind", "message"),
    [
        (EnvConfig("Pendulm-v1"), EnvNotFoundError, "no env of this id is registered"),
        (EnvConfig("tdx/Pendulm"), ArgumentError, "unknown tdx env"),
        (
            EnvConfig("Pendulum-v1", device="cuda:77"),
            DeviceError,
            "device cuda:77 is not available",
        ),
        (EnvConfig("Pendulum-v1", device="warp"), DeviceError, "device warp is not available"),
        (
            EnvConfig("Pendulum-v1", {"num_envs": 3}, num_envs=2),
            ArgumentError,
            "the env has no argument 'num_envs'",
        ),
        (EnvConfig("Pendulum-v1", num_envs=0), ArgumentError, "num_envs must be at least 1, got 0"),
    ],
)
def test_env_errors(env: EnvConfig, kind: type[TdxError], message: str) -> None:
    error = the_error(Pipeline(env))
    assert isinstance(error, kind)
    assert error.message == message
    assert error.hint
    assert error.where.env == env.id


@pytest.mark.usefixtures("code")
def test_code_is_not_imported_unless_allowed() -> None:
    for pipeline in (
        Pipeline.of("users_code:native"),
        Pipeline.of("users_code:CartPole-v1"),
        Pipeline.of("Pendulum-v1", "users_code:Double"),
        Pipeline.of("Pendulum-v1", "Compose('users_code:Double')"),
    ):
        error = the_error(pipeline)
        assert isinstance(error, CodeNotAllowedError)
        assert error.hint == "add --allow-code if you trust it"
    assert "users_code" not in sys.modules


@pytest.mark.usefixtures("code")
def test_code() -> None:
    native = EnvConfig("users_code:native", num_envs=2, batching="serial")
    env = build_checked_env(Pipeline.of(native, "users_code:Double(key='reward')"), allow_code=True)
    assert list(env.rollout(3).batch_size) == [2, 3]
    gym = build_checked_env(Pipeline.of("users_code:gym", "users_code:one"), allow_code=True)
    assert gym.rollout(2)["next", "reward"].flatten().tolist() == [2.0, 2.0]


@pytest.mark.usefixtures("code")
@pytest.mark.parametrize(
    ("pipeline", "kind", "message"),
    [
        (Pipeline.of("users_code:nativ"), UnknownNameError, "users_code has no nativ"),
        (Pipeline.of("no_such_module:x"), MissingPackageError, "no module no_such_module"),
        (
            Pipeline.of("users_broken:x"),
            EnvError,
            "importing users_broken failed: ZeroDivisionError: division by zero",
        ),
        (
            Pipeline.of("users_code:nothing"),
            EnvError,
            "nothing() returned an object of type int, which cannot be the env of a chain"
            " or a rollout",
        ),
        (
            Pipeline.of("users_code:broken"),
            EnvError,
            "broken() raised RuntimeError: no physics today (users_code.py:16)",
        ),
        (
            Pipeline.of(EnvConfig("users_code:native", num_envs=2)),
            ArgumentError,
            "the factory creates one env, not a vector of envs",
        ),
        (
            Pipeline.of("Pendulum-v1", "users_code:Double(fail=True)"),
            ChainError,
            "users_code:Double cannot be created: RuntimeError: cannot be made",
        ),
        (
            Pipeline.of("Pendulum-v1", "users_code:Double(kye='a')"),
            ArgumentError,
            "users_code:Double does not take these arguments: got the unknown argument kye",
        ),
        (
            Pipeline.of("Pendulum-v1", "users_code:Double('missing')"),
            KeyNotFoundError,
            "the env at this stage has no key 'missing'",
        ),
        (
            Pipeline.of("Pendulum-v1", "RewardSum", "users_code:BadSpecs"),
            ChainError,
            "its specs cannot be computed: ZeroDivisionError: no spec",
        ),
        (
            Pipeline.of("Pendulum-v1", "users_code:one", "users_code:one"),
            ChainError,
            "this instance of Double is already part of a chain",
        ),
    ],
)
def test_code_that_fails(pipeline: Pipeline, kind: type[TdxError], message: str) -> None:
    error = the_error_of_code(pipeline)
    assert isinstance(error, kind)
    assert error.message == message
    if pipeline.transforms:
        assert error.where.stage == len(pipeline.transforms) - 1


def the_error_of_code(pipeline: Pipeline) -> TdxError:
    with pytest.raises(TdxError) as caught:
        build_checked_env(pipeline, allow_code=True)
    return caught.value


def test_validate_returns_all_errors() -> None:
    pipeline = Pipeline.of("Pendulum-v1", "StepCouter", "StepCounter(max_steps='a', b=1)")
    assert [error.where.stage for error in check_arguments(pipeline)] == [0, 1, 1]
    pipeline = pipeline.with_stages(parse_stage("RewardSum"))
    assert validate(pipeline) == []
