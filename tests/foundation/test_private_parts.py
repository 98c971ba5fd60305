"""The private parts of dependencies that tdx uses; each test names the part that has changed."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import gymnasium
import pytest
import torch
from gymnasium.wrappers import ClipReward, RecordEpisodeStatistics, TimeLimit
from tensordict import LazyStackedTensorDict, TensorDict
from tensordict.nn import TensorDictModule
from torch import nn

from tdx.foundation.gymnasium_internals import (
    SPACE_GENERATOR,
    recorded_arguments,
    statistics_key_of,
    time_limit_of,
)
from tdx.foundation.tensordicts import (
    make_tensordict_factory,
    maps_keys_only,
    new_tensordict,
    read,
    write,
)
from tdx.foundation.torch_internals import (
    OpOverload,
    TorchDispatchMode,
    argument_names,
    by_device,
    forward_hooks,
    has_hooks,
    in_place_count,
    is_profiler_enabled,
    unwrap_function_level,
)


@pytest.mark.parametrize("name", ["_get_str", "_get_tuple", "_set_str", "_set_tuple"])
@pytest.mark.parametrize("kind", [TensorDict, LazyStackedTensorDict])
def test_tensordicts_have_methods_without_checks(kind: type, name: str) -> None:
    assert callable(getattr(kind, name, None)), f"tensordict: {kind.__name__}.{name}"


def test_tensordict_attributes() -> None:
    data: Any = TensorDict({"a": torch.zeros(2)}, [2])
    for name in ("_tensordict", "_device", "_batch_size", "_is_locked", "_has_names"):
        assert hasattr(data, name), f"tensordict: TensorDict.{name}"
    assert list(data._tensordict) == ["a"], "tensordict: TensorDict._tensordict"
    assert "_new_unsafe" in dir(TensorDict), "tensordict: TensorDict._new_unsafe"
    accepted = inspect.signature(TensorDict._new_unsafe).parameters
    assert {"batch_size", "names", "nested"} <= set(accepted), "tensordict: TensorDict._new_unsafe"


def test_tensordicts_made_without_checks_are_ordinary_ones() -> None:
    size, device = torch.Size([2]), torch.device("cpu")
    wanted = TensorDict({"a": torch.ones(2)}, size, device=device)
    for make in (lambda f: new_tensordict(f, size, device), make_tensordict_factory(size, device)):
        made = make({"a": torch.ones(2)})
        assert bool((made == wanted).all()), "tensordict: TensorDict._new_unsafe"
        assert made.device == device, "tensordict: TensorDict._device"
        write(made, ("b", "c"), torch.zeros(2))
        assert read(made, ("b", "c")).shape == (2,), "tensordict: TensorDict._set_tuple"
        assert read(made, "d") is None, "tensordict: TensorDict._get_str"


def test_plain_modules_are_recognized() -> None:
    def module(**options: Any) -> TensorDictModule:
        keys = {"in_keys": ["a"], "out_keys": ["b"], **options}
        return TensorDictModule(nn.Linear(2, 2), **keys)

    message = "tensordict: TensorDictModule._kwargs, _out_keys"
    assert maps_keys_only(module()), message
    assert not maps_keys_only(module(in_keys={"input": "a"})), message
    assert not maps_keys_only(module(out_keys=["b", "c"]).select_out_keys("b")), message
    assert not maps_keys_only(module(inplace=False)), message


def test_hooks_of_modules() -> None:
    hooks: tuple[Callable[[Any], Any], ...] = (
        lambda module: module.register_forward_hook(lambda *args: None),
        lambda module: module.register_forward_pre_hook(lambda *args: None),
        lambda module: module.register_full_backward_hook(lambda *args: None),
        lambda module: module.register_full_backward_pre_hook(lambda *args: None),
    )
    for place, register in enumerate(hooks):
        module = nn.Linear(1, 1)
        known = forward_hooks(module)
        assert not has_hooks(module), "torch: nn.Module._forward_hooks"
        register(module)
        assert has_hooks(module), "torch: nn.Module._forward_hooks, _backward_hooks"
        assert any(known) == (place < 2), "torch: nn.Module._forward_hooks, _forward_pre_hooks"


def test_tensors_count_writes() -> None:
    tensor = torch.zeros(2)
    before = in_place_count(tensor)
    tensor[:1].add_(1)
    assert in_place_count(tensor) != before, "torch: Tensor._version"
    with torch.inference_mode():
        assert in_place_count(torch.zeros(2)) is None, "torch: Tensor._version"


def test_called_operators_name_their_arguments() -> None:
    seen: list[tuple[object, list[str]]] = []

    class Operators(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append((func, argument_names(func)))
            return func(*args, **(kwargs or {}))

    tensor = torch.zeros(2)
    with Operators():  # type: ignore[no-untyped-call]
        torch.clamp(tensor, 0, 1)
    ((operator, names),) = seen
    assert isinstance(operator, OpOverload), "torch: torch._ops.OpOverload"
    assert names == ["self", "min", "max"], "torch: OpOverload._schema"


def test_running_profilers_are_noticed() -> None:
    assert not is_profiler_enabled(), "torch: torch._C._autograd._profiler_enabled"
    with torch.profiler.profile():
        assert is_profiler_enabled(), "torch: torch._C._autograd._profiler_enabled"


def test_time_limits_keep_their_number_of_steps() -> None:
    env: Any = gymnasium.make("CartPole-v1", max_episode_steps=7)
    assert isinstance(env, TimeLimit)
    assert time_limit_of(env) == 7, "gymnasium: TimeLimit._max_episode_steps"


def test_statistics_of_episodes_have_a_name() -> None:
    env = RecordEpisodeStatistics(gymnasium.make("CartPole-v1"), stats_key="totals")
    assert statistics_key_of(env) == "totals", "gymnasium: RecordEpisodeStatistics._stats_key"


def test_spaces_have_no_generator_before_the_first_sample() -> None:
    space = gymnasium.spaces.Discrete(3)
    assert getattr(space, SPACE_GENERATOR) is None, "gymnasium: Space._np_random"
    generator = space.np_random
    assert getattr(space, SPACE_GENERATOR) is generator, "gymnasium: Space._np_random"


def test_wrappers_record_their_arguments() -> None:
    env = ClipReward(gymnasium.make("CartPole-v1"), -1.0, 2.0)
    recorded = recorded_arguments(vars(env))
    assert recorded == {"min_reward": -1.0, "max_reward": 2.0}, "gymnasium: _saved_kwargs"


def test_tensors_are_grouped_by_the_device_that_they_name() -> None:
    owner, name, group = by_device(lambda tensor: torch.device("cuda" if tensor[0] else "cpu"))
    assert callable(getattr(owner, name, None)), f"torch: torch._C.{name}"
    near, far = torch.zeros(2), torch.ones(2)
    lists: Any = [[near, far, near], [], [None, far, None]]
    host, device = (torch.device("cpu"), torch.float32), (torch.device("cuda"), torch.float32)
    groups = group(lists, True)
    assert set(groups) == {host, device}, f"torch: torch._C.{name}"
    assert groups[host][1] == [0, 2]
    assert [len(members) for members in groups[host][0]] == [2, 0, 2]
    assert groups[device][0][2][0] is far
    assert groups[device][1] == [1]
    assert group(lists)[device][1] == []


def test_arguments_of_function_transforms_have_a_plain_tensor() -> None:
    memory: list[int] = []

    def total(row: torch.Tensor) -> torch.Tensor:
        memory.append(unwrap_function_level(row).data_ptr())
        return row.sum()

    rows = torch.ones(2, 3)
    torch.func.vmap(torch.func.grad(total))(rows)
    assert memory == [rows.data_ptr()], "torch: torch._C._functorch.get_unwrapped"
