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

    def files(self, chain: ChainFunctions) -> dict[str, bytes]:
        """See :class:`Backend`."""
        files = {f"{function.name}.pt2": io.BytesIO() for function in chain.functions}
        for function, buffer in zip(chain.functions, files.values(), strict=True):
            torch.export.save(function.program, buffer)
        return {name: buffer.getvalue() for name, buffer in files.items()}


backend = Pt2Backend()
