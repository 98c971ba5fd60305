"""Verify an artifact of tdx: ``python verify.py [FOLDER]``, with NumPy and without tdx.

The hashes of all files are compared with ``artifact.json``. Then the functions run on the reference
vectors, from the initial state on, and every output and every state is compared: with bound 0 bit
by bit (NaN equals NaN), else relative to the largest magnitude in the tensor. An artifact whose
runtime is missing is not verified, and the exit code is 3.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

MANIFEST = "artifact.json"
VECTORS = "reference.npz"
INITIAL = "initial"
"""Function of source code that returns the state before the first reset."""
_ROUNDING = 2.0**-24
_COMPILERS = ("c++", "g++", "clang++")
_FLAGS = ("-std=c++17", "-O2", "-ffp-contract=off", "-fPIC", "-shared")

Array = np.ndarray[Any, Any]
Call = Callable[[str, Sequence[Array]], Sequence[Array]]


class MissingRuntimeError(Exception):
    """The program or package that runs an artifact is not installed."""


def check_files(folder: Path) -> tuple[dict[str, Any], list[str]]:
    """Return the manifest, and one sentence for each file that differs from it."""
    text = (folder / MANIFEST).read_bytes()
    body, _, end = text.rpartition(b', "check": "')
    if end != b'%08x"}\n' % zlib.crc32(body):
        return {}, [f"{MANIFEST} was changed after it was written"]
    manifest: dict[str, Any] = json.loads(text)
    problems = []
    for name, facts in manifest["files"].items():
        path = folder / name
        if "/" in name or not path.is_file() or path.is_symlink():
            problems.append(f"{name} is missing")
        elif hashlib.sha256(path.read_bytes()).hexdigest() != facts["sha256"]:
            problems.append(f"{name} was changed after it was written")
    return manifest, problems


def open_runtime(folder: Path, manifest: dict[str, Any]) -> Call:
    """Return a function that calls a function of the artifact by its name."""
    try:
        return _RUNTIMES[manifest["form"]](folder, manifest["functions"])
    except ImportError as error:
        raise MissingRuntimeError(f"{error.name} is not installed") from error


def _open_numpy(folder: Path, functions: dict[str, Any]) -> Call:
    path, module = folder / "chain.py", dict[str, Any]()
    # Not imported: that would write bytecode into the artifact.
    exec(compile(path.read_bytes(), str(path), "exec"), module)

    def call(name: str, values: Sequence[Array]) -> Sequence[Array]:
        if name == INITIAL:
            return [module["INITIAL"][entry] for entry in _states(functions)]
        with np.errstate(all="ignore"):
            results: Sequence[Array] = module[name](*values)
        return results

    return call


def _open_onnx(folder: Path, functions: dict[str, Any]) -> Call:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    create = partial(onnxruntime.InferenceSession, providers=["CPUExecutionProvider"])
    sessions = {name: create(str(folder / f"{name}.onnx"), options) for name in functions}

    def call(name: str, values: Sequence[Array]) -> Sequence[Array]:
        names = [entry.name for entry in sessions[name].get_inputs()]
        results: Sequence[Array] = sessions[name].run(None, dict(zip(names, values, strict=True)))
        return results

    return call


def _open_pt2(folder: Path, functions: dict[str, Any]) -> Call:
    import torch

    modules = {name: torch.export.load(folder / f"{name}.pt2").module() for name in functions}

    def call(name: str, values: Sequence[Array]) -> Sequence[Array]:
        with torch.no_grad():
            results = modules[name](*(torch.from_numpy(np.array(value)) for value in values))
        return [result.numpy() for result in results]

    return call


def _open_cpp(folder: Path, functions: dict[str, Any]) -> Call:
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CXX", ""), *_COMPILERS))), None)
    if compiler is None:
        raise MissingRuntimeError("a C++ compiler is not installed")
    with tempfile.TemporaryDirectory() as scratch:
        library = Path(scratch) / "chain.so"
        command = [compiler, *_FLAGS, "-I", str(folder), str(folder / "verify.cpp")]
        subprocess.run([*command, "-o", str(library)], check=True)
        loaded = ctypes.CDLL(str(library))

    states = _states(functions)
    state = _struct(states.values())

    def call(name: str, values: Sequence[Array]) -> Sequence[Array]:
        if name == INITIAL:
            loaded.tdx_initial(ctypes.c_void_p(state.ctypes.data))
            return [state[entry].copy() for entry in states]
        inputs, outputs = functions[name]["inputs"], functions[name]["outputs"]
        own = [[entry for entry in side if not entry["state"]] for side in (inputs, outputs)]
        given, result = map(_struct, own)
        for entry, value in zip(inputs, values, strict=True):
            (state if entry["state"] else given)[entry["name"]] = value
        parts = (state, given, result)
        getattr(loaded, f"tdx_{name}")(*(ctypes.c_void_p(part.ctypes.data) for part in parts))
        return [(state if entry["state"] else result)[entry["name"]].copy() for entry in outputs]

    return call


def _struct(entries: Iterable[dict[str, Any]]) -> Array:
    fields = [(entry["name"], entry["dtype"], tuple(entry["shape"])) for entry in entries]
    return np.zeros((), np.dtype(fields, align=True))


_RUNTIMES = {"numpy": _open_numpy, "onnx": _open_onnx, "pt2": _open_pt2, "cpp": _open_cpp}


def _states(functions: dict[str, Any]) -> dict[str, Any]:
    outputs = [entry for function in functions.values() for entry in function["outputs"]]
    return {entry["name"]: entry for entry in outputs if entry["state"]}


def compare(value: Array, wanted: Array, bound: float) -> str | None:
    """Return how a result differs from the reference by more than a bound; ``None``: it does not.

    The bound is relative to the largest magnitude of the reference; 0: the same bits. An integer
    that is rounded from such a value may differ by 1.
    """
    value = np.asarray(value)
    if value.shape != wanted.shape or value.dtype != wanted.dtype:
        return f"{value.dtype} {value.shape} instead of {wanted.dtype} {wanted.shape}"
    if bound == 0 or (bound < _ROUNDING and wanted.dtype.kind != "f") or wanted.dtype.kind == "b":
        nan = wanted != wanted
        same = np.where(nan, value != value, _bits(value) == _bits(wanted))
    elif wanted.dtype.kind != "f":
        same = np.abs(value.astype(np.int64) - wanted.astype(np.int64)) <= 1
    else:
        with np.errstate(all="ignore"):
            finite = np.isfinite(wanted)
            scale = np.abs(np.where(finite, wanted, 0)).max(initial=0)
            close = np.abs(value - wanted) <= bound * max(scale, np.finfo(wanted.dtype).tiny)
            same = np.where(finite, close, (value == wanted) | (np.isnan(value) & np.isnan(wanted)))
    if same.all():
        return None
    place = tuple(int(index) for index in np.argwhere(~same)[0])
    count = int((~same).sum())
    got, expected = value[place], wanted[place]
    return f"{count} of {same.size} differ, first {got!r} instead of {expected!r} at {list(place)}"


def _bits(value: Array) -> Array:
    if value.dtype.kind != "f":
        return value
    return np.ascontiguousarray(value).view(f"u{value.dtype.itemsize}").reshape(value.shape)


def run_call(
    call: Call, function: tuple[str, Any], inputs: dict[str, Array], state: dict[str, Array]
) -> dict[str, Array]:
    """Call a function of the manifest; return its results by name, and update the state."""
    name, entries = function
    given = {**inputs, **state}
    results = call(name, [given[entry["name"]] for entry in entries["inputs"]])
    names = [entry["name"] for entry in entries["outputs"]]
    if len(results) != len(names):
        raise ValueError(f"{name} returns {len(results)} values, not {len(names)}")
    named = dict(zip(names, map(np.asarray, results), strict=True))
    state.update({entry: named[entry] for entry in state if entry in named})
    return named


def load_vectors(folder: Path) -> tuple[dict[str, Array], dict[str, Array]]:
    """Return the reference vectors, and the state before the first reset."""
    with np.load(folder / VECTORS, allow_pickle=False) as file:
        vectors = {name: file[name] for name in file.files}
    named = [name.partition("/") for name in vectors]
    return vectors, {name: vectors[f"initial/{name}"] for kind, _, name in named if kind == INITIAL}


def verify(folder: Path) -> tuple[int, list[str]]:
    """Verify an artifact; return the number of compared calls, and the problems.

    Raises:
        MissingRuntimeError: What runs it is not installed; its files are as they were written.
    """
    manifest, problems = check_files(folder)
    if problems:
        return 0, problems
    vectors, state = load_vectors(folder)
    call, functions = open_runtime(folder, manifest), manifest["functions"]
    problems = _check_shapes(functions, vectors)
    if manifest["form"] in ("numpy", "cpp") and state and not problems:
        for name, value in zip(_states(functions), call(INITIAL, ()), strict=True):
            difference = compare(value, state[name], 0.0) if name in state else None
            if difference is not None:
                problems.append(f"initial {name}: {difference}")
    order = [str(name) for name in vectors["calls"]]
    if set(order) != set(functions):
        problems.append("the reference vectors do not call every function")
    for number, name in enumerate([] if problems else order):
        at = order[:number].count(name)
        names = [entry["name"] for entry in functions[name]["inputs"] if not entry["state"]]
        inputs = {entry: vectors[f"{name}/inputs/{entry}"][at] for entry in names}
        for entry, result in run_call(call, (name, functions[name]), inputs, state).items():
            wanted = vectors[f"{name}/outputs/{entry}"][at]
            difference = compare(result, wanted, manifest["bounds"][name][entry])
            if difference is not None:
                problems.append(f"{entry} of {name} in call {number}: {difference}")
        if problems:
            break
    return len(order), problems


def _check_shapes(functions: dict[str, Any], vectors: dict[str, Array]) -> list[str]:
    problems = []
    for name, function in functions.items():
        for side in ("inputs", "outputs"):
            for entry in function[side]:
                key = f"{name}/{side}/{entry['name']}"
                is_initial = entry["state"] and side == "inputs"
                value = vectors[f"initial/{entry['name']}"][None] if is_initial else vectors[key]
                if (list(value.shape[1:]), str(value.dtype)) != (entry["shape"], entry["dtype"]):
                    problems.append(f"{key} has another shape or dtype than in {MANIFEST}")
    return problems


def main() -> int:
    """Verify the folder of the command line, or the folder of this file."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    try:
        count, problems = verify(folder)
    except MissingRuntimeError as error:
        print(f"the files are intact, but were not run: {error}")
        return 3
    for problem in problems:
        print(f"error: {problem}")
    if not problems:
        print(f"verified: {count} calls are within the stated bounds")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
