"""Values and stages of a pipeline as plain data, without torch.

Lists and tuples are the same here, a ``tuple``: YAML has only one kind of sequence, and the
declared type of an argument decides which kind its constructor gets.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from tdx.foundation.errors import CodeNotAllowedError

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

_NAME = r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*"
_REFERENCE = re.compile(rf"({_NAME}|[^:\x00-\x1f]+\.py):({_NAME})")


@dataclass(frozen=True, slots=True)
class Dtype:
    """A torch dtype by its name, ``Dtype("float32")``."""

    name: str

    @classmethod
    def named(cls, name: str) -> Dtype | None:
        """Return the dtype with this name, with or without ``torch.``; ``None`` if unknown.

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
    """A Python object, ``module:name`` or ``file.py:name``; imported only if the user allows code.

    Args:
        module: Module, or path of a file that ends with ``.py``.
        name: Name in it, with dots.
    """

    module: str
    name: str

    @property
    def is_file(self) -> bool:
        """True if it names a file instead of a module."""
        return self.module.endswith(".py")

    @classmethod
    def of(cls, text: str) -> CodeReference | None:
        """Return the reference that ``text`` spells; ``None`` if it is not one.

        Example:
            >>> CodeReference.of("my_package.envs:make")
            CodeReference(module='my_package.envs', name='make')
            >>> CodeReference.of("Pendulum-v1")
        """
        match = _REFERENCE.fullmatch(text)
        return cls(match[1], match[2]) if match else None

    def __str__(self) -> str:
        return f"{self.module}:{self.name}"


class FileArguments(dict[str, Value]):
    """Named arguments that were read from a file; those that a user typed are a plain ``dict``.

    A file must not make an env or a stage open files, import modules or use the network.
    """

    @classmethod
    def like(
        cls, origin: Mapping[str, Value], arguments: Mapping[str, Value]
    ) -> Mapping[str, Value]:
        """Return arguments with the origin of others, from which they are made."""
        return cls(arguments) if isinstance(origin, cls) else arguments


@dataclass(frozen=True, slots=True)
class StageConfig:
    """One stage of a chain: a transform and its arguments.

    Args:
        name: Class name of the transform, or ``module:name`` of one in Python code.
        args: Positional arguments.
        kwargs: Named arguments.
        line: Line in the pipeline file, from 1; not compared.
        column: Column of its name in that line, from 1; not compared.
        ignored: Codes of rules, or prefixes of codes, that a comment such as
            ``# tdx: ignore[TDX422]`` switches off for the stage; not compared.
    """

    name: str
    args: tuple[Value, ...] = ()
    kwargs: Mapping[str, Value] = field(default_factory=dict)
    line: int | None = field(default=None, compare=False)
    column: int | None = field(default=None, compare=False)
    ignored: tuple[str, ...] = field(default=(), compare=False)

    @property
    def code(self) -> CodeReference | None:
        """Python object that the stage refers to; ``None`` for a transform of the catalog."""
        return CodeReference.of(self.name)


def iterate_values(value: object) -> Iterator[object]:
    """Yield the values in nested sequences and mappings."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from iterate_values(item)
    else:
        yield value


def code_not_allowed_error(code: object) -> CodeNotAllowedError:
    """Return the error for Python code that may not be imported."""
    message = f"{code} is Python code, and importing code is not allowed"
    return CodeNotAllowedError(message, hint="add --allow-code if you trust it")
