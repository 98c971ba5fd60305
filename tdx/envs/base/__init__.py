"""The env's base class and the pieces it is made of."""

from tdx.envs.base.env_base import EnvBase
from tdx.envs.base.policies import ActionSequence
from tdx.envs.base.step_mdp import step_mdp

__all__ = ["ActionSequence", "EnvBase", "step_mdp"]
