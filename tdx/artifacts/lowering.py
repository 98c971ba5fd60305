"""Lower exported graphs to a few typed operations, for backends that generate source code.

Copies (slices, concatenations, permutations, ...) are not lowered by a rule for each: every element
of a tensor has an address, and torch runs the copy on the tensor of addresses. What depends on
constants only is computed by torch at the export. The rest are the operations of ``_OPERATORS``,
which says for each what it computes and whether its bits are those of torch on a CPU.
"""

from __future__ import annotations

import bisect
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor
from torch.fx import Node

from tdx.artifacts.backends.interface import short_name
from tdx.artifacts.functions import ArtifactEntry, ExportedFunction

DTYPES = {
    torch.bool: "bool",
    torch.uint8: "uint8",
    torch.int8: "int8",
    torch.int16: "int16",
    torch.int32: "int32",
    torch.int64: "int64",
    torch.float32: "float32",
    torch.float64: "float64",
}
MAX_ELEMENTS = 1 << 16
"""Elements of a tensor: generated code has the address of each."""
_MAX_SUMMANDS = 8
"""torch adds up to eight numbers one after the other; the order of more depends on the CPU."""

_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_LOGICAL = ("logical_and", "logical_or", "logical_xor")
_BITWISE = {
    **{f"bitwise_{name}": f"bitwise_{name}" for name in ("and", "or", "xor")},
    **{f"__{name}__": f"bitwise_{name}" for name in ("and", "or", "xor")},
}
_EXACT_UNARY = (
    *("neg", "abs", "sign", "floor", "ceil", "trunc", "round", "logical_not", "bitwise_not"),
)
_ROUNDED = 2.0**-21
"""Four units in the last place of float32: NumPy and the C library differ from torch by two."""
_FUNCTIONS = ("sqrt", "exp", "log", "tanh", "sin", "cos")
"""Functions whose last bits depend on the library: torch's are not correctly rounded either."""
_COPIES = frozenset(
    {
        *("view", "_unsafe_view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze"),
        *("permute", "transpose", "t", "movedim", "expand", "repeat", "flip", "roll", "narrow"),
        *("select", "slice", "split", "split_with_sizes", "chunk", "unbind", "cat", "stack"),
        *("index", "index_select", "gather", "slice_scatter", "select_scatter", "diagonal"),
        *("constant_pad_nd", "pad", "clone", "alias", "detach", "contiguous", "lift_fresh_copy"),
        *("copy", "_to_copy", "masked_fill"),
    }
)
_SHAPED = frozenset(
    {
        *("zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full", "fill"),
        *("empty_like", "new_empty", "rand_like"),
    }
)
"""Operators that read only shape and dtype of a tensor."""
_REDUCTIONS = ("sum", "mean", "any", "all", "argmax", "argmin")
_OPERATORS: Mapping[str, float] = {
    **dict.fromkeys(("add", "sub", "rsub", "mul", "div", "reciprocal", "pow", "where"), 0.0),
    **dict.fromkeys((*_COMPARISONS, *_LOGICAL, *_BITWISE, *_EXACT_UNARY, *_COPIES), 0.0),
    **dict.fromkeys(("clamp", "clamp_min", "clamp_max", "maximum", "minimum", "one_hot"), 0.0),
    **dict.fromkeys(("isnan", "isinf", "isfinite", *_REDUCTIONS), 0.0),
    **dict.fromkeys(("_assert_tensor_metadata", "getitem"), 0.0),
    **dict.fromkeys(_FUNCTIONS, _ROUNDED),
}
_DISCONTINUOUS = frozenset(
    {
        *_COMPARISONS,
        *_LOGICAL,
        "sign",
        "floor",
        "ceil",
        "trunc",
        "round",
        "argmax",
        "argmin",
        "take",
    }
)


