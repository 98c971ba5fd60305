"""Read what each transform declares in its source file: the one place where it is declared."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tdx.keys import NestedKey, normalize_key
from tdx.pipeline.annotations import declared_type
from tdx.pipeline.docstrings import argument_help, clean, summary
from tdx.pipeline.entries import Parameter, ParameterKind, TransformInfo
from tdx.pipeline.source_tree import Found, Module, SourceTree, dotted_name

TRANSFORMS = "transforms"
NOT_CATEGORIES = ("base",)


def read_declarations(root: Path) -> list[TransformInfo]:
    """Every public transform of the package at ``root``, by category and name.

    A transform is the class that a file in a folder under ``transforms/`` is named after. A class
    that only others extend sits in ``base/``, in a file that starts with an underscore, or is
    abstract.

    Args:
        root: the folder of the package, such as ``…/tdx``.
    """
    tree = SourceTree(root)
    found = (declared_in(tree, path) for path in sorted((root / TRANSFORMS).glob("*/*.py")))
    infos = [info for info in found if info is not None]
    return sorted(infos, key=lambda info: (info.category, info.name))


def declared_in(tree: SourceTree, path: Path) -> TransformInfo | None:
    """The transform that the file declares, if it declares one."""
    category, stem = path.parent.name, path.stem
    if stem.startswith("_") or category.startswith("_") or category in NOT_CATEGORIES:
        return None
    module = tree.module(f"{tree.package}.{TRANSFORMS}.{category}.{stem}")
    if module is None:
        return None
    wanted = stem.replace("_", "").casefold()
    for name, node in module.classes.items():
        if name.casefold() == wanted:
            return _transform(Found(f"{module.dotted}.{name}", node, module), category)
    return None


def _transform(found: Found, category: str) -> TransformInfo | None:
    lineage = list(_lineage(found))
    behaviour = next(filter(None, (_time_behaviour(owner) for owner, _ in lineage)), None)
    in_keys = next(filter(None, (_default_in_keys(owner) for owner, _ in lineage)), None)
    node, module = lineage[0]
    if _is_abstract(node):
        return None
    doc = clean(ast.get_docstring(node))
    inits = ((init, home) for owner, home in lineage for init in _inits(owner))
    init = next(inits, None)
    helps = {
        name: text
        for owner, _ in reversed(lineage)
        for name, text in argument_help(clean(ast.get_docstring(owner))).items()
    }
    parameters = _parameters(*init, helps) if init else ()
    return TransformInfo(
        name=node.name,
        module=module.dotted,
        category=category,
        time_behaviour=behaviour or "control",
        summary=summary(doc),
        doc=doc,
        parameters=tuple(parameters),
        default_in_keys=in_keys,
    )


def _lineage(found: Found) -> Iterator[tuple[ast.ClassDef, Module]]:
    """The class and its bases within the package, nearest first."""
    assert isinstance(found.node, ast.ClassDef)
    assert found.module is not None
    yield found.node, found.module
    for base in found.module.bases(found.node):
        yield from _lineage(base)


def _is_abstract(node: ast.ClassDef) -> bool:
    bases = {dotted_name(base) for base in node.bases}
    return bool(bases & {"ABC", "abc.ABC"}) or any(
        isinstance(item, ast.FunctionDef)
        and any(
            dotted_name(mark) in ("abstractmethod", "abc.abstractmethod") for mark in _marks(item)
        )
        for item in node.body
    )


def _marks(function: ast.FunctionDef) -> list[ast.expr]:
    return function.decorator_list


def _time_behaviour(node: ast.ClassDef) -> str | None:
    value = _class_attribute(node, "time_behaviour")
    return value.attr.lower() if isinstance(value, ast.Attribute) else None


def _default_in_keys(node: ast.ClassDef) -> tuple[NestedKey, ...] | None:
    value = _class_attribute(node, "default_in_keys")
    return None if value is None else tuple(map(normalize_key, ast.literal_eval(value)))


def _class_attribute(node: ast.ClassDef, name: str) -> ast.expr | None:
    """What the body of a class assigns to a name."""
    for item in node.body:
        targets = item.targets if isinstance(item, ast.Assign) else []
        if isinstance(item, ast.AnnAssign):
            targets = [item.target]
        if isinstance(item, ast.Assign | ast.AnnAssign) and _is_named(targets, name):
            return item.value
    return None


def _is_named(targets: list[ast.expr], name: str) -> bool:
    return any(isinstance(target, ast.Name) and target.id == name for target in targets)


def _inits(node: ast.ClassDef) -> Iterator[ast.FunctionDef]:
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and item.name == "__init__":
            yield item


def _parameters(
    init: ast.FunctionDef, module: Module, helps: dict[str, str]
) -> Iterator[Parameter]:
    for argument, default, kind in _signature(init.args):
        annotation = ast.unparse(argument.annotation) if argument.annotation else None
        yield Parameter(
            name=argument.arg,
            annotation=annotation,
            default=_default(default, module),
            help=helps.get(argument.arg, ""),
            kind=kind,
            type=declared_type(argument.annotation, module),
        )


def _default(node: ast.expr | None, module: Module) -> str | None:
    """A default as text; a named constant as the literal behind its name."""
    if node is None:
        return None
    name = dotted_name(node)
    value = module.find(name).node if name else None
    if isinstance(value, ast.expr):
        with suppress(ValueError):
            ast.literal_eval(value)
            return ast.unparse(value)
    return ast.unparse(node)


def _signature(
    args: ast.arguments,
) -> Iterator[tuple[ast.arg, ast.expr | None, ParameterKind]]:
    """Every argument but ``self``, with its default and its kind, in order."""
    positional = [*args.posonlyargs, *args.args]
    missing: list[ast.expr | None] = [None] * (len(positional) - len(args.defaults))
    paired = list(zip(positional, [*missing, *args.defaults], strict=True))
    for argument, default in paired[1:]:
        yield argument, default, "positional"
    if args.vararg:
        yield args.vararg, None, "var_positional"
    for argument, keyword_default in zip(args.kwonlyargs, args.kw_defaults, strict=True):
        yield argument, keyword_default, "keyword"
    if args.kwarg:
        yield args.kwarg, None, "var_keyword"
