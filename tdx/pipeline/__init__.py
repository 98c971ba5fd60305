"""Pipelines: the catalog, ``-t`` text, pipeline files, building and editing.

Importing this package loads neither torch nor a YAML library; ``__init__.pyi`` lists its names.
"""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
