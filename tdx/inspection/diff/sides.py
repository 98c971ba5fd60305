"""The two sides of a comparison: whatever has a chain, specs, and values to show."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from tdx.inspection.leaf import LeafSpec, composite_leaves
from tdx.inspection.spec_report import innermost
from tdx.pipeline import Pipeline

if TYPE_CHECKING:
    from tensordict import TensorDictBase

    from tdx.core import TransformedEnv

Leaves = tuple[LeafSpec, ...]


class DiffSide(Protocol):
    """One side. A dump can be one too: its manifest has pipeline and specs, its chunks values."""

    @property
    def name(self) -> str:
        """What the side is called."""

    @property
    def pipeline(self) -> Pipeline:
        """Its env and its chain as data."""

    def specs(self) -> tuple[Leaves, Leaves]:
        """The specs before and after the chain."""

    def rollout(self, steps: int, seed: int) -> TensorDictBase:
        """A rollout of that many steps, ``[*B, T]``."""

    def close(self) -> None:
        """Release what it holds."""


class PipelineSide:
    """A pipeline as one side of a comparison.

    Args:
        name: what it is called.
        pipeline: the pipeline.
        allow_code: whether Python objects that it names may be imported.

    Raises:
        TdxError: the pipeline cannot be built.
    """

    def __init__(self, name: str, pipeline: Pipeline, allow_code: bool = False) -> None:
        from tdx.pipeline import build_env

        self.name = name
        self.pipeline = pipeline
        self._env: TransformedEnv = build_env(pipeline, allow_code)

    def specs(self) -> tuple[Leaves, Leaves]:
        """The specs before and after the chain."""
        base = innermost(self._env)
        before = composite_leaves(base.input_spec, base.output_spec)
        return before, composite_leaves(self._env.input_spec, self._env.output_spec)

    def rollout(self, steps: int, seed: int) -> TensorDictBase:
        """A rollout with random actions, ``[*B, T]``.

        The actions of a step depend on the seed, the step and the action spec alone, so both sides
        take the same ones where their action specs agree.
        """
        from tdx.inspection.seeded import seeded_rollout

        return seeded_rollout(self._env, steps, seed)

    def close(self) -> None:
        """Close the env."""
        self._env.close()
