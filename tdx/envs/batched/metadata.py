"""What must be known of an env to run it beside others: plain data that can be sent."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tdx.envs.base import EnvBase
from tdx.specs import Composite


@dataclass(frozen=True)
class EnvMetaData:
    """The specs of an env and where it lives, without the env.

    Args:
        input_spec: what the env takes.
        output_spec: what the env returns.
        batch_size: its batch size, ``[*B]``.
        device: where its tensors live.
        name: how it prints.
    """

    input_spec: Composite
    output_spec: Composite
    batch_size: torch.Size
    device: torch.device
    name: str

    @property
    def parts(self) -> list[Composite]:
        """The composites of observations, rewards, flags, state and actions."""
        parts = [*self.output_spec.values(), *self.input_spec.values()]
        return [part for part in parts if isinstance(part, Composite)]

    @classmethod
    def of(cls, env: EnvBase) -> EnvMetaData:
        """The metadata of a made env."""
        return cls(env.input_spec, env.output_spec, env.batch_size, env.device, repr(env))


class SpecsOnlyEnv(EnvBase):
    """Answers what an env's specs can answer, for an env that lives in another process.

    Args:
        metadata: what that env said of itself.
    """

    def __init__(self, metadata: EnvMetaData) -> None:
        super().__init__(device=metadata.device, batch_size=metadata.batch_size)
        self._input_spec = metadata.input_spec
        self._output_spec = metadata.output_spec
