"""Weights are loaded from the right file, and invalid files are refused in one line."""

from __future__ import annotations

import io
import os
import pickle
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor
from torchvision.models import ResNet18_Weights, ResNet50_Weights

from tdx import Compose, GymEnv, InitTracker, R3MTransform, TransformedEnv
from tdx.foundation.errors import ArgumentError, EnvError, ExitCode, TdxError, UnknownNameError
from tests.programs import exhaustive
from tests.transforms.encoders.checkpoints import in_r3m_layout, network, saved, without_head

State = dict[str, Tensor]
PIXELS = torch.randint(0, 256, (2, 20, 24, 3), dtype=torch.uint8)


@pytest.fixture(scope="module")
def state() -> State:
    found: State = network().state_dict()
    return found


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use an empty home folder, without a network."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    monkeypatch.setattr(torch.hub, "_hub_dir", None)

    def unreachable(url: str, *args: Any, **kwargs: Any) -> None:
        raise URLError("no route to host")

    monkeypatch.setattr(urllib.request, "urlopen", unreachable)
    return tmp_path


class Reply(io.BytesIO):
    """Reply of a server."""

    def __init__(self, url: str, content: bytes, size: int | None = None) -> None:
        super().__init__(content)
        self.url = url
        self.headers = {"Content-Length": str(len(content) if size is None else size)}


def encoder(**arguments: Any) -> R3MTransform:
    return R3MTransform("resnet18", size=20, **arguments)


def vectors(transform: R3MTransform) -> Tensor:
    found: Tensor = transform(TensorDict(pixels=PIXELS.clone(), batch_size=[2]))["r3m_vec"]
    return found


def assert_has(transform: R3MTransform, state: State) -> None:
    """Check that the network of the transform has exactly these weights."""
    vectors(transform)
    found = transform.state_dict()
    expected = {f"convnet.{key}": value for key, value in without_head(state).items()}
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert torch.equal(found[key], value), key


# Search for checkpoints


@pytest.mark.parametrize("place", ["r3m_18.pt", "r3m_18/model.pt"])
def test_r3m_weights_in_a_folder(state: State, home: Path, place: str) -> None:
    saved(in_r3m_layout(state), home / "weights" / place)
    assert_has(encoder(download=True, download_path=str(home / "weights")), state)


@pytest.mark.parametrize("place", ["torch/hub/checkpoints/r3m_18.pt", ".r3m/r3m_18/model.pt"])
def test_r3m_weights_in_the_caches(state: State, home: Path, place: str) -> None:
    saved(in_r3m_layout(state), home / place)
    assert_has(encoder(download=True), state)


@pytest.mark.parametrize("download", [True, False])
def test_file_is_loaded_by_its_path(state: State, home: Path, download: bool) -> None:
    path = saved(in_r3m_layout(state), home / "mine.pt")
    assert_has(encoder(download=download, download_path=path), state)


@pytest.mark.parametrize(
    "weights",
    [
        ResNet18_Weights.IMAGENET1K_V1,
        "IMAGENET1K_V1",
        "ResNet18_Weights.IMAGENET1K_V1",
        "DEFAULT",
    ],
    ids=str,
)
def test_torchvision_weights(state: State, home: Path, weights: Any) -> None:
    saved(state, home / "torch/hub/checkpoints/resnet18-f37072fd.pth")
    assert_has(encoder(download=weights), state)


@pytest.mark.parametrize("layout", ["plain", "prefix", "parallel", "no counters", "halves"])
def test_other_layouts(state: State, home: Path, layout: str) -> None:
    bare = without_head(state)
    payload: dict[str, Any] = {
        "plain": bare,
        "prefix": {f"convnet.{key}": value for key, value in bare.items()},
        "parallel": {f"module.{key}": value for key, value in bare.items()},
        "no counters": {k: v for k, v in bare.items() if not k.endswith("num_batches_tracked")},
        "halves": {key: value.half() for key, value in bare.items()},
    }[layout]
    if layout == "halves":
        state = {key: value.half().to(value.dtype) for key, value in bare.items()}
    assert_has(encoder(download_path=saved(payload, home / "weights.pt")), state)


