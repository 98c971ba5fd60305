"""Specs: descriptions of tensors and TensorDicts, without data.

Example:
    >>> spec = Composite(observation=Bounded(-1.0, 1.0, shape=(3,)), done=Binary(1))
    >>> spec.is_in(spec.rand())
    True
"""

from tdx.specs.bounded import (
    Bounded,
    BoundedContinuous,
    BoundedDiscrete,
    Unbounded,
    UnboundedContinuous,
    UnboundedDiscrete,
)
from tdx.specs.categorical import Categorical, OneHot
from tdx.specs.composite import Composite
from tdx.specs.consolidation import check_no_exclusive_keys, consolidate_spec
from tdx.specs.inference import make_composite_from_td
from tdx.specs.intervals import ContinuousBox
from tdx.specs.multi_categorical import Binary, MultiCategorical, MultiOneHot
from tdx.specs.non_tensor import Choice, NonTensor
from tdx.specs.spaces import Box, BoxList, CategoricalBox
from tdx.specs.spec import TensorSpec
from tdx.specs.stacked import Stacked, StackedComposite

__all__ = [
    "Binary",
    "Bounded",
    "BoundedContinuous",
    "BoundedDiscrete",
    "Box",
    "BoxList",
    "Categorical",
    "CategoricalBox",
    "Choice",
    "Composite",
    "ContinuousBox",
    "MultiCategorical",
    "MultiOneHot",
    "NonTensor",
    "OneHot",
    "Stacked",
    "StackedComposite",
    "TensorSpec",
    "Unbounded",
    "UnboundedContinuous",
    "UnboundedDiscrete",
    "check_no_exclusive_keys",
    "consolidate_spec",
    "make_composite_from_td",
]
