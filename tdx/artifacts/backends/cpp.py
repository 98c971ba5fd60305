"""One C++17 header without dependencies."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tdx.artifacts.backends.interface import Backend
from tdx.artifacts.lowering import (
    DTYPES,
    REDUCTIONS,
    LoweredFunction,
    NotLoweredError,
    Operation,
    Reference,
    Value,
    bound_of,
    lower,
)
from tdx.foundation.errors import ChainError

if TYPE_CHECKING:
    from tdx.artifacts.functions import ArtifactEntry, ChainFunctions, ExportedFunction

_TYPES = {"bool": "bool", "float32": "float", "float64": "double"}
_INFIX = {
    **{"add": "+", "sub": "-", "mul": "*", "div": "/", "eq": "==", "ne": "!=", "lt": "<"},
    **{"le": "<=", "gt": ">", "ge": ">=", "logical_and": "&&", "logical_or": "||"},
    **{"logical_xor": "!=", "bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^"},
}
_CALLS = {
    **{"abs": "std::fabs", "floor": "std::floor", "ceil": "std::ceil", "trunc": "std::trunc"},
    **{"round": "std::nearbyint", "sqrt": "std::sqrt", "exp": "std::exp", "log": "std::log"},
    **{"tanh": "std::tanh", "sin": "std::sin", "cos": "std::cos", "sign": "sign"},
    **{"maximum": "larger", "minimum": "smaller", "clamp_min": "at_least", "clamp_max": "at_most"},
}
_WRAPPED = {"add": "wrapped_add", "sub": "wrapped_sub", "mul": "wrapped_mul"}
_MAX_LOOPS = 4096
_RESERVED = (
    *("state", "before", "input", "output", "i", "k", "row", "total", "best", "std"),
    *("sign", "at_least", "at_most", "larger", "smaller", "bounded", "rounds_products"),
    *("wrapped_add", "wrapped_sub", "wrapped_mul", "narrowed", "reset", "step", "act"),
    *("and", "or", "xor", "not", "int", "float", "double", "long", "short", "char", "bool"),
    *("auto", "new", "delete", "default", "switch", "const", "signed", "unsigned", "float_t"),
)
_HELPERS = """
#ifdef __FAST_MATH__
#error "compile without -ffast-math: it changes NaN, infinities and the order of sums"
#endif

static_assert(std::numeric_limits<float>::is_iec559 && std::numeric_limits<double>::is_iec559,
              "floats have to be IEEE 754");
static_assert(FLT_EVAL_METHOD == 0, "floats have to be rounded after each operation: -mfpmath=sse");

// Returns true if the compiler kept a product and a sum apart, as -ffp-contract=off asks for.
inline bool rounds_products() noexcept {
    volatile float factor = 0x1.000002p+0f;
    volatile float square = 0x1.000004p+0f;
    const float x = factor, y = square;
    return x * x - y == 0.0f;
}

// Keeps NaN and the sign of zero.
template <typename T>
inline T at_least(T x, T low) noexcept {
    return x < low ? low : x;
}

template <typename T>
inline T at_most(T x, T high) noexcept {
    return x > high ? high : x;
}

// NaN if one of them is NaN.
template <typename T>
inline T larger(T a, T b) noexcept {
    return a != a || a > b ? a : b;
}

template <typename T>
inline T smaller(T a, T b) noexcept {
    return a != a || a < b ? a : b;
}

template <typename T>
inline T sign(T x) noexcept {
    return static_cast<T>(static_cast<int>(T{} < x) - static_cast<int>(x < T{}));
}

// Volatile: with -O3 -mavx2, GCC 12 drops the rounding of a double to float and back.
inline float narrowed(double x) noexcept {
    volatile float rounded = static_cast<float>(x);
    return rounded;
}

// Integers wrap around: signed overflow would be undefined.
template <typename T>
inline T wrapped_add(T a, T b) noexcept {
    return static_cast<T>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
}

template <typename T>
inline T wrapped_sub(T a, T b) noexcept {
    return static_cast<T>(static_cast<std::uint64_t>(a) - static_cast<std::uint64_t>(b));
}

template <typename T>
inline T wrapped_mul(T a, T b) noexcept {
    return static_cast<T>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
}

