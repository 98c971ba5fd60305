"""Values and stages of a pipeline as plain data, without torch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

Value: TypeAlias = (
    "bool | int | float | str | tuple[Value, ...] | Mapping[DictKey, Value] | Dtype | Call"
    " | CodeReference | None"
)
DictKey: TypeAlias = "str | int | tuple[str, ...]"

DTYPES = (
    *("float16", "float32", "float64", "bfloat16", "half", "float", "double"),
    *("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *("short", "int", "long", "bool", "complex64", "complex128"),
)
_DTYPE_ALIASES = {
    **{"half": "float16", "float": "float32", "double": "float64"},
    **{"short": "int16", "int": "int32", "long": "int64"},
}
SPECS = (
    *("Binary", "Bounded", "BoundedContinuous", "BoundedDiscrete", "Categorical", "Choice"),
    *("Composite", "MultiCategorical", "MultiOneHot", "NonTensor", "OneHot", "Stacked"),
    *("StackedComposite", "Unbounded", "UnboundedContinuous", "UnboundedDiscrete"),
)
TENSOR = "tensor"

_REFERENCE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


@dataclass(frozen=True, slots=True)
class Dtype:
    """A torch dtype by its name, ``Dtype("float32")``."""

    name: str

    @classmethod
    def named(cls, name: str) -> Dtype | None:
        """The dtype of that name, with or without ``torch.``; none where there is none.

        Example:
            >>> Dtype.named("torch.long")
            Dtype(name='int64')
        """
        bare = name.removeprefix("torch.")
        return cls(_DTYPE_ALIASES.get(bare, bare)) if bare in DTYPES else None


@dataclass(frozen=True, slots=True)
class Call:
    """A spec, a transform or a tensor written as a call, ``Unbounded(shape=(3,))``."""

    name: str
    args: tuple[Value, ...] = ()
    kwargs: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CodeReference:
    """A Python object, ``module:name``; it is imported only where the user allows code."""

    module: str
    name: str

    @classmethod
    def of(cls, text: str) -> CodeReference | None:
        """The reference that ``text`` spells, or none.

        Example:
            >>> CodeReference.of("my_package.envs:make")
            CodeReference(module='my_package.envs', name='make')
            >>> CodeReference.of("Pendulum-v1")
        """
        return cls(*text.split(":")) if _REFERENCE.fullmatch(text) else None

    def __str__(self) -> str:
        return f"{self.module}:{self.name}"


@dataclass(frozen=True, slots=True)
class StageConfig:
    """One stage of the chain: a transform and what it is made with.

    Args:
        name: class name of the transform, or ``module:name`` for one in Python code.
        args: positional arguments.
        kwargs: named arguments.
        line: its line in the pipeline file, from 1; not part of its identity.
    """

    name: str
    args: tuple[Value, ...] = ()
    kwargs: Mapping[str, Value] = field(default_factory=dict)
    line: int | None = field(default=None, compare=False)

    @property
    def code(self) -> CodeReference | None:
        """The Python object that it refers to, where it is not a transform of tdx."""
        return CodeReference.of(self.name)
