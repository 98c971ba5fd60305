"""The base class of envs, and the modules it is built from."""

from tdx.core.envs.env_base import EnvBase
from tdx.core.envs.policies import ActionSequence
from tdx.core.envs.step_mdp import step_mdp

__all__ = ["ActionSequence", "EnvBase", "step_mdp"]
