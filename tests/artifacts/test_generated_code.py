"""Generated NumPy and C++ return the bits of the exported graphs."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tdx.artifacts.backends import load_backend
from tdx.artifacts.functions import ChainFunctions
from tdx.artifacts.vectors import same_bits
from tests.artifacts.random_chains import draw, random_chain
from tests.programs import examples, require_program, sampled

FLAGS = ("-std=c++17", "-Wall", "-Wextra", "-Werror", "-ffp-contract=off")


def episodes(chain: ChainFunctions, steps: int, seed: int) -> list[tuple[str, dict[str, Tensor]]]:
    """Draw calls, with their inputs without the state: a reset every 20 steps or so."""
    rng = torch.Generator().manual_seed(seed)
    calls = []
    for step in range(steps):
        is_reset = step == 0 or bool(torch.rand(1, generator=rng) < 0.05)
        for name in ("reset",) if is_reset else ("act", "step"):
            function = chain.function(name)
            if function is not None:
                inputs = [part for part in function.inputs if not part.is_state]
                calls.append((name, {part.name: draw(rng, part) for part in inputs}))
    return calls


def run_torch(
    chain: ChainFunctions, calls: list[tuple[str, dict[str, Tensor]]]
) -> list[dict[str, Tensor]]:
    """Return the outputs of each call, by torch."""
    state = dict(chain.initial)
    modules = {function.name: function.program.module() for function in chain.functions}
    results = []
    for name, inputs in calls:
        function = chain.function(name)
        assert function is not None
        values = {**state, **inputs}
        with torch.no_grad():
            outputs = modules[name](*(values[part.name] for part in function.inputs))
        named = {
            part.name: value.clone() for part, value in zip(function.outputs, outputs, strict=True)
        }
        state |= {part.name: named[part.name] for part in function.outputs if part.is_state}
        results.append(named)
    return results


def load_numpy(chain: ChainFunctions) -> dict[str, Any]:
    backend = load_backend("numpy")
    backend.check(chain)
    source = backend.files(chain)["chain.py"].decode()
    namespace: dict[str, Any] = {}
    exec(compile(source, "chain.py", "exec"), namespace)
    return namespace


def run_numpy(
    chain: ChainFunctions, calls: list[tuple[str, dict[str, Tensor]]]
) -> list[dict[str, Tensor]]:
    """Return the outputs of each call, by the generated Python."""
    module = load_numpy(chain)
    state = module["INITIAL"]
    results = []
    for name, inputs in calls:
        function = chain.function(name)
        assert function is not None
        values = {**state, **{key: value.numpy() for key, value in inputs.items()}}
        with np.errstate(all="ignore"):
            outputs = module[name](*(values[part.name] for part in function.inputs))
        named = {part.name: value for part, value in zip(function.outputs, outputs, strict=True)}
        state = state | {part.name: named[part.name] for part in function.outputs if part.is_state}
        results.append({key: torch.from_numpy(value) for key, value in named.items()})
    return results


def driver(chain: ChainFunctions) -> str:
    """Return a program that reads calls from a file and writes all outputs to another one."""
    space = f"tdx_{chain.name}"
    lines = [
        '#include "chain.hpp"',
        "#include <cstdio>",
        f"using namespace {space};",
        "template <typename T> void get(T& x, std::FILE* f) {",
        '    if (std::fread(&x, sizeof x, 1, f) != 1) std::perror("read");',
        "}",
        "template <typename T> void put(const T& x, std::FILE* f) {",
        "    std::fwrite(&x, sizeof x, 1, f);",
        "}",
        "int main(int, char** names) {",
        '    std::FILE* in = std::fopen(names[1], "rb");',
        '    std::FILE* out = std::fopen(names[2], "wb");',
        "    if (!rounds_products()) return 3;",
        "    State state;",
        "    for (int call = std::fgetc(in); call != EOF; call = std::fgetc(in)) {",
    ]
    for number, function in enumerate(chain.functions):
        kind = function.name.capitalize()
        has_state = any(part.is_state for part in (*function.inputs, *function.outputs))
        lines.append(f"        if (call == {number}) {{ {kind}Input input; {kind}Output output;")
        lines += [f"get(input.{part.name}, in);" for part in function.inputs if not part.is_state]
        lines.append(f"{function.name}({'state, ' * has_state}input, output);")
        for part in function.outputs:
            lines.append(f"put({'state' if part.is_state else 'output'}.{part.name}, out);")
        lines.append("}")
    return "\n".join(
        [*lines, "    }", "    std::fclose(in); std::fclose(out);", "    return 0;", "}"]
    )


def run_cpp(
    chain: ChainFunctions,
    calls: list[tuple[str, dict[str, Tensor]]],
    folder: Path,
    *flags: str,
) -> list[dict[str, Tensor]]:
    """Return the outputs of each call, by the compiled header."""
    compiler = require_program("g++")
    backend = load_backend("cpp")
    backend.check(chain)
    for name, content in backend.files(chain).items():
        (folder / name).write_bytes(content)
    (folder / "driver.cpp").write_text(driver(chain))
    program = folder / "driver"
    command = [compiler, *FLAGS, *flags, str(folder / "driver.cpp"), "-o", str(program)]
    subprocess.run(command, check=True)
    names = [function.name for function in chain.functions]
    with (folder / "in").open("wb") as file:
        for name, inputs in calls:
            file.write(bytes([names.index(name)]))
            for value in inputs.values():
                file.write(value.numpy().tobytes())
    subprocess.run([program, folder / "in", folder / "out"], check=True)
    data, at, results = (folder / "out").read_bytes(), 0, []
    for name, _ in calls:
        function = chain.function(name)
        assert function is not None
        outputs = {}
        for part in function.outputs:
            like = torch.zeros(part.shape, dtype=part.dtype)
            raw = np.frombuffer(data, like.numpy().dtype, like.numel(), at)
            at += raw.nbytes
            outputs[part.name] = torch.from_numpy(raw.copy()).reshape(part.shape)
        results.append(outputs)
    assert at == len(data)
    return results


def assert_same(results: list[dict[str, Tensor]], wanted: list[dict[str, Tensor]]) -> None:
    assert len(results) == len(wanted)
    for number, (outputs, expected) in enumerate(zip(results, wanted, strict=True)):
        for name, value in expected.items():
            assert same_bits(outputs[name], value), (number, name, outputs[name], value)


@sampled(20)
@pytest.mark.parametrize("seed", range(1, 21))
def test_numpy_returns_the_bits_of_random_chains(seed: int) -> None:
    chain = random_chain(seed)
    calls = episodes(chain, 60, seed)
    assert_same(run_numpy(chain, calls), run_torch(chain, calls))


BUILDS = (
    ("-O2",),
    ("-O3", "-march=native"),
    ("-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
)


@pytest.mark.parametrize(
    "seed",
    [pytest.param(seed, marks=pytest.mark.programs(only=seed > 0)) for seed in range(20)],
)
def test_cpp_returns_the_bits_of_random_chains(seed: int, tmp_path: Path) -> None:
    chain = random_chain(seed)
    calls = episodes(chain, examples(400), seed)
    wanted = run_torch(chain, calls)
    for flags in BUILDS:
        assert_same(run_cpp(chain, calls, tmp_path, *flags), wanted)