class NotLoweredError(Exception):
    """An operator cannot be lowered.

    Args:
        node: Its node.
        reason: Why, if it depends on the arguments.
    """

    def __init__(self, node: Node, reason: str = "") -> None:
        super().__init__(reason)
        self.node, self.reason = node, reason


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """A tensor that the generated code stores.

    Args:
        name: Identifier.
        shape: Its shape.
        dtype: Its dtype.
        base: Address of its first element.
        constant: Its elements, if they are known at the export.
        is_exact: True if its bits are those of torch.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    base: int
    constant: Tensor | None = None
    is_exact: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """Elements of stored tensors, in the shape of an operand.

    Args:
        addresses: Address of each element, int64.
        dtype: Dtype of the elements.
    """

    addresses: Tensor
    dtype: torch.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the operand."""
        return tuple(self.addresses.shape)


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive elements of an operand that are equally spaced in one value."""

    value: Value
    start: int
    stride: int
    count: int


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """One operation.

    Elementwise ones broadcast their operands. The operand of a reduction is ``[outer, n]``.

    Args:
        kind: What is computed; for most kinds the name of the operator in torch.
        result: What is written.
        operands: What is read.
        stage: Class name of the stage that it comes from.
    """

    kind: str
    result: Value
    operands: tuple[Reference, ...]
    stage: str


REDUCTIONS = frozenset({*_REDUCTIONS} - {"mean"})


@dataclass(slots=True)
class LoweredFunction:
    """A function as a list of operations.

    Args:
        name: Its name.
        inputs: Its inputs, with the names of their entries.
        constants: Constants that an operation or an output reads.
        operations: What is computed, in order.
        outputs: Entry and elements of each output.
    """

    name: str
    inputs: list[Value] = field(default_factory=list)
    constants: list[Value] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    outputs: list[tuple[ArtifactEntry, Reference]] = field(default_factory=list)
    _values: list[Value] = field(default_factory=list)

    def value_at(self, address: int) -> Value:
        """Return the value that has an address."""
        place = bisect.bisect_right(self._values, address, key=lambda value: value.base)
        return self._values[place - 1]

    def segments(self, addresses: Tensor) -> list[Segment]:
        """Split addresses, in row-major order, into equally spaced runs."""
        flat: list[int] = addresses.flatten().tolist()
        segments: list[Segment] = []
        at = 0
        while at < len(flat):
            value = self.value_at(flat[at])
            end_of_value = value.base + max(torch.Size(value.shape).numel(), 1)
            stride, stop = 1, at + 1
            if stop < len(flat) and value.base <= flat[stop] < end_of_value:
                stride = flat[stop] - flat[at]
                while (
                    stop < len(flat)
                    and flat[stop] - flat[stop - 1] == stride
                    and value.base <= flat[stop] < end_of_value
                ):
                    stop += 1
            segments.append(Segment(value, flat[at] - value.base, stride, stop - at))
            at = stop
        return segments

    def sources(self, reference: Reference) -> list[Value]:
        """Return the values that an operand reads, in order of their addresses."""
        values: list[Value] = []
        for address in reference.addresses.unique().tolist():
            if not values or self.value_at(address) is not values[-1]:
                values.append(self.value_at(address))
        return values


def bound_of(name: str) -> float | None:
    """Return the bound of an operator such as ``aten.add.Tensor``; ``None``: it is not lowered."""
    short = short_name(name)
    if short in _SHAPED or short in ("arange", "full", "zeros", "ones", "scalar_tensor", "eye"):
        return None if "empty" in short or "rand" in short else 0.0
    return _OPERATORS.get(short)


def lower(function: ExportedFunction, reserved: Sequence[str] = ()) -> LoweredFunction:
    """Lower a function.

    Args:
        function: Its graph.
        reserved: Names that no value may have.

    Raises:
        NotLoweredError: An operator, or its arguments, cannot be lowered.
    """
    return _Lowering(function, reserved).run()


class _Lowering:
    def __init__(self, function: ExportedFunction, reserved: Sequence[str]) -> None:
        self.function = function
        self.lowered = LoweredFunction(function.name)
        entries = (*function.inputs, *function.outputs)
        self.taken = {*reserved, *(entry.name for entry in entries)}
        self.results: dict[Node, Any] = {}
        self.next_base = 0
        self.node: Node = next(iter(function.program.graph.nodes))

    def run(self) -> LoweredFunction:
        program = self.function.program
        signature = program.graph_signature
        stored = {
            **signature.inputs_to_lifted_tensor_constants,
            **signature.inputs_to_buffers,
            **signature.inputs_to_parameters,
        }
        inputs = iter(self.function.inputs)
        for node in program.graph.nodes:
            self.node = node
            if node.op == "placeholder" and node.name in stored:
                name = stored[node.name]
                constant = program.constants.get(name, program.state_dict.get(name))
                if constant is None:
                    raise NotLoweredError(node, "without its value")
                self.results[node] = constant.detach().contiguous()
            elif node.op == "placeholder":
                entry = next(inputs)
                value = self._store(entry.name, entry.shape, entry.dtype)
                self.lowered.inputs.append(value)
                self.results[node] = self._all_of(value)
            elif node.op == "call_function":
                self.results[node] = self._call(node)
            elif node.op == "output":
                results = [self._reference(self.results[result]) for result in node.args[0]]
                self.lowered.outputs = list(zip(self.function.outputs, results, strict=True))
        self._remove_unused()
        return self.lowered

    def _remove_unused(self) -> None:
        lowered = self.lowered
        used: set[Value] = set()
        for _, reference in lowered.outputs:
            used.update(lowered.sources(reference))
        kept = []
        for operation in reversed(lowered.operations):
            if operation.result in used:
                kept.append(operation)
                for operand in operation.operands:
                    used.update(lowered.sources(operand))
        lowered.operations = kept[::-1]
        lowered.constants = [value for value in lowered.constants if value in used]

    # Values

    def _store(
        self,
        name: str,
        shape: Sequence[int],
        dtype: torch.dtype,
        constant: Tensor | None = None,
        *,
        is_exact: bool = True,
    ) -> Value:
        if dtype not in DTYPES:
            raise NotLoweredError(self.node, f"with {dtype}")
        size = torch.Size(shape).numel()
        if not 0 < size <= MAX_ELEMENTS:
            raise NotLoweredError(self.node, f"with {size} elements: 1 to {MAX_ELEMENTS}")
        value = Value(name, tuple(shape), dtype, self.next_base, constant, is_exact)
        # A gap, so that no run of addresses goes from one value to the next.
        self.next_base += size + 1
        self.lowered._values.append(value)
        return value

    def _unique(self, name: str) -> str:
        number, result = 1, name
        while result in self.taken:
            number += 1
            result = f"{name}_{number}"
        self.taken.add(result)
        return result

    def _all_of(self, value: Value) -> Reference:
        size = torch.Size(value.shape).numel()
        addresses = torch.arange(value.base, value.base + size).reshape(value.shape)
        return Reference(addresses, value.dtype)

    def _reference(self, value: Any, dtype: torch.dtype | None = None) -> Reference:
        """Return an operand for a result, a constant or a number, converted to a dtype."""
        if isinstance(value, (bool, int, float)):
            value = torch.tensor(value, dtype=dtype)
        if isinstance(value, Tensor):
            value = value if dtype is None else value.to(dtype)
            name = self._unique(f"{self.node.name}_constant")
            stored = self._store(name, value.shape, value.dtype, value.contiguous())
            self.lowered.constants.append(stored)
            return self._all_of(stored)
        assert isinstance(value, Reference)
        return value if dtype in (None, value.dtype) else self._cast(value, dtype)

    def _emit(
        self, kind: str, shape: Sequence[int], dtype: torch.dtype, *operands: Reference
    ) -> Reference:
        exact = all(
            value.is_exact for operand in operands for value in self.lowered.sources(operand)
        )
        if not exact and kind in _DISCONTINUOUS:
            reason = "of a value whose last bits are not those of torch: it may jump"
            raise NotLoweredError(self.node, reason)
        exact = exact and kind not in _FUNCTIONS
        result = self._store(self._unique(self.node.name), shape, dtype, is_exact=exact)
        stage = _stage_name(self.node)
        self.lowered.operations.append(Operation(kind, result, operands, stage))
        return self._all_of(result)

    def _elementwise(self, kind: str, dtype: torch.dtype, *operands: Reference) -> Reference:
        shape = torch.broadcast_shapes(*(operand.shape for operand in operands))
        return self._emit(kind, shape, dtype, *operands)

    def _cast(self, value: Reference, dtype: torch.dtype | None) -> Reference:
        if dtype is None or dtype is value.dtype:
            return value
        if (
            value.dtype.is_floating_point
            and not dtype.is_floating_point
            and dtype is not torch.bool
        ):
            reason = f"from {value.dtype} to {dtype}: the result for NaN depends on the CPU"
            raise NotLoweredError(self.node, reason)
        return self._elementwise("cast", dtype, value)

    # Operators

    def _call(self, node: Node) -> Any:
        if node.target is operator.getitem:
            source, index = cast("tuple[Node, int]", node.args)
            return self.results[source][index]
        target: Any = node.target
        if bound_of(str(target)) is None:
            raise NotLoweredError(node)
        name = str(target).split(".")[1]
        if name == "_assert_tensor_metadata":
            return None
        args: Any
        kwargs: Any
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), self.results.__getitem__)
        given = {
            argument.name: value
            for argument, value in zip(target._schema.arguments, args, strict=False)
        }
        given |= kwargs
        if name in _SHAPED:
            own = given["self"]
            like = torch.zeros(own.shape, dtype=own.dtype)
            return target(like, *args[1:], **kwargs)
        references: list[Reference] = []
        _collect(given, references)
        if not references:
            # What torch computes now it would compute in each call.
            return target(*args, **kwargs)
        if name in _COPIES:
            return self._copy(target, name, given)
        if name in _REDUCTIONS:
            return self._reduce(name, given)
        return self._compute(name, given)

    def _copy(self, target: Any, name: str, given: dict[str, Any]) -> Any:
        dtype = self._dtype()
        if name == "_to_copy":
            return self._cast(given["self"], dtype)
        if name == "masked_fill":
            filled = self._reference(given["value"], dtype)
            return self._elementwise("where", dtype, given["mask"], filled, given["self"])
        if name == "copy":
            source = self._reference(given["src"], dtype)
            return Reference(source.addresses.expand(given["self"].shape), dtype)
        if name == "gather" and isinstance(given["index"], Reference):
            return self._take(given)
        indices = {
            key: given.pop(key)
            for key in ("indices", "index", "mask")
            if _is_tensors(given.get(key))
        }
        moved: list[Reference] = []
        _collect(indices, moved)
        if moved:
            raise NotLoweredError(self.node, "with an index that is not constant")
        if name in ("constant_pad_nd", "pad"):
            if given.get("mode", "constant") != "constant":
                raise NotLoweredError(self.node, f"with mode={given['mode']}")
            padding = self._reference(given.get("value") or 0.0, dtype)
            given["value"] = int(padding.addresses)

        def address(value: Any) -> Any:
            if isinstance(value, (list, tuple)):
                return type(value)(address(item) for item in value)
            if isinstance(value, (Tensor, Reference)):
                return self._reference(value, dtype).addresses
            return value

        given = {
            key: value for key, value in given.items() if key not in ("memory_format", "pin_memory")
        }
        moved_addresses = {key: address(value) for key, value in given.items()}
        result = target(**moved_addresses, **indices)
        if isinstance(result, (list, tuple)):
            return [Reference(part.contiguous(), dtype) for part in result]
        # The memory format of a clone is dropped above; a view needs a contiguous tensor.
        return Reference(result.contiguous(), dtype)

    def _take(self, given: dict[str, Any]) -> Reference:
        """Lower a gather along the last dim by an index that is computed."""
        table, index = self._reference(given["self"]), given["index"]
        size = table.shape[-1] if table.shape else 1
        last = given["dim"] % max(len(table.shape), 1) == len(table.shape) - 1
        if not last or index.shape[:-1] != table.shape[:-1] or index.dtype is not torch.int64:
            raise NotLoweredError(self.node, "along another dim than the last")
        addresses = table.addresses.unsqueeze(-2).expand(*index.shape, size).reshape(-1, size)
        rows = Reference(addresses, table.dtype)
        return self._emit("take", index.shape, table.dtype, rows, index)

    def _dtype(self) -> torch.dtype:
        value = self.node.meta["val"]
        dtype: torch.dtype = (value[0] if isinstance(value, (list, tuple)) else value).dtype
        return dtype

    def _reduce(self, name: str, given: dict[str, Any]) -> Reference:
        own: Reference = given["self"]
        dims = given.get("dim")
        dims = list(range(len(own.shape))) if dims in (None, []) else dims
        dims = [dim % max(len(own.shape), 1) for dim in ([dims] if isinstance(dims, int) else dims)]
        shape, dtype = tuple(self.node.meta["val"].shape), self._dtype()
        if own.shape:
            others = [dim for dim in range(len(own.shape)) if dim not in dims]
            addresses = own.addresses.permute(*others, *sorted(dims))
        else:
            addresses = own.addresses
        count = own.addresses.numel() // max(torch.Size(shape).numel(), 1)
        operand = Reference(addresses.reshape(-1, count), own.dtype)
        if name in ("sum", "mean"):
            operand = self._cast(operand, dtype)
            if dtype.is_floating_point and count > _MAX_SUMMANDS:
                reason = (
                    f"of {count} numbers: torch's order depends on the CPU above {_MAX_SUMMANDS}"
                )
                raise NotLoweredError(self.node, reason)
        if name in ("any", "all"):
            operand = self._cast(operand, torch.bool)
        if name != "mean":
            return self._emit(name, shape, dtype, operand)
        total = self._emit("sum", shape, dtype, operand)
        return self._elementwise("div", dtype, total, self._reference(float(count), dtype))

    def _compute(self, name: str, given: dict[str, Any]) -> Reference:
        dtype = self._dtype()
        # Operators without an argument `self`, such as those of two tensors, do not use it.
        own: Any = given.get("self")
        name = _BITWISE.get(name, name)
        if name == "one_hot":
            classes = given.get("num_classes", -1)
            if classes < 1:
                raise NotLoweredError(self.node, "without a number of classes")
            column = Reference(own.addresses.unsqueeze(-1), own.dtype)
            numbers = self._reference(torch.arange(classes))
            return self._cast(self._elementwise("eq", torch.bool, column, numbers), dtype)
        if name == "where":
            parts = [self._reference(given[key], dtype) for key in ("self", "other")]
            condition = self._reference(given["condition"])
            return self._elementwise("where", dtype, condition, *parts)
        if name in ("clamp", "clamp_min", "clamp_max"):
            return self._clamp(self._reference(own, dtype), dtype, given)
        if name in ("isnan", "isinf", "isfinite"):
            return self._classify(name, own)
        if name == "reciprocal":
            return self._elementwise(
                "div", dtype, self._reference(1.0, dtype), self._cast(own, dtype)
            )
        if name == "pow":
            return self._power(self._cast(own, dtype), dtype, given.get("exponent"))
        if name in (*_EXACT_UNARY, *_FUNCTIONS):
            return self._unary(name, own, dtype, given)
        return self._binary(name, dtype, given)

    def _unary(
        self, name: str, own: Reference, dtype: torch.dtype, given: dict[str, Any]
    ) -> Reference:
        if given.get("decimals"):
            raise NotLoweredError(self.node, "with decimals")
        if name == "logical_not":
            return self._elementwise("logical_not", dtype, self._cast(own, torch.bool))
        if name == "bitwise_not" and own.dtype is torch.bool:
            return self._elementwise("logical_not", dtype, own)
        if name in ("floor", "ceil", "trunc", "round") and not own.dtype.is_floating_point:
            return own
        if own.dtype is torch.bool and name in ("abs", "sign"):
            return own
        return self._elementwise(name, dtype, self._cast(own, dtype))

    def _power(self, own: Reference, dtype: torch.dtype, exponent: Any) -> Reference:
        if exponent not in (1, 2, 3) or isinstance(exponent, (Tensor, Reference)):
            raise NotLoweredError(self.node, "with an exponent other than 1, 2 and 3")
        result = own
        for _ in range(int(exponent) - 1):
            result = self._elementwise("mul", dtype, result, own)
        return result

    def _classify(self, name: str, own: Reference) -> Reference:
        boolean = torch.bool
        if not own.dtype.is_floating_point:
            return self._elementwise("eq" if name == "isfinite" else "ne", boolean, own, own)
        if name == "isnan":
            return self._elementwise("ne", boolean, own, own)
        size = self._elementwise("abs", own.dtype, own)
        infinity = self._reference(float("inf"), own.dtype)
        return self._elementwise("eq" if name == "isinf" else "lt", boolean, size, infinity)

    def _clamp(self, own: Reference, dtype: torch.dtype, given: dict[str, Any]) -> Reference:
        """Lower a clamp by constants: ``x < low ? low : x`` keeps NaN and the sign of zero."""
        low, high = given.get("min"), given.get("max")
        for bound in (low, high):
            if isinstance(bound, Reference):
                raise NotLoweredError(self.node, "with bounds that are not constant")
            if bound is not None and bool(torch.as_tensor(bound).isnan().any()):
                raise NotLoweredError(self.node, "with NaN as a bound")
            if isinstance(bound, Tensor) and None in (low, high) and bool((bound == 0).any()):
                raise NotLoweredError(self.node, "with a tensor of bounds that has a zero")
        for kind, bound in (("clamp_min", low), ("clamp_max", high)):
            if bound is not None:
                own = self._elementwise(kind, dtype, own, self._reference(bound, dtype))
        return own

    def _binary(self, name: str, dtype: torch.dtype, given: dict[str, Any]) -> Reference:
        first, second = given["self"], given["other"]
        if name == "rsub":
            name, first, second = "sub", second, first
        if name in ("maximum", "minimum"):
            self._check_zeros(first, second, dtype)
        if given.get("alpha", 1) != 1:
            raise NotLoweredError(self.node, "with alpha, which torch may fuse")
        if given.get("rounding_mode") is not None:
            raise NotLoweredError(self.node, f"with rounding_mode={given['rounding_mode']!r}")
        common = dtype
        if name in _COMPARISONS:
            common = torch.result_type(*map(_example, (first, second)))
        elif name in _LOGICAL:
            common = torch.bool
        if dtype is torch.bool and name in ("add", "mul"):
            name = "bitwise_or" if name == "add" else "bitwise_and"
        operands = (self._reference(value, common) for value in (first, second))
        return self._elementwise(name, dtype, *operands)

    def _check_zeros(self, first: Any, second: Any, dtype: torch.dtype) -> None:
        """Refuse a maximum of floats unless one side is a constant other than zero.

        The sign of ``maximum(0, -0)`` depends on the place of the element.
        """
        if dtype.is_floating_point and not any(
            isinstance(value, Tensor) and bool((value != 0).all()) for value in (first, second)
        ):
            raise NotLoweredError(self.node, "whose sign of zero depends on the CPU")


def _stage_name(node: Node) -> str:
    from tdx.artifacts.functions import stage_of

    stage = stage_of(node)
    return "" if stage is None else stage[1]


def _collect(value: Any, references: list[Reference]) -> None:
    if isinstance(value, Reference):
        references.append(value)
    elif isinstance(value, dict):
        _collect(list(value.values()), references)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _collect(item, references)


def _is_tensors(value: Any) -> bool:
    items = value if isinstance(value, (list, tuple)) else [value]
    return any(isinstance(item, (Tensor, Reference)) for item in items)


def _example(value: Any) -> Any:
    """Return a tensor with the shape and dtype of an operand, for the rules of promotion."""
    return torch.empty(value.shape, dtype=value.dtype) if isinstance(value, Reference) else value
