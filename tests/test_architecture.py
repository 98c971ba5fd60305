"""Imports between the modules of tdx.

``lint-imports`` checks the order of the layers. These tests check the rest in the source: no import
cycles, no imports by string, no checks of module names.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.programs import exhaustive

IMPORTS_BY_STRING = {
    # Lazy public names of a package
    "tdx/envs/__init__.py",
    # Optional libraries
    "tdx/envs/gym/gym_env.py",
    "tdx/envs/gym/providers.py",
    "tdx/envs/gym/registry.py",
    # Modules in a folder of tdx that nothing lists: adapters of libraries, lint rules
    "tdx/foundation/plugins.py",
    # Modules named in a pipeline, and classes named in the catalog
    "tdx/inspection/transform_example.py",
    "tdx/pipeline/arguments.py",
    # Packages that an export format requires
    "tdx/rollouts/formats/registry.py",
}
"""Modules that import optional libraries, lazy names or modules of the user."""

MODULE_NAME_CHECKS = {
    # The fork server preloads the module of what its processes run.
    "tdx/engines.py",
    "tdx/foundation/processes.py",
    # Libraries whose objects cannot declare capabilities to tdx
    "tdx/core/transforms/callable_transform.py",
    "tdx/envs/gym/gym_wrapper.py",
    "tdx/envs/gym/registry.py",
}
"""Modules that read the module of a class to recognize other libraries or to show it."""

PRIVATE_PARTS = {
    "gymnasium": "tdx/foundation/gymnasium_internals.py",
    "rich": "",
    "tensordict": "tdx/foundation/tensordicts.py",
    "textual": "tdx/tui/textual_internals.py",
    "torch": "tdx/foundation/torch_internals.py",
    "typer": "tdx/cli/typer_internals.py",
}
"""The module that uses private parts of a dependency, if any; each part has a guard test."""

ROOT = Path(__file__).parents[1]


def source_files() -> list[Path]:
    return sorted((ROOT / "tdx").rglob("*.py"))


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def modules_with(*words: str) -> Iterator[tuple[Path, ast.Module]]:
    """Parse only the modules whose source contains a word: parsing all takes seconds."""
    for path in source_files():
        source = path.read_text()
        if any(word in source for word in words):
            yield path, ast.parse(source)


@cache
def parsed_modules() -> dict[str, tuple[Path, ast.Module]]:
    return {module_name(path): (path, ast.parse(path.read_text())) for path in source_files()}


def imported_modules(name: str) -> Iterator[str]:
    """Yield the modules of tdx that a module imports, including in functions and for types."""
    path, tree = parsed_modules()[name]
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, *([base] if base else [])])
            for alias in node.names:
                full = f"{base}.{alias.name}"
                yield full if full in parsed_modules() else base


def import_graph() -> dict[str, set[str]]:
    known = parsed_modules()
    return {
        name: {each for each in imported_modules(name) if each in known and each != name}
        for name in known
    }


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the strongly connected components with several modules (Tarjan's algorithm)."""
    indices: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(root: str) -> None:
        work = [(root, iter(sorted(graph[root])))]
        indices[root] = lowest[root] = len(indices)
        stack.append(root)
        while work:
            node, targets = work[-1]
            target = next(targets, None)
            if target is not None:
                if target not in indices:
                    indices[target] = lowest[target] = len(indices)
                    stack.append(target)
                    work.append((target, iter(sorted(graph[target]))))
                elif target in stack:
                    lowest[node] = min(lowest[node], indices[target])
                continue
            work.pop()
            if work:
                parent = work[-1][0]
                lowest[parent] = min(lowest[parent], lowest[node])
            if lowest[node] == indices[node]:
                start = stack.index(node)
                component = stack[start:]
                del stack[start:]
                if len(component) > 1:
                    found.append(sorted(component))

    for name in graph:
        if name not in indices:
            visit(name)
    return sorted(found)


def test_import_cycles_are_detected() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}
    assert circles(graph) == [["b", "c"]]


@exhaustive
def test_modules_have_no_import_cycles() -> None:
    assert circles(import_graph()) == []


def lines_with_import_by_string(tree: ast.Module) -> list[int]:
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and (
            (isinstance(node.func, ast.Name) and node.func.id in ("import_module", "__import__"))
            or (isinstance(node.func, ast.Attribute) and node.func.attr == "import_module")
        )
    ]


