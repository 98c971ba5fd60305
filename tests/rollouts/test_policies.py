"""Policies that are loaded by name."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict.nn import TensorDictModule
from torch import Tensor, nn

from tdx import CodeNotAllowedError, TdxError, open_dump
from tests.rollouts.recordings import STEPS, record


class Push(nn.Module):
    """Policy that pushes in the direction in which the pendulum leans."""

    def forward(self, observation: Tensor) -> Tensor:
        return observation[..., :1] * 0.5


def save_module(kind: str, file: Path) -> None:
    """Save :class:`Push`, or an equivalent layer, in one of the formats."""
    linear = nn.Linear(3, 1, bias=False)
    with torch.no_grad():
        linear.weight.copy_(torch.tensor([[0.5, 0.0, 0.0]]))
    if kind == "module":
        torch.save(TensorDictModule(nn.Sequential(linear), ["observation"], ["action"]), file)
    elif kind == "script":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.jit.script(Push()).save(file)
    elif kind == "export":
        torch.export.save(torch.export.export(Push(), (torch.zeros(3),)), file)
    else:
        torch.save(TensorDictModule(Push(), ["observation"], ["action"]), file)


@pytest.mark.parametrize("kind", ["module", "script", "export", "classes"])
def test_module_file_requires_allow_code(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "policy.pt2"
    save_module(kind, file)
    options: dict[str, Any] = {"policy": f"module:{file}", "bare": True}
    with pytest.raises(CodeNotAllowedError, match="can run code") as caught:
        record(tmp_path / "dump", "Pendulum-v1", **options)
    assert "mlp:FILE" in (caught.value.hint or "")
    options["allow_code"] = True
    manifest = record(tmp_path / "dump", "Pendulum-v1", **options)
    data = open_dump(tmp_path / "dump").data
    torch.testing.assert_close(data["action"], data["observation"][:, :1] * 0.5)
    assert manifest.policy_sha256 is not None


@pytest.mark.parametrize("suffix", ["npy", "json", "pt"])
@pytest.mark.parametrize("num_envs", [None, 2])
def test_actions_from_a_file_are_recorded(
    tmp_path: Path, suffix: str, num_envs: int | None
) -> None:
    actions = torch.linspace(-1, 1, STEPS).unsqueeze(-1)
    file = tmp_path / f"actions.{suffix}"
    if suffix == "npy":
        np.save(file, actions.numpy())
    elif suffix == "json":
        file.write_text(json.dumps(actions.tolist()))
    else:
        torch.save(actions, file)
    options: dict[str, Any] = {"policy": f"sequence:{file}", "num_envs": num_envs, "bare": True}
    if suffix == "pt":
        with pytest.raises(CodeNotAllowedError, match="is a pickle"):
            record(tmp_path / "dump", "Pendulum-v1", **options)
        options["allow_code"] = True
    record(tmp_path / "dump", "Pendulum-v1", **options)
    data = open_dump(tmp_path / "dump").data
    assert bool((data["action"] == actions).all())
    again = f"sequence:{tmp_path / 'dump'}"
    record(tmp_path / "again", "Pendulum-v1", bare=True, policy=again, num_envs=num_envs)
    assert bool((open_dump(tmp_path / "again").data == data).all())


@pytest.mark.parametrize("env", ["Pendulum-v1", "CartPole-v1", "FrozenLake-v1"])
def test_zero_policy_records_zeros(tmp_path: Path, env: str) -> None:
    record(tmp_path / "dump", env, bare=True, policy="zero")
    action = open_dump(tmp_path / "dump").data["action"]
    number = action if env == "Pendulum-v1" else action.argmax(-1)
    assert not number.any()


def test_python_code_requires_allow_code(tmp_path: Path) -> None:
    options: dict[str, Any] = {"policy": "tests.rollouts.test_policies:Push", "bare": True}
    with pytest.raises(CodeNotAllowedError):
        record(tmp_path / "dump", "Pendulum-v1", **options)
    record(tmp_path / "dump", "Pendulum-v1", **options, allow_code=True)
    data = open_dump(tmp_path / "dump").data
    assert bool((data["action"] == data["observation"][:, :1] * 0.5).all())


def header(described: str) -> bytes:
    """Return the header of a ``.npy`` file."""
    padded = described.ljust(117).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(padded).to_bytes(2, "little") + padded


BOMB = header("{'descr': '<f8', 'fortran_order': False, 'shape': (1000000, 1000000)}")
OBJECTS = header("{'descr': '|O', 'fortran_order': False, 'shape': (130, 1)}")


def test_fortran_order_and_byte_order_are_converted(tmp_path: Path) -> None:
    actions = np.linspace(-1, 1, 2 * STEPS, dtype=">f8").reshape(2, STEPS, 1)
    np.save(tmp_path / "a.npy", np.asfortranarray(actions))
    record(
        tmp_path / "dump",
        "Pendulum-v1",
        **{"bare": True, "policy": f"sequence:{tmp_path}/a.npy", "num_envs": 2},
    )
    data = open_dump(tmp_path / "dump").data
    torch.testing.assert_close(data["action"], torch.tensor(actions.astype("f4")))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("actions.npy", None, "cannot read"),
        ("actions.txt", "1 2 3", "has an unknown format"),
        ("actions.npy", "no array", "has no actions"),
        ("actions.npy", BOMB, "declares 8,000,000,000,000 bytes, but the file has only"),
        ("actions.npy", OBJECTS, "has Python objects"),
        ("actions.json", "[[1, 2], [3, 4]]", "have shape"),
        ("actions.json", "[[1], [0]]", "are torch.int64"),
        ("actions.json", "{1:", "is not valid JSON"),
        ("actions.json", "[" * 20_000, "nested more than"),
        ("actions.json", "1" * 5_000, "is not valid JSON"),
        ("actions.json", "[0.5, 0.25]", "has 2 actions, the rollout needs 130"),
    ],
)
def test_invalid_action_files_are_refused(
    tmp_path: Path, name: str, content: str | bytes | None, message: str
) -> None:
    file = tmp_path / name
    if content is not None:
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(TdxError, match=message) as caught:
        record(tmp_path / "dump", "Pendulum-v1", bare=True, policy=f"sequence:{file}")
    assert caught.value.hint
    assert not (tmp_path / "dump").exists()
