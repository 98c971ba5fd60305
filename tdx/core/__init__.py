"""Envs, transforms and chains: the base classes, the plan of a rollout and its execution, tracing.

Names resolve on first use; which there are is listed in ``__init__.pyi``.
"""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
