"""Import TensorDict without torch's compiler.

TensorDict marks some functions for ``torch.compile`` when it is imported, and each mark imports
``torch._dynamo``, which takes almost as long as torch itself. Most processes compile nothing. So
the marks are recorded, and set as soon as ``torch._dynamo`` is imported
(``docs/decisions/0022-the-compiler-is-imported-late.md``).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, TypeAlias

COMPILER = "torch._dynamo"
LIBRARY = "tensordict"
MARKS = ("allow_in_graph", "assume_constant_result")
"""Functions of ``torch.compiler`` that TensorDict calls during its import."""

Mark: TypeAlias = Callable[[object], object]


class CompilerImport(MetaPathFinder):
    """Import hook that sets the marks of TensorDict after the import of the compiler."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Mark, Any]] = []
        self._has_compiler = COMPILER in sys.modules

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of the two modules, with a loader that calls this hook."""
        if fullname not in (LIBRARY, COMPILER):
            return None
        others = [finder for finder in sys.meta_path if finder is not self]
        found = (other.find_spec(fullname, path, target) for other in others)
        spec = next((spec_found for spec_found in found if spec_found is not None), None)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader

            def exec_module(module: ModuleType) -> None:
                # For one module: the loader's own method is visible again.
                del loader.exec_module
                if fullname == LIBRARY:
                    with self._record_marks():
                        loader.exec_module(module)
                    return
                loader.exec_module(module)
                self._has_compiler = True
                for mark, function in self._waiting:
                    mark(function)
                self._waiting.clear()

            loader.exec_module = exec_module
        return spec

    @contextmanager
    def _record_marks(self) -> Iterator[None]:
        import torch.compiler

        marks = {name: getattr(torch.compiler, name) for name in MARKS}
        for name, mark in marks.items():
            setattr(torch.compiler, name, self._recorded(mark))
        try:
            yield
        finally:
            for name, mark in marks.items():
                setattr(torch.compiler, name, mark)

    def _recorded(self, mark: Mark) -> Mark:
        def record(function: Any) -> Any:
            if self._has_compiler:
                return mark(function)
            self._waiting.append((mark, function))
            return function

        return record


def install() -> None:
    """Install the hook, unless TensorDict is already imported."""
    if LIBRARY not in sys.modules:
        sys.meta_path.insert(0, CompilerImport())
