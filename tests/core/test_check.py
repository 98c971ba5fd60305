"""check_env_specs names the stage that violates its spec."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDictBase

from tdx import (
    ArgumentError,
    Bounded,
    CartPoleEnv,
    ChainError,
    CheckError,
    Compose,
    Composite,
    DoubleToFloat,
    EnvBase,
    EnvError,
    InitTracker,
    ParallelEnv,
    PendulumEnv,
    RenameTransform,
    RewardScaling,
    RewardSum,
    SerialEnv,
    StepCounter,
    TensorSpec,
    Transform,
    TransformedEnv,
    Unbounded,
    check_env_specs,
)
from tdx.core.spec_check import find_spec_violations
from tests.envs.mocks import CountingEnv, FaultyEnv


class Declares(Transform):
    """Stage that declares ``extra`` and, by default, writes it."""

    def __init__(self, writes: bool = True, declares: bool = True, on_reset: bool = True) -> None:
        super().__init__()
        self.writes, self.declares, self.on_reset = writes, declares, on_reset

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        if self.writes:
            next_tensordict["extra"] = torch.ones(*next_tensordict.batch_size, 1)
        return next_tensordict

    def _reset(
        self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        return self._call(tensordict_reset) if self.on_reset else tensordict_reset

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        if not self.declares:
            return observation_spec
        spec = observation_spec.clone()
        spec.unlock_()
        spec["extra"] = Unbounded((*spec.shape, 1))
        return spec


class Maps(Transform):
    """Stage that maps ``observation`` with or without its spec."""

    def __init__(self, factor: float = 1.0, dtype: torch.dtype | None = None) -> None:
        super().__init__(in_keys=["observation"])
        self.factor, self.dtype = factor, dtype

    def _apply_transform(self, tensor: torch.Tensor) -> torch.Tensor:
        result = tensor * self.factor
        return result if self.dtype is None else result.to(self.dtype)


class Drops(Transform):
    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        return next_tensordict.exclude("reward")


class DoublesAction(Transform):
    """Stage that doubles the action in the inverse without changing the spec."""

    def __init__(self) -> None:
        super().__init__(in_keys_inv=["action"])

    def _inv_apply_transform(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor * 2


class Raises(Transform):
    def __init__(self, on: str) -> None:
        super().__init__(in_keys_inv=["action"])
        self.on = on

    def _fail(self, on: str, tensordict: TensorDictBase) -> TensorDictBase:
        if self.on == on:
            raise ZeroDivisionError("on purpose")
        return tensordict

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        return self._fail("a step", next_tensordict)

    def _reset(
        self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        return self._fail("a reset", tensordict_reset)

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self._fail("the inverse", tensordict)


def chain_of(*stages: Transform, env: EnvBase | None = None) -> TransformedEnv:
    return TransformedEnv(env or PendulumEnv(batch_size=[2]), Compose(*stages))


def blamed(env: TransformedEnv) -> list[tuple[str, Any, int | None, str | None]]:
    return [
        (found.code, found.key, found.stage, found.transform) for found in find_spec_violations(env)
    ]


@pytest.mark.parametrize(
    "env",
    [
        chain_of(),
        chain_of(StepCounter(3), RewardSum(), InitTracker(), Declares()),
        chain_of(RenameTransform(["observation"], ["seen"]), env=CartPoleEnv(batch_size=[2, 3])),
        TransformedEnv(chain_of(StepCounter(2)), Compose(Compose(RewardScaling(0.0, 2.0)))),
        chain_of(DoubleToFloat(), Declares(), env=CountingEnv()),
        chain_of(StepCounter(2, update_done=False)),
        chain_of(StepCounter(2, truncated_key="limit")),
    ],
    ids=str,
)
def test_valid_chain_passes(env: TransformedEnv) -> None:
    assert find_spec_violations(env, break_when_any_done="both") == []


class Terminates(Transform):
    """Stage that sets ``terminated`` but not ``done``."""

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        flag = torch.ones_like(next_tensordict["terminated"])
        return next_tensordict.set("terminated", flag)


def test_a_stage_that_terminates_without_done_is_found() -> None:
    findings = find_spec_violations(chain_of(Terminates()))
    assert {finding.identity for finding in findings} == {("done", "done")}


def test_a_declared_key_that_is_not_written_names_the_stage() -> None:
    env = chain_of(StepCounter(), Declares(writes=False), InitTracker())
    with pytest.raises(CheckError) as caught:
        check_env_specs(env)
    assert caught.value.where.stage == 1
    assert str(caught.value) == (
        "stage 1 (Declares), key 'extra': the spec declares it, but it is missing after a "
        "reset (write 'extra', or remove it from the spec)"
    )


def test_a_written_key_that_is_not_declared_names_the_stage() -> None:
    env = chain_of(StepCounter(), InitTracker(), Declares(declares=False))
    with pytest.raises(
        CheckError,
        match=r"^stage 2 \(Declares\), key 'extra': it exists after a reset, but no spec",
    ):
        check_env_specs(env)


def test_a_key_that_only_a_step_writes_is_found_at_the_reset() -> None:
    assert blamed(chain_of(Declares(on_reset=False))) == [("missing", "extra", 0, "Declares")]


def test_a_dropped_key_names_the_stage_and_no_later_one() -> None:
    env = chain_of(StepCounter(), Drops(), InitTracker())
    assert blamed(env) == [("missing", "reward", 1, "Drops")]


@pytest.mark.parametrize("batch", [SerialEnv, ParallelEnv])
def test_stages_inside_the_workers_are_named(batch: Any) -> None:
    def make() -> TransformedEnv:
        return TransformedEnv(CountingEnv(), Compose(StepCounter(), Maps(dtype=torch.float64)))

    with batch(2, make) as env:
        finding, *_ = find_spec_violations(env)
        assert (finding.stage, finding.transform, finding.key) == (1, "Maps", "observation")
        assert finding.message.startswith("in the env of worker 0: its dtype is torch.float64")
        outer, *_ = find_spec_violations(TransformedEnv(env, RewardSum()))
        assert (outer.stage, outer.key) == (None, "observation")
        assert outer.message.startswith("in the env of worker 0: stage 1 (Maps): its dtype")


@pytest.mark.parametrize(
    ("stage", "code"),
    [(Maps(dtype=torch.float64), "dtype"), (Maps(factor=100.0), "bounds")],
)
def test_a_wrong_dtype_or_value_names_the_stage(stage: Transform, code: str) -> None:
    env = chain_of(InitTracker(), stage.clone(), StepCounter())
    assert blamed(env) == [(code, "observation", 1, "Maps")]


def test_nan_names_the_stage_that_writes_it() -> None:
    class Spoils(Transform):
        def _apply_transform(self, tensor: torch.Tensor) -> torch.Tensor:
            return tensor * torch.nan

    spoils = Spoils(in_keys=["reward"])
    chain = chain_of(RewardScaling(0.0, 2.0), spoils, RewardSum(), env=CountingEnv())
    assert blamed(chain) == [("nan", "reward", 1, "Spoils")]


def test_violation_of_the_env_is_not_attributed_to_a_stage() -> None:
    class LyingEnv(CountingEnv):
        def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
            return super()._step(tensordict).set("extra", torch.ones(1))

    assert blamed(chain_of(StepCounter(), InitTracker(), env=LyingEnv())) == [
        ("undeclared", "extra", None, None)
    ]


def test_an_action_that_the_env_does_not_take_names_the_stage() -> None:
    env = chain_of(InitTracker(), DoublesAction(), StepCounter())
    findings = find_spec_violations(env, seed=0)
    assert [(found.code, found.key, found.phase, found.stage) for found in findings] == [
        ("bounds", "action", "inverse", 1)
    ]


def test_stages_of_nested_envs_are_counted_from_the_inside() -> None:
    inner = chain_of(StepCounter(), InitTracker())
    env = TransformedEnv(inner, Compose(Declares(writes=False)))
    assert blamed(env) == [("missing", "extra", 2, "Declares")]
    inner = chain_of(StepCounter(), Declares(writes=False))
    env = TransformedEnv(inner, Compose(InitTracker()))
    assert blamed(env) == [("missing", "extra", 1, "Declares")]


@pytest.mark.parametrize("on", ["a step", "a reset", "the inverse"])
def test_a_transform_that_raises_is_named(on: str) -> None:
    env = chain_of(StepCounter(), Raises(on))
    with pytest.raises(ChainError) as caught:
        check_env_specs(env)
    step = "" if on == "a reset" else ", step 0"
    assert str(caught.value) == (
        f"stage 1 (Raises){step}: it raised ZeroDivisionError in {on}: on purpose"
        " (correct the stage; --debug shows the traceback)"
    )
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_error_of_tdx_keeps_its_message_and_gets_its_stage() -> None:
    env = TransformedEnv(CountingEnv(), Compose(StepCounter(), lambda tensordict: None))
    with pytest.raises(ArgumentError, match=r"^stage 1 \(CallableTransform\): the function"):
        check_env_specs(env)


def test_error_of_the_env_is_not_attributed_to_a_stage() -> None:
    message = r"^step 0, env FaultyEnv: the env raised ValueError in step"
    with pytest.raises(EnvError, match=message):
        check_env_specs(chain_of(StepCounter(), env=FaultyEnv("raise", at=1)))


def test_declared_bounds_of_a_stage_are_checked() -> None:
    class Narrows(Maps):
        def _transform_spec(self, spec: Any) -> TensorSpec:
            return Bounded(-0.1, 0.1, spec.shape, dtype=spec.dtype)

    assert blamed(chain_of(Narrows())) == [("bounds", "observation", 0, "Narrows")]


class Scales(Transform):
    """Stage that changes an entry in place."""

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        next_tensordict["observation"].mul_(1e3)
        return next_tensordict

    def _reset(
        self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        return self._call(tensordict_reset)


def test_in_place_change_is_attributed_to_its_stage() -> None:
    env = TransformedEnv(PendulumEnv(), Compose(StepCounter(), Scales(), RewardSum()))
    violations = find_spec_violations(env)
    found = {(each.stage, each.key) for each in violations if each.code == "bounds"}
    assert found == {(1, "observation")}


def test_an_entry_is_checked_where_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[TensorSpec] = []
    why_not_in = TensorSpec.why_not_in

    def record(spec: TensorSpec, value: Any) -> str | None:
        checked.append(spec)
        return why_not_in(spec, value)

    monkeypatch.setattr(TensorSpec, "why_not_in", record)

    def count(stages: int) -> int:
        checked.clear()
        env = TransformedEnv(PendulumEnv(), Compose())
        for index in range(stages):
            env.append_transform(RewardSum(out_keys=[f"sum_{index}"]))
        find_spec_violations(env)
        return len(checked)

    # Each further stage adds the same number of entries to check.
    assert count(12) - count(8) == count(8) - count(4)
