"""Checkpoints for tests, in the layouts of R3M and torchvision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torchvision
from torch import Tensor, nn


def network(name: str = "resnet18", seed: int = 3) -> Any:
    """Return a network with random weights and updated batch norms."""
    torch.manual_seed(seed)
    made = getattr(torchvision.models, name)()
    for module in made.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None
            assert module.running_var is not None
            module.running_mean.normal_(0.0, 0.1)
            module.running_var.uniform_(0.5, 2.0)
            module.weight.data.uniform_(0.5, 1.5)
    return made.eval()


def without_head(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key: value for key, value in state.items() if not key.startswith("fc.")}


def in_r3m_layout(state: dict[str, Tensor]) -> dict[str, Any]:
    """Return the weights under "r3m", as of a data-parallel model with a language head."""
    entries = {f"module.convnet.{key}": value for key, value in without_head(state).items()}
    entries["module.lang_enc.model.embeddings.weight"] = torch.zeros(4, 3)
    entries["module.lang_rew.pred.0.weight"] = torch.zeros(2, 2)
    return {"r3m": entries, "global_step": 7}


def saved(payload: Any, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(payload, path)
    return path
