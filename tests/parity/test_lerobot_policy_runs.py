"""Checkpoints of LeRobot as policies: the actions that LeRobot's own loop takes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from tdx import ArgumentError, GymEnv, InitTracker, Pipeline, TransformedEnv, open_dump, record_dump
from tdx.rollouts.policies.policy import load_policy
from tests.programs import require_package

pytestmark = pytest.mark.programs

ENV, CAMERA_ENV = "tdx_tests/Arm-v0", "tdx_tests/ArmWithCamera-v0"
EPISODE_STEPS, CHUNK = 5, 3
STATE, SCENE, IMAGE = "observation.state", "observation.environment_state", "observation.image"


class Arm(gym.Env[dict[str, Any], np.ndarray[Any, Any]]):
    """Moves two joints by the action; observations have the names of LeRobot's envs."""

    def __init__(self, camera: bool = False) -> None:
        self.observation_space = spaces.Dict(
            {"agent_pos": spaces.Box(-9, 9, (2,)), "environment_state": spaces.Box(-9, 9, (3,))}
        )
        if camera:
            pixels = spaces.Box(0, 255, (36, 40, 3), np.uint8)
            self.observation_space = spaces.Dict({**self.observation_space, "pixels": pixels})
        self.action_space = spaces.Box(-9, 9, (2,))

    def reset(self, **options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(**options)
        self._position = self.np_random.normal(size=2).astype(np.float32)
        return self._observe(), {}

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        self._position = (0.5 * self._position + 0.1 * action).astype(np.float32)
        return self._observe(), 0.0, False, False, {}

    def _observe(self) -> dict[str, Any]:
        values: dict[str, Any] = {
            "agent_pos": self._position,
            "environment_state": np.append(self._position, 1).astype(np.float32),
        }
        if "pixels" in self.observation_space.keys():  # type: ignore[attr-defined]
            grid = np.arange(36 * 40 * 3).reshape(36, 40, 3)
            values["pixels"] = (grid * (1 + abs(self._position[0])) % 256).astype(np.uint8)
        return {name: values[name] for name in self.observation_space.keys()}  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def arms() -> Iterator[None]:
    require_package("lerobot")
    for name in (ENV, CAMERA_ENV):
        make: Any = Arm
        gym.register(
            name, make, kwargs={"camera": name == CAMERA_ENV}, max_episode_steps=EPISODE_STEPS
        )
    yield
    for name in (ENV, CAMERA_ENV):
        del gym.registry[name]


def save_policy(kind: str, camera: bool, folder: Path) -> str:
    """Save a small policy with random weights and its processors, and return its name."""
    from lerobot.configs.types import FeatureType, PolicyFeature
    from lerobot.policies.factory import (
        get_policy_class,
        make_policy_config,
        make_pre_post_processors,
    )

    inputs = {
        STATE: PolicyFeature(FeatureType.STATE, (2,)),
        SCENE: PolicyFeature(FeatureType.ENV, (3,)),
    }
    if camera:
        inputs[IMAGE] = PolicyFeature(FeatureType.VISUAL, (3, 36, 40))
    architectures: dict[str, dict[str, Any]] = {
        "act": {
            "chunk_size": CHUNK,
            "dim_model": 16,
            "n_heads": 2,
            "dim_feedforward": 16,
            "n_encoder_layers": 1,
            "use_vae": False,
        },
        "diffusion": {
            "horizon": 8,
            "down_dims": (8, 16, 16),
            "n_groups": 4,
            "num_inference_steps": 2,
            "crop_shape": None,
        },
    }
    config = make_policy_config(
        kind,
        input_features=inputs,
        output_features={"action": PolicyFeature(FeatureType.ACTION, (2,))},
        n_action_steps=CHUNK,
        device="cpu",
        pretrained_backbone_weights=None,
        **architectures[kind],
    )
    statistics = {
        name: {
            "mean": torch.full((size,), 0.5),
            "std": torch.full((size,), 2.0),
            "min": torch.full((size,), -3.0),
            "max": torch.full((size,), 4.0),
        }
        for name, size in ((STATE, 2), (SCENE, 3), ("action", 2))
    }
    statistics[IMAGE] = {
        name: torch.full((3, 1, 1), value)
        for name, value in {"mean": 0.4, "std": 0.3, "min": 0.0, "max": 1.0}.items()
    }
    torch.manual_seed(3)
    get_policy_class(kind)(config).save_pretrained(folder)
    for processor in make_pre_post_processors(config, dataset_stats=statistics):
        processor.save_pretrained(folder)
    if "pretrained_backbone_weights" in (saved := json.loads((folder / "config.json").read_text())):
        # Loading must not download the weights that the training started from.
        saved["pretrained_backbone_weights"] = "ResNet18_Weights.IMAGENET1K_V1"
        (folder / "config.json").write_text(json.dumps(saved))
    return f"lerobot:{folder}"


def act_in_lerobot(folder: Path, dump: Any) -> torch.Tensor:
    """Return the actions of LeRobot's evaluation for the observations of a dump."""
    from lerobot.configs.policies import PreTrainedConfig
    from lerobot.envs.utils import preprocess_observation
    from lerobot.policies.factory import get_policy_class, make_pre_post_processors

    config = PreTrainedConfig.from_pretrained(folder)
    config.pretrained_backbone_weights = None
    policy = get_policy_class(config.type).from_pretrained(folder, config=config)
    before, after = make_pre_post_processors(config, str(folder))
    actions = []
    for step, row in enumerate(dump):
        if step % EPISODE_STEPS == 0:
            policy.reset()
        observation = {
            name: row[name].numpy()
            for name in ("agent_pos", "environment_state", "pixels")
            if name in row.keys()
        }
        actions.append(after(policy.select_action(before(preprocess_observation(observation)))))
    return torch.cat(actions)


@pytest.mark.parametrize("camera", [False, True])
def test_actions_are_those_of_lerobot_over_episodes(camera: bool, tmp_path: Path) -> None:
    policy = save_policy("act", camera, tmp_path / "policy")
    pipeline = Pipeline.of(CAMERA_ENV if camera else ENV, "InitTracker")
    record_dump(pipeline, tmp_path / "dump", steps=17, policy=policy, seed=0, allow_code=True)
    data = open_dump(tmp_path / "dump").data
    expected = act_in_lerobot(tmp_path / "policy", data)
    torch.testing.assert_close(data["action"], expected)
    assert expected.std(0).min() > 1e-4


def test_queues_of_observations_are_reset_with_an_episode(tmp_path: Path) -> None:
    """A diffusion policy samples, and keeps observations: the first one of an episode fills it."""
    policy = save_policy("diffusion", False, tmp_path / "policy")
    env = TransformedEnv(GymEnv(ENV), InitTracker())
    act = load_policy(policy, env, allow_code=True).start_at(0)
    actions = []
    for _ in range(2):
        root = env.reset(seed=5)
        torch.manual_seed(0)
        for _ in range(EPISODE_STEPS):
            acted = act(root)
            actions.append(acted["action"])
            root = env.step_mdp(env.step(acted))
    first, second = torch.stack(actions).chunk(2)
    assert torch.equal(first, second)
    assert first.std(0).min() > 0


def test_checkpoint_that_does_not_load_is_an_error(tmp_path: Path) -> None:
    policy = save_policy("act", False, tmp_path / "policy")
    env = TransformedEnv(GymEnv(ENV), InitTracker())
    (tmp_path / "policy" / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(ArgumentError, match="policy cannot be loaded: ") as caught:
        load_policy(policy, env, allow_code=True)
    assert caught.value.hint == "load it with the version of LeRobot that it was saved with"