def lines_with_module_name_check(tree: ast.Module) -> list[int]:
    """Return the lines that read ``__module__``, except comparisons with ``__name__``."""
    own = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare) and "__name__" in ast.dump(node)
        for part in ast.walk(node)
    }
    return [
        node.lineno
        for node in ast.walk(tree)
        if id(node) not in own
        and (
            (isinstance(node, ast.Attribute) and node.attr == "__module__")
            or (isinstance(node, ast.Constant) and node.value == "__module__")
        )
    ]


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("import_module('tdx.core')", 1),
        ("importlib.import_module(name)", 1),
        ("import tdx.core", 0),
    ],
)
def test_imports_by_string_are_detected(source: str, count: int) -> None:
    assert len(lines_with_import_by_string(ast.parse(source))) == count


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("type(stage).__module__.startswith('tdx.')", 1),
        ("getattr(kind, '__module__', '')", 1),
        ("isinstance(stage, Transform)", 0),
    ],
)
def test_module_name_checks_are_detected(source: str, count: int) -> None:
    assert len(lines_with_module_name_check(ast.parse(source))) == count


def test_modules_are_not_imported_by_string() -> None:
    found = {
        str(path.relative_to(ROOT))
        for path, tree in modules_with("import_module", "__import__")
        if lines_with_import_by_string(tree)
    }
    assert found - IMPORTS_BY_STRING == set()


def test_modules_do_not_check_module_names() -> None:
    found = {
        str(path.relative_to(ROOT))
        for path, tree in modules_with("__module__")
        if lines_with_module_name_check(tree)
    }
    assert found - MODULE_NAME_CHECKS == set()


def test_all_listed_exceptions_are_needed() -> None:
    for name in IMPORTS_BY_STRING:
        assert lines_with_import_by_string(ast.parse((ROOT / name).read_text())), name
    for name in MODULE_NAME_CHECKS:
        assert lines_with_module_name_check(ast.parse((ROOT / name).read_text())), name


def private_parts(tree: ast.Module) -> set[str]:
    """Return the private names of dependencies that a module imports, or reads from an import."""
    sources: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                root = alias.name.split(".")[0]
                sources |= {alias.asname: alias.name} if alias.asname else {root: root}
                sources[f"import {alias.name}"] = alias.name
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                sources[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    used = set(sources.values())
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            root, dot, rest = ast.unparse(node).partition(".")
            used.add(sources.get(root, "") + dot + rest)
    return {name for name in used if re.match(r"\w+(\.\w+)*?\._(?!_)", name)}


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import torch._dynamo", {"torch._dynamo"}),
        ("from torch.utils._pytree import tree_map", {"torch.utils._pytree.tree_map"}),
        ("import torch.fx as fx\nfx._symbolic_trace", {"torch.fx._symbolic_trace"}),
        (
            "from tensordict import TensorDict\nTensorDict._new_unsafe({})",
            {"tensordict.TensorDict._new_unsafe"},
        ),
        ("import torch\ntorch.__version__\nstage._apply", set()),
    ],
)
def test_private_parts_are_detected(source: str, found: set[str]) -> None:
    assert private_parts(ast.parse(source)) == found


@exhaustive
def test_private_parts_of_a_dependency_are_in_one_module() -> None:
    found = {
        (str(path.relative_to(ROOT)), name)
        for path, tree in parsed_modules().values()
        for name in private_parts(tree)
        if PRIVATE_PARTS.get(name.split(".")[0], str(path.relative_to(ROOT)))
        != str(path.relative_to(ROOT))
    }
    assert found == set()


def names_used(tree: ast.Module) -> set[str]:
    """Return the names and imported names in a module."""
    found = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    imports = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    return found | {alias.name for node in imports for alias in node.names}


def test_modules_do_not_use_the_classes_of_stacks() -> None:
    """Check that code uses capabilities such as ``chain_env``, ``as_env`` and ``Convertible``."""
    classes = {"NativeStack", "GymnasiumStack", "StableBaselines3Stack", "TorchRLStack"}
    found = {
        str(path.relative_to(ROOT)): names
        for path, tree in modules_with(*classes)
        if not module_name(path).startswith("tdx.stacks.") and (names := names_used(tree) & classes)
    }
    assert found == {}
