"""``torch.export`` files, which torch loads without the code of the chain."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import torch

from tdx.artifacts.backends.interface import Backend

if TYPE_CHECKING:
    from tdx.artifacts.functions import ChainFunctions


class Pt2Backend(Backend):
    """Each function as ``NAME.pt2``."""

    name = "pt2"

    def bound(self, operator: str) -> float:
        """See :class:`Backend`; torch runs the very operators."""
        return 0.0

    def files(self, chain: ChainFunctions) -> dict[str, bytes]:
        """See :class:`Backend`."""
        files = {}
        for function in chain.functions:
            buffer = io.BytesIO()
            torch.export.save(function.program, buffer)
            files[f"{function.name}.pt2"] = buffer.getvalue()
        return files


backend = Pt2Backend()
