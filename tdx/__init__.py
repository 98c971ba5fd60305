"""See what a chain of RL transforms does to your data, whether it is right, and what it costs.

Every public name is imported from here, and loaded when it is first used: ``import tdx`` itself
loads neither torch nor gymnasium. The names and where they live are listed in ``__init__.pyi``.
"""

from __future__ import annotations

import lazy_loader

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