// An index out of range is an error in torch; here it never leaves the table.
inline std::size_t bounded(std::int64_t index, std::int64_t size) noexcept {
    return static_cast<std::size_t>(index < 0 ? 0 : index >= size ? size - 1 : index);
}
"""


class CppBackend(Backend):
    """All functions in ``chain.hpp``."""

    name = "cpp"
    title = "C++17 header without dependencies"

    def bound(self, operator: str) -> float | None:
        """See :class:`Backend`."""
        return bound_of(operator)

    def check(self, chain: ChainFunctions) -> dict[str, float]:
        """See :class:`Backend`."""
        bounds = super().check(chain)
        self.files(chain)
        return bounds

    def files(self, chain: ChainFunctions) -> dict[str, bytes]:
        """See :class:`Backend`."""
        try:
            functions = [lower(function, _RESERVED) for function in chain.functions]
        except NotLoweredError as error:
            raise self.not_lowered(error.node, error.reason) from error
        pairs = list(zip(chain.functions, functions, strict=True))
        states = _states(chain)
        space = f"tdx_{chain.name}"
        lines = [
            f"// {_comment(chain.name)}: functions of fixed shapes, generated by tdx.",
            "//",
            *(f"//     {_comment(stage)}" for stage in chain.stages),
            "//",
            "// C++17; no dependency, allocation or exception. Compile with -ffp-contract=off:",
            "// then the results have the bits of torch on a CPU, and rounds_products() is true.",
            "// A State belongs to one env; reset begins an episode.",
            "//",
            f"// Chain: sha256 {chain.digest}",
            "",
            "#pragma once",
            "",
            *(f"#include <{name}>" for name in ("cfloat", "cmath", "cstddef", "cstdint", "limits")),
            "",
            f"namespace {space} {{",
            _HELPERS.rstrip(),
        ]
        if states:
            lines += ["", "// What is carried from one call to the next, before the first reset."]
            lines += ["struct State {"]
            for name, entry in states.items():
                initial = chain.initial.get(name)
                lines += _field(entry, " = " + _braced(initial) if initial is not None else "{}")
            lines += ["};"]
        for exported, function in pairs:
            lines += ["", *_structs(exported), "", *_Writer(exported, function).lines()]
        lines += ["", f"}}  // namespace {space}"]
        return {
            "chain.hpp": ("\n".join(lines) + "\n").encode(),
            "verify.cpp": _verifier(space, chain.functions, list(states)).encode(),
        }


def _comment(text: str) -> str:
    # A backslash at the end would continue the comment.
    return " ".join(text.split()).replace("\\", "/")


def _type(dtype: torch.dtype) -> str:
    name = DTYPES[dtype]
    return _TYPES.get(name, f"std::{name}_t")


def _size(value: Value | ArtifactEntry) -> int:
    return math.prod(value.shape)


def _number(number: float, dtype: torch.dtype) -> str:
    """Return a literal with exactly this value."""
    if dtype is torch.bool:
        return "true" if number else "false"
    if not dtype.is_floating_point:
        smallest = torch.iinfo(torch.int64).min
        return "INT64_MIN" if number == smallest else str(number)
    limits = f"std::numeric_limits<{_type(dtype)}>"
    if math.isnan(number):
        return f"{limits}::quiet_NaN()"
    if math.isinf(number):
        return f"{'-' * (number < 0)}{limits}::infinity()"
    mantissa, exponent = float(number).hex().split("p")
    mantissa = mantissa.rstrip("0").removesuffix(".") if "." in mantissa else mantissa
    return f"{mantissa}p{exponent}{'f' * (dtype is torch.float32)}"


def _braced(value: Tensor) -> str:
    return (
        "{" + ", ".join(_number(number, value.dtype) for number in value.flatten().tolist()) + "}"
    )


def _states(chain: ChainFunctions) -> dict[str, ArtifactEntry]:
    states: dict[str, ArtifactEntry] = {}
    for function in chain.functions:
        for entry in (*function.inputs, *function.outputs):
            if entry.is_state:
                known = states.setdefault(entry.name, entry)
                if (known.shape, known.dtype) != (entry.shape, entry.dtype):
                    raise ChainError(f"the state {entry.name!r} changes its shape or dtype")
    return states


def _field(entry: ArtifactEntry, initial: str = "") -> list[str]:
    shape = "x".join(map(str, entry.shape)) or "scalar"
    text = _comment(f"{entry.key}, {shape}, {entry.description}")
    return [f"    // {text}", f"    {_type(entry.dtype)} {entry.name}[{_size(entry)}]{initial};"]


def _structs(function: ExportedFunction) -> list[str]:
    lines: list[str] = []
    for suffix, entries in (("Input", function.inputs), ("Output", function.outputs)):
        lines += [*([""] if lines else []), f"struct {function.name.capitalize()}{suffix} {{"]
        for entry in entries:
            if not entry.is_state:
                lines += _field(entry)
        lines += ["};"]
    return lines


class _Writer:
    """Writes the body of one function."""

    def __init__(self, exported: ExportedFunction, function: LoweredFunction) -> None:
        self.exported, self.function = exported, function
        self.body: list[str] = []
        self.stage = ""
        self.copies = 0
        self.locals: set[Value] = set()
        """Values that exist only in one loop."""
        self.storage: dict[Value, str] = {}
        self.uses: dict[Value, list[Operation | None]] = {}
        for operation in function.operations:
            for operand in operation.operands:
                for value in function.sources(operand):
                    self.uses.setdefault(value, []).append(operation)
        self.written: set[str] = set()
        self.targets: dict[Value, str] = {}
        for entry, reference in function.outputs:
            target = f"{'state' if entry.is_state else 'output'}.{entry.name}"
            for value in function.sources(reference):
                self.uses.setdefault(value, []).append(None)
                if value.constant is None and value not in function.inputs:
                    is_new = value not in self.targets
                    if is_new and self._is_whole(reference, value):
                        self.targets[value] = target
                        self.written.add(target)

    def _is_whole(self, reference: Reference, value: Value) -> bool:
        expected = torch.arange(value.base, value.base + _size(value))
        return torch.equal(reference.addresses.flatten(), expected)

    def lines(self) -> list[str]:
        exported, function = self.exported, self.function
        reads_state = any(entry.is_state for entry in exported.inputs)
        has_state = reads_state or any(entry.is_state for entry in exported.outputs)
        for entry, value in zip(exported.inputs, function.inputs, strict=True):
            self.storage[value] = f"{'before' if entry.is_state else 'input'}.{entry.name}"
        for value in function.constants:
            if _size(value) > 1 and value.constant is not None:
                self.storage[value] = value.name
                text = f"static constexpr {_type(value.dtype)} {value.name}[{_size(value)}]"
                self.body.append(f"{text} = {_braced(value.constant)};")
        group: list[Operation] = []
        for operation in function.operations:
            if group and not self._joins(group, operation):
                self._write_loop(group)
                group = []
            if operation.kind in (*REDUCTIONS, "take"):
                self._write_rows(operation)
            else:
                group.append(operation)
        if group:
            self._write_loop(group)
        self._write_outputs()
        name = function.name
        kind = name.capitalize()
        parameters = ["State& state"] if has_state else []
        parameters += [f"const {kind}Input& input", f"{kind}Output& output"]
        lines = [f"inline void {name}({', '.join(parameters)}) noexcept {{"]
        text = "\n".join(self.body)
        if reads_state:
            lines.append("    const State before = state;")
        lines += [f"    (void){word};" for word in ("input", "output") if f"{word}." not in text]
        return [*lines, *(f"    {line}" for line in self.body), "}"]

    def _joins(self, group: list[Operation], operation: Operation) -> bool:
        """Return True if an operation fits into the loop of others."""
        if operation.kind in (*REDUCTIONS, "take"):
            return False
        if _size(operation.result) != _size(group[0].result):
            return False
        inside = {member.result for member in group}
        for operand in operation.operands:
            flat = self._flat(operand, operation.result)
            for value in self.function.sources(operand):
                if value in inside and not self._is_whole(flat, value):
                    return False
        return True

    def _flat(self, operand: Reference, result: Value) -> Reference:
        return Reference(operand.addresses.expand(result.shape), operand.dtype)

    def _say_stage(self, operation: Operation) -> None:
        if operation.stage and operation.stage != self.stage:
            self.stage = operation.stage
            self.body.append(f"// {operation.stage}")

    def _write_loop(self, group: list[Operation]) -> None:
        count = _size(group[0].result)
        lines: list[str] = []
        own = set(map(id, group))
        self._say_stage(group[0])
        for operation in group:
            result = operation.result
            if operation.stage and operation.stage != self.stage:
                self.stage = operation.stage
                lines.append(f"// {operation.stage}")
            parts = [
                self._element(self._flat(operand, result), count) for operand in operation.operands
            ]
            text = _expression(operation, parts)
            users = self.uses.get(result, [])
            if all(user is not None and id(user) in own for user in users):
                lines.append(f"const {_type(result.dtype)} {result.name} = {text};")
                self.storage[result] = result.name
                self.locals.add(result)
            else:
                self._declare(result)
                lines.append(f"{self.storage[result]}[{'i' if count > 1 else '0'}] = {text};")
        self.body += lines if count == 1 else _loop(count, lines)

    def _declare(self, value: Value) -> None:
        if value in self.targets:
            self.storage[value] = self.targets[value]
            return
        self.storage[value] = value.name
        self.body.append(f"{_type(value.dtype)} {value.name}[{_size(value)}];")

    def _element(self, operand: Reference, count: int) -> str:
        """Return element ``i`` of an operand, which may be copied first."""
        segments = self.function.segments(operand.addresses)
        value = segments[0].value
        if value.constant is not None and _size(value) == 1 and len(segments) == 1:
            return _scalar(value)
        name = self.storage.get(value, "")
        if value in self.locals:
            return name
        if len(segments) == 1:
            start, stride = segments[0].start, segments[0].stride
            if count == 1 or stride == 0:
                return f"{name}[{start}]"
            index = "i" if stride == 1 else f"{stride} * i" if stride > 0 else f"{-stride} * i"
            if stride < 0:
                return f"{name}[{start} - {index}]"
            return f"{name}[{index}]" if start == 0 else f"{name}[{start} + {index}]"
        period = segments[0].count
        flat = operand.addresses.flatten()
        is_periodic = torch.equal(flat, flat[:period].repeat(count // period + 1)[:count])
        if is_periodic and segments[0].stride == 1 and segments[0].start == 0:
            return f"{name}[i % {period}]"
        return f"{self._copy(operand)}[i]"

    def _copy(self, operand: Reference) -> str:
        """Copy an operand into an array."""
        self.copies += 1
        name = f"packed_{self.copies}"
        self.body.append(f"{_type(operand.dtype)} {name}[{operand.addresses.numel()}];")
        self._copy_to(name, operand)
        return name

    def _copy_to(self, target: str, operand: Reference) -> None:
        segments = self.function.segments(operand.addresses)
        if len(segments) > _MAX_LOOPS:
            raise ChainError(
                f"{target} is copied from {len(segments)} places, above {_MAX_LOOPS}",
                hint="export to numpy, onnx or pt2",
            )
        at = 0
        for segment in segments:
            value = segment.value
            if value.constant is not None and _size(value) == 1:
                source = _scalar(value)
            else:
                step = "i" if segment.stride == 1 else f"{abs(segment.stride)} * i"
                sign = "-" if segment.stride < 0 else "+"
                place = f"{segment.start} {sign} {step}" if segment.start else step
                place = str(segment.start) if segment.stride == 0 or segment.count == 1 else place
                source = f"{self.storage[value]}[{place}]"
            if segment.count == 1:
                self.body.append(f"{target}[{at}] = {source};")
            else:
                self.body += _loop(
                    segment.count, [f"{target}[{f'{at} + i' if at else 'i'}] = {source};"]
                )
            at += segment.count

    def _array(self, operand: Reference) -> str:
        """Return an array with exactly the elements of an operand."""
        segments = self.function.segments(operand.addresses)
        value = segments[0].value
        if value in self.storage and self._is_whole(operand, value):
            return self.storage[value]
        return self._copy(operand)

    def _write_rows(self, operation: Operation) -> None:
        """Write a reduction of rows, or a choice from each row."""
        self._say_stage(operation)
        arrays = [self._array(operand) for operand in operation.operands]
        rows, count = operation.operands[0].shape
        kind, result, own = operation.kind, operation.result, arrays[0]
        self._declare(result)
        target = f"{self.storage[result]}[row]"
        element = f"{own}[{count} * row + k]"
        name, dtype = _type(result.dtype), _type(operation.operands[0].dtype)
        if kind == "take":
            lines = [f"{target} = {own}[{count} * row + bounded({arrays[1]}[row], {count})];"]
        elif kind in ("argmax", "argmin"):
            value = f"{own}[{count} * row + best]"
            lines = ["std::size_t best = 0;"]
            # The first one that is best; NaN is better than any number.
            compare = ">" if kind == "argmax" else "<"
            better = f"{element} {compare} {value}"
            if operation.operands[0].dtype.is_floating_point:
                better += f" || ({element} != {element} && {value} == {value})"
            lines += _loop(count, [f"if ({better}) {{", "    best = k;", "}"], "k")
            lines += [f"{target} = static_cast<{name}>(best);"]
        else:
            start = {"any": "false", "all": "true"}.get(kind, f"{dtype}{{}}")
            following = {
                "any": f"total || {element}",
                "all": f"total && {element}",
                "sum": f"total + {element}"
                if result.dtype.is_floating_point
                else f"wrapped_add(total, {element})",
            }[kind]
            lines = [f"{name} total = {start};"]
            lines += _loop(count, [f"total = {following};"], "k")
            lines += [f"{target} = total;"]
        self.body += _loop(rows, lines, "row")

    def _write_outputs(self) -> None:
        for entry, reference in self.function.outputs:
            target = f"{'state' if entry.is_state else 'output'}.{entry.name}"
            if target not in self.written:
                self._copy_to(target, reference)


def _loop(count: int, lines: list[str], index: str = "i") -> list[str]:
    head = f"for (std::size_t {index} = 0; {index} < {count}; ++{index}) {{"
    return [head, *(f"    {line}" for line in lines), "}"]


def _scalar(value: Value) -> str:
    assert value.constant is not None
    number = _number(value.constant.item(), value.dtype)
    is_plain = value.dtype in (torch.float32, torch.float64, torch.bool)
    return number if is_plain else f"{_type(value.dtype)}{{{number}}}"


def _expression(operation: Operation, parts: list[str]) -> str:
    kind, dtype = operation.kind, operation.result.dtype
    name = _type(dtype)
    is_float = operation.operands[0].dtype.is_floating_point
    if kind in _WRAPPED and not is_float:
        return f"{_WRAPPED[kind]}<{name}>({parts[0]}, {parts[1]})"
    if kind in _INFIX:
        text = f"{parts[0]} {_INFIX[kind]} {parts[1]}"
        return f"static_cast<{name}>({text})" if kind.startswith("bitwise") else text
    if kind == "where":
        return f"{parts[0]} ? {parts[1]} : {parts[2]}"
    if kind == "cast" and (operation.operands[0].dtype, dtype) == (torch.float64, torch.float32):
        return f"narrowed({parts[0]})"
    if kind == "cast":
        return f"{parts[0]} != 0" if dtype is torch.bool else f"static_cast<{name}>({parts[0]})"
    if kind == "logical_not":
        return f"!{parts[0]}"
    if kind == "bitwise_not":
        return f"static_cast<{name}>(~{parts[0]})"
    if kind == "neg":
        return f"-{parts[0]}" if is_float else f"wrapped_sub<{name}>(0, {parts[0]})"
    if kind == "abs" and not is_float:
        return f"{parts[0]} < 0 ? wrapped_sub<{name}>(0, {parts[0]}) : {parts[0]}"
    return f"{_CALLS[kind]}({', '.join(parts)})"


def _verifier(space: str, functions: tuple[ExportedFunction, ...], states: list[str]) -> str:
    lines = [
        "// Calls the header with pointers to the inputs and outputs, in order; for verify.py.",
        "",
        '#include "chain.hpp"',
        "",
        "#include <cstring>",
    ]
    for function in functions:
        name, kind = function.name, function.name.capitalize()
        uses_state = any(entry.is_state for entry in (*function.inputs, *function.outputs))
        lines += [
            "",
            f'extern "C" void tdx_{name}(const void* const* inputs, void* const* outputs) {{',
            *([f"    {space}::State state;"] if uses_state else []),
            f"    {space}::{kind}Input input{{}};",
            f"    {space}::{kind}Output output{{}};",
        ]
        for number, entry in enumerate(function.inputs):
            own = f"{'state' if entry.is_state else 'input'}.{entry.name}"
            lines.append(f"    std::memcpy({own}, inputs[{number}], sizeof {own});")
        arguments = "state, input, output" if uses_state else "input, output"
        lines.append(f"    {space}::{name}({arguments});")
        for number, entry in enumerate(function.outputs):
            own = f"{'state' if entry.is_state else 'output'}.{entry.name}"
            lines.append(f"    std::memcpy(outputs[{number}], {own}, sizeof {own});")
        lines += ["    (void)inputs;", "    (void)outputs;", "}"]
    if states:
        head = 'extern "C" void tdx_initial(const void* const*, void* const* outputs) {'
        lines += ["", head, f"    const {space}::State state;"]
        for number, name in enumerate(states):
            lines.append(f"    std::memcpy(outputs[{number}], state.{name}, sizeof state.{name});")
        lines.append("}")
    return "\n".join(lines) + "\n"


backend = CppBackend()