@exhaustive
def test_download_address_and_cache_folder(
    state: State, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def download(url: str, **kwargs: Any) -> Reply:
        asked.append(url)
        return Reply(url, content.getvalue())

    content = io.BytesIO()
    torch.save(in_r3m_layout(state), content)
    monkeypatch.setattr(urllib.request, "urlopen", download)
    folder = home / "new" / "folder"
    assert_has(encoder(download=True, download_path=folder), state)
    assert [url.rpartition("/")[2] for url in asked] == ["r3m_18.pt"]
    assert (folder / "r3m_18.pt").is_file()
    assert_has(encoder(download=True, download_path=folder), state)
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (lambda url: Reply(url, b"x" * 9, size=2**40), "more than 1,073,741,824 bytes"),
        (lambda url: Reply(url, b"x" * 99, size=0), "more than 64 bytes"),
        (lambda url: Reply(url, b"x" * 9, size=10), "9 of 10 bytes arrived"),
        (lambda url: Reply("http://example.org/", b"x" * 9), "redirected to http://example.org/"),
        (lambda url: Reply(url, b"x" * 9), "SHA-256 begins with .*, not f37072fd"),
    ],
)
def test_bad_downloads_are_refused(
    home: Path, monkeypatch: pytest.MonkeyPatch, reply: Callable[[str], Reply], message: str
) -> None:
    monkeypatch.setattr(urllib.request, "urlopen", lambda url, **kwargs: reply(url))
    if "64" in message:
        monkeypatch.setattr("tdx.transforms.encoders.checkpoints.MAX_POLICY_BYTES", 64)
    with pytest.raises(EnvError, match=message):
        vectors(encoder(download="IMAGENET1K_V1"))
    assert [path for path in home.rglob("*") if path.is_file()] == []


# Lazy reading


def test_weights_are_read_when_a_spec_or_data_needs_them(home: Path) -> None:
    transform = R3MTransform("resnet18", in_keys=["observation"], download=True)
    env = TransformedEnv(GymEnv("Pendulum-v1"), transform)
    assert not transform.initialized
    assert "R3MTransform" in repr(env)
    with pytest.raises(ArgumentError, match="images must be of shape"):
        env.output_spec  # noqa: B018
    assert not transform.initialized


# Missing checkpoints


def message_of(error: TdxError) -> str:
    text = str(error)
    assert "\n" not in text
    return text


