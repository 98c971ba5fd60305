"""MLPs in safetensors files: saving, loading, validation, and actions."""

from __future__ import annotations

import json
from collections import OrderedDict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tensordict.nn import TensorDictModule
from torch import nn

from tdx import ArgumentError, PipelineFile, TdxError, open_dump, record_dump, save_mlp_policy
from tdx.core.planned.keyed_policy import keyed_policy
from tdx.envs import EnvBase, GymEnv
from tdx.pipeline.policies import ACTIVATIONS
from tdx.rollouts.policies.loaders import _build_head
from tdx.rollouts.policies.mlp_files import ACTIVATION_MODULES
from tdx.rollouts.policies.policy import load_policy
from tdx.specs import (
    Binary,
    Bounded,
    Categorical,
    MultiCategorical,
    MultiOneHot,
    OneHot,
    TensorSpec,
    Unbounded,
)
from tests.rollouts.recordings import record


def actor(*sizes: int, activation: type[nn.Module] = nn.Tanh) -> nn.Sequential:
    torch.manual_seed(0)
    parts: list[nn.Module] = []
    for size_in, size_out in pairwise(sizes):
        parts += [nn.Linear(size_in, size_out), activation()]
    return nn.Sequential(*parts[:-1])


def test_recorded_actions_equal_those_of_the_module(tmp_path: Path) -> None:
    file = tmp_path / "actor.safetensors"
    module = actor(3, 8, 1)
    save_mlp_policy(module, file)
    manifest = record(tmp_path / "dump", "Pendulum-v1", bare=True, policy=f"mlp:{file}")
    data = open_dump(tmp_path / "dump").data
    expected = module(data["observation"]).clamp(-2, 2)
    torch.testing.assert_close(data["action"], expected.detach())
    assert (manifest.policy, len(manifest.policy_sha256 or "")) == (f"mlp:{file}", 64)


@pytest.mark.parametrize("num_envs", [None, 2])
def test_categorical_actions_are_the_argmax(tmp_path: Path, num_envs: int | None) -> None:
    file = tmp_path / "actor.safetensors"
    module = actor(4, 8, 2, activation=nn.ReLU)
    save_mlp_policy(module, file)
    options: dict[str, Any] = {"bare": True, "num_envs": num_envs}
    record(tmp_path / "dump", "CartPole-v1", policy=f"mlp:{file}", **options)
    data = open_dump(tmp_path / "dump").data
    assert bool((data["action"].argmax(-1) == module(data["observation"]).argmax(-1)).all())


def test_files_are_compatible_with_the_safetensors_package(tmp_path: Path) -> None:
    module = actor(3, 8, 1)
    save_mlp_policy(module, tmp_path / "a.safetensors")
    loaded = load_file(tmp_path / "a.safetensors")
    state = module.state_dict()
    assert torch.equal(loaded["0.weight"], state["0.weight"])
    assert torch.equal(loaded["1.bias"], state["2.bias"])
    save_file(module.state_dict(), tmp_path / "b.safetensors")
    env = GymEnv("Pendulum-v1")
    with pytest.raises(ArgumentError, match="has no activation"):
        load_policy(f"mlp:{tmp_path}/b.safetensors", env)
    one = load_policy(f"mlp:{tmp_path}/a.safetensors", env).start_at(0)
    other = load_policy(f'mlp("{tmp_path}/b.safetensors", activation="tanh")', env).start_at(0)
    start = env.reset()
    assert torch.equal(one(start.clone())["action"], other(start.clone())["action"])


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_action_with_each_activation(tmp_path: Path, name: str) -> None:
    module = actor(3, 4, 4, 1, activation=ACTIVATION_MODULES[name])
    save_mlp_policy(module, tmp_path / "a.safetensors")
    env = GymEnv("Pendulum-v1")
    policy = load_policy(f"mlp:{tmp_path}/a.safetensors", env).start_at(0)
    start = env.reset()
    expected = module(start["observation"]).clamp(-2, 2)
    torch.testing.assert_close(policy(start)["action"], expected.detach())


def test_final_tanh_is_scaled_to_the_bounds(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(3, 1), nn.Tanh())
    wrapped = TensorDictModule(module, in_keys=["observation"], out_keys=["action"])
    save_mlp_policy(wrapped, tmp_path / "a.safetensors")
    env = GymEnv("Pendulum-v1")
    policy = load_policy(f"mlp:{tmp_path}/a.safetensors", env).start_at(0)
    start = env.reset()
    expected = 2 * module(start["observation"])
    torch.testing.assert_close(policy(start)["action"], expected.detach())
    assert policy.in_keys == ["observation"]


def test_plan_uses_the_in_keys(tmp_path: Path) -> None:
    save_mlp_policy(actor(3, 8, 1), tmp_path / "a.safetensors")
    env = GymEnv("Pendulum-v1")
    keyed = keyed_policy(load_policy(f"mlp:{tmp_path}/a.safetensors", env).start_at(0), env)
    assert keyed is not None
    assert (keyed.reads, keyed.writes) == (("observation",), ("action",))


