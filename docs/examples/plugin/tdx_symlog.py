"""A plugin for tdx in one file: a transform, a lint rule, an export format and a kind of stack."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tdx import NestedKey, Transform, open_stack
from tdx.core.transforms import TimeBehavior
from tdx.core.transforms.spec_maps import map_bounds
from tdx.inspection.lint.context import LintContext
from tdx.inspection.lint.rule import Violation, remove_stage, rule
from tdx.rollouts.formats.export_source import ExportSource, name_columns
from tdx.rollouts.formats.interface import ExportOptions, Format
from tdx.specs import Bounded, TensorSpec
from tdx.stacks import Stack


class SymLog(Transform):
    """Compress large values: ``sign(x) * log(1 + |x|)``.

    The formula is the symlog of "Mastering Diverse Domains through World Models" (Hafner et al.,
    2023).

    Args:
        in_keys: Floating-point entries of the env's output to read.
        out_keys: Keys to write; the in-keys by default.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tdx_symlog import SymLog
        >>> SymLog(["reward"])(TensorDict(reward=torch.tensor([-1.0, 0.0])))["reward"]
        tensor([-0.6931,  0.0000])
    """

    time_behavior = TimeBehavior.POINTWISE
    default_in_keys = ("observation",)

    def __init__(
        self,
        in_keys: Sequence[NestedKey] | None = None,
        out_keys: Sequence[NestedKey] | None = None,
    ) -> None:
        super().__init__(self.default_in_keys if in_keys is None else in_keys, out_keys)

    def _apply_transform(self, tensor: Tensor) -> Tensor:
        return tensor.sign() * tensor.abs().log1p()

    def _transform_spec(self, spec: TensorSpec) -> TensorSpec:
        return map_bounds(spec, self._apply_transform) if isinstance(spec, Bounded) else spec


@rule(
    "SYM101",
    "SymLog after a normalization",
    "warning",
    why="""
    Normalized values are close to zero, where the logarithm is almost the identity: the stage costs
    time and compresses only outliers.
    """,
    wrong="Pendulum-v1 -t 'ObservationNorm(0.0, 1.5)' -t SymLog",
    right="Pendulum-v1 -t 'ObservationNorm(0.0, 1.5)'",
)
def symlog_of_normalized_values(context: LintContext) -> Iterator[Violation]:
    """Find SymLog after ObservationNorm or VecNorm of the same entry."""
    for first, second in itertools.combinations(context.stages, 2):
        if second.name != "SymLog" or first.name not in ("ObservationNorm", "VecNorm"):
            continue
        for key in set(first.out_keys) & set(second.in_keys):
            yield Violation(
                f"{key} is normalized by stage {first.index} ({first.name})",
                "remove one of the two stages",
                second.index,
                key,
                remove_stage(second.index, second.config),
            )


class Csv:
    """Export the steps of a dump as a table of comma-separated values."""

    format = Format("csv", "a table with one row per step", (".csv",), can_import=False)

    @staticmethod
    def write(source: ExportSource, target: Path, options: ExportOptions) -> tuple[str, ...]:
        """Write one row per step of each env, and return remarks for the user."""
        columns = name_columns(source.manifest)
        with target.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            widths = [each.shape for each in source.entries(columns)]
            writer.writerow(
                f"{column.name}[{index}]" if shape else column.name
                for column, shape in zip(columns, widths, strict=True)
                for index in range(torch.Size(shape).numel())
            )
            for _, leaves in source.blocks("data"):
                steps = len(next(iter(leaves.values()))) * source.rows
                cells = [leaves[each.path].reshape(steps, -1) for each in columns]
                writer.writerows(
                    [value for cell in row for value in cell.tolist()]
                    for row in zip(*cells, strict=True)
                )
        return ()


class FunctionKind:
    """Open a function that returns an env as the stack of that env."""

    title = "a function marked with tdx_stack = True that returns an env"

    @staticmethod
    def accepts(target: Any) -> bool:
        """Return True for a marked function."""
        return getattr(target, "tdx_stack", False) is True

    @staticmethod
    def open(target: Any) -> Stack:
        """Call the function and open what it returns."""
        return open_stack(target())
