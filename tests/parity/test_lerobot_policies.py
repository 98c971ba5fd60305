"""The processors that LeRobot 0.4.4 gives each type of policy, by LeRobot's own functions."""

from __future__ import annotations

import importlib
import json
import sys
import types
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch

from tdx.inspection.checkpoint_check import DEFAULT_STEPS, check_checkpoint
from tdx.stacks.checkpoints import Processor, read_checkpoint
from tdx.stacks.checkpoints.model import Step
from tdx.stacks.checkpoints.steps import DEFINITIONS
from tests.inspection.test_checkpoint_check import FAULTS, Damage
from tests.parity.test_lerobot_parity import as_theirs, assert_same_bits, draw, features
from tests.programs import require_package
from tests.stacks.checkpoints.folders import ACTION, Folder, stock_statistics

pytestmark = pytest.mark.programs

POLICIES = {
    "act": ("act.configuration_act:ACTConfig", "act.processor_act"),
    "diffusion": (
        "diffusion.configuration_diffusion:DiffusionConfig",
        "diffusion.processor_diffusion",
    ),
    "groot": ("groot.configuration_groot:GrootConfig", "groot.processor_groot"),
    "pi0": ("pi0.configuration_pi0:PI0Config", "pi0.processor_pi0"),
    "pi05": ("pi05.configuration_pi05:PI05Config", "pi05.processor_pi05"),
    "pi0_fast": ("pi0_fast.configuration_pi0_fast:PI0FastConfig", "pi0_fast.processor_pi0_fast"),
    "reward_classifier": (
        "sac.reward_model.configuration_classifier:RewardClassifierConfig",
        "sac.reward_model.processor_classifier",
    ),
    "sac": ("sac.configuration_sac:SACConfig", "sac.processor_sac"),
    "sarm": ("sarm.configuration_sarm:SARMConfig", "sarm.processor_sarm"),
    "smolvla": ("smolvla.configuration_smolvla:SmolVLAConfig", "smolvla.processor_smolvla"),
    "tdmpc": ("tdmpc.configuration_tdmpc:TDMPCConfig", "tdmpc.processor_tdmpc"),
    "vqbet": ("vqbet.configuration_vqbet:VQBeTConfig", "vqbet.processor_vqbet"),
    "wall_x": ("wall_x.configuration_wall_x:WallXConfig", "wall_x.processor_wall_x"),
    "xvla": ("xvla.configuration_xvla:XVLAConfig", "xvla.processor_xvla"),
}
"""Configuration and processors of each type of policy, below ``lerobot.policies``."""


class Tokenizer:
    """Stands for a tokenizer of the Hub: a token per character."""

    @classmethod
    def from_pretrained(cls, *_: object, **__: object) -> Tokenizer:
        return cls()

    def __call__(self, text: list[str] | str, **_: object) -> dict[str, torch.Tensor]:
        lines = [text] if isinstance(text, str) else text
        tokens = [[ord(letter) for letter in line[:4].ljust(4)] for line in lines]
        ids = torch.tensor(tokens)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


@pytest.fixture
def policies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the modules of the policies importable without the libraries of their networks."""
    require_package("lerobot")
    import lerobot
    from lerobot.processor import tokenizer_processor

    root = Path(lerobot.__path__[0], "policies")
    for name in ("", *{name.rpartition(".")[0] for _, name in POLICIES.values()}):
        # The code of a package imports all networks.
        package = types.ModuleType(".".join(filter(None, ("lerobot.policies", name))))
        package.__path__ = [str(root / name.replace(".", "/"))]
        monkeypatch.setitem(sys.modules, package.__name__, package)
    for name in ("faker", "transformers"):
        if importlib.util.find_spec(name) is None:
            monkeypatch.setitem(sys.modules, name, MagicMock())
    monkeypatch.setattr(tokenizer_processor, "_transformers_available", True)
    monkeypatch.setattr(tokenizer_processor, "AutoTokenizer", Tokenizer)
    monkeypatch.setattr(tokenizer_processor, "AutoProcessor", Tokenizer)


def save_stock(policy: str, path: Path) -> tuple[Any, Any]:
    """Save the processors and the configuration of a new policy, and return the processors."""
    place, module = POLICIES[policy]
    module_of_config, _, name = place.partition(":")
    kind = getattr(importlib.import_module(f"lerobot.policies.{module_of_config}"), name)
    processors = importlib.import_module(f"lerobot.policies.{module}")
    make = next(
        value
        for name, value in vars(processors).items()
        if name.startswith("make_") and "libero" not in name
    )
    if policy == "sarm":
        config = kind(device="cpu", max_state_dim=6)
    else:
        inputs, outputs = features()
        config = kind(input_features=inputs, output_features=outputs, device="cpu")
    before, after = make(config, stock_statistics())
    for processor in (before, after):
        processor.save_pretrained(path)
    config.save_pretrained(path)
    return before, after


def compare(mine: Processor, theirs: Any, transition: Any) -> None:
    """Compare what each known step makes of LeRobot's sample, up to one that needs a network."""
    for step, their_step in zip(mine.steps, theirs.steps, strict=True):
        if step.name not in DEFINITIONS:
            try:
                transition = their_step(transition)
            except Exception:
                return
            continue
        sample = {
            key: value.numpy() if isinstance(value, torch.Tensor) else value
            for key, value in flatten(transition).items()
        }
        transition = their_step(transition)
        assert_same_bits(dict(DEFINITIONS[step.name].apply(step, sample)), flatten(transition))


