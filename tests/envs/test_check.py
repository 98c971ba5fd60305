"""What check_env_specs finds in an env without a chain."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from tensordict import NonTensorData, TensorDict, TensorDictBase

import tdx
from tdx import (
    ArgumentError,
    Bounded,
    CheckError,
    Composite,
    EnvBase,
    EnvError,
    GymEnv,
    NonTensor,
    SerialEnv,
    Unbounded,
    check_env_specs,
)
from tdx.core.spec_check import find_spec_violations
from tests.envs.mocks import CountingEnv, FaultyEnv, TwoGroupsEnv, WideEnv, WordsEnv

Change = Callable[[TensorDictBase], Any]


class ChangedEnv(CountingEnv):
    """Counting env that modifies the results of its reset or step."""

    def __init__(
        self,
        reset: Change | None = None,
        step: Change | None = None,
        batch_size: tuple[int, ...] = (),
        stop: int = 100,
    ) -> None:
        super().__init__(stop, batch_size)
        self.change_reset, self.change_step = reset, step

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        result = super()._reset(tensordict, **kwargs)
        if self.change_reset is not None:
            self.change_reset(result)
        return result

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        result = super()._step(tensordict)
        if self.change_step is not None:
            self.change_step(result)
        return result


@pytest.mark.parametrize("flag", ["done", "terminated", "truncated"])
def test_flags_that_contradict_each_other_are_found(flag: str) -> None:
    def corrupt(result: TensorDictBase) -> None:
        for name in ("done", "terminated", "truncated"):
            result[name] = torch.tensor([name == flag])

    findings = find_spec_violations(ChangedEnv(step=corrupt))
    assert [finding.identity for finding in findings] == [("done", "done")]


def only(env: EnvBase, **kwargs: Any) -> tuple[str, Any, str]:
    findings = find_spec_violations(env, **kwargs)
    assert len(findings) == 1, findings
    return findings[0].code, findings[0].key, findings[0].phase


@pytest.mark.parametrize(
    "env",
    [
        CountingEnv(),
        CountingEnv(2, (4,)),
        CountingEnv(2, (2, 3)),
        TwoGroupsEnv(),
        WordsEnv(),
        WideEnv(3, extra=True),
        SerialEnv(2, CountingEnv),
        SerialEnv(2, [partial(WideEnv, 2), partial(WideEnv, 3)]),
        SerialEnv(2, [partial(WideEnv, 2), partial(WideEnv, 3, extra=True)]),
    ],
    ids=lambda env: f"{type(env).__name__}{tuple(env.batch_size)}",
)
def test_valid_env_passes(env: EnvBase) -> None:
    assert find_spec_violations(env, break_when_any_done="both") == []
    check_env_specs(env, seed=0)


@pytest.mark.parametrize(
    ("reset", "step", "expected"),
    [
        (lambda td: td.pop("observation"), None, ("missing", "observation", "reset")),
        (None, lambda td: td.pop("observation"), ("missing", "observation", "step")),
        (lambda td: td.set("extra", torch.ones(1)), None, ("undeclared", "extra", "reset")),
        (None, lambda td: td.set("extra", torch.ones(1)), ("undeclared", "extra", "step")),
        (
            None,
            lambda td: td.set("a", TensorDict(b=torch.ones(1))),
            ("undeclared", ("a", "b"), "step"),
        ),
        (
            None,
            lambda td: td.set("observation", torch.ones(2, dtype=torch.int64)),
            ("shape", "observation", "step"),
        ),
        (
            None,
            lambda td: td.set("observation", torch.ones(1)),
            ("dtype", "observation", "step"),
        ),
        (
            None,
            lambda td: td.set("observation", NonTensorData("text")),
            ("dtype", "observation", "step"),
        ),
        (lambda td: td.set("done", torch.ones(1).bool()), None, ("done", "done", "reset")),
        (
            None,
            lambda td: td.set("terminated", ~td["done"]),
            ("done", "done", "step"),
        ),
        (None, lambda td: td.set("reward", torch.ones(1).double()), ("dtype", "reward", "step")),
    ],
)
def test_a_violation_is_reported_once_with_its_key(
    reset: Change | None, step: Change | None, expected: tuple[str, Any, str]
) -> None:
    assert only(ChangedEnv(reset, step)) == expected


def test_the_first_violation_is_raised_with_the_number_of_the_others() -> None:
    env = ChangedEnv(
        reset=lambda td: td.set("first", torch.ones(1)),
        step=lambda td: td.set("second", torch.ones(1)),
    )
    with pytest.raises(CheckError) as caught:
        check_env_specs(env)
    assert str(caught.value) == (
        "key 'first': it exists after a reset, but no spec declares it; 1 more violation "
        "(declare 'first', or do not write it)"
    )


def test_batched_envs_may_give_different_examples_of_text() -> None:
    def make(word: str) -> EnvBase:
        env = WordsEnv()
        env.observation_spec = Composite(
            observation=env.observation_spec["observation"],
            word=NonTensor(shape=(), example_data=word),
        )
        return env

    check_env_specs(SerialEnv(2, [partial(make, "north"), partial(make, "south")]))


def test_a_dtype_may_be_left_unchecked() -> None:
    env = ChangedEnv(step=lambda td: td.set("observation", torch.ones(1)))
    assert find_spec_violations(env, check_dtype=False) == []


def test_values_outside_the_bounds_are_reported_with_the_bounds() -> None:
    env = ChangedEnv()
    env.observation_spec = Composite(observation=Bounded(0, 2, (1,), dtype=torch.int64))
    findings = find_spec_violations(env)
    assert [finding.code for finding in findings] == ["bounds"]
    assert findings[0].message == "it holds 3 after a rollout, outside [0, 2]"


def test_rounding_beyond_a_bound_is_accepted() -> None:
    env = ChangedEnv(
        reset=lambda td: td.set("observation", torch.full((1,), 1.0000001)),
        step=lambda td: td.set("observation", torch.full((1,), 1.0000001)),
    )
    env.observation_spec = Composite(observation=Bounded(-1.0, 1.0, (1,)))
    assert find_spec_violations(env) == []


def test_nan_is_outside_any_bounds() -> None:
    env = ChangedEnv(
        reset=lambda td: td.set("observation", torch.full((1,), torch.nan)),
        step=lambda td: td.set("observation", torch.full((1,), torch.nan)),
    )
    env.observation_spec = Composite(observation=Bounded(-1.0, 1.0, (1,)))
    assert only(env) == ("bounds", "observation", "reset")


def test_nan_without_bounds_is_found_and_is_no_error() -> None:
    env = ChangedEnv(
        reset=lambda td: td.set("observation", torch.full((1,), torch.nan)),
        step=lambda td: td.set("observation", torch.full((1,), torch.nan)),
    )
    env.observation_spec = Composite(observation=Unbounded((1,)))
    assert only(env) == ("nan", "observation", "reset")
    check_env_specs(env)


def test_a_late_violation_is_found_in_the_rollout() -> None:
    def late(tensordict: TensorDictBase) -> None:
        if int(tensordict["observation"]) == 3:
            tensordict["late"] = torch.ones(1)

    findings = find_spec_violations(ChangedEnv(step=late), return_contiguous=False)
    assert [(found.code, found.key, found.phase) for found in findings] == [
        ("undeclared", "late", "rollout")
    ]


def test_varying_shapes_are_valid_if_the_spec_allows_them() -> None:
    def grow(tensordict: TensorDictBase) -> None:
        tensordict["observation"] = torch.ones(int(tensordict["observation"]))

    env = ChangedEnv(step=grow, reset=lambda td: td.set("observation", torch.ones(1)))
    env.observation_spec = Composite(observation=Unbounded((-1,)))
    assert find_spec_violations(env) == []
    assert only(env, return_contiguous=True) == ("unstackable", None, "rollout")


class ForgetfulEnv(CountingEnv):
    """Env that ignores the mask of a reset and writes into it."""

    def reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        result = super().reset(None)
        if tensordict is None:
            return result
        mask = tensordict.pop("_reset", None)
        if mask is not None:
            mask.fill_(True)
        return tensordict.update(result)


def test_a_partial_reset_of_other_rows_is_found() -> None:
    findings = find_spec_violations(ForgetfulEnv(100, (3,)))
    assert {(finding.code, finding.key) for finding in findings} == {
        ("partial_reset", "_reset"),
        ("partial_reset", "observation"),
    }


class RandomActionEnv(CountingEnv):
    def rand_action(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        return super().rand_action(tensordict).set("action", torch.full((2,), 5.0))


def test_an_action_outside_its_spec_is_found() -> None:
    codes = {finding.identity for finding in find_spec_violations(RandomActionEnv())}
    assert ("action", "action") in codes


class FakeEnv(CountingEnv):
    def fake_tensordict(self) -> TensorDictBase:
        return super().fake_tensordict().exclude(("next", "reward")).set("ghost", torch.ones(1))


def test_a_wrong_fake_tensordict_is_found() -> None:
    findings = find_spec_violations(FakeEnv())
    assert [finding.identity for finding in findings] == [("fake", "ghost"), ("fake", "reward")]


def test_the_env_can_be_reset_with_a_given_tensordict() -> None:
    given = TensorDict(context=torch.ones(1))
    check_env_specs(CountingEnv(), tensordict=given)
    assert list(given.keys()) == ["context"]


def test_the_seed_makes_the_check_repeat_itself() -> None:
    drawn: list[torch.Tensor] = []
    env = ChangedEnv(step=lambda td: drawn.append(td["reward"]))
    check_env_specs(env, seed=3)
    first, drawn[:] = list(drawn), []
    check_env_specs(env, seed=3)
    assert torch.equal(torch.cat(first), torch.cat(drawn))


def test_check_does_not_change_the_global_generator() -> None:
    before = torch.get_rng_state()
    check_env_specs(CountingEnv())
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(("fault", "phase"), [("raise", "step"), ("reset-raise", "reset")])
def test_an_env_that_raises_is_named_with_the_phase(fault: str, phase: str) -> None:
    with pytest.raises(
        EnvError, match=rf"env FaultyEnv: the env raised ValueError in {phase}: raised on purpose "
    ) as caught:
        check_env_specs(FaultyEnv(fault, at=1))
    assert isinstance(caught.value.__cause__, ValueError)


def test_unknown_break_condition_is_an_error() -> None:
    with pytest.raises(ArgumentError, match="break_when_any_done"):
        check_env_specs(CountingEnv(), break_when_any_done="sometimes")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["Pendulum-v1", "CartPole-v1", "FrozenLake-v1", "Blackjack-v1"])
@pytest.mark.parametrize("num_envs", [None, 2])
def test_real_envs_pass(name: str, num_envs: int | None) -> None:
    env = GymEnv(name) if num_envs is None else GymEnv(name, num_envs=num_envs)
    check_env_specs(env, break_when_any_done="both")
    env.close()


def test_public_name() -> None:
    assert tdx.check_env_specs is check_env_specs
