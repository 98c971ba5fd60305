"""Envs implemented in torch, for any batch size and device."""

from tdx.envs.native.cart_pole import CartPoleEnv
from tdx.envs.native.native_env import NativeEnv
from tdx.envs.native.pendulum import PendulumEnv

__all__ = ["CartPoleEnv", "NativeEnv", "PendulumEnv"]
