"""Chains of transforms of TorchRL."""

from __future__ import annotations

from dataclasses import replace

import torchrl.data
import torchrl.envs

from tests.explanations.mutations import native

LAYOUT = replace(native.LAYOUT, library="torchrl")
build = native.builder(torchrl.envs, torchrl.data)
