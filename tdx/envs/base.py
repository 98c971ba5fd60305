"""The class that an env extends, for those who write their own."""

from __future__ import annotations

from tdx.core.envs import ActionSequence, EnvBase, step_mdp

__all__ = ["ActionSequence", "EnvBase", "step_mdp"]
