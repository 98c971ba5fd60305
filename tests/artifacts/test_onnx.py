"""ONNX files return what torch does, within bounds that are measured here."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import tdx
from tdx.artifacts.artifact import output_bounds
from tdx.artifacts.backends import load_backend
from tdx.artifacts.functions import ChainFunctions, chain_functions
from tdx.artifacts.verifier import Array, compare
from tdx.stacks.descriptors.mjlab import read_mjlab
from tests.artifacts.operators import OPERATORS
from tests.artifacts.random_chains import Vectors, draw, entry, export, random_chain
from tests.artifacts.test_damage import assert_rejected
from tests.artifacts.test_generated_code import Episodes, run, torch_calls
from tests.programs import require_package, sampled
from tests.transforms.envs import RowsEnv

pytestmark = pytest.mark.programs


@pytest.fixture(autouse=True)
def _needs_onnx() -> None:
    require_package("onnxruntime")
    require_package("onnxscript")


def session(data: bytes) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def onnx_calls(chain: ChainFunctions) -> dict[str, Any]:
    files = load_backend("onnx").files(chain)

    def wrap(function: Any) -> Any:
        runtime = session(files[f"{function.name}.onnx"])

        def call(values: Mapping[str, Array]) -> dict[str, Array]:
            given = {item.name: np.asarray(values[item.name]) for item in function.inputs}
            results = runtime.run(None, given)
            return dict(zip((e.name for e in function.outputs), results, strict=True))

        return call

    return {function.name: wrap(function) for function in chain.functions}


def assert_within_bounds(chain: ChainFunctions, steps: int, seed: int) -> None:
    bounds = output_bounds(chain, load_backend("onnx").check(chain))
    episodes = Episodes(chain, steps, seed)
    wanted = run(chain, episodes, torch_calls(chain))
    results = run(chain, episodes, onnx_calls(chain))
    for name, records in wanted.items():
        for field in records.dtype.names or ():
            values = zip(results[name][field][0], records[field][0], strict=True)
            for call, (value, expected) in enumerate(values):
                difference = compare(value, np.asarray(expected), bounds[name][field])
                assert difference is None, (name, field, call, difference)


class Operators(nn.Module):
    def forward(self, x: Tensor, y: Tensor, p: Tensor, i: Tensor) -> tuple[Tensor, ...]:
        return tuple(operator(x, y, p, i) for operator in OPERATORS.values())


def test_bounds_of_operators_are_twice_what_is_measured() -> None:
    x, image = torch.zeros(20), torch.zeros(12, 10, 3, dtype=torch.uint8)
    inputs = {"x": x, "y": x, "p": x, "i": image}
    names = tuple(f"out_{name.replace('.', '_')}" for name in OPERATORS)
    function = export("step", Operators(), inputs, names)
    chain = ChainFunctions("operators", "0", ("Operators",), (function,))
    runtime, reference = onnx_calls(chain)["step"], torch_calls(chain)["step"]
    rng = torch.Generator().manual_seed(0)
    measured = dict.fromkeys(names, 0.0)
    inexact: set[str] = set()
    for number in range(300):
        magnitude = 10.0 ** (number % 5 - 2)
        values = {
            "x": draw(rng, entry("x", x), 1)[0] * magnitude,
            "y": draw(rng, entry("y", x), 1)[0],
            "p": torch.rand(20, generator=rng) * magnitude + 1e-3,
            "i": torch.randint(0, 256, image.shape, generator=rng, dtype=torch.uint8),
        }
        arrays = {name: value.numpy() for name, value in values.items()}
        results, wanted = runtime(arrays), reference(arrays)
        for name in names:
            value, expected = results[name], wanted[name]
            if compare(value, expected, 0.0) is not None:
                inexact.add(name)
            if expected.dtype.kind == "f":
                # Not finite where the reference is not, and the same values there.
                assert compare(value, expected, 1.0) is None, name
                finite = np.isfinite(expected)
                scale = np.abs(expected, where=finite, out=np.zeros_like(expected)).max()
                with np.errstate(all="ignore"):
                    error = np.where(finite, np.abs(value - expected), 0).max()
                measured[name] = max(measured[name], float(error / max(scale, 2.0**-126)))
    backend = load_backend("onnx")
    wrong = []
    for name, operator in zip(names, OPERATORS, strict=True):
        bound = backend.bound(f"aten.{operator.removesuffix('.Tensor')}.default")
        assert bound is not None, operator
        # Another CPU may have smaller differences.
        is_close = measured[name] <= bound <= (16 * measured[name] or bound)
        if not is_close or (name in inexact and bound == 0):
            wrong.append((operator, measured[name], bound))
    assert not wrong


@sampled(12)
@pytest.mark.parametrize("seed", range(1, 15))
def test_random_chains_are_within_their_bounds(seed: int) -> None:
    assert_within_bounds(random_chain(seed), 60, seed)


IMAGES: dict[str, list[Any]] = {
    "gray": [tdx.ToTensorImage(in_keys=["pixels"]), tdx.GrayScale(in_keys=["pixels"])],
    "resized": [tdx.ToTensorImage(in_keys=["pixels"]), tdx.Resize(4, 5, in_keys=["pixels"])],
    "bicubic": [
        tdx.ToTensorImage(in_keys=["pixels"]),
        tdx.Resize(4, 5, interpolation="bicubic", in_keys=["pixels"]),
    ],
    "cropped": [tdx.CenterCrop(3, 4, in_keys=["image"]), tdx.CatFrames(2, -3, in_keys=["image"])],
    "Atari": [
        tdx.ToTensorImage(in_keys=["pixels"]),
        tdx.GrayScale(in_keys=["pixels"]),
        tdx.Resize(5, 5, in_keys=["pixels"]),
        tdx.CatFrames(4, -3, in_keys=["pixels"]),
        tdx.ObservationNorm(-0.5, 2.0, in_keys=["pixels"]),
    ],
    "flat": [tdx.Crop(3, 4, in_keys=["image"]), tdx.FlattenObservation(-3, -1, in_keys=["image"])],
}


@sampled(6)
@pytest.mark.parametrize("name", IMAGES)
def test_image_chains_are_within_their_bounds(name: str) -> None:
    stages = IMAGES[name]
    env = tdx.TransformedEnv(RowsEnv(), tdx.Compose(*(stage.clone() for stage in stages)))
    chain = chain_functions(env, "images", [type(stage).__name__ for stage in stages])
    assert_within_bounds(chain, 30, 0)


@pytest.mark.parametrize(
    ("stage", "reason"),
    [
        # Infinite pixels would become NaN.
        (tdx.Resize(4, 5, interpolation="bicubic", in_keys=["image"]), "of floats, which may be"),
        # torch's exporter would write 0.1 as a float32.
        (
            tdx.UnaryTransform(["precise"], ["small"], fn=lambda x: x < 0.1),
            "of float64 with .*, rounded",
        ),
    ],
)
def test_what_onnxruntime_would_compute_otherwise_is_refused(stage: Any, reason: str) -> None:
    env = tdx.TransformedEnv(RowsEnv(), stage.clone())
    with pytest.raises(tdx.TdxError, match=reason):
        load_backend("onnx").check(chain_functions(env, "chain", [type(stage).__name__]))


def test_numbers_of_float64_keep_their_bits() -> None:
    stage = tdx.UnaryTransform(
        ["precise"], ["mapped"], fn=lambda x: (x - 0.1).mul(0.3).clamp(-0.7, 0.9) ** 3
    )
    env = tdx.TransformedEnv(Vectors(3, 2), stage)
    assert_within_bounds(chain_functions(env, "chain", ["UnaryTransform"]), 60, 0)


def test_an_operator_that_was_not_measured_is_refused() -> None:
    function = tdx.UnaryTransform(["joints"], ["erf"], fn=torch.erf)
    env = tdx.TransformedEnv(Vectors(3, 2), function)
    with pytest.raises(
        tdx.TdxError, match=r"stage 0 \(UnaryTransform\): onnx cannot express .*erf"
    ):
        load_backend("onnx").check(chain_functions(env, "chain", ["UnaryTransform"]))


def test_metadata_has_names_order_scale_and_history(tmp_path: Any) -> None:
    env = tdx.TransformedEnv(
        Vectors(2, 3),
        tdx.Compose(
            tdx.ObservationNorm(0.0, torch.tensor([0.5, 0.25]), in_keys=["observation"]),
            tdx.ObservationNorm(1.0, 2.0, in_keys=["precise"]),
            tdx.CatFrames(4, -1, in_keys=["observation"]),
            tdx.ActionScaling(),
        ),
    )
    tdx.export_chain(env, "onnx", tmp_path / "chain")
    step = read_mjlab(tmp_path / "chain" / "step.onnx")
    assert [(term.name, term.history, term.scale) for term in step.terms] == [
        ("joints", 1, (1.0,)),
        ("mask", 1, (1.0,)),
        ("observation", 4, (0.5, 0.25)),
        ("precise", 1, None),  # it has an offset as well
    ]
    metadata = session((tmp_path / "chain" / "step.onnx").read_bytes()).get_modelmeta()
    assert metadata.custom_metadata_map["observation_history_lengths"] == "1,1,4,1"
    metadata = session((tmp_path / "chain" / "act.onnx").read_bytes()).get_modelmeta()
    assert metadata.custom_metadata_map["action_scale"] == "1.5,1.75"


def test_damaged_onnx_files_are_rejected(write: Callable[..., Path], tmp_path: Path) -> None:
    import onnx
    from onnx import numpy_helper

    source, count = write("onnx", 0), 0

    def reject(name: str, change: Callable[[Any], None]) -> None:
        nonlocal count
        folder = tmp_path / str(count)
        shutil.copytree(source, folder)
        model = onnx.load(folder / name)
        change(model.graph)
        onnx.save(model, folder / name)
        assert_rejected(folder, name)
        count += 1

    def change_number(number: int, graph: Any) -> None:
        tensor = numbers(graph)[number]
        value = numpy_helper.to_array(tensor)
        tensor.CopyFrom(numpy_helper.from_array(value + np.ones_like(value), tensor.name))

    def numbers(graph: Any) -> list[Any]:
        """Return constants of type float, and counts; others are shapes."""
        attributes = [node.attribute[0] for node in graph.node if node.op_type == "Constant"]
        held = [attribute.t for attribute in attributes if attribute.name == "value"]
        return [*graph.initializer, *(tensor for tensor in held if not tensor.dims)]

    def concat(graph: Any) -> Any:
        return next(node for node in graph.node if node.op_type == "Concat").input

    for name in ("reset.onnx", "step.onnx", "act.onnx"):
        for number in range(len(numbers(onnx.load(source / name).graph))):
            reject(name, partial(change_number, number))
    reject("step.onnx", lambda graph: concat(graph).reverse())
    reject("step.onnx", lambda graph: concat(graph).append(concat(graph)[0]))
    reject("step.onnx", lambda graph: concat(graph).__setitem__(0, concat(graph)[1]))