def flatten(transition: Any) -> dict[str, Any]:
    parts = {key.value: value for key, value in transition.items()}
    flat = {**(parts.get("observation") or {}), **(parts.get("complementary_data") or {})}
    return flat if parts.get("action") is None else {**flat, ACTION: parts["action"]}


@pytest.mark.parametrize("policy", POLICIES)
def test_stock_policy_has_the_same_bits_and_no_findings(
    policies: None, policy: str, tmp_path: Path
) -> None:
    before, after = save_stock(policy, tmp_path)
    checkpoint = read_checkpoint(tmp_path)
    assert check_checkpoint(checkpoint).findings == ()
    preprocessor, postprocessor = checkpoint.processors
    for processor in checkpoint.processors:
        # The name of a class is that of its module, which may move.
        names = {step.name for step in processor.steps if not step.is_class}
        assert set(DEFAULT_STEPS[policy][processor.role]) == names - {"device_processor"}
    for seed in range(5):
        sample = as_theirs(draw(seed))
        compare(preprocessor, before, before.to_transition(sample))
        action = torch.from_numpy(np.random.default_rng(seed).normal(size=(2, 6)).astype("float32"))
        compare(postprocessor, after, after.to_transition(action))


def write_with_lerobot(folder: Folder, path: Path) -> None:
    """Write a checkpoint by LeRobot's own steps."""
    import lerobot.processor
    from lerobot.policies.xvla import processor_xvla  # registers its steps

    assert processor_xvla
    for name, role, steps in (
        ("policy_preprocessor", "before", folder.before),
        ("policy_postprocessor", "after", folder.after),
    ):
        built = []
        for step in steps:
            kind = lerobot.processor.ProcessorStepRegistry.get(step["registry_name"])
            config = dict(step["config"])
            if "norm_map" in config:
                config["stats"] = folder.statistics[role]
            built.append(kind(**config))
        lerobot.processor.PolicyProcessorPipeline(steps=built, name=name).save_pretrained(path)
    # The configuration of a policy rejects some of the faults, and an older version did not.
    (path / "config.json").write_text(json.dumps(folder.config))


@pytest.mark.parametrize("damage", FAULTS, ids=lambda damage: damage.__name__)
def test_published_fault_that_lerobot_saves_is_named(
    policies: None, damage: Damage, tmp_path: Path
) -> None:
    folder = Folder()
    damage(folder)
    write_with_lerobot(folder, tmp_path)
    report = check_checkpoint(read_checkpoint(tmp_path))
    assert FAULTS[damage] in [
        (finding.code, finding.where.transform, finding.where.key) for finding in report.findings
    ]
    assert report.exit_code(strict=False) == 1


def test_rotations_have_the_same_bits(policies: None) -> None:
    from lerobot.policies.xvla.processor_xvla import XVLARotation6DToAxisAngleProcessorStep
    from lerobot.processor.converters import create_transition

    step = Step(0, "xvla_rotation_6d_to_axis_angle")
    # No rotation, half a turn about each axis, nearly none, and columns of zeros.
    edges: list[list[float]] = [
        [1, 0, 0, 0, 1, 0],
        [1, 0, 0, 0, -1, 0],
        [-1, 0, 0, 0, 1, 0],
        [-1, 0, 0, 0, -1, 0],
        [1, 1e-4, 0, -1e-4, 1, 0],
        [0, 0, 0, 0, 0, 0],
    ]
    for dtype in (np.float32, np.float64):
        actions = np.random.default_rng(0).normal(size=(500, 10)).astype(dtype)
        actions[: len(edges), 3:9] = edges
        transition = create_transition(action=torch.from_numpy(actions))
        theirs = flatten(XVLARotation6DToAxisAngleProcessorStep()(transition))
        mine = DEFINITIONS[step.name].apply(step, {ACTION: actions})
        assert_same_bits(dict(mine), {ACTION: theirs[ACTION]})
