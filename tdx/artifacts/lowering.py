"""Lower exported graphs to a few typed operations, for backends that generate source code.

Copies (slices, concatenations, permutations, ...) are not lowered by a rule for each: every element
of a tensor has an address, and torch runs the copy on the tensor of addresses. What depends on
constants only is computed by torch at the export. The rest are the operations of ``SPELLINGS`` and
``ROW_KINDS``.
"""

from __future__ import annotations

import bisect
import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from torch import Tensor
from torch.fx import Node

from tdx.artifacts.backends.interface import Backend, short_name
from tdx.artifacts.functions import ArtifactEntry, ExportedFunction, stage_of, unique_name
from tdx.foundation.errors import ChainError
from tdx.foundation.torch_internals import (
    OpOverload,
    argument_names,
    tree_flatten,
    tree_map,
)

DTYPES = {
    getattr(torch, name): name
    for name in ("bool", "uint8", "int8", "int16", "int32", "int64", "float32", "float64")
}
MAX_ELEMENTS = 1 << 16
"""Elements of a tensor: generated code has the address of each."""
_MAX_SUMMANDS = 8
"""torch adds up to eight numbers one after the other; the order of more depends on the CPU."""
_ROUNDED = 2.0**-21
"""Four units in the last place of float32: NumPy and the C library differ from torch by two."""
_FUNCTIONS = ("sqrt", "exp", "log", "tanh", "sin", "cos")
"""Functions whose last bits depend on the library: torch's are not correctly rounded either."""
_CLASSES = ("isnan", "isinf", "isfinite")
COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
LOGICAL = {"logical_and": ("&", "&&"), "logical_or": ("|", "||"), "logical_xor": ("^", "!=")}
BITWISE = {"bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^"}
_INTEGRAL = ("floor", "ceil", "trunc", "round")
SPELLINGS: Mapping[str, tuple[str, str]] = {
    **{
        kind: (f"{{0}} {sign} {{1}}",) * 2
        for kind, sign in {**COMPARISONS, "add": "+", "sub": "-", "mul": "*", "div": "/"}.items()
    },
    **{kind: (f"{{0}} {a} {{1}}", f"{{0}} {b} {{1}}") for kind, (a, b) in LOGICAL.items()},
    **{
        kind: (f"{{0}} {sign} {{1}}", f"static_cast<{{type}}>({{0}} {sign} {{1}})")
        for kind, sign in BITWISE.items()
    },
    **{
        name: (f"np.{name}({{0}})", f"std::{name}({{0}})")
        for name in (*_FUNCTIONS, *_CLASSES, "floor", "ceil", "trunc")
    },
    "round": ("np.rint({0})", "std::nearbyint({0})"),
    "abs": ("np.abs({0})", "std::fabs({0})"),
    "neg": ("np.negative({0})", "-{0}"),
    "reciprocal": ("np.reciprocal({0})", "1 / {0}"),
    "sign": ("_sign({0})", "sign({0})"),
    "logical_not": ("np.logical_not({0})", "!{0}"),
    "bitwise_not": ("np.invert({0})", "static_cast<{type}>(~{0})"),
    "maximum": ("np.maximum({0}, {1})", "at_least({0}, {1})"),
    "minimum": ("np.minimum({0}, {1})", "at_most({0}, {1})"),
    # Not `np.maximum`, which may return the other one of two zeros.
    "clamp_min": ("np.where({0} < {1}, {1}, {0})", "at_least({0}, {1})"),
    "clamp_max": ("np.where({0} > {1}, {1}, {0})", "at_most({0}, {1})"),
    "where": ("np.where({0}, {1}, {2})", "{0} ? {1} : {2}"),
    "cast": ("{0}.astype({type})", "static_cast<{type}>({0})"),
}
"""Elementwise operations in NumPy and in C++; ``{type}`` is the dtype of the result."""
_REDUCTIONS = ("sum", "mean", "any", "all", "argmax", "argmin")
ROW_KINDS = frozenset({*_REDUCTIONS, "take"} - {"mean"})
"""Operations that read ``[outer, n]`` and return one element of each row."""
COPIES = frozenset(
    {
        *("view", "_unsafe_view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze"),
        *("permute", "transpose", "t", "movedim", "expand", "repeat", "flip", "roll", "narrow"),
        *("select", "slice", "split", "split_with_sizes", "chunk", "unbind", "cat", "stack"),
        *("index", "index_select", "gather", "slice_scatter", "select_scatter", "diagonal"),
        *("constant_pad_nd", "pad", "clone", "alias", "detach", "contiguous", "lift_fresh_copy"),
        *("copy", "_to_copy"),
    }
)
_DISCONTINUOUS = frozenset(
    {*COMPARISONS, *LOGICAL, *_CLASSES, *_INTEGRAL, "sign", "argmax", "argmin"}
)


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """A tensor that the generated code stores."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    base: int  # address of its first element
    constant: Tensor | None = None  # its elements, if they are known at the export
    is_exact: bool = True  # its bits are those of torch

    @property
    def size(self) -> int:
        """Number of its elements."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """Elements of stored tensors, by their addresses in the shape of an operand."""

    addresses: Tensor
    dtype: torch.dtype

    @classmethod
    def to(cls, value: Value) -> Reference:
        """Return all elements of a value."""
        addresses = torch.arange(value.base, value.base + value.size)
        return cls(addresses.reshape(value.shape), value.dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the operand."""
        return tuple(self.addresses.shape)

    def is_all_of(self, value: Value) -> bool:
        """Return True for the elements of a value in order, whatever the shape."""
        return torch.equal(self.addresses.flatten(), Reference.to(value).addresses.flatten())


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive elements of an operand that are equally spaced in one value."""

    value: Value
    start: int
    stride: int
    count: int


@dataclass(slots=True, eq=False)
class Operation:
    """An operation of ``SPELLINGS``, which broadcasts its operands, or of ``ROW_KINDS``."""

    kind: str
    result: Value
    operands: tuple[Reference, ...]
    stage: int | None  # which it is the first operation of


class SourceBackend(Backend):
    """A backend that generates source code from lowered functions."""

    bounds = dict.fromkeys(_FUNCTIONS, _ROUNDED)
    reserved: ClassVar[tuple[str, ...]]  # names that no value may have


def comment_text(text: str) -> str:
    """Return text for a comment or a docstring on one line."""
    # A backslash at the end would continue a comment of C++.
    return " ".join(text.split()).replace("\\", "/").replace('"""', "'''")


