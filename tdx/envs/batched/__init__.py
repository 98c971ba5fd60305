"""Batches of envs, in this process or in worker processes."""

from tdx.envs.batched.env_creator import EnvCreator
from tdx.envs.batched.metadata import EnvMetaData
from tdx.envs.batched.parallel import ParallelEnv
from tdx.envs.batched.serial import SerialEnv

__all__ = ["EnvCreator", "EnvMetaData", "ParallelEnv", "SerialEnv"]
