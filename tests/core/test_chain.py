"""``Transform`` and ``Compose`` on stored data, as documented."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from torch import nn

from tdx import (
    ArgumentError,
    ChainError,
    Compose,
    KeyNotFoundError,
    RewardClipping,
    RewardScaling,
    StepCounter,
    Transform,
    TransformedEnv,
    VecNorm,
)
from tests.core.stages import Double, Shift
from tests.envs.mocks import CountingEnv


class TransformThatMeasuresBytes(Transform):
    """Transform that writes the size of its input in bytes."""

    def __init__(self) -> None:
        super().__init__(in_keys=[], out_keys=["bytes"])

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        tensordict["bytes"] = tensordict.bytes()
        return tensordict


# Without an env


def test_a_transform_maps_key_by_key() -> None:
    shift = Shift(in_keys=["a", ("b", "c")], out_keys=["d", ("b", "e")])
    result = shift(TensorDict(a=torch.zeros(1), b=TensorDict(c=torch.ones(1))))
    assert result["d"].item() == 1
    assert result["b", "e"].item() == 2
    assert result["a"].item() == 0


@pytest.mark.parametrize("batch", [(), (4,), (2, 3)])
def test_transform_accepts_any_batch_size(batch: tuple[int, ...]) -> None:
    data = TensorDict(a=torch.zeros(*batch, 3), batch_size=batch)
    assert (Compose(Shift(["a"]), Double(["a"]))(data)["a"] == 2).all()


@pytest.mark.parametrize(
    ("transform", "args", "named", "said"),
    [
        (RewardScaling(0.0, 1.0), (), {"rewrad": 1}, "unknown argument 'rewrad' .its argum"),
        (RewardScaling(0.0, 1.0), (1, 2), {}, "takes 1 tensors, got 2"),
        (
            Compose(StepCounter(), RewardScaling(0.0, 1.0)),
            (),
            {"reward": 1},
            "neither a done flag nor is_init",
        ),
        (StepCounter(), (), {"reward": 1}, "call it with a TensorDict"),
        (StepCounter(), (), {}, "pass a TensorDict"),
        (VecNorm(["a", "b"]), (), {"a": 1}, "the call has no key 'b'"),
    ],
)
def test_invalid_call_with_tensors_is_a_one_line_error(
    transform: Transform, args: tuple[int, ...], named: dict[str, int], said: str
) -> None:
    tensors = [torch.ones(1) for _ in args]
    with pytest.raises((ArgumentError, KeyNotFoundError), match=said) as caught:
        transform(*tensors, **{name: torch.ones(1) for name in named})
    assert "\n" not in str(caught.value)


def test_a_transform_without_in_keys_is_not_implemented_for_tensors() -> None:
    with pytest.raises(NotImplementedError, match="takes 0 tensors, got 1"):
        StepCounter()(torch.ones(1))


def test_keyword_arguments_are_cast_to_the_keys() -> None:
    assert Shift(in_keys=["a"])(a=torch.zeros(1)).item() == 1
    both = Shift(in_keys=["a", "b"], out_keys=["c", "d"])(a=torch.zeros(1), b=torch.ones(1))
    assert [each.item() for each in both] == [1, 2]
    chain = Compose(RewardScaling(0.0, 3.0), RewardClipping(-2.0, 2.0))
    assert chain(reward=torch.ones(1)).item() == 2


def test_the_documented_custom_transform_works_in_and_out_of_envs() -> None:
    offline = TransformThatMeasuresBytes()(TensorDict(a=torch.zeros(1)))
    assert offline["bytes"].item() > 0
    env = TransformedEnv(CountingEnv())
    env.append_transform(TransformThatMeasuresBytes())
    assert env.rollout(2).shape == (2,)


def test_forward_is_for_stored_data_and_calls_no_step() -> None:
    class Watches(Shift):
        def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
            raise AssertionError("called")

    assert Watches(in_keys=["a"])(TensorDict(a=torch.zeros(1)))["a"].item() == 1


def test_a_chain_works_before_it_has_an_env() -> None:
    chain = Compose(StepCounter(), RewardScaling(1.0, 2.0))
    assert chain(TensorDict(reward=torch.ones(1), step_count=torch.zeros(1)))["reward"].item() == 3
    assert TransformedEnv(CountingEnv(), chain).rollout(2)["step_count"].flatten().tolist() == [
        0,
        1,
    ]


def test_inv_maps_a_copy_in_reverse_order() -> None:
    chain = Compose(Shift(in_keys_inv=["a"]), Double(in_keys_inv=["a"]))
    data = TensorDict(a=torch.tensor([6.0]))
    assert chain.inv(data)["a"].item() == 2
    assert data["a"].item() == 6


def test_init_reaches_every_stage() -> None:
    seen: list[str] = []

    class Begins(Transform):
        def init(self, tensordict: TensorDictBase) -> None:
            seen.extend(tensordict.keys())

    Compose(Begins(), Compose(Begins())).init(TensorDict(a=torch.zeros(1)))
    assert seen == ["a", "a"]


# The chain as a list


def test_chain_is_a_list_of_stages() -> None:
    first, second = Shift(["a"]), Double(["a"])
    chain = Compose(first)
    chain.append(second)
    chain.insert(0, lambda td: td)
    assert len(chain) == 3
    assert chain[1] is first
    assert chain[-1] is second
    assert list(chain)[1:] == [first, second]
    chain.insert(-1, lambda td: td.set("a", torch.zeros(1)))
    assert chain(TensorDict(a=torch.ones(1)))["a"].item() == 0
    with pytest.raises(IndexError):
        chain[9]
    with pytest.raises(IndexError, match="index -7 is outside a chain of 4 stages"):
        chain.insert(-7, Shift(["a"]))


def test_slice_is_an_independent_chain() -> None:
    chain = Compose(Shift(["a"]), Double(["a"]), Shift(["a"]))
    part = chain[1:]
    assert isinstance(part, Compose)
    assert part(TensorDict(a=torch.ones(1)))["a"].item() == 3
    part.append(Double(["a"]))
    assert len(chain) == 3
    assert part[0] is not chain[1]


def test_a_slice_shares_its_parameters() -> None:
    class Learns(Transform):
        def __init__(self) -> None:
            super().__init__(in_keys=["a"])
            self.number = nn.Parameter(torch.zeros(()))

    chain = Compose(Learns())
    assert next(chain[:1].parameters()) is next(chain.parameters())


def test_chains_nest() -> None:
    chain = Compose(Compose(Shift(["a"]), Double(["a"])), Shift(["a"]))
    assert chain(TensorDict(a=torch.ones(1)))["a"].item() == 5


def test_keys_that_a_chain_reads_and_writes() -> None:
    chain = Compose(Shift(["a"], ["b"], ["x"], ["y"]), Shift(["b", "c"], ["b", "d"], ["y"], ["z"]))
    assert chain.in_keys == ["a", "c"]
    assert chain.out_keys == ["b", "d"]
    assert chain.in_keys_inv == ["x", "y"]
    assert chain.out_keys_inv == ["z", "y"]


@pytest.mark.parametrize("stage", [3, None, "StepCounter", CountingEnv()])
def test_value_that_is_not_a_transform_is_an_error(stage: Any) -> None:
    with pytest.raises(ArgumentError, match="a chain takes transforms and functions, got"):
        Compose(stage)


def test_class_instead_of_a_transform_is_an_error() -> None:
    with pytest.raises(ArgumentError, match=r"create an instance: StepCounter\(\.\.\.\)"):
        Compose(StepCounter)


def test_a_function_that_returns_nothing_is_named() -> None:
    with pytest.raises(
        ArgumentError, match=r"^stage 1 \(CallableTransform\): the function returned"
    ):
        Compose(Shift(["a"]), lambda td: None)(TensorDict(a=torch.ones(1)))


def test_removed_stage_can_be_added_to_another_chain() -> None:
    chain = Compose(Shift(["a"]), Double(["a"]))
    stage = chain.pop(0)
    assert stage.container is None
    other = Compose(stage)
    assert other(TensorDict(a=torch.ones(1)))["a"].item() == 2
    with pytest.raises(ChainError):
        chain.append(stage)


# Keys


def test_out_keys_default_to_in_keys() -> None:
    shift = Shift(in_keys=["a"], in_keys_inv=["b"])
    assert (shift.out_keys, shift.out_keys_inv) == (["a"], ["b"])
    shift.in_keys = ["c"]
    assert shift.out_keys == ["c"]
    shift.out_keys = ["d"]
    assert shift(TensorDict(c=torch.zeros(1)))["d"].item() == 1


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"in_keys": ["a"], "out_keys": ["b", "c"]}, "1 in-keys and 2 out-keys"),
        ({"in_keys_inv": ["a", "b"], "out_keys_inv": ["c"]}, "2 in-keys and 1 out-keys"),
        ({"in_keys": [3]}, "in_keys: a key must be a string or a tuple of strings, got 3"),
    ],
)
def test_wrong_keys_are_an_error(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Shift(**keys)


def test_missing_key_is_named_with_the_existing_keys() -> None:
    with pytest.raises(KeyNotFoundError) as caught:
        Compose(Double(["b"]), Shift(["rewrd"]))(TensorDict(reward=torch.ones(1), b=torch.ones(1)))
    assert str(caught.value) == (
        "stage 1 (Shift), key 'rewrd': the TensorDict has no key 'rewrd'"
        " (did you mean reward? existing keys: reward, b)"
    )


def test_missing_keys_can_be_tolerated() -> None:
    chain = Compose(Shift(["no"], in_keys_inv=["never"]), Double(["a"]))
    chain.set_missing_tolerance()
    assert chain.missing_tolerance
    data = TensorDict(a=torch.ones(1))
    assert chain(data)["a"].item() == 2
    assert chain.inv(data)["a"].item() == 2
    env = TransformedEnv(CountingEnv(), Compose(Shift(["no"])))
    with pytest.raises(KeyNotFoundError):
        env.rollout(1)
    env.stages[0].set_missing_tolerance()
    assert env.rollout(1).shape == (1,)
