"""ONNX files by torch's exporter, with the metadata that mjlab and Isaac Lab read."""

from __future__ import annotations

import io
import json
import logging
import warnings
from contextlib import redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING

import torch

from tdx.artifacts.backends.interface import Backend
from tdx.artifacts.functions import window_sizes
from tdx.foundation.errors import ChainError, get_first_line

if TYPE_CHECKING:
    from tdx.artifacts.functions import ChainFunctions, ExportedFunction

OPSET = 18
_ROUNDED = 2.0**-22
"""Two units in the last place of float32: exponentials, roots and quotients of them."""
_SUMMED = 2.0**-17
"""Sums whose order depends on the implementation, such as those of a resize."""
_EXACT = frozenset(
    {
        *("abs", "add", "sub", "mul", "div", "neg", "sign", "clamp", "clamp_min", "clamp_max"),
        *("maximum", "minimum", "eq", "ne", "lt", "le", "gt", "ge", "where", "masked_fill"),
        *("logical_and", "logical_or", "logical_not", "logical_xor", "bitwise_and", "bitwise_or"),
        *("bitwise_not", "bitwise_xor", "__or__", "__and__", "__xor__", "isnan", "isinf"),
        *("clone", "_to_copy", "alias", "copy", "detach", "contiguous", "lift_fresh_copy"),
        *("cat", "stack", "view", "_unsafe_view", "reshape", "expand", "squeeze", "unsqueeze"),
        *("permute", "transpose", "select", "slice", "index", "index_select", "gather", "unbind"),
        *("split", "split_with_sizes", "flatten", "repeat", "flip", "arange", "full", "full_like"),
        *("zeros", "ones", "zeros_like", "ones_like", "empty", "scalar_tensor", "argmax"),
        *("constant_pad_nd", "one_hot", "scatter", "round", "floor", "ceil", "trunc", "any", "all"),
    }
)
_FUNCTIONS = frozenset(
    {
        *("sqrt", "rsqrt", "exp", "log", "log1p", "expm1", "tanh", "sigmoid", "sin", "cos", "pow"),
        *("reciprocal", "erf", "softplus", "log2", "log10", "sinh", "cosh", "tan", "atan"),
    }
)
_SUMS = ("sum", "mean", "cumsum", "var", "std", "amax", "amin", "prod", "mm", "matmul", "addmm")
_IMAGES = ("upsample", "_upsample", "convolution", "_adaptive", "avg_pool", "max_pool", "linear")


class OnnxBackend(Backend):
    """Each function as ``NAME.onnx``."""

    name = "onnx"
    title = "ONNX files"
    packages = ("onnx", "onnxscript", "onnxruntime")
    extra = "onnx"

    def bound(self, operator: str) -> float | None:
        """See :class:`Backend`; torch's exporter refuses what it does not know."""
        short = operator.split(".")[1] if "." in operator else operator
        if short in _EXACT:
            return 0.0
        return _ROUNDED if short in _FUNCTIONS else _SUMMED

    def files(self, chain: ChainFunctions) -> dict[str, bytes]:
        """See :class:`Backend`.

        Raises:
            ChainError: torch's exporter cannot express an operator.
        """
        return {f"{part.name}.onnx": _export(chain, part) for part in chain.functions}


def _export(chain: ChainFunctions, function: ExportedFunction) -> bytes:
    import onnx

    log = logging.getLogger("torch.onnx")
    level = log.level
    try:
        # The exporter prints its progress.
        log.setLevel(logging.ERROR)
        with (
            redirect_stdout(io.StringIO()),
            redirect_stderr(io.StringIO()),
            warnings.catch_warnings(),
            torch.no_grad(),
        ):
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                function.program,
                dynamo=True,
                opset_version=OPSET,
                input_names=[entry.name for entry in function.inputs],
                output_names=_output_names(function),
                optimize=False,
                verbose=False,
            )
    except Exception as error:
        raise ChainError(
            f"torch.onnx cannot express {function.name}: {get_first_line(error)}",
            hint="export to pt2, or the part before it: --split",
        ) from error
    finally:
        log.setLevel(level)
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


def _output_names(function: ExportedFunction) -> list[str]:
    """Return the names of the outputs: those of a state end with ``_out``.

    A name of ONNX has one value, and a state is an input as well.
    """
    taken = {entry.name for entry in function.inputs}
    names = []
    for entry in function.outputs:
        name = f"{entry.name}_out" if entry.name in taken or entry.is_state else entry.name
        names.append(name)
    return names


def _metadata(chain: ChainFunctions, function: ExportedFunction) -> dict[str, str]:
    """Return the metadata: that of tdx, and for ``step`` the observations as mjlab writes them.

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
        frames = {name: 1 + count for name, count in window_sizes(function).items()}
        history = [str(frames.get(entry.key.removeprefix("next."), 1)) for entry in terms]
        metadata["observation_names"] = ",".join(entry.name for entry in terms)
        metadata["observation_terms_history_length"] = ",".join(history)
    return metadata


backend = OnnxBackend()
