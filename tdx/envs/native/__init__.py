"""Envs implemented in torch, for any batch size and device."""

from tdx.envs.native.control import CartPoleEnv, PendulumEnv
from tdx.envs.native.native_env import NativeEnv

__all__ = ["CartPoleEnv", "NativeEnv", "PendulumEnv"]