@pytest.mark.parametrize("download", [True, "IMAGENET1K_V1"])
def test_without_a_network(home: Path, download: Any) -> None:
    with pytest.raises(EnvError, match="no route to host") as caught:
        vectors(encoder(download=download))
    folder = home / "torch/hub/checkpoints"
    name = "r3m_18.pt" if download is True else "resnet18-f37072fd.pth"
    assert f"put the file at {folder / name}" in message_of(caught.value)
    assert caught.value.exit_code is ExitCode.ENVIRONMENT
    with pytest.raises(EnvError, match="put the file at /dev/null/r3m"):
        vectors(encoder(download=download, download_path="/dev/null/r3m"))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"download": "IMAGENET1K_V3"}, UnknownNameError, "did you mean IMAGENET1K_V1"),
        ({"download": ResNet50_Weights.DEFAULT}, ArgumentError, "use one of ResNet18_Weights"),
        ({"download": 3}, ArgumentError, "download=3 does not fit the network resnet18"),
        ({"download_path": "/no/such.pt"}, ArgumentError, "checkpoint /no/such.pt does not exist"),
    ],
)
def test_missing_weights_are_reported(
    home: Path, arguments: dict[str, Any], error: type[TdxError], message: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        vectors(encoder(**arguments))
    message_of(caught.value)


class Code:
    """Object that creates a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("form", ["zip", "legacy", "pickle 2", "pickle 4"])
def test_code_is_refused(state: State, home: Path, form: str) -> None:
    code, path = Code(home / "made"), home / "weights.pt"
    if form.startswith("pickle"):
        path.write_bytes(pickle.dumps(code, protocol=int(form[-1])))
    else:
        payload = {**in_r3m_layout(state), "timer": code}
        torch.save(payload, path, _use_new_zipfile_serialization=form == "zip")
    with pytest.raises(ArgumentError, match=r"contains code.*, which tdx never runs") as caught:
        vectors(encoder(download_path=path))
    text = message_of(caught.value)
    assert str(path) in text
    assert ("mkdir" in text) == (form != "pickle 4")
    assert not (home / "made").exists()


@exhaustive
def test_an_object_is_refused(home: Path) -> None:
    path = saved({"r3m": network()}, home / "weights.pt")
    with pytest.raises(ArgumentError, match=r"contains code .*ResNet"):
        vectors(encoder(download_path=path))


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("kept", [0.0, 0.000001, 0.5, 0.999])
def test_a_truncated_file_is_refused(state: State, home: Path, kept: float, zipped: bool) -> None:
    path = home / "weights.pt"
    torch.save(in_r3m_layout(state), path, _use_new_zipfile_serialization=zipped)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * kept)])
    with pytest.raises(ArgumentError, match="delete it and download it again") as caught:
        vectors(encoder(download_path=path))
    assert str(path) in message_of(caught.value)


@pytest.mark.parametrize("content", [b"<html>Not found</html>", b"\0" * 100, b"PK\3\4" + b"x" * 99])
def test_a_file_of_another_kind_is_refused(home: Path, content: bytes) -> None:
    path = home / "weights.pt"
    path.write_bytes(content)
    with pytest.raises(ArgumentError, match="delete it and download it again") as caught:
        vectors(encoder(download_path=path))
    message_of(caught.value)


def edited(state: State, edit: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    payload = in_r3m_layout(state)
    edit(payload["r3m"])
    return payload


FIRST, LAST = "module.convnet.conv1.weight", "module.convnet.layer4.1.bn2.bias"


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda r3m: r3m.pop(LAST), "lacks 1 key of a resnet18: layer4.1.bn2.bias"),
        (lambda r3m: r3m.pop(FIRST), "lacks 1 key of a resnet18: conv1.weight"),
        (lambda r3m: r3m.clear(), "lacks 100 keys of a resnet18: conv1.weight, bn1.weight"),
        (
            lambda r3m: r3m.update({"module.convnet.layer5.weight": torch.ones(1)}),
            "has 1 key that no resnet18 has: layer5.weight",
        ),
        (
            lambda r3m: r3m.update({f"module.extra{i}": torch.ones(1) for i in range(9)}),
            "has 9 keys that no resnet18 has: module.extra0, module.extra1, module.extra2, …",
        ),
        (
            lambda r3m: r3m.update({FIRST: torch.zeros(64, 4, 7, 7)}),
            r"conv1.weight has shape \(64, 4, 7, 7\), not \(64, 3, 7, 7\)",
        ),
        (lambda r3m: r3m.update({LAST: "zeros"}), "layer4.1.bn2.bias is str instead of a tensor"),
    ],
)
def test_wrong_keys_are_reported(
    state: State, home: Path, edit: Callable[[dict[str, Any]], Any], message: str
) -> None:
    path = saved(edited(state, edit), home / "weights.pt")
    with pytest.raises(ArgumentError, match=message) as caught:
        vectors(encoder(download_path=path))
    assert str(path) in message_of(caught.value)


@pytest.mark.parametrize("payload", [[1, 2], {"r3m": 3}, {1: 2}, torch.zeros(3)], ids=repr)
def test_file_without_a_state_dict_is_refused(home: Path, payload: Any) -> None:
    with pytest.raises(ArgumentError, match="contains no state dict"):
        vectors(encoder(download_path=saved(payload, home / "weights.pt")))


@pytest.mark.parametrize(
    ("held", "hint"),
    [("resnet34", r"use R3MTransform\(\"resnet34\"\)"), ("resnet50", "contains a resnet50, not a")],
)
@exhaustive
def test_another_architecture(home: Path, held: str, hint: str) -> None:
    path = saved(in_r3m_layout(network(held).state_dict()), home / "weights.pt")
    with pytest.raises(ArgumentError, match=hint) as caught:
        vectors(encoder(download_path=path))
    message_of(caught.value)


def test_error_names_the_stage_before_any_step(home: Path) -> None:
    class Pixels(GymEnv):
        def _step(self, tensordict: Any) -> Any:
            raise AssertionError("stepped")

    env = TransformedEnv(
        Pixels("CartPole-v1", from_pixels=True, pixels_only=True),
        Compose(InitTracker(), R3MTransform("resnet18", download=True)),
    )
    with pytest.raises(EnvError, match=r"stage 1 \(R3MTransform\): cannot download") as caught:
        env.observation_spec  # noqa: B018
    assert caught.value.where.stage == 1
