"""Read the declarations of the transforms from their source files, without importing them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tdx.foundation.keys import normalize_key
from tdx.pipeline.grammar import dotted_name
from tdx.pipeline.transform_info import (
    Parameter,
    ParameterKind,
    TransformInfo,
    Type,
    TypeName,
    clean_docstring,
    make_union,
    parse_argument_help,
    summarize,
)


@dataclass(frozen=True)
class Definition:
    """Definition that a name refers to."""

    dotted: str  # Full name, such as tdx.foundation.keys.NestedKey or torch.Tensor.
    # The class, or the value of an alias. None: defined outside the package.
    node: ast.ClassDef | ast.expr | None = None
    module: Module | None = None


class SourceTree:
    """Modules of packages on disk, parsed on demand."""

    def __init__(self, root: Path, *others: Path) -> None:
        self.package = root.name
        self._roots = {path.stem: path for path in (*others, root)}
        self._modules: dict[str, Module | None] = {}

    def module(self, dotted: str) -> Module | None:
        """Return the module with this name; ``None`` if the package has none."""
        if dotted not in self._modules:
            self._modules[dotted] = self._open(dotted)
        return self._modules[dotted]

    def _open(self, dotted: str) -> Module | None:
        head, *rest = dotted.split(".")
        root = self._roots.get(head)
        if root is None:
            return None
        base = root.joinpath(*rest)
        # The stub of a package names what it imports lazily.
        files = (base, base / "__init__.pyi", base / "__init__.py", base.parent / f"{base.name}.py")
        path = next((file for file in files if file.is_file()), None)
        return None if path is None else Module(self, dotted, path)


class Module:
    """One source file."""

    def __init__(self, tree: SourceTree, dotted: str, path: Path) -> None:
        self.tree = tree
        self.dotted = dotted
        self.path = path

    @cached_property
    def syntax(self) -> ast.Module:
        return ast.parse(self.path.read_text(encoding="utf-8"), filename=str(self.path))

    @cached_property
    def classes(self) -> dict[str, ast.ClassDef]:
        return {node.name: node for node in self.syntax.body if isinstance(node, ast.ClassDef)}

    @cached_property
    def aliases(self) -> dict[str, ast.expr]:
        """Values assigned to plain names at the top level of the file."""
        named: dict[str, ast.expr] = {}
        for node in self.syntax.body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                named[node.targets[0].id] = node.value
            elif isinstance(node, ast.AnnAssign) and node.value is not None:
                named[ast.unparse(node.target)] = node.value
        return named

    @cached_property
    def imports(self) -> dict[str, str]:
        """Full name of each imported name, including imports for type checkers only."""
        named: dict[str, str] = {}
        for node in ast.walk(self.syntax):
            if isinstance(node, ast.Import):
                for name in node.names:
                    named[name.asname or name.name.split(".")[0]] = (
                        name.name if name.asname else name.name.split(".")[0]
                    )
            elif isinstance(node, ast.ImportFrom):
                owner = node.module or ""
                if node.level:
                    parts = self.dotted.split(".")
                    is_package = self.path.stem == "__init__"
                    kept = parts[: len(parts) - node.level + is_package]
                    owner = ".".join([*kept, *([owner] if owner else [])])
                named.update(
                    {name.asname or name.name: f"{owner}.{name.name}" for name in node.names}
                )
        return named

    def find(self, name: str, depth: int = 0) -> Definition:
        """Resolve a (dotted) name in this file to its definition."""
        head, _, rest = name.partition(".")
        if not rest:
            node = self.classes.get(name) or self.aliases.get(name)
            if node is not None:
                return Definition(f"{self.dotted}.{name}", node, self)
        dotted = self.imports.get(head, head) + (f".{rest}" if rest else "")
        owner, _, last = dotted.rpartition(".")
        module = self.tree.module(owner) if owner else None
        if module is None or depth > 20:
            return Definition(dotted)
        if last not in module.classes | module.aliases | module.imports:
            return Definition(dotted)
        return module.find(last, depth + 1)

    def bases(self, node: ast.ClassDef) -> list[Definition]:
        """Return the base classes that are defined in the package, in order."""
        named = (_base_name(base) for base in node.bases)
        bases = [self.find(name) for name in named if name]
        return [base for base in bases if isinstance(base.node, ast.ClassDef)]


def _base_name(node: ast.expr) -> str | None:
    """Return the name of a base class, without the types that it is given."""
    return dotted_name(node.value if isinstance(node, ast.Subscript) else node)


_NAMED_TYPES: Mapping[str, TypeName] = {
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


def parse_annotation(node: ast.expr | None, module: Module) -> Type:
    """Return the type that an annotation in ``module`` declares; no annotation means any type."""
    if node is None:
        return Type("any")
    if isinstance(node, ast.Constant):
        if node.value is None:
            return Type("none")
        if isinstance(node.value, str):
            return parse_annotation(ast.parse(node.value, mode="eval").body, module)
        return Type("other", text=ast.unparse(node))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return make_union([parse_annotation(side, module) for side in (node.left, node.right)])
    if isinstance(node, ast.Subscript):
        return _parse_subscript(node, module)
    name = dotted_name(node)
    return _resolve_named(name, module) if name else Type("other", text=ast.unparse(node))


def _resolve_named(name: str, module: Module) -> Type:
    definition = module.find(name)
    dotted, last = definition.dotted, definition.dotted.rpartition(".")[2]
    if dotted in _NAMED_TYPES:
        return Type(_NAMED_TYPES[dotted])
    package = module.tree.package
    if dotted == f"{package}.foundation.keys.NestedKey":
        return Type("key")
    if dotted == f"{package}.foundation.keys.Keys":
        return Type("keys")
    if dotted in _SEQUENCES:
        item = Type("int") if last == "Size" else Type("any")
        return Type("sequence", (item,))
    if dotted in _DICTS:
        return Type("dict", (Type("any"),))
    if dotted.startswith(f"{package}.specs"):
        return Type("spec")
    if dotted.startswith(f"{package}.transforms") and isinstance(definition.node, ast.ClassDef):
        is_protocol = any(_base_name(base) == "Protocol" for base in definition.node.bases)
        return Type("callable" if is_protocol else "transform")
    if definition.module is not None and isinstance(definition.node, ast.expr):
        return parse_annotation(definition.node, definition.module)
    return Type("other", text=last)


def _parse_subscript(node: ast.Subscript, module: Module) -> Type:
    name = dotted_name(node.value) or ""
    dotted = module.find(name).dotted
    inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    if dotted.endswith(".Literal"):
        return Type("literal", values=tuple(ast.literal_eval(value) for value in inner))
    if dotted.endswith(".Annotated"):
        return parse_annotation(inner[0], module)
    if dotted.endswith((".Optional", ".Union")):
        extra = [Type("none")] if dotted.endswith(".Optional") else []
        return make_union([*(parse_annotation(option, module) for option in inner), *extra])
    if dotted in _DICTS:
        return Type("dict", (parse_annotation(inner[-1], module),))
    if dotted in _SEQUENCES:
        items = [
            item for item in inner if not (isinstance(item, ast.Constant) and item.value is ...)
        ]
        item = make_union([parse_annotation(option, module) for option in items])
        return Type("keys") if item.name == "key" else Type("sequence", (item,))
    if _NAMED_TYPES.get(dotted) == "callable":
        return Type("callable")
    return Type("other", text=ast.unparse(node))


TRANSFORMS_FOLDER = "transforms"
EXCLUDED_FOLDERS = ("base",)


def read_declarations(root: Path) -> list[TransformInfo]:
    """Read all public transforms of a package, sorted by category and name.

    A transform is the class after which a file in a folder under ``transforms/`` is named. Base
    classes are in ``base/``, in a file that starts with an underscore, or abstract.
    """
    tree = SourceTree(root)
    declared = (
        read_declaration(tree, path) for path in sorted((root / TRANSFORMS_FOLDER).glob("*/*.py"))
    )
    infos = [info for info in declared if info is not None]
    return sorted(infos, key=lambda info: (info.category, info.name))


def read_declaration(tree: SourceTree, path: Path) -> TransformInfo | None:
    """Read the transform that a file declares; ``None`` if it declares none."""
    category, stem = path.parent.name, path.stem
    if stem.startswith("_") or category.startswith("_") or category in EXCLUDED_FOLDERS:
        return None
    module = tree.module(f"{tree.package}.{TRANSFORMS_FOLDER}.{category}.{stem}")
    if module is None:
        return None
    class_name = stem.replace("_", "").casefold()
    for name, node in module.classes.items():
        if name.casefold() == class_name:
            return read_class(Definition(f"{module.dotted}.{name}", node, module), category)
    return None


def read_class(definition: Definition, category: str, package: str = "") -> TransformInfo | None:
    """Read the declaration of a transform from its class; ``None`` for an abstract class.

    An empty ``package`` is tdx.
    """
    lineage = list(iterate_bases(definition))
    node, module = lineage[0]
    if _is_abstract(node):
        return None
    behaviors = (_find_class_attribute(owner, "time_behavior") for owner, _ in lineage)
    behavior = next((value for value in behaviors if isinstance(value, ast.Attribute)), None)
    default_keys = (_find_class_attribute(owner, "default_in_keys") for owner, _ in lineage)
    keys = next(filter(None, (value and ast.literal_eval(value) for value in default_keys)), None)
    doc = clean_docstring(ast.get_docstring(node))
    helps = {
        name: text
        for owner, _ in reversed(lineage)
        for name, text in parse_argument_help(clean_docstring(ast.get_docstring(owner))).items()
    }
    inits = (
        (item, home)
        for owner, home in lineage
        for item in owner.body
        if isinstance(item, ast.FunctionDef) and item.name == "__init__"
    )
    init, home = next(inits, (None, module))
    parameters = [
        Parameter(
            name=argument.arg,
            annotation=ast.unparse(argument.annotation) if argument.annotation else None,
            default=_format_default(default, home),
            help=helps.get(argument.arg, ""),
            kind=kind,
            type=parse_annotation(argument.annotation, home),
        )
        for argument, default, kind in (_iterate_arguments(init.args) if init else ())
    ]
    return TransformInfo(
        name=node.name,
        module=module.dotted,
        category=category,
        time_behavior=behavior.attr.lower() if behavior else "control",
        summary=summarize(doc),
        doc=doc,
        parameters=tuple(parameters),
        default_in_keys=None if keys is None else tuple(map(normalize_key, keys)),
        package=package,
    )


def iterate_bases(definition: Definition) -> Iterator[tuple[ast.ClassDef, Module]]:
    """Yield a class and its bases with their modules, nearest first."""
    assert isinstance(definition.node, ast.ClassDef)
    assert definition.module is not None
    yield definition.node, definition.module
    for base in definition.module.bases(definition.node):
        yield from iterate_bases(base)


def _is_abstract(node: ast.ClassDef) -> bool:
    bases = {dotted_name(base) for base in node.bases}
    return bool(bases & {"ABC", "abc.ABC"}) or any(
        isinstance(item, ast.FunctionDef)
        and any(
            dotted_name(mark) in ("abstractmethod", "abc.abstractmethod")
            for mark in item.decorator_list
        )
        for item in node.body
    )


def _find_class_attribute(node: ast.ClassDef, name: str) -> ast.expr | None:
    """Return the value that the body of a class assigns to a name."""
    for item in node.body:
        targets = item.targets if isinstance(item, ast.Assign) else []
        if isinstance(item, ast.AnnAssign):
            targets = [item.target]
        if isinstance(item, ast.Assign | ast.AnnAssign) and any(
            isinstance(target, ast.Name) and target.id == name for target in targets
        ):
            return item.value
    return None


def _format_default(node: ast.expr | None, module: Module) -> str | None:
    """Return a default as text; a named constant becomes its literal value."""
    if node is None:
        return None
    name = dotted_name(node)
    value = module.find(name).node if name else None
    if isinstance(value, ast.expr):
        with suppress(ValueError):
            ast.literal_eval(value)
            return ast.unparse(value)
    return ast.unparse(node)


def _iterate_arguments(
    args: ast.arguments,
) -> Iterator[tuple[ast.arg, ast.expr | None, ParameterKind]]:
    """Yield each argument except ``self`` with its default and its kind, in order."""
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
