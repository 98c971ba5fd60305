"""Protocol of a backend: turns the functions of a chain into files of another runtime.

A backend is one module in this folder with one object: ``backend = NAMEBackend()``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from tdx.artifacts.functions import stage_of
from tdx.foundation.errors import ChainError, Where

if TYPE_CHECKING:
    from torch.fx import Node

    from tdx.artifacts.functions import ChainFunctions


def short_name(operator: str) -> str:
    """Return ``add`` for ``aten.add.Tensor``."""
    if "getitem" in operator:
        return "getitem"
    return operator.split(".")[1] if operator.startswith("aten.") else operator


class Backend(ABC):
    """A form of an artifact.

    The files run without tdx. ``verify.py`` of the artifact knows how (``tdx/artifacts/verifier``):

    - ``numpy``: ``chain.py`` has a Python function for each function, which takes the inputs and
      returns a tuple of the outputs, both in their order;
    - ``cpp``: ``verify.cpp`` includes the header, and has for each function
      ``extern "C" void tdx_NAME(void* state, NAMEInput* input, NAMEOutput* output)``; the fields of
      the structs are the entries in their order;
    - ``onnx``: ``NAME.onnx`` has inputs and outputs in their order;
    - ``pt2``: ``NAME.pt2`` as well.
    """

    name: ClassVar[str]  # in ``--to``
    # Modules that an export needs; the extra ``name`` of tdx installs them.
    packages: ClassVar[tuple[str, ...]] = ()
    # Largest difference by operator (``add``), relative to the largest magnitude in a tensor.
    bounds: ClassVar[Mapping[str, float]] = {}
    others: ClassVar[float | None] = 0.0  # of other operators; ``None``: they cannot be lowered

    @abstractmethod
    def files(self, chain: ChainFunctions) -> dict[str, bytes]:
        """Return the files of a chain by name.

        Raises:
            ChainError: An operator cannot be expressed with its arguments; the error names both.
        """

    def bound(self, operator: str) -> float | None:
        """Return the bound of an operator, such as ``aten.add.Tensor``."""
        return self.bounds.get(short_name(operator), self.others)

    def check(self, chain: ChainFunctions) -> dict[str, float]:
        """Return the bound of each operator of a chain, or refuse one that has none."""
        bounds: dict[str, float] = {}
        for function in chain.functions:
            for node in function.calls:
                bound = self.bound(str(node.target))
                if bound is None:
                    raise self.not_lowered(node)
                bounds[str(node.target)] = bound
        return dict(sorted(bounds.items()))

    def not_lowered(self, node: Node, reason: str = "") -> ChainError:
        """Return the error for an operator, with a reason such as ``with antialias=True``."""
        stage = stage_of(node)
        where = Where() if stage is None else Where(stage=stage[0], transform=stage[1])
        return ChainError(
            f"{self.name} cannot express {node.target}{reason and f' {reason}'}",
            where=where,
            hint="export to pt2 or onnx, or the part before it: --split",
        )