class _Batch:
    """Minimal env for a policy head."""

    batch_dims = 1


@pytest.mark.parametrize(
    ("spec", "size"),
    [
        (Bounded(-1.0, 2.0, (2, 3)), 3),
        (Bounded(-1.0, 2.0, (2, 3, 2)), 6),
        (Unbounded((2, 3)), 3),
        (Categorical(5, (2,)), 5),
        (Categorical(5, (2, 1)), 5),
        (OneHot(5, (2, 5)), 5),
        (MultiCategorical([2, 3], (2, 2)), 5),
        (MultiOneHot([2, 3], (2, 5)), 5),
        (Binary(4, (2, 4)), 4),
    ],
)
def test_head_matches_the_action_spec(spec: TensorSpec, size: int) -> None:
    env: Any = _Batch()
    head, needed = _build_head(spec, None, env)
    assert needed == size
    action = head(10 * torch.randn(2, size))
    assert (action.shape, action.dtype) == (spec.shape, spec.dtype)
    assert spec.is_in(action)


def test_unsupported_action_specs_are_refused() -> None:
    env: Any = _Batch()
    with pytest.raises(ArgumentError, match="cannot give actions"):
        _build_head(Bounded(0, 5, (2, 3), dtype=torch.int64), None, env)
    with pytest.raises(ArgumentError, match="does not go with"):
        _build_head(OneHot(5, (2, 5)), "tanh", env)
    with pytest.raises(ArgumentError, match=r"with bounds"):
        _build_head(Unbounded((2, 3)), "tanh", env)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1)), "as part 1"),
        (nn.Sequential(nn.Linear(3, 4), nn.ReLU()), "must end with"),
        (nn.Sequential(nn.Linear(3, 4), nn.LeakyReLU(0.3), nn.Linear(4, 1)), "as part 1"),
        (nn.Sequential(nn.Conv1d(3, 4, 1)), "as part 0"),
        (nn.Sequential(), "must end with"),
        (
            nn.Sequential(
                *(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
            ),
            "mixes the activations relu and tanh",
        ),
    ],
)
def test_modules_that_are_not_an_mlp_are_refused(
    tmp_path: Path, module: nn.Module, message: str
) -> None:
    with pytest.raises(ArgumentError, match=message) as caught:
        save_mlp_policy(module, tmp_path / "a.safetensors")
    assert caught.value.hint
    assert not list(tmp_path.iterdir())


def test_existing_file_needs_force(tmp_path: Path) -> None:
    save_mlp_policy(actor(3, 1), tmp_path / "a.safetensors")
    with pytest.raises(ArgumentError, match="already exists"):
        save_mlp_policy(actor(3, 1), tmp_path / "a.safetensors")
    save_mlp_policy(actor(3, 4, 1), tmp_path / "a.safetensors", force=True)
    assert "1.weight" in load_file(tmp_path / "a.safetensors")


def written(header: Any, numbers: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + numbers


def tensor(shape: list[Any], begin: int, end: int, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


NAN = torch.full((3,), torch.nan).numpy().tobytes()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not a safetensors file"),
        (b"\xff" * 8, "not a safetensors file"),
        (written(b"nonsense"), "not a safetensors file"),
        (written(b"[" * 20_000), "not a safetensors file"),
        (written([1]), "not a safetensors file"),
        (written({"0.weight": 3}), "not a safetensors file"),
        (written({"__metadata__": {}}), "no layers"),
        (written({"0.weight": tensor([10**6, 10**7], 0, 4 * 10**13)}), "is damaged"),
        (written({"0.weight": tensor([2**40, 2**40], 0, 12)}), "is damaged"),
        (written({"0.weight": tensor([1, 3], 0, 12)}), "is damaged"),
        (written({"0.weight": tensor([1, 3], 4, 16)}, bytes(16)), "is damaged"),
        (written({"0.weight": tensor([1, 3], 0, 12)}, bytes(16)), "is damaged"),
        (written({"0.weight": tensor([0, 3], 0, 0)}), "is empty"),
        (written({"0.weight": tensor([-1, 3], 0, 0)}), "is damaged"),
        (written({"0.weight": tensor([1, 3], 0, 12, "I32")}, bytes(12)), "has the dtype"),
        (written({"0.weight": tensor([1, 3], 0, 12)}, NAN), "has NaN or infinite values"),
        (written({"0.weight": tensor([3], 0, 12)}, bytes(12)), "not part of an MLP"),
        (written({"0.bias": tensor([3], 0, 12)}, bytes(12)), "without 0.weight"),
        (written({"0.weight": tensor([1, 4], 0, 16)}, bytes(16)), "takes 4 numbers"),
        (written({"0.weight": tensor([2, 3], 0, 24)}, bytes(24)), "gives 2 numbers"),
        (
            written(
                {"0.weight": tensor([1, 3], 0, 12), "1.weight": tensor([1, 3], 12, 24)}, bytes(24)
            ),
            "do not fit together",
        ),
        (
            written(
                {f"{n}.weight": tensor([1, 1], 4 * n, 4 * n + 4) for n in range(200)}, bytes(800)
            ),
            "more than 64 layers",
        ),
        (
            written(
                {
                    "__metadata__": {"tdx.policy": "mlp", "tdx.activation": '"tahn"'},
                    "0.weight": tensor([1, 3], 0, 12),
                },
                bytes(12),
            ),
            "activation of an mlp is unknown",
        ),
    ],
)
def test_damaged_and_hostile_files_are_refused(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "a.safetensors").write_bytes(data)
    with pytest.raises(TdxError, match=message) as caught:
        load_policy(f"mlp:{tmp_path}/a.safetensors", GymEnv("Pendulum-v1"))
    assert caught.value.hint


