"""One C++17 header without dependencies."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tdx.artifacts.lowering import (
    DTYPES,
    ROW_KINDS,
    SPELLINGS,
    LoweredFunction,
    Operation,
    Reference,
    Segment,
    SourceBackend,
    Value,
    describe,
)
from tdx.foundation.errors import ChainError

if TYPE_CHECKING:
    from tdx.artifacts.functions import ArtifactEntry, ChainFunctions, ExportedFunction

_TYPES = {"bool": "bool", "float32": "float", "float64": "double"}
_INTEGERS = {
    **{kind: f"wrapped_{kind}<{{type}}>({{0}}, {{1}})" for kind in ("add", "sub", "mul")},
    "neg": "wrapped_sub<{type}>(0, {0})",
    "abs": "{0} < 0 ? wrapped_sub<{type}>(0, {0}) : {0}",
}
"""Operations on integers that are not written as those on floats."""
_MAX_LOOPS = 4096
_CHECKS = """
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

"""
_HELPERS = {
    "at_least": """
// Keeps NaN and the sign of zero.
template <typename T>
inline T at_least(T x, T low) noexcept {
    return x < low ? low : x;
}
""",
    "at_most": """
// Keeps NaN and the sign of zero.
template <typename T>
inline T at_most(T x, T high) noexcept {
    return x > high ? high : x;
}
""",
    "larger": """
// NaN if one of them is NaN.
template <typename T>
inline T larger(T a, T b) noexcept {
    return a != a || a > b ? a : b;
}
""",
    "smaller": """
// NaN if one of them is NaN.
template <typename T>
inline T smaller(T a, T b) noexcept {
    return a != a || a < b ? a : b;
}
""",
    "sign": """
template <typename T>
inline T sign(T x) noexcept {
    return static_cast<T>(static_cast<int>(T{} < x) - static_cast<int>(x < T{}));
}
""",
    "narrowed": """
// Volatile: with -O3 -mavx2, GCC 12 drops the rounding of a double to float and back.
inline float narrowed(double x) noexcept {
    volatile float rounded = static_cast<float>(x);
    return rounded;
}
""",
    "wrapped_add": """
// Integers wrap around: signed overflow would be undefined.
template <typename T>
inline T wrapped_add(T a, T b) noexcept {
    return static_cast<T>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
}
""",
    "wrapped_sub": """
// Integers wrap around: signed overflow would be undefined.
template <typename T>
inline T wrapped_sub(T a, T b) noexcept {
    return static_cast<T>(static_cast<std::uint64_t>(a) - static_cast<std::uint64_t>(b));
}
""",
    "wrapped_mul": """
// Integers wrap around: signed overflow would be undefined.
template <typename T>
inline T wrapped_mul(T a, T b) noexcept {
    return static_cast<T>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
}
""",
    "bounded": """
