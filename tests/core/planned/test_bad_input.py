"""Invalid input of a rollout: the steps before it are kept, and the error has its place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModule
from torch import Tensor, nn

from tdx import (
    ActionSequence,
    ArgumentError,
    EnvBase,
    EnvError,
)
from tdx.foundation.errors import TdxError
from tests.core.planned.failing import BAD_STEP, BASES, Constant, Plain, both, chained, until_error
from tests.core.planned.test_law import compared

# Envs


@pytest.mark.parametrize("stop", [False, True])
@pytest.mark.parametrize("base", sorted(BASES))
@pytest.mark.parametrize("acts", [False, True])
def test_an_env_that_raises_in_a_step(base: str, stop: bool, acts: bool) -> None:
    step = 1 if stop else BAD_STEP
    steps, error = both(
        lambda planned: chained(BASES[base](bad_step=step), planned),
        (lambda: Constant(0.5)) if acts else lambda: None,
        break_when_any_done=stop,
    )
    assert steps == step
    assert isinstance(error, EnvError)
    assert error.where.step == step
    assert error.hint
    assert "it broke" in error.message
    assert isinstance(error.__cause__, ValueError)


@pytest.mark.parametrize("chunk", [3, 4, 6])
@pytest.mark.parametrize("base", sorted(BASES))
@pytest.mark.parametrize("acts", [False, True])
def test_an_env_that_raises_in_a_reset(base: str, acts: bool, chunk: int) -> None:
    """The third reset fails, at the border of a chunk or within one."""
    steps, error = both(
        lambda planned: chained(BASES[base](bad_reset=2), planned),
        (lambda: Constant(0.5)) if acts else lambda: None,
        chunk=chunk,
    )
    assert steps == 6
    assert isinstance(error, EnvError)
    assert error.where.step == 6
    assert "no more episodes" in error.message


@pytest.mark.parametrize("planned", [True, False])
@pytest.mark.parametrize("base", sorted(BASES))
def test_interrupt_in_a_step_is_raised(base: str, planned: bool) -> None:
    env = chained(BASES[base](bad_step=BAD_STEP, error=KeyboardInterrupt), planned)
    parts, error = until_error(env)
    assert type(error) is KeyboardInterrupt
    assert [part.shape[-1] for part in parts] == [4]


def test_rollout_raises_what_iter_rollout_raises() -> None:
    for planned in (True, False):
        with pytest.raises(EnvError, match="it broke") as caught:
            chained(BASES["plain"](bad_step=2), planned).rollout(20)
        assert caught.value.where.step == 2


# Policies


class GoesBad(nn.Module):
    """Policy that fails after some steps."""

    def __init__(self, bad: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.bad, self.calls = bad, 0

    def forward(self, observation: Tensor) -> Any:
        self.calls += 1
        action = observation[..., :1] * 0
        return self.bad(action) if self.calls > BAD_STEP else action


def _raised(action: Tensor) -> Tensor:
    raise ZeroDivisionError("in the policy")


BAD_ACTIONS: dict[str, Callable[[Tensor], Any]] = {
    "wrong shape": lambda action: torch.cat((action, action), -1),
    "integers": lambda action: action.long(),
    "NaN": lambda action: action + float("nan"),
    "None": lambda action: None,
    "a text": lambda action: "left",
}


@pytest.mark.parametrize("base", sorted(BASES))
@pytest.mark.parametrize("bad", sorted(BAD_ACTIONS))
@pytest.mark.parametrize("named", [True, False], ids=["keys", "module"])
def test_policy_that_fails_later(base: str, bad: str, named: bool) -> None:
    def policy() -> Any:
        module = GoesBad(BAD_ACTIONS[bad])
        return TensorDictModule(module, ["observation"], ["action"]) if named else module

    steps, error = until_error(chained(BASES[base](), True), policy())
    other, expected = until_error(chained(BASES[base](), False), policy())
    assert sum(part.shape[-1] for part in steps) == BAD_STEP
    assert sum(part.shape[-1] for part in other) == BAD_STEP
    for ours, theirs in zip(steps, other, strict=True):
        compared(ours, theirs)
    if isinstance(expected, RuntimeError) and not isinstance(expected, TdxError):
        # TensorDict raises first; a note has the step.
        assert expected.__notes__ == [f"tdx: raised at step {BAD_STEP} of the rollout"]
        expected = error
    for each in (error, expected):
        assert isinstance(each, ArgumentError)
        assert each.where.step == BAD_STEP
        assert each.hint
        assert "\n" not in str(each)


@pytest.mark.parametrize("base", sorted(BASES))
def test_a_policy_that_raises(base: str) -> None:
    """The error of the policy is raised with the step."""
    steps, error = both(lambda planned: chained(BASES[base](), planned), lambda: GoesBad(_raised))
    assert steps == BAD_STEP
    assert type(error) is ZeroDivisionError
    assert error.__notes__ == [f"tdx: raised at step {BAD_STEP} of the rollout"]


def test_a_policy_without_an_action() -> None:
    def forgets(tensordict: TensorDictBase) -> TensorDictBase:
        return tensordict

    for policy in (forgets, TensorDictModule(nn.Identity(), ["observation"], ["acton"])):
        for planned in (True, False):
            parts, error = until_error(chained(BASES["plain"](), planned), policy)
            assert parts == []
            assert isinstance(error, ArgumentError)
            assert "action" in str(error)
            assert error.where.step == 0


def test_a_policy_that_returns_none() -> None:
    parts, error = until_error(chained(BASES["plain"](), True), lambda tensordict: None)
    assert parts == []
    assert isinstance(error, ArgumentError)
    assert "returned None" in str(error)
    assert error.where.step == 0


def test_a_callback_that_raises() -> None:
    def callback(env: EnvBase, tensordict: TensorDictBase) -> None:
        if tensordict["next", "observation"][..., 0] > 4:
            raise LookupError("enough")

    for planned in (True, False):
        env = chained(BASES["plain"](), planned)
        parts, error = until_error(env, callback=callback)
        assert [part.shape[-1] for part in parts] == [3]
        assert type(error) is LookupError
        assert error.__notes__ == ["tdx: raised at step 2 of the rollout"]


# Numbers of steps, and sizes of chunks


@pytest.mark.parametrize("steps", [0, -3, True, "3", 2.0, None])
def test_invalid_number_of_steps(steps: Any) -> None:
    env = chained(Plain(), True)
    with pytest.raises(ArgumentError, match="max_steps must be an integer of at least 1"):
        env.rollout(steps)
    if steps is not None:
        with pytest.raises(ArgumentError, match="max_steps must be an integer of at least 1"):
            env.iter_rollout(steps)


@pytest.mark.parametrize("planned", [True, False])
@pytest.mark.parametrize(
    "size",
    [
        *(
            {name: bad}
            for name in ("chunk_steps", "chunk_bytes")
            for bad in (0, -1, True, "8", 1.5)
        ),
        {"chunk_steps": 4, "chunk_bytes": 100},
    ],
    ids=str,
)
def test_invalid_chunk_sizes(size: dict[str, Any], planned: bool) -> None:
    """They are refused before the first chunk."""
    with pytest.raises(ArgumentError, match=r"chunk_(steps|bytes)"):
        chained(Plain(), planned).iter_rollout(10, **size)


def test_a_chunk_of_a_byte_is_one_step() -> None:
    parts = list(chained(Plain(), True).iter_rollout(3, chunk_bytes=1, break_when_any_done=False))
    assert [part.shape[0] for part in parts] == [1, 1, 1]


# Sequences of actions


def test_a_sequence_that_is_too_short() -> None:
    steps, error = both(
        lambda planned: chained(Plain(), planned), lambda: ActionSequence(torch.zeros(6, 1))
    )
    assert steps == 6
    assert isinstance(error, ArgumentError)
    assert error.where.step == 6
    assert "holds 6 actions" in error.message


@pytest.mark.parametrize("planned", [True, False])
def test_action_sequence_may_be_shorter_if_the_rollout_ends_earlier(planned: bool) -> None:
    sequence = ActionSequence(torch.zeros(5, 1))
    assert chained(Plain(), planned).rollout(100, sequence).shape == (3,)
    assert sequence.position == 3


NAN = torch.zeros(12, 1)
NAN[BAD_STEP] = float("nan")


@pytest.mark.parametrize(
    ("actions", "kept"),
    [
        (torch.zeros(12, 2), 0),
        (torch.zeros(12), 0),
        (torch.zeros(12, 1, dtype=torch.long), 0),
        (NAN, BAD_STEP),
    ],
    ids=["shape", "flat", "dtype", "NaN"],
)
def test_a_sequence_of_other_actions(actions: Tensor, kept: int) -> None:
    for base in ("Gymnasium", "plain"):
        steps, error = both(
            lambda planned, base=base: chained(BASES[base](), planned),  # type: ignore[misc]
            lambda: ActionSequence(actions),
        )
        assert steps == kept
        assert isinstance(error, ArgumentError)
        assert error.where.step == kept


def test_a_sequence_of_another_batch() -> None:
    steps, error = both(
        lambda planned: chained(BASES["batch"](), planned),
        lambda: ActionSequence(torch.zeros(3, 12, 1)),
    )
    assert steps == 0
    assert isinstance(error, ArgumentError)
    assert "batch size" in error.message


def test_action_sequence_continues_across_chunks_and_restarts() -> None:
    actions = torch.linspace(-1.0, 1.0, 10).unsqueeze(-1)
    for planned in (True, False):
        env, sequence = chained(BASES["Gymnasium"](), planned), ActionSequence(actions)
        for _ in range(2):
            chunks = env.iter_rollout(10, sequence, chunk_steps=3, break_when_any_done=False)
            assert torch.equal(torch.cat([chunk["action"] for chunk in chunks]), actions)
