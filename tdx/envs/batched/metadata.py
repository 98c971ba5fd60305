"""What must be known of an env to run it beside others: plain data that can be sent."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from tensordict import LazyStackedTensorDict, TensorDictBase

from tdx.core.envs import EnvBase
from tdx.keys import NestedKey
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
        unlike: what each of its envs is, if it is a batch of envs that do not return the same.
        reads: what its step reads beside actions and masks; ``None`` if unknown.
    """

    input_spec: Composite
    output_spec: Composite
    batch_size: torch.Size
    device: torch.device
    name: str
    unlike: tuple[EnvMetaData, ...] = ()
    reads: tuple[NestedKey, ...] | None = None

    @property
    def parts(self) -> list[Composite]:
        """The composites of observations, rewards, flags, state and actions."""
        parts = [*self.output_spec.values(), *self.input_spec.values()]
        return [part for part in parts if isinstance(part, Composite)]

    @classmethod
    def of(cls, env: EnvBase) -> EnvMetaData:
        """The metadata of a made env."""
        unlike = env.__dict__.get("_unlike", ())
        return cls(
            env.input_spec,
            env.output_spec,
            env.batch_size,
            env.device,
            repr(env),
            unlike,
            env._step_reads,
        )


class SpecsOnlyEnv(EnvBase):
    """Answers what an env's specs can answer, for an env that is elsewhere.

    Args:
        metadata: what that env said of itself.
    """

    def __init__(self, metadata: EnvMetaData) -> None:
        super().__init__(device=metadata.device, batch_size=metadata.batch_size)
        self._input_spec = metadata.input_spec
        self._output_spec = metadata.output_spec
        self._rows = [SpecsOnlyEnv(row) for row in metadata.unlike]

    def step_mdp(self, tensordict: TensorDictBase) -> TensorDictBase:
        if not self._rows:
            return super().step_mdp(tensordict)
        given = zip(self._rows, tensordict.unbind(0), strict=True)
        return self._joined([row.step_mdp(part) for row, part in given])

    def rand_action(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        if not self._rows:
            return super().rand_action(tensordict)
        parts = [None] * len(self._rows) if tensordict is None else tensordict.unbind(0)
        given = zip(self._rows, parts, strict=True)
        return self._joined([row.rand_action(part) for row, part in given])

    def fake_tensordict(self) -> TensorDictBase:
        if not self._rows:
            return super().fake_tensordict()
        return self._joined([row.fake_tensordict() for row in self._rows])

    def _joined(self, rows: list[TensorDictBase]) -> TensorDictBase:
        return LazyStackedTensorDict.lazy_stack([row.to(self.device) for row in rows], 0)
