"""See what a chain of RL transforms does to your data, whether it is right, and what it costs.

Every public name is imported from here, and loaded when it is first used: ``import tdx`` itself
loads neither torch nor gymnasium. The names and where they live are listed in ``__init__.pyi``.
"""

from __future__ import annotations

import warnings

import lazy_loader

from tdx.foundation import compiler_import
from tdx.foundation.html_repr import set_html_renderer

__version__ = "0.1.0"

compiler_import.install()

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

# The renderer and the views that it uses are loaded when a notebook shows a value.
set_html_renderer(lambda value: _load("to_html")(value))

# Deprecated aliases: names of earlier versions of the API, which tutorials and the reference
# documents still use.
_RENAMED = {
    "BinaryDiscreteTensorSpec": "Binary",
    "BoundedTensorSpec": "Bounded",
    "CompositeSpec": "Composite",
    "DiscreteBox": "CategoricalBox",
    "DiscreteTensorSpec": "Categorical",
    "LazyStackedCompositeSpec": "StackedComposite",
    "LazyStackedTensorSpec": "Stacked",
    "MultiDiscreteTensorSpec": "MultiCategorical",
    "MultiOneHotDiscreteTensorSpec": "MultiOneHot",
    "NonTensorSpec": "NonTensor",
    "OneHotDiscreteTensorSpec": "OneHot",
    "UnboundedContinuousTensorSpec": "Unbounded",
    "UnboundedDiscreteTensorSpec": "UnboundedDiscrete",
}


def __getattr__(name: str) -> object:
    if name not in _RENAMED:
        return _load(name)
    new = _RENAMED[name]
    warnings.warn(
        f"tdx.{name} is deprecated; use tdx.{new}", category=DeprecationWarning, stacklevel=2
    )
    return _load(new)