def test_layers_are_sorted_by_number(tmp_path: Path) -> None:
    sizes = [3, *range(4, 14), 1]
    module = nn.Sequential(
        OrderedDict((f"net{index}", layer) for index, layer in enumerate(actor(*sizes)))
    )
    save_file(module.state_dict(), tmp_path / "a.safetensors")
    env = GymEnv("Pendulum-v1")
    name = f'mlp("{tmp_path}/a.safetensors", activation="tanh")'
    start = env.reset()
    action = load_policy(name, env).start_at(0)(start)["action"]
    torch.testing.assert_close(action, module(start["observation"]).clamp(-2, 2).detach())


def test_unknown_observation_suggests_the_closest_match(tmp_path: Path) -> None:
    save_mlp_policy(actor(3, 1), tmp_path / "a.safetensors", in_keys=["observatoin"])
    with pytest.raises(ArgumentError, match="no observation 'observatoin'") as caught:
        load_policy(f"mlp:{tmp_path}/a.safetensors", GymEnv("Pendulum-v1"))
    assert "did you mean observation?" in (caught.value.hint or "")


def pipeline_file(folder: Path, policy: str) -> Any:
    (folder / "p.yaml").write_text(f"version: 1\nenv: Pendulum-v1\npolicy: {policy}\n")
    return PipelineFile.load(folder / "p.yaml").pipeline


@pytest.mark.parametrize(
    "policy",
    [
        "mlp:a.safetensors",
        "mlp:sub/a.safetensors",
        "{mlp: {weights: a.safetensors, activation: tanh, output: clamp, in_keys: [observation]}}",
    ],
)
def test_pipeline_file_can_name_files_in_its_folder(tmp_path: Path, policy: str) -> None:
    for folder in (tmp_path, tmp_path / "sub"):
        folder.mkdir(exist_ok=True)
        save_mlp_policy(actor(3, 4, 1), folder / "a.safetensors")
    manifest = record_dump(pipeline_file(tmp_path, policy), tmp_path / "dump", steps=5)
    assert manifest.steps == 5


@pytest.mark.parametrize("allow_code", [False, True])
@pytest.mark.parametrize("kind", ["parent", "absolute", "link", "linked folder"])
def test_pipeline_file_cannot_name_files_outside_its_folder(
    tmp_path: Path, kind: str, allow_code: bool
) -> None:
    save_mlp_policy(actor(3, 4, 1), tmp_path / "a.safetensors")
    folder = tmp_path / "inner"
    folder.mkdir()
    (folder / "link.safetensors").symlink_to(tmp_path / "a.safetensors")
    (folder / "linked").symlink_to(tmp_path)
    name = {
        "parent": "../a.safetensors",
        "absolute": str(tmp_path / "a.safetensors"),
        "link": "link.safetensors",
        "linked folder": "linked/a.safetensors",
    }[kind]
    pipeline = pipeline_file(folder, f"mlp:{name}")
    if allow_code:
        assert record_dump(pipeline, tmp_path / "dump", steps=5, allow_code=True).steps == 5
        return
    with pytest.raises(TdxError, match=r"is not in|symbolic link") as caught:
        record_dump(pipeline, tmp_path / "dump", steps=5)
    assert "--policy" in (caught.value.hint or "")
    assert not (tmp_path / "dump").exists()


def test_pipes_and_devices_are_refused(tmp_path: Path) -> None:
    env: EnvBase = GymEnv("Pendulum-v1")
    for name in ("mlp:/dev/zero", "mlp:/dev/null", "sequence:/dev/zero"):
        with pytest.raises(TdxError, match="is not a regular file"):
            load_policy(name, env)


def test_double_precision_is_preserved(tmp_path: Path) -> None:
    module = actor(3, 4, 1).double()
    save_mlp_policy(module, tmp_path / "a.safetensors")
    env = GymEnv("Pendulum-v1")
    start = env.reset()
    action = load_policy(f"mlp:{tmp_path}/a.safetensors", env).start_at(0)(start)["action"]
    assert action.dtype is torch.float32
    expected = module(start["observation"].double()).float().clamp(-2, 2)
    torch.testing.assert_close(action, expected.detach())
