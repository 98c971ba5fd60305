"""Find out what a name in a source file means, without importing anything."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path


@dataclass(frozen=True)
class Found:
    """Where a name leads.

    Args:
        dotted: the full name, such as ``tdx.keys.NestedKey`` or ``torch.Tensor``.
        node: the class, or the value of the alias; none where it leads out of the package.
        module: the module that holds ``node``.
    """

    dotted: str
    node: ast.ClassDef | ast.expr | None = None
    module: Module | None = None


class SourceTree:
    """The modules of one package on disk.

    Args:
        root: the folder of the package, such as ``…/tdx``.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.package = root.name
        self._modules: dict[str, Module | None] = {}

    def module(self, dotted: str) -> Module | None:
        """The module of that name, or none where the package has none."""
        if dotted not in self._modules:
            self._modules[dotted] = self._open(dotted)
        return self._modules[dotted]

    def _open(self, dotted: str) -> Module | None:
        head, *rest = dotted.split(".")
        if head != self.package:
            return None
        base = self.root.joinpath(*rest)
        for path in (base / "__init__.py", base.parent / f"{base.name}.py"):
            if path.is_file():
                return Module(self, dotted, path)
        return None


class Module:
    """One source file."""

    def __init__(self, tree: SourceTree, dotted: str, path: Path) -> None:
        self.tree = tree
        self.dotted = dotted
        self.path = path

    @cached_property
    def syntax(self) -> ast.Module:
        """The syntax tree of the file."""
        return ast.parse(self.path.read_text(encoding="utf-8"), filename=str(self.path))

    @cached_property
    def classes(self) -> dict[str, ast.ClassDef]:
        """The classes at the top of the file."""
        return {node.name: node for node in self.syntax.body if isinstance(node, ast.ClassDef)}

    @cached_property
    def aliases(self) -> dict[str, ast.expr]:
        """What plain names at the top of the file are assigned."""
        named: dict[str, ast.expr] = {}
        for node in self.syntax.body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                named[node.targets[0].id] = node.value
            elif isinstance(node, ast.AnnAssign) and node.value is not None:
                named[ast.unparse(node.target)] = node.value
        return named

    @cached_property
    def imports(self) -> dict[str, str]:
        """The full name behind each imported name, also of those for type checkers."""
        named: dict[str, str] = {}
        for node in ast.walk(self.syntax):
            if isinstance(node, ast.Import):
                for name in node.names:
                    named[name.asname or name.name.split(".")[0]] = (
                        name.name if name.asname else name.name.split(".")[0]
                    )
            elif isinstance(node, ast.ImportFrom):
                owner = self._imported_from(node)
                named.update(
                    {name.asname or name.name: f"{owner}.{name.name}" for name in node.names}
                )
        return named

    def _imported_from(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = self.dotted.split(".")
        is_package = self.path.name == "__init__.py"
        kept = parts[: len(parts) - node.level + (1 if is_package else 0)]
        return ".".join([*kept, *([node.module] if node.module else [])])

    def find(self, name: str, depth: int = 0) -> Found:
        """What a (dotted) name in this file leads to."""
        head, _, rest = name.partition(".")
        if not rest:
            node = self.classes.get(name) or self.aliases.get(name)
            if node is not None:
                return Found(f"{self.dotted}.{name}", node, self)
        dotted = self.imports.get(head, head) + (f".{rest}" if rest else "")
        owner, _, last = dotted.rpartition(".")
        module = self.tree.module(owner) if owner else None
        if module is None or depth > 20:
            return Found(dotted)
        if last not in module.classes | module.aliases | module.imports:
            return Found(dotted)
        return module.find(last, depth + 1)

    def bases(self, node: ast.ClassDef) -> list[Found]:
        """The base classes that lie in the package, in order."""
        named = (dotted_name(base) for base in node.bases)
        found = [self.find(name) for name in named if name]
        return [base for base in found if isinstance(base.node, ast.ClassDef)]


def dotted_name(node: ast.expr) -> str | None:
    """``a.b.c`` as text, or none for anything that is not a name."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        owner = dotted_name(node.value)
        return f"{owner}.{node.attr}" if owner else None
    if isinstance(node, ast.Subscript):
        return dotted_name(node.value)
    return None
