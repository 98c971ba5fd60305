"""Envs, transforms and chains: the base classes, the plan of a rollout and its execution, tracing.

Public names resolve on first use; they are listed in ``__init__.pyi``. The import of this package
connects the methods of ``EnvBase`` to the modules that implement them.
"""

from __future__ import annotations

import lazy_loader

from tdx.core.services import connect_services

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

connect_services()
