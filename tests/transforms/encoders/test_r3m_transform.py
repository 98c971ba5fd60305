"""``R3MTransform``: vectors, keys, lazy construction, mode and devices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor
from torchvision.transforms.v2 import functional as images

from tdx import (
    Bounded,
    Compose,
    R3MTransform,
    SerialEnv,
    TransformedEnv,
    Unbounded,
    check_env_specs,
)
from tdx.foundation.errors import (
    ArgumentError,
    ChainError,
    KeyNotFoundError,
    TdxError,
    UnknownNameError,
)
from tests.programs import exhaustive
from tests.transforms.encoders.checkpoints import network, saved
from tests.transforms.envs import GroupsEnv, RowsEnv
from tests.transforms.fixed_rollouts import fixed_rollout

FRAMES = torch.randint(0, 256, (3, 30, 26, 3), dtype=torch.uint8)


def small(**arguments: Any) -> R3MTransform:
    return R3MTransform("resnet18", **{"size": 16, **arguments})


def encoded(transform: R3MTransform, frames: Tensor) -> Tensor:
    batch_size = frames.shape[:-3]
    found: Tensor = transform(TensorDict(pixels=frames, batch_size=batch_size))["r3m_vec"]
    return found


# Values


@pytest.mark.parametrize("size", [16, 244])
@exhaustive
def test_vectors_equal_those_of_the_network_on_normalized_images(tmp_path: Path, size: int) -> None:
    bare = network()
    path = saved(bare.state_dict(), tmp_path / "weights.pt")
    bare.fc = torch.nn.Identity()
    planes = images.resize(FRAMES.movedim(-1, 1) / 255, [size, size], antialias=True)
    planes = images.normalize(planes, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    with torch.no_grad():
        expected = bare(planes)
    found = encoded(small(size=size, download_path=path), FRAMES.clone())
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "other",
    [
        FRAMES.movedim(-1, 1),
        FRAMES.movedim(-1, 1) / 255,
        FRAMES / 255,
        FRAMES.long(),
        FRAMES.movedim(-1, 1).double() / 255,
    ],
    ids=["bytes-first", "floats-first", "floats-last", "integers", "doubles"],
)
def test_layouts_and_dtypes(other: Tensor) -> None:
    transform = small()
    given = other.clone()
    found = encoded(transform, other)
    torch.testing.assert_close(found, encoded(transform, FRAMES.clone()), rtol=1e-4, atol=1e-4)
    assert found.dtype is torch.float32
    assert torch.equal(other, given)


@pytest.mark.parametrize("lead", [(), (3,), (1, 3), (0,)], ids=str)
def test_leading_dims(lead: tuple[int, ...]) -> None:
    frames = FRAMES[:1].squeeze(0) if not lead else FRAMES[: lead[-1]].reshape(*lead, 30, 26, 3)
    found = encoded(small(), frames.clone())
    assert found.shape == (*lead, 512)


@exhaustive
def test_long_blocks_in_parts() -> None:
    transform = small(size=4)
    block = torch.randint(0, 256, (150, 4, 4, 3), dtype=torch.uint8)
    whole = encoded(transform, block.clone())
    for part in (slice(0, 64), slice(64, 128), slice(128, 150)):
        torch.testing.assert_close(whole[part], encoded(transform, block[part].clone()))


@pytest.mark.parametrize(
    ("name", "size"), [("resnet18", 512), ("resnet34", 512), ("resnet50", 2048)]
)
def test_sizes_of_vectors(name: Any, size: int) -> None:
    env = TransformedEnv(RowsEnv((2,)), R3MTransform(name, size=8))
    assert env.observation_spec["r3m_vec"] == Unbounded((2, size))
    assert env.reset()["r3m_vec"].shape == (2, size)


# Keys


@exhaustive
def test_images_are_removed_or_kept() -> None:
    env = TransformedEnv(RowsEnv((2,)), small())
    assert "pixels" not in env.observation_spec.keys()
    rollout = fixed_rollout(env, 4)
    assert "pixels" not in rollout.keys()
    assert "pixels" not in rollout["next"].keys()
    env = TransformedEnv(RowsEnv((2,)), small(tensor_pixels_keys=["frames"]))
    check_env_specs(env)
    assert env.observation_spec["frames"] == RowsEnv((2,)).observation_spec["pixels"]
    assert torch.equal(env.reset()["frames"], RowsEnv((2,)).reset()["pixels"])


def test_partial_resets_without_the_images() -> None:
    env = TransformedEnv(RowsEnv((3,), endless=True), small())
    before = env.step_mdp(env.rand_step(env.reset()))
    given = before.clone().set("_reset", torch.tensor([[True], [False], [False]]))
    after = env.reset(given)
    assert torch.equal(after["r3m_vec"][1:], before["r3m_vec"][1:])
    assert not torch.equal(after["r3m_vec"][0], before["r3m_vec"][0])


def two_cameras(**arguments: Any) -> R3MTransform:
    return small(in_keys=["pixels", "image"], **arguments)


@pytest.mark.parametrize("batch_size", [(), (2,)], ids=["single", "2"])
@exhaustive
def test_several_cameras(batch_size: tuple[int, ...]) -> None:
    stacked = TransformedEnv(RowsEnv(batch_size), two_cameras())
    apart = TransformedEnv(RowsEnv(batch_size), two_cameras(stack_images=False))
    named = TransformedEnv(
        RowsEnv(batch_size), two_cameras(stack_images=False, out_keys=["a", ("b", "vec")])
    )
    for env in (stacked, apart, named):
        check_env_specs(env)
    together, alone, other = stacked.reset(), apart.reset(), named.reset()
    assert stacked.observation_spec["r3m_vec"] == Unbounded((*batch_size, 1024))
    both = torch.cat([alone["r3m_vec_0"], alone["r3m_vec_1"]], -1)
    assert torch.equal(together["r3m_vec"], both)
    assert torch.equal(other["b", "vec"], alone["r3m_vec_1"])
    # Both show the same image, as bytes and as floats.
    torch.testing.assert_close(alone["r3m_vec_0"], alone["r3m_vec_1"], rtol=1e-4, atol=1e-4)


def test_keywords_and_missing_keys() -> None:
    transform = small()
    assert transform(pixels=FRAMES.clone()).shape == (3, 512)
    with pytest.raises(KeyNotFoundError, match="has no key 'pixels'"):
        transform(TensorDict(other=torch.ones(1)))
    transform.set_missing_tolerance()
    assert "r3m_vec" not in transform(TensorDict(other=torch.ones(1))).keys()


# Laziness


@exhaustive
def test_network_is_built_for_a_spec_or_data() -> None:
    transform = small()
    assert not transform.initialized
    assert not transform.state_dict()
    env = TransformedEnv(RowsEnv())
    env.append_transform(transform)
    assert not transform.initialized
    assert env.observation_spec["r3m_vec"] == Unbounded((512,))
    assert transform.initialized
    offline = small()
    encoded(offline, FRAMES.clone())
    assert offline.initialized


@exhaustive
def test_untrained_weights_are_deterministic_without_global_random_numbers() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = encoded(small(), FRAMES.clone())
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert torch.equal(encoded(small(), FRAMES.clone()), first)


@exhaustive
def test_a_state_dict_is_loaded_before_it_is_built(tmp_path: Path) -> None:
    path = saved(network().state_dict(), tmp_path / "weights.pt")
    trained = small(download_path=path)
    expected = encoded(trained, FRAMES.clone())
    path.unlink()
    other = Compose(small(download=True))
    other.load_state_dict({f"transforms.0.{k}": v for k, v in trained.state_dict().items()})
    found = other[0]
    assert isinstance(found, R3MTransform)
    assert torch.equal(encoded(found, FRAMES.clone()), expected)


# Frozen


def test_no_gradient() -> None:
    transform = small()
    floats = (FRAMES / 255).requires_grad_()
    assert not encoded(transform, floats).requires_grad
    assert not any(parameter.requires_grad for parameter in transform.parameters())


@exhaustive
def test_gradients_reach_the_network_and_the_images_on_request() -> None:
    transform = small(requires_grad=True)
    floats = (FRAMES / 255).requires_grad_()
    encoded(transform, floats).sum().backward()
    assert floats.grad is not None
    assert all(parameter.grad is not None for parameter in transform.parameters())
    assert not any(module.training for module in transform.children())
    with torch.no_grad():
        assert not encoded(transform, floats).requires_grad


@exhaustive
def test_network_stays_in_eval_mode() -> None:
    env = TransformedEnv(RowsEnv((4,)), Compose(small()))
    expected = env.reset()["r3m_vec"]
    env.train()
    state = {key: value.clone() for key, value in env.transform.state_dict().items()}
    assert env.transform.training
    assert torch.equal(env.reset()["r3m_vec"], expected)
    assert not any(module.training for module in env.transform[0].convnet.modules())
    assert all(torch.equal(env.transform.state_dict()[key], state[key]) for key in state)
    appended = TransformedEnv(RowsEnv((4,)))
    appended.train()
    assert torch.equal(appended.append_transform(small()).reset()["r3m_vec"], expected)


# Moves and casts


@pytest.mark.parametrize("built", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@exhaustive
def test_casts(built: bool, dtype: torch.dtype) -> None:
    transform = small()
    env = TransformedEnv(RowsEnv(), transform)
    if built:
        assert env.observation_spec["r3m_vec"].dtype is torch.float32
    assert transform.to(dtype) is transform
    assert transform.dtype is dtype
    assert env.observation_spec["r3m_vec"].dtype is dtype
    assert env.reset()["r3m_vec"].dtype is dtype
    reference = encoded(small(), FRAMES.clone())
    found = encoded(transform, FRAMES.clone()).float()
    torch.testing.assert_close(found, reference, rtol=0.1, atol=0.1)


@pytest.mark.gpu
@pytest.mark.parametrize("built", [False, True])
def test_on_an_accelerator(built: bool) -> None:
    expected = encoded(small(), FRAMES.clone())
    follows = encoded(small(), FRAMES.cuda())
    assert follows.is_cuda
    moved = small()
    if built:
        encoded(moved, FRAMES.clone())
    moved.to("cuda")
    found = encoded(moved, FRAMES.clone())
    assert found.device.type == "cpu"
    assert moved.device.type == "cuda"
    for each in (follows.cpu(), found):
        torch.testing.assert_close(each, expected, rtol=1e-2, atol=1e-2)


# Bad input


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: R3MTransform(cast(Any, "resnet101")),
            UnknownNameError,
            "unknown R3M model 'resnet101' .did you mean resnet50",
        ),
        (lambda: small(size=0), ArgumentError, "size must be an integer of at least 1, got 0"),
        (lambda: small(size=2.5), ArgumentError, "size must be an integer"),
        (
            lambda: two_cameras(out_keys=["a", "b"]),
            ArgumentError,
            "out_keys must be one key, got 2",
        ),
        (
            lambda: two_cameras(stack_images=False, out_keys=["a"]),
            ArgumentError,
            "out_keys must be 2 keys, got 1",
        ),
        (
            lambda: two_cameras(tensor_pixels_keys=["a"]),
            ArgumentError,
            "tensor_pixels_keys must be 2 keys, got 1",
        ),
    ],
)
def test_invalid_arguments(make: Callable[[], Any], error: type[TdxError], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"in_keys": ["observation"]}, ArgumentError, r"images must be .* got shape \(3,\)"),
        ({"in_keys": ["pixel"]}, KeyNotFoundError, "existing keys: pixels"),
        ({"out_keys": ["observation"]}, ChainError, "'observation', which already exists"),
        ({"tensor_pixels_keys": ["image"]}, ChainError, "'image', which already exists"),
    ],
)
def test_incompatible_env(arguments: dict[str, Any], error: type[TdxError], message: str) -> None:
    env = TransformedEnv(RowsEnv(), small(**arguments))
    with pytest.raises(error, match=message):
        env.output_spec  # noqa: B018


def test_images_of_other_than_three_channels() -> None:
    transform = small()
    with pytest.raises(ArgumentError, match=r"images must be .* got shape \(4, 30, 26, 1\)"):
        encoded(transform, torch.zeros(4, 30, 26, 1))
    with pytest.raises(ArgumentError, match="got bools of shape"):
        encoded(transform, torch.zeros(30, 26, 3, dtype=torch.bool))
    assert not transform.initialized


def test_cameras_with_batch_dims_of_their_own_are_not_stacked() -> None:
    cameras = [("solo", "pixels"), ("pair", "pixels")]
    env = TransformedEnv(GroupsEnv(), small(in_keys=cameras))
    with pytest.raises(ArgumentError, match="pass stack_images=False"):
        env.output_spec  # noqa: B018


@exhaustive
def test_inside_the_workers_of_a_batch() -> None:
    env = SerialEnv(2, lambda: TransformedEnv(RowsEnv(), small()))
    assert env.observation_spec["r3m_vec"] == Unbounded((2, 512))
    assert env.rollout(2)["r3m_vec"].shape == (2, 2, 512)


def test_bounds_of_images_do_not_bound_vectors() -> None:
    spec = TransformedEnv(RowsEnv(), small()).observation_spec["r3m_vec"]
    assert not isinstance(spec, Bounded)
