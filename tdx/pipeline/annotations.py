"""Turn the annotation of an argument, as source, into its declared type."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from tdx.pipeline.source_tree import Module, dotted_name
from tdx.pipeline.types import Type, TypeName, union

_NAMED: Mapping[str, TypeName] = {
    **{"None": "none", "bool": "bool", "int": "int", "float": "float", "str": "str"},
    **{"object": "any", "typing.Any": "any", "torch.dtype": "dtype", "torch.device": "device"},
    **{"torch.Tensor": "tensor", "torch.types.Device": "device"},
    **{"collections.abc.Callable": "callable", "typing.Callable": "callable"},
}
_SEQUENCES = {
    *("list", "tuple", "set", "frozenset", "torch.Size"),
    *(f"collections.abc.{name}" for name in ("Sequence", "Iterable", "Collection", "Set")),
    *(f"typing.{name}" for name in ("Sequence", "Iterable", "List", "Tuple")),
}
_DICTS = {"dict", "collections.abc.Mapping", "typing.Mapping", "typing.Dict"}


def declared_type(node: ast.expr | None, module: Module) -> Type:
    """The type that an annotation in ``module`` declares; without one, any."""
    if node is None:
        return Type("any")
    if isinstance(node, ast.Constant):
        return _constant(node, module)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return union([declared_type(side, module) for side in (node.left, node.right)])
    if isinstance(node, ast.Subscript):
        return _subscript(node, module)
    name = dotted_name(node)
    return _named(name, module) if name else Type("other", text=ast.unparse(node))


def _constant(node: ast.Constant, module: Module) -> Type:
    if node.value is None:
        return Type("none")
    if isinstance(node.value, str):
        return declared_type(ast.parse(node.value, mode="eval").body, module)
    return Type("other", text=ast.unparse(node))


def _named(name: str, module: Module) -> Type:
    found = module.find(name)
    dotted, last = found.dotted, found.dotted.rpartition(".")[2]
    if dotted in _NAMED:
        return Type(_NAMED[dotted])
    package = module.tree.package
    if dotted == f"{package}.keys.NestedKey":
        return Type("key")
    if dotted == f"{package}.keys.Keys":
        return Type("keys")
    if dotted in _SEQUENCES:
        item = Type("int") if last == "Size" else Type("any")
        return Type("sequence", (item,))
    if dotted in _DICTS:
        return Type("dict", (Type("any"),))
    if dotted.startswith(f"{package}.specs"):
        return Type("spec")
    if dotted.startswith(f"{package}.transforms") and isinstance(found.node, ast.ClassDef):
        return Type("transform")
    if found.module is not None and isinstance(found.node, ast.expr):
        return declared_type(found.node, found.module)
    return Type("other", text=last)


def _subscript(node: ast.Subscript, module: Module) -> Type:
    name = dotted_name(node.value) or ""
    dotted = module.find(name).dotted
    inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    if dotted.endswith(".Literal"):
        return Type("literal", values=tuple(ast.literal_eval(value) for value in inner))
    if dotted.endswith(".Annotated"):
        return declared_type(inner[0], module)
    if dotted.endswith((".Optional", ".Union")):
        extra = [Type("none")] if dotted.endswith(".Optional") else []
        return union([*(declared_type(option, module) for option in inner), *extra])
    if dotted in _DICTS:
        return Type("dict", (declared_type(inner[-1], module),))
    if dotted in _SEQUENCES:
        return _sequence(inner, module)
    if _NAMED.get(dotted) == "callable":
        return Type("callable")
    return Type("other", text=ast.unparse(node))


def _sequence(inner: list[ast.expr], module: Module) -> Type:
    items = [item for item in inner if not _is_ellipsis(item)]
    item = union([declared_type(option, module) for option in items])
    return Type("keys") if item.name == "key" else Type("sequence", (item,))


def _is_ellipsis(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is Ellipsis
