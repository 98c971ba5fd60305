"""``torch.export`` files, which torch loads without the code of the chain."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import torch

from tdx.artifacts.backends.interface import Backend

if TYPE_CHECKING:
    from tdx.artifacts.functions import ChainFunctions, ExportedFunction


class Pt2Backend(Backend):
    """Each function as ``NAME.pt2``."""

    name = "pt2"

    def files(self, chain: ChainFunctions) -> dict[str, bytes]:
        """See :class:`Backend`."""
        return {f"{function.name}.pt2": _saved(function) for function in chain.functions}


def _saved(function: ExportedFunction) -> bytes:
    buffer = io.BytesIO()
    torch.export.save(function.program, buffer)
    return buffer.getvalue()


backend = Pt2Backend()