// An index out of range, which is an error in Python, is that of the nearest element.
inline std::size_t bounded(std::int64_t index, std::int64_t size) noexcept {
    return static_cast<std::size_t>(index < 0 ? 0 : index >= size ? size - 1 : index);
}
""",
}


class CppBackend(SourceBackend):
    """All functions in ``chain.hpp``, with the helpers that they call."""

    name = "cpp"
    reserved = (
        *("state", "before", "input", "output", "i", "k", "row", "total", "best", "std"),
        *("sign", "rounds_products", "reset", "step", "act", *_HELPERS),
        *("and", "or", "xor", "not", "int", "float", "double", "long", "short", "char", "bool"),
        *("auto", "new", "delete", "default", "switch", "const", "signed", "unsigned", "float_t"),
    )

    def files(self, chain: ChainFunctions) -> dict[str, bytes]:
        """See :class:`Backend`.

        Raises:
            ChainError: An operator cannot be lowered, or a copy needs too many loops.
        """
        states = {
            entry.name: entry
            for function in chain.functions
            for entry in (*function.inputs, *function.outputs)
            if entry.is_state
        }
        body: list[str] = []
        if states:
            body += ["", "// What is carried from one call to the next, before the first reset."]
            body += _struct("State", states.values(), chain.initial)
        for exported, function in zip(chain.functions, self.lower(chain), strict=True):
            for suffix, entries in (("Input", exported.inputs), ("Output", exported.outputs)):
                own = [entry for entry in entries if not entry.is_state]
                body += ["", *_struct(f"{function.name.capitalize()}{suffix}", own)]
            body += ["", *_Writer(function, chain.stages).lines(exported)]
        text = "\n".join(body)
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
            _CHECKS.rstrip(),
            *(
                code.rstrip()
                for name, code in _HELPERS.items()
                if re.search(rf"\b{name}[<(]", text)
            ),
        ]
        header = "\n".join(lines) + f"\n{text}\n\n}}  // namespace {space}\n"
        files = {"chain.hpp": header, "verify.cpp": _verifier(space, chain.functions, bool(states))}
        return {name: content.encode() for name, content in files.items()}


def _verifier(space: str, functions: tuple[ExportedFunction, ...], has_state: bool) -> str:
    lines = ["// Exports the functions of the header to verify.py.", '#include "chain.hpp"']
    lines += ["", f"using namespace {space};"]
    for function in functions:
        name, kind = function.name, function.name.capitalize()
        entries = (*function.inputs, *function.outputs)
        state = "*static_cast<State*>(state), " if any(e.is_state for e in entries) else ""
        parameters = f"[[maybe_unused]] void* state, {kind}Input* input, {kind}Output* output"
        lines += ["", f'extern "C" void tdx_{name}({parameters}) {{']
        lines += [f"    {name}({state}*input, *output);", "}"]
    if has_state:
        lines += ["", 'extern "C" void tdx_initial(State* state) { *state = State(); }']
    return "\n".join(lines) + "\n"


def _struct(
    name: str, entries: Iterable[ArtifactEntry], initial: Mapping[str, Tensor] | None = None
) -> list[str]:
    lines = [f"struct {name} {{"]
    for entry in entries:
        value = f" = {_braced(initial[entry.name])}" if initial and entry.name in initial else ""
        lines.append(f"    // {_comment(describe(entry))}")
        lines.append(f"    {_type(entry.dtype)} {entry.name}[{math.prod(entry.shape)}]{value};")
    return [*lines, "};"]


class _Writer:
    """Writes one function: operations of the same size are one loop."""

    def __init__(self, function: LoweredFunction, stages: tuple[str, ...]) -> None:
        self.function, self.stages = function, stages
        self.body: list[str] = []
        self.stage: int | None = None
        self.copies = 0
        self.names: dict[Value, str] = {}
        """Name of the array that has a value."""
        self.locals: dict[Value, str] = {}
        """Element of a value that exists only in one loop."""
        self.users: dict[Value, set[Operation | None]] = {}
        """Operations that read a value; ``None``: it is part of an output."""
        for operation in function.operations:
            for operand in operation.operands:
                for value in function.sources(operand):
                    self.users.setdefault(value, set()).add(operation)
        self.targets: dict[Value, str] = {}
        """Output that a value is computed in."""
        for entry, reference in function.outputs:
            for value in function.sources(reference):
                self.users.setdefault(value, set()).add(None)
                is_computed = value.constant is None and value not in function.inputs
                if is_computed and value not in self.targets and reference.is_all_of(value):
                    self.targets[value] = _output(entry)

    def lines(self, exported: ExportedFunction) -> list[str]:
        function = self.function
        reads_state = any(entry.is_state for entry in exported.inputs)
        has_state = reads_state or any(entry.is_state for entry in exported.outputs)
        for entry, value in zip(exported.inputs, function.inputs, strict=True):
            self.names[value] = f"{'before' if entry.is_state else 'input'}.{entry.name}"
        for value in function.constants:
            if value.size > 1 and value.constant is not None:
                self.names[value] = value.name
                declared = f"static constexpr {_type(value.dtype)} {value.name}[{value.size}]"
                self.body.append(f"{declared} = {_braced(value.constant)};")
        group: list[Operation] = []
        for operation in function.operations:
            if group and not self.joins(group, operation):
                self.write_loop(group)
                group = []
            if operation.kind in ROW_KINDS:
                self.write_rows(operation)
            else:
                group.append(operation)
        if group:
            self.write_loop(group)
        for entry, reference in function.outputs:
            if _output(entry) not in self.targets.values():
                self.copy_to(_output(entry), reference)
        text = "\n".join(self.body)
        kind = function.name.capitalize()
        unused = ["[[maybe_unused]] " * (f"{name}." not in text) for name in ("input", "output")]
        parameters = ["State& state"] if has_state else []
        parameters += [f"{unused[0]}const {kind}Input& input", f"{unused[1]}{kind}Output& output"]
        lines = [f"inline void {function.name}({', '.join(parameters)}) noexcept {{"]
        lines += ["    const State before = state;"] if reads_state else []
        return [*lines, *(f"    {line}" for line in self.body), "}"]

    def joins(self, group: list[Operation], operation: Operation) -> bool:
        """Return True if an operation fits into the loop of others."""
        if operation.kind in ROW_KINDS or operation.result.size != group[0].result.size:
            return False
        inside = {member.result for member in group}
        return all(
            value not in inside or operand.is_all_of(value)
            for operand in _flat_operands(operation)
            for value in self.function.sources(operand)
        )

    def stage_comment(self, operation: Operation) -> list[str]:
        """Return a comment if an operation is the first one of a stage."""
        if operation.stage in (None, self.stage):
            return []
        self.stage = operation.stage
        return [f"// {self.stage}: {_comment(self.stages[self.stage])}"]

    def write_loop(self, group: list[Operation]) -> None:
        count = group[0].result.size
        self.body += self.stage_comment(group[0])
        lines: list[str] = []
        for operation in group:
            result, users = operation.result, self.users.get(operation.result, set())
            lines += self.stage_comment(operation)
            parts = [self.element(operand, count) for operand in _flat_operands(operation)]
            text = _expression(operation, parts)
            if users <= {*group}:
                lines.append(f"const {_type(result.dtype)} {result.name} = {text};")
                self.locals[result] = result.name
            else:
                self.declare(result)
                lines.append(f"{self.names[result]}[{'i' if count > 1 else '0'}] = {text};")
        self.body += lines if count == 1 else _loop(count, lines)

    def declare(self, value: Value) -> None:
        """Give a value an array: that of an output, or its own."""
        self.names[value] = self.targets.get(value, value.name)
        if value not in self.targets:
            self.body.append(f"{_type(value.dtype)} {value.name}[{value.size}];")

    def element(self, operand: Reference, count: int) -> str:
        """Return element ``i`` of an operand, which may be copied first."""
        first, *others = self.function.segments(operand)
        if not others:
            return self.place(first)
        flat, period = operand.addresses.flatten(), first.count
        is_periodic = torch.equal(flat, flat[:period].repeat(count // period + 1)[:count])
        if is_periodic and (first.start, first.stride) == (0, 1):
            return f"{self.names[first.value]}[i % {period}]"
        return f"{self.copy(operand)}[i]"

    def place(self, segment: Segment) -> str:
        """Return element ``i`` of a segment."""
        value, start, stride = segment.value, segment.start, segment.stride
        if value.constant is not None and value.size == 1:
            number = _number(value.constant.item(), value.dtype)
            is_plain = value.dtype.is_floating_point or value.dtype is torch.bool
            return number if is_plain else f"{_type(value.dtype)}{{{number}}}"
        if value in self.locals:
            return self.locals[value]
        if segment.count == 1 or stride == 0:
            return f"{self.names[value]}[{start}]"
        step = "i" if abs(stride) == 1 else f"{abs(stride)} * i"
        sign = "-" if stride < 0 else "+"
        return f"{self.names[value]}[{f'{start} {sign} {step}' if start else step}]"

    def copy(self, operand: Reference) -> str:
        """Return an array with exactly the elements of an operand."""
        (first, *others) = self.function.sources(operand)
        if first in self.names and not others and operand.is_all_of(first):
            return self.names[first]
        self.copies += 1
        name = f"packed_{self.copies}"
        self.body.append(f"{_type(operand.dtype)} {name}[{operand.addresses.numel()}];")
        self.copy_to(name, operand)
        return name

    def copy_to(self, target: str, operand: Reference) -> None:
        segments = self.function.segments(operand)
        if len(segments) > _MAX_LOOPS:
            raise ChainError(
                f"{target} is copied from {len(segments)} places, above {_MAX_LOOPS}",
                hint="export to numpy, onnx or pt2",
            )
        at = 0
        for segment in segments:
            index = str(at) if segment.count == 1 else f"{at} + i" if at else "i"
            line = f"{target}[{index}] = {self.place(segment)};"
            self.body += [line] if segment.count == 1 else _loop(segment.count, [line])
            at += segment.count

    def write_rows(self, operation: Operation) -> None:
        """Write a reduction of rows, or a choice from each row."""
        self.body += self.stage_comment(operation)
        arrays = [self.copy(operand) for operand in operation.operands]
        rows, count = operation.operands[0].shape
        kind, own, dtype = operation.kind, arrays[0], operation.operands[0].dtype
        self.declare(operation.result)
        target = f"{self.names[operation.result]}[row]"
        element = f"{own}[{count} * row + k]"
        name = _type(operation.result.dtype)
        if kind == "take":
            lines = [f"{target} = {own}[{count} * row + bounded({arrays[1]}[row], {count})];"]
        elif kind in ("argmax", "argmin"):
            best = f"{own}[{count} * row + best]"
            # The first one that is best; NaN is better than any number.
            better = f"{element} {'>' if kind == 'argmax' else '<'} {best}"
            if dtype.is_floating_point:
                better += f" || ({element} != {element} && {best} == {best})"
            lines = ["std::size_t best = 0;"]
            lines += _loop(count, [f"if ({better}) {{", "    best = k;", "}"], "k")
            lines += [f"{target} = static_cast<{name}>(best);"]
        else:
            start, following = {
                "any": ("false", f"total || {element}"),
                "all": ("true", f"total && {element}"),
                "sum": (f"{_type(dtype)}{{}}", f"wrapped_add(total, {element})"),
            }[kind]
            if dtype.is_floating_point:
                following = f"total + {element}"
            lines = [f"{name} total = {start};"]
            lines += _loop(count, [f"total = {following};"], "k")
            lines += [f"{target} = total;"]
        self.body += _loop(rows, lines, "row")


def _output(entry: ArtifactEntry) -> str:
    return f"{'state' if entry.is_state else 'output'}.{entry.name}"


def _flat_operands(operation: Operation) -> list[Reference]:
    """Return operands in the shape of the result."""
    shape = operation.result.shape
    return [Reference(part.addresses.expand(shape), part.dtype) for part in operation.operands]


def _expression(operation: Operation, parts: list[str]) -> str:
    kind, dtype, own = operation.kind, operation.result.dtype, operation.operands[0].dtype
    if kind == "cast" and dtype is torch.bool:
        return f"{parts[0]} != 0"
    if kind == "cast" and (own, dtype) == (torch.float64, torch.float32):
        return f"narrowed({parts[0]})"
    text = SPELLINGS[kind][1]
    text = text if own.is_floating_point else _INTEGERS.get(kind, text)
    return text.format(*parts, type=_type(dtype))


def _loop(count: int, lines: list[str], index: str = "i") -> list[str]:
    head = f"for (std::size_t {index} = 0; {index} < {count}; ++{index}) {{"
    return [head, *(f"    {line}" for line in lines), "}"]


def _comment(text: str) -> str:
    # A backslash at the end would continue the comment.
    return " ".join(text.split()).replace("\\", "/")


def _type(dtype: torch.dtype) -> str:
    name = DTYPES[dtype]
    return _TYPES.get(name, f"std::{name}_t")


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
    return f"{{{', '.join(_number(number, value.dtype) for number in value.flatten().tolist())}}}"


backend = CppBackend()
