"""Rollouts on disk: record, resume, open, verify, list, replay, export and import dumps.

Importing this package loads nothing; which names there are is listed in ``__init__.pyi``.
"""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
