"""Imported once by the fork server, so that each worker begins with these modules loaded."""

import tensordict
import torch

import tdx.envs.batched.worker

__all__ = ["tdx", "tensordict", "torch"]
