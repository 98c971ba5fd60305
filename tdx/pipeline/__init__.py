"""Pipelines: the catalogue of transforms, the ``--t`` grammar, the file, building and checking.

Importing this package loads neither torch nor a YAML library; which names there are is listed in
``__init__.pyi``.
"""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
