"""ONNX files by torch's exporter, with the metadata that mjlab and Isaac Lab read."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.fx import Node

from tdx.artifacts.backends.interface import Backend
from tdx.artifacts.functions import silenced
from tdx.artifacts.lowering import BITWISE, COMPARISONS, COPIES, LOGICAL
from tdx.foundation.errors import ChainError, get_first_line

if TYPE_CHECKING:
    from tdx.artifacts.functions import ChainFunctions, ExportedFunction

OPSET = 18
_SAME = (
    *(*COPIES, *COMPARISONS, *LOGICAL, *BITWISE),
    *("_assert_tensor_metadata", "abs", "all", "any", "arange", "argmax", "argmin", "bitwise_not"),
    *("__and__", "__or__", "__xor__", "ceil", "clamp", "clamp_max", "clamp_min", "div", "empty"),
    *("fill", "floor", "full", "full_like", "getitem", "isfinite", "isinf", "isnan"),
    *("logical_not", "masked_fill", "max_pool2d", "max_pool2d_with_indices", "mul", "neg"),
    *("new_full", "new_ones", "new_zeros", "one_hot", "ones", "ones_like", "reciprocal", "round"),
    *("rsqrt", "scalar_tensor", "scatter", "sign", "upsample_nearest2d", "zeros", "zeros_like"),
)
_SIGN_OF_ZERO = 2.0**-126
_MEASURED = {
    **dict.fromkeys(_SAME, 0.0),
    **dict.fromkeys(("add", "sub", "rsub", "where", "maximum", "minimum", "trunc"), _SIGN_OF_ZERO),
    **dict.fromkeys(("cos", "sin", "sqrt", "exp", "log", "softplus"), 2.0**-22),
    **dict.fromkeys(("pow", "tanh", "sigmoid", "sum", "mean", "var", "cumsum"), 2.0**-21),
    **dict.fromkeys(("avg_pool2d", "mm", "matmul"), 2.0**-21),
    **dict.fromkeys(("prod", "linear", "addmm", "convolution", "conv2d"), 2.0**-20),
    **dict.fromkeys(("_upsample_bilinear2d_aa", "upsample_bilinear2d"), 2.0**-20),
    "_upsample_bicubic2d_aa": 2.0**-19,
    "upsample_bicubic2d": 2.0**-18,
}
"""Bounds by operator, twice the largest difference that was measured, rounded up to a power of two.

``tests/artifacts/test_onnx.py`` measures them again. Where onnxruntime returns the values of torch,
but not always the sign of zero (it removes the addition of 0), the bound is the smallest normal
float32.
"""
_FUSED = 2.0**-21
"""Sums with a factor (``alpha``), which torch rounds once and onnxruntime twice."""


class OnnxBackend(Backend):
    """Each function as ``NAME.onnx``."""

    name = "onnx"
    packages = ("onnx", "onnxscript", "onnxruntime")
    bounds = _MEASURED
    others = None  # an operator that was not measured is refused

    def check(self, chain: ChainFunctions) -> dict[str, float]:
        """See :class:`Backend`."""
        bounds = super().check(chain)
        for function in chain.functions:
            held = function.constants
            infinite = set[Node]()  # what may be infinite, as an input may be
            for node in function.program.graph.nodes:
                inputs = node.all_input_nodes
                is_given = node.op == "placeholder" and node.name not in held
                if _dtype(node).is_floating_point and (is_given or not infinite.isdisjoint(inputs)):
                    infinite.add(node)
                if node.kwargs.get("alpha", 1) != 1:
                    bounds[str(node.target)] = _FUSED
                if node in infinite and "bicubic" in str(node.target):
                    raise self.not_lowered(node, "of floats, which may be infinite")
                numbers = [number for number in node.args if isinstance(number, float)]
                is_rounded = any(x - _rounded(x) for x in numbers if math.isfinite(x))
                is_double = torch.float64 in map(_dtype, inputs)
                if is_double and is_rounded and node.target not in _REWRITES:
                    raise self.not_lowered(node, f"of float64 with {numbers}, rounded to float32")
        return bounds

    def files(self, chain: ChainFunctions) -> dict[str, bytes]:
        """See :class:`Backend`."""
        return {f"{part.name}.onnx": _export(chain, part) for part in chain.functions}


def _dtype(node: Node) -> torch.dtype:
    """Return the dtype of a node; of several results, that of a boolean."""
    value = node.meta.get("val")
    return value.dtype if isinstance(value, Tensor) else torch.bool


def _export(chain: ChainFunctions, function: ExportedFunction) -> bytes:
    import onnx

    try:
        with silenced("torch.onnx"):  # it prints its progress
            program = torch.onnx.export(
                function.program.run_decompositions(_REWRITES),
                dynamo=True,
                opset_version=OPSET,
                input_names=[entry.name for entry in function.inputs],
                # A name of ONNX has one value, and a state is an input as well.
                output_names=[e.name + "_out" * e.is_state for e in function.outputs],
                optimize=False,
                verbose=False,
            )
    except Exception as error:
        raise ChainError(
            f"torch.onnx cannot express {function.name}: {get_first_line(error)}",
            hint="export to pt2, or the part before it: --split",
        ) from error
    assert program is not None
    model = program.model_proto
    del model.metadata_props[:]
    model.producer_version = ""
    for node in model.graph.node:  # stack traces, and paths of this machine
        del node.metadata_props[:]
        node.doc_string = ""
    for name, text in _metadata(chain, function).items():
        entry = model.metadata_props.add()
        entry.key, entry.value = name, text
    onnx.checker.check_model(model)
    data: bytes = model.SerializeToString(deterministic=True)
    return data


def _sign(x: Tensor) -> Tensor:
    """Return 0 for NaN."""
    return (x > 0).to(x.dtype) - (x < 0).to(x.dtype)


def _rounded(number: float) -> float:
    """Return a number as a float32."""
    with np.errstate(over="ignore"):
        return float(np.float32(number))


def _exact(number: float) -> Tensor:
    """Return a float64 as a sum of three numbers, which torch's exporter writes as float32."""
    parts = [_rounded(number)]
    if math.isfinite(number):
        parts.append(_rounded(number - parts[0]))
        parts.append(number - parts[0] - parts[1])
    first, *others = (torch.full((), part, dtype=torch.float64) for part in parts)
    return sum(others, first)


