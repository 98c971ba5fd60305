"""Specs: descriptions of tensors and TensorDicts, without data.

Public names are loaded on first use, so that ``tdx.specs.leaf`` can be imported without torch; they
are listed in ``__init__.pyi``.

Example:
    >>> spec = Composite(observation=Bounded(-1.0, 1.0, shape=(3,)), done=Binary(1))
    >>> spec.is_in(spec.rand())
    True
"""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