def describe(entry: ArtifactEntry) -> str:
    """Return key, dtype, shape and meaning of an entry for a comment."""
    shape = list(entry.shape) or "scalar"
    return comment_text(f"{entry.key}, {DTYPES[entry.dtype]} {shape}, {entry.description}")


class LoweredFunction:
    """A function as a list of operations; one that cannot be lowered is a ``ChainError``."""

    def __init__(self, function: ExportedFunction, backend: SourceBackend) -> None:
        self.name, self.backend = function.name, backend
        self.inputs: list[Value] = []
        self.constants: list[Value] = []
        self.operations: list[Operation] = []
        self.outputs: list[tuple[ArtifactEntry, Reference]] = []
        self.values: list[Value] = []
        self.end = 0  # address after the last value
        self.taken = {*backend.reserved, *(e.name for e in (*function.inputs, *function.outputs))}
        self.results: dict[Node, Any] = {}
        held, inputs = function.constants, iter(function.inputs)
        for node in function.program.graph.nodes:
            self.node = node
            if node.name in held:
                self.results[node] = held[node.name].detach().contiguous()
            elif node.op == "placeholder":
                entry = next(inputs)
                self.inputs.append(Value(entry.name, entry.shape, entry.dtype, self.end))
                self.results[node] = Reference.to(self._store(self.inputs[-1]))
            elif node.op == "call_function":
                self.results[node] = self._call(node)
            elif node.op == "output":
                results = [self._reference(self.results[result]) for result in node.args[0]]
                self.outputs = list(zip(function.outputs, results, strict=True))
        self._remove_unused()

    def _remove_unused(self) -> None:
        used = {value for _, result in self.outputs for value in self.sources(result)}
        for operation in reversed(self.operations):
            if operation.result in used:
                used.update(*map(self.sources, operation.operands))
        self.operations = [item for item in self.operations if item.result in used]
        self.constants = [value for value in self.constants if value in used]
        stage = None
        for operation in self.operations:
            if operation.stage in (None, stage):
                operation.stage = None
            else:
                stage = operation.stage

    def value_at(self, address: int) -> Value:
        """Return the value that has an address."""
        place = bisect.bisect_right(self.values, address, key=lambda value: value.base)
        return self.values[place - 1]

    def segments(self, reference: Reference) -> list[Segment]:
        """Split an operand, in row-major order, into equally spaced runs."""
        flat: list[int] = reference.addresses.flatten().tolist()
        segments: list[Segment] = []
        at = 0
        while at < len(flat):
            value = self.value_at(flat[at])
            inside = range(value.base, value.base + value.size)
            stop, stride = at + 1, 1
            if stop < len(flat) and flat[stop] in inside:
                stride = flat[stop] - flat[at]
            while (
                stop < len(flat) and flat[stop] - flat[stop - 1] == stride and flat[stop] in inside
            ):
                stop += 1
            segments.append(Segment(value, flat[at] - value.base, stride, stop - at))
            at = stop
        return segments

    def sources(self, reference: Reference) -> list[Value]:
        """Return the values that an operand reads, in order of their addresses."""
        return list(dict.fromkeys(map(self.value_at, reference.addresses.unique().tolist())))

    def _refused(self, reason: str = "") -> ChainError:
        return self.backend.not_lowered(self.node, reason)

    # Values

    def _store(self, value: Value) -> Value:
        if value.dtype not in DTYPES:
            raise self._refused(f"with {value.dtype}")
        if not 0 < value.size <= MAX_ELEMENTS:
            raise self._refused(f"with {value.size} elements: 1 to {MAX_ELEMENTS}")
        self.values.append(value)
        # A gap, so that no run of addresses goes from one value to the next.
        self.end = value.base + value.size + 1
        return value

    def _reference(self, value: Any, dtype: torch.dtype | None = None) -> Reference:
        """Return an operand for a result, a constant or a number, converted to a dtype."""
        if isinstance(value, (bool, int, float)):
            value = torch.tensor(value, dtype=dtype)
        if isinstance(value, Tensor):
            value = value if dtype is None else value.to(dtype)
            name = unique_name(f"{self.node.name}_constant", self.taken)
            shape, dtype = tuple(value.shape), value.dtype
            self.constants.append(Value(name, shape, dtype, self.end, value.contiguous()))
            return Reference.to(self._store(self.constants[-1]))
        assert isinstance(value, Reference)
        return value if dtype is None else self._cast(value, dtype)

    def _emit(
        self, kind: str, shape: Sequence[int], dtype: torch.dtype, *operands: Reference
    ) -> Reference:
        sources = [value for operand in operands for value in self.sources(operand)]
        is_exact = all(value.is_exact for value in sources)
        if not is_exact and kind in _DISCONTINUOUS:
            raise self._refused("of a value whose last bits are not those of torch: it may jump")
        is_exact = is_exact and kind not in _FUNCTIONS
        name = unique_name(self.node.name, self.taken)
        result = self._store(Value(name, tuple(shape), dtype, self.end, None, is_exact))
        stage, _ = stage_of(self.node) or (None, None)
        self.operations.append(Operation(kind, result, operands, stage))
        return Reference.to(result)

    def _elementwise(self, kind: str, dtype: torch.dtype, *operands: Reference) -> Reference:
        shape = torch.broadcast_shapes(*(operand.shape for operand in operands))
        return self._emit(kind, shape, dtype, *operands)

    def _cast(self, value: Reference, dtype: torch.dtype) -> Reference:
        if dtype is value.dtype:
            return value
        is_rounded = value.dtype.is_floating_point and not dtype.is_floating_point
        if is_rounded and dtype is not torch.bool:
            reason = f"from {value.dtype} to {dtype}: the result for NaN depends on the CPU"
            raise self._refused(reason)
        return self._elementwise("cast", dtype, value)

    # Operators

    def _call(self, node: Node) -> Any:
        target: Any = node.target
        if target is operator.getitem:
            source, index = cast("tuple[Node, int]", node.args)
            return self.results[source][index]
        if not isinstance(target, OpOverload):
            raise self._refused()
        name = short_name(str(target))
        if name == "_assert_tensor_metadata":
            return None
        given: dict[str, Any] = dict(zip(argument_names(target), node.args, strict=False))
        given |= node.kwargs
        given = dict(torch.fx.node.map_arg(given, self.results.__getitem__))
        if name.endswith("_like") or name.startswith("new_") or name == "fill":
            # It reads only shape and dtype.
            given["self"] = torch.zeros(given["self"].shape, dtype=given["self"].dtype)
        if not _has_references(given):
            if torch.Tag.nondeterministic_seeded in target.tags or "empty" in name:
                raise self._refused()
            # What torch computes now it would compute in each call.
            return target(**given)
        if name in COPIES:
            return self._copy(target, name, given)
        if name in _REDUCTIONS:
            return self._reduce(name, given)
        return self._compute(name.strip("_") if name.startswith("__") else name, given)

    def _copy(self, target: Any, name: str, given: dict[str, Any]) -> Any:
        dtype = self._dtype()
        if name == "_to_copy":
            return self._cast(given["self"], dtype)
        if name == "copy":
            source = self._reference(given["src"], dtype)
            return Reference(source.addresses.expand(given["self"].shape), dtype)
        if name == "gather" and isinstance(given["index"], Reference):
            return self._take(given)
        indices = {key: given.pop(key) for key in ("indices", "index") if key in given}
        if _has_references(indices):
            raise self._refused("with an index that is not constant")
        if name in ("constant_pad_nd", "pad"):
            if given.get("mode", "constant") != "constant":
                raise self._refused(f"with mode={given['mode']}")
            padding = self._reference(given.get("value") or 0.0, dtype)
            given["value"] = int(padding.addresses)

        def address(value: Any) -> Any:
            is_operand = isinstance(value, (Tensor, Reference))
            return self._reference(value, dtype).addresses if is_operand else value

        given.pop("memory_format", None)
        result = target(**tree_map(address, given), **indices)
        # A view needs a contiguous tensor, whatever the memory format of a clone.
        return tree_map(lambda part: Reference(part.contiguous(), dtype), result)

    def _take(self, given: dict[str, Any]) -> Reference:
        """Lower a gather along the last dim by an index that is computed."""
        table, index = self._reference(given["self"]), given["index"]
        size = table.shape[-1] if table.shape else 1
        last = given["dim"] % max(len(table.shape), 1) == len(table.shape) - 1
        if not last or index.shape[:-1] != table.shape[:-1] or index.dtype is not torch.int64:
            raise self._refused("along another dim than the last")
        addresses = table.addresses.unsqueeze(-2).expand(*index.shape, size).reshape(-1, size)
        if not all(value.is_exact for value in self.sources(index)):
            raise self._refused("by an index whose last bits are not those of torch")
        return self._emit(
            "take", index.shape, table.dtype, Reference(addresses, table.dtype), index
        )

    def _dtype(self) -> torch.dtype:
        value = self.node.meta["val"]
        dtype: torch.dtype = (value[0] if isinstance(value, (list, tuple)) else value).dtype
        return dtype

    def _reduce(self, name: str, given: dict[str, Any]) -> Reference:
        own: Reference = given["self"]
        dims = given.get("dim")
        dims = [dims] if isinstance(dims, int) else dims or range(len(own.shape))
        dims = sorted(dim % max(len(own.shape), 1) for dim in dims)
        shape, dtype = tuple(self.node.meta["val"].shape), self._dtype()
        others = [dim for dim in range(len(own.shape)) if dim not in dims]
        addresses = own.addresses.permute(*others, *dims) if own.shape else own.addresses
        count = own.addresses.numel() // max(math.prod(shape), 1)
        operand = Reference(addresses.reshape(-1, count), own.dtype)
        if name in ("any", "all"):
            operand = self._cast(operand, torch.bool)
        if name not in ("sum", "mean"):
            return self._emit(name, shape, dtype, operand)
        if dtype.is_floating_point and count > _MAX_SUMMANDS:
            reason = f"of {count} numbers: torch's order depends on the CPU above {_MAX_SUMMANDS}"
            raise self._refused(reason)
        total = self._emit("sum", shape, dtype, self._cast(operand, dtype))
        if name == "sum":
            return total
        return self._elementwise("div", dtype, total, self._reference(float(count), dtype))

    def _compute(self, name: str, given: dict[str, Any]) -> Reference:
        dtype = self._dtype()
        name = f"bitwise_{name}" if name in ("and", "or", "xor") else name
        own: Any = given.get("self")
        match name:
            case "one_hot" if given.get("num_classes", -1) > 0:
                column = Reference(own.addresses.unsqueeze(-1), own.dtype)
                numbers = self._reference(torch.arange(given["num_classes"]))
                return self._cast(self._elementwise("eq", torch.bool, column, numbers), dtype)
            case "where":
                parts = [self._reference(part, dtype) for part in (own, given["other"])]
                return self._elementwise(name, dtype, self._reference(given["condition"]), *parts)
            case "masked_fill":
                parts = [self._reference(part, dtype) for part in (given["value"], own)]
                return self._elementwise("where", dtype, self._reference(given["mask"]), *parts)
            case "clamp" | "clamp_min" | "clamp_max":
                return self._clamp(self._reference(own, dtype), dtype, given)
            case "pow" if given["exponent"] in (1, 2, 3):
                factor = result = self._cast(own, dtype)
                for _ in range(int(given["exponent"]) - 1):
                    result = self._elementwise("mul", dtype, result, factor)
                return result
            case "rsub" if given.get("alpha", 1) == 1:
                return self._binary("sub", dtype, given["other"], own)
        if given.get("alpha", 1) != 1:
            raise self._refused("with alpha, which torch may fuse")
        for option in ("rounding_mode", "decimals", "exponent"):
            if given.get(option):
                raise self._refused(f"with {option}={given[option]!r}")
        if name not in SPELLINGS or name == "cast":
            raise self._refused()
        if "other" in given:
            return self._binary(name, dtype, own, given["other"])
        is_integral = name in _INTEGRAL and not own.dtype.is_floating_point
        if is_integral or (own.dtype is torch.bool and name in ("abs", "sign")):
            return own
        if name == "bitwise_not" and own.dtype is torch.bool:
            name = "logical_not"
        wanted = torch.bool if name == "logical_not" else own.dtype if name in _CLASSES else dtype
        return self._elementwise(name, dtype, self._cast(own, wanted))

    def _clamp(self, own: Reference, dtype: torch.dtype, given: dict[str, Any]) -> Reference:
        """Lower a clamp by constants: ``x < low ? low : x`` keeps NaN and the sign of zero."""
        bounds = [("clamp_min", given.get("min")), ("clamp_max", given.get("max"))]
        bounds = [(kind, bound) for kind, bound in bounds if bound is not None]
        for kind, bound in bounds:
            if isinstance(bound, Reference):
                raise self._refused("with bounds that are not constant")
            if bool(torch.as_tensor(bound).isnan().any()):
                raise self._refused("with NaN as a bound")
            if isinstance(bound, Tensor) and len(bounds) == 1 and bool((bound == 0).any()):
                raise self._refused("with a tensor of bounds that has a zero")
            own = self._elementwise(kind, dtype, own, self._reference(bound, dtype))
        return own

    def _binary(self, name: str, dtype: torch.dtype, first: Any, second: Any) -> Reference:
        common = dtype
        if name in ("maximum", "minimum") and dtype.is_floating_point:
            constants = [value for value in (first, second) if isinstance(value, Tensor)]
            # The sign of `maximum(0, -0)` depends on the place of the element.
            if not any(bool((value != 0).all()) for value in constants):
                raise self._refused("whose sign of zero depends on the CPU")
        elif name in COMPARISONS:
            common = torch.result_type(*map(_example, (first, second)))
        elif name in LOGICAL:
            common = torch.bool
        elif dtype is torch.bool and name in ("add", "mul"):
            name = "bitwise_or" if name == "add" else "bitwise_and"
        operands = (self._reference(value, common) for value in (first, second))
        return self._elementwise(name, dtype, *operands)


def _has_references(value: Any) -> bool:
    return any(isinstance(leaf, Reference) for leaf in tree_flatten(value)[0])


def _example(value: Any) -> Any:
    """Return a tensor with the shape and dtype of an operand, for the rules of promotion."""
    return torch.empty(value.shape, dtype=value.dtype) if isinstance(value, Reference) else value