def _with_number(function: Callable[..., Tensor]) -> Callable[..., Any]:
    """Return a function of a tensor and a number that keeps all bits of the number."""

    def rewritten(x: Tensor, y: Any, **kwargs: Any) -> Any:
        is_double = x.dtype is torch.float64 and isinstance(y, float)
        return function(x, _exact(y), **kwargs) if is_double else NotImplemented

    return rewritten


def _power(x: Tensor, exponent: Any) -> Any:
    """Multiply as torch does, with its bits."""
    if exponent not in (2, 3) or not x.dtype.is_floating_point:
        return NotImplemented
    return x * x if exponent == 2 else x * x * x


def _clamp(x: Tensor, low: Any = None, high: Any = None) -> Any:
    """Clamp on both sides: one bound alone would replace infinity by the largest number."""
    is_double = x.dtype is torch.float64
    if not x.dtype.is_floating_point or (None not in (low, high) and not is_double):
        return NotImplemented
    low, high = -math.inf if low is None else low, math.inf if high is None else high
    if not is_double and not isinstance(low, Tensor) and not isinstance(high, Tensor):
        return x.clamp(low, high)
    low, high = (_exact(y) if is_double and not isinstance(y, Tensor) else y for y in (low, high))
    x = torch.where(x < low, low, x)
    return torch.where(x > high, high, x)


_aten = torch.ops.aten
_REWRITES: dict[Any, Any] = {
    _aten.add.Tensor: _with_number(torch.add),
    _aten.sub.Tensor: _with_number(torch.sub),
    _aten.mul.Tensor: _with_number(torch.mul),
    _aten.div.Tensor: _with_number(torch.div),
    _aten.pow.Tensor_Scalar: _power,
    _aten.sign.default: _sign,
    _aten.clamp.default: _clamp,
    _aten.clamp.Tensor: _clamp,
    _aten.clamp_min.default: _clamp,
    _aten.clamp_min.Tensor: _clamp,
    _aten.clamp_max.default: lambda x, high: _clamp(x, None, high),
    _aten.clamp_max.Tensor: lambda x, high: _clamp(x, None, high),
}
"""Operators that onnxruntime computes otherwise, or torch's exporter writes otherwise."""


def _metadata(chain: ChainFunctions, function: ExportedFunction) -> dict[str, str]:
    """Return the metadata: that of tdx, and what mjlab writes, with lists in its form.

    ``tdx inspect spec step.onnx`` reads it as a deployment descriptor.
    """
    metadata = {
        "tdx_chain": chain.digest,
        "tdx_function": function.name,
        "tdx_stages": json.dumps(list(chain.stages)),
        "tdx_state": ",".join(entry.name for entry in function.inputs if entry.is_state),
    }
    terms = [entry for entry in function.outputs if entry.is_observation]
    if function.name == "step" and terms:
        windows = [entry.key for entry in function.inputs if entry.is_window]
        frames = [windows.count(entry.key.removeprefix("next.")) for entry in terms]
        metadata["observation_names"] = ",".join(entry.name for entry in terms)
        metadata["observation_terms_scale"] = ",".join(_scale(chain, "step", e.name) for e in terms)
        # Of a term without history, mjlab writes 0, and exporters for Isaac Lab write 1.
        history = ",".join(str(count and count + 1) for count in frames)
        metadata["observation_terms_history_length"] = history
        metadata["observation_history_lengths"] = ",".join(str(count + 1) for count in frames)
    if function.name == "act" and len(function.outputs) == 1:
        metadata["action_scale"] = _scale(chain, "act", function.outputs[0].name)
    return metadata


def _scale(chain: ChainFunctions, name: str, output: str) -> str:
    """Return the factors of the newest frame of an output, if it is an input times constants.

    They are those with which the reference calls have the values of the chain: all of them, or none
    is stated (``None``). An action may have an offset.
    """
    calls = [call for call in chain.calls if call.function == name]
    wanted = torch.stack([call.outputs[output] for call in calls]).flatten(1).double()
    for source in calls[0].inputs:
        given = torch.stack([call.inputs[source] for call in calls]).flatten(1).double()
        count = given.shape[1]
        if wanted.shape[1] % count:
            continue
        newest = wanted[:, -count:]
        rows = (given.isfinite() & newest.isfinite()).all(1)
        x, y = given[rows], newest[rows]
        if len(x) < 3:
            continue
        offset = y[x.abs().argmin(0), range(count)] if name == "act" else torch.zeros(count)
        largest = x.abs().argmax(0), range(count)
        factor = (y[largest] - offset) / x[largest]
        if torch.allclose(x * factor + offset, y, 1e-5, 1e-5) and bool(factor.all()):
            numbers = [f"{number:.6g}" for number in factor.tolist()]
            if name == "act":
                return ",".join(numbers)
            return numbers[0] if len(set(numbers)) == 1 else f"[{';'.join(numbers)}]"
    return "None"


backend = OnnxBackend()
