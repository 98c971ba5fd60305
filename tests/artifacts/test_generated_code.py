"""Generated NumPy and C++ return the bits of the exported graphs.

A million steps over 50 chains:

    TDX_TEST_PROGRAMS=1 TDX_ARTIFACT_CHAINS=50 TDX_ARTIFACT_STEPS=1000000 python -m pytest \
        -m programs tests/artifacts/test_generated_code.py
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tdx
from tdx.artifacts.backends import load_backend
from tdx.artifacts.functions import ChainFunctions, chain_functions
from tdx.artifacts.verifier import Array, compare
from tests.artifacts.random_chains import Vectors, draw, random_chain
from tests.programs import exhaustive, require_program

CHAINS = int(os.environ.get("TDX_ARTIFACT_CHAINS", "14"))
"""The first 14 have each transform of ``random_chains.py``; compiling one takes seconds."""
STEPS = int(os.environ.get("TDX_ARTIFACT_STEPS", "5600"))
"""Steps of all chains together."""
LENGTH = 400
"""Most steps of one env."""
WARNINGS = ("-std=c++17", "-Wall", "-Wextra", "-Werror", "-ffp-contract=off")
BUILDS = (
    ("-O2",),
    ("-O3", "-march=native"),
    ("-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
)
Records = Mapping[str, Array]
"""Calls of each function, [env, call]: a field for each entry."""


class Episodes:
    """Inputs of envs, which are reset together every 20 steps or so.

    Args:
        chain: The chain.
        steps: Number of steps and resets of all envs together.
        seed: Seed of the values.
    """

    def __init__(self, chain: ChainFunctions, steps: int, seed: int) -> None:
        rng = torch.Generator().manual_seed(seed)
        self.envs = max(steps // LENGTH, 1)
        steps = steps // self.envs
        names = [function.name for function in chain.functions]
        is_reset = torch.rand(steps, generator=rng) < 0.05
        is_reset[0] = True
        parts = [("reset",) if reset else ("act", "step") for reset in is_reset]
        self.calls = [name for part in parts for name in part if name in names]
        self.inputs: dict[str, Array] = {}
        for function in chain.functions:
            kept = [entry for entry in function.inputs if not entry.is_state]
            records = new_records(kept, self.envs, self.calls.count(function.name))
            for entry in kept:
                drawn = draw(rng, entry, records.size).numpy()
                records[entry.name] = drawn.reshape(*records.shape, *entry.shape)
            self.inputs[function.name] = records

    def __iter__(self) -> Iterator[tuple[str, int]]:
        """Yield the function of each call, and how often it was called before."""
        counts = dict.fromkeys(self.inputs, 0)
        for name in self.calls:
            yield name, counts[name]
            counts[name] += 1


def new_records(entries: Any, envs: int, count: int) -> Array:
    fields = [
        (entry.name, str(entry.dtype).removeprefix("torch."), entry.shape) for entry in entries
    ]
    return np.empty((envs, count), np.dtype(fields))


def run(
    chain: ChainFunctions, episodes: Episodes, calls: Mapping[str, Any], *, batched: bool = False
) -> Records:
    """Return the outputs of functions that map arrays by name to arrays by name.

    Args:
        chain: The chain.
        episodes: Its inputs.
        calls: Functions by name.
        batched: The functions take all envs at once. False: only the first env runs.
    """
    envs, rows = (episodes.envs, slice(None)) if batched else (1, 0)
    outputs = {
        part.name: new_records(part.outputs, envs, episodes.inputs[part.name].shape[1])
        for part in chain.functions
    }
    states = {part.name: [e.name for e in part.outputs if e.is_state] for part in chain.functions}
    state = {name: value.numpy() for name, value in chain.initial.items()}
    if batched:
        state = {key: np.stack([value] * envs) for key, value in state.items()}
    for name, place in episodes:
        given = episodes.inputs[name][rows, place]
        results = calls[name]({**state, **{key: given[key] for key in given.dtype.names or ()}})
        for entry, value in results.items():
            outputs[name][entry][rows, place] = value
        state |= {entry: results[entry] for entry in states[name]}
    return outputs


def torch_calls(chain: ChainFunctions, *, batched: bool = False) -> dict[str, Any]:
    def wrap(function: Any) -> Any:
        runner = function.runner()
        if batched:
            runner = torch.func.vmap(runner)

        def call(values: Mapping[str, Array]) -> dict[str, Array]:
            kept = {entry.name: values[entry.name] for entry in function.inputs}
            tensors = {key: torch.from_numpy(np.array(value)) for key, value in kept.items()}
            return {key: value.numpy() for key, value in runner(tensors).items()}

        return call

    return {function.name: wrap(function) for function in chain.functions}


def numpy_calls(chain: ChainFunctions) -> dict[str, Any]:
    backend = load_backend("numpy")
    backend.check(chain)
    namespace: dict[str, Any] = {}
    exec(compile(backend.files(chain)["chain.py"], "chain.py", "exec"), namespace)

    def wrap(function: Any) -> Any:
        def call(values: Mapping[str, Array]) -> dict[str, Array]:
            with np.errstate(all="ignore"):
                results = namespace[function.name](*(values[e.name] for e in function.inputs))
            return dict(zip((e.name for e in function.outputs), results, strict=True))

        return call

    return {function.name: wrap(function) for function in chain.functions}


@exhaustive
def test_generated_code_names_stages_shapes_and_keys_and_has_only_what_it_calls() -> None:
    stages = [
        tdx.ObservationNorm(0.5, 2.0, in_keys=["observation"]),
        tdx.ObservationNorm(0.0, 3.0, in_keys=[], in_keys_inv=["action"]),
    ]
    env = tdx.TransformedEnv(Vectors(3, 2), tdx.Compose(*stages))
    chain = chain_functions(env, "chain", list(map(repr, stages)))
    code = load_backend("numpy").files(chain)["chain.py"].decode()
    header = load_backend("cpp").files(chain)["chain.hpp"].decode()
    for text in (code, header):
        assert "0: ObservationNorm(loc=0.5000, scale=2.0000, keys=['observation'])" in text
        assert "1: ObservationNorm(loc=0.0000, scale=3.0000, keys=['action'])" in text
        assert "next.observation, float32 [3], from the env's step" in text
        assert "next.joints, float32 [2], from the env's step, -2 … 2" in text
        assert "action, float32 [2], action for the env, [-2, 0.5] … [1, 4]" in text
    assert code.count("def ") == 3
    assert "at_least" not in header


DRIVER = """
#include <cstdio>
#include <cstdlib>
#include <string>

// Counts allocations; the sanitizer has its own `malloc`.
static long allocations = 0;
#ifndef __SANITIZE_ADDRESS__
extern "C" void* __libc_malloc(std::size_t size);
extern "C" void* malloc(std::size_t size) noexcept {
    ++allocations;
    return __libc_malloc(size);
}
#endif

struct Files {
    std::FILE* in;
    std::FILE* out;
    Files(const std::string& path)
        : in(std::fopen((path + ".in").c_str(), "rb")),
          out(std::fopen((path + ".out").c_str(), "wb")) {}
    ~Files() { std::fclose(in); std::fclose(out); }
    template <typename T> void get(T& x) {
        if (std::fread(&x, sizeof x, 1, in) != 1) std::abort();
    }
    template <typename T> void put(const T& x) { std::fwrite(&x, sizeof x, 1, out); }
};
"""


def driver(chains: list[ChainFunctions]) -> str:
    """Return a program that runs chains on calls from files, and writes the outputs to files."""
    lines = [f'#include "{chain.name}/chain.hpp"' for chain in chains] + [DRIVER]
    for chain in chains:
        lines += [f"static bool {chain.name}(const std::string& folder, int envs) {{"]
        lines += [f"    using namespace tdx_{chain.name};"]
        lines += [f'    Files calls(folder + "/{chain.name}/calls");']
        for part in chain.functions:
            lines += [f'    Files {part.name}_files(folder + "/{chain.name}/{part.name}");']
        lines += ["    long allocated = 0;"]
        lines += ["    for (int env = 0; env < envs; ++env) { std::rewind(calls.in);"]
        lines += ["    State state;"]
        lines += ["    for (int call; (call = std::fgetc(calls.in)) != EOF;) {"]
        for number, part in enumerate(chain.functions):
            kind = part.name.capitalize()
            lines += [f"        if (call == {number}) {{ {kind}Input input; {kind}Output output;"]
            for entry in part.inputs:
                if not entry.is_state:
                    lines += [f"{part.name}_files.get(input.{entry.name});"]
            lines += ["const long count = allocations;"]
            lines += [f"{part.name}(state, input, output);"]
            lines += ["allocated += allocations - count;"]
            for entry in part.outputs:
                own = f"{'state' if entry.is_state else 'output'}.{entry.name}"
                lines += [f"{part.name}_files.put({own});"]
            lines += ["}"]
        lines += ["    }}", "    return allocated == 0 && rounds_products();", "}"]
    calls = " && ".join(f"{chain.name}(argv[1], std::atoi(argv[2]))" for chain in chains)
    lines += [f"int main(int, char** argv) {{ return {calls} ? 0 : 3; }}"]
    return "\n".join(lines)


def write_program(chains: list[ChainFunctions], inputs: list[Episodes], folder: Path) -> None:
    backend = load_backend("cpp")
    for chain, episodes in zip(chains, inputs, strict=True):
        backend.check(chain)
        (folder / chain.name).mkdir()
        for name, content in backend.files(chain).items():
            (folder / chain.name / name).write_bytes(content)
        names = [function.name for function in chain.functions]
        order = bytes(names.index(name) for name in episodes.calls)
        (folder / chain.name / "calls.in").write_bytes(order)
        for name, records in episodes.inputs.items():
            (folder / chain.name / f"{name}.in").write_bytes(records.tobytes())
    (folder / "driver.cpp").write_text(driver(chains))


def assert_same(outputs: Records, wanted: Records) -> None:
    for name, records in wanted.items():
        for entry in records.dtype.names or ():
            difference = compare(outputs[name][entry], records[entry], 0.0)
            assert difference is None, (name, entry, difference)


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(first, marks=pytest.mark.programs(only=first > 1))
        for first in (1, *range(3, CHAINS, 4))
    ],
)
def test_generated_code_returns_the_bits_of_random_chains(first: int, tmp_path: Path) -> None:
    seeds = range(1, 3) if first == 1 else range(first, min(first + 4, CHAINS + 1))
    chains = [random_chain(seed) for seed in seeds]
    inputs = [
        Episodes(chain, STEPS // CHAINS, seed) for chain, seed in zip(chains, seeds, strict=True)
    ]
    wanted = []
    for chain, part in zip(chains, inputs, strict=True):
        records = run(chain, part, torch_calls(chain))
        assert_same(run(chain, part, numpy_calls(chain)), records)
        if part.envs > 1:
            rows = run(chain, part, torch_calls(chain, batched=True), batched=True)
            assert_same({name: row[:1] for name, row in rows.items()}, records)
            records = rows
        wanted.append(records)
    compiler = require_program("g++")
    write_program(chains, inputs, tmp_path)
    for flags in BUILDS:
        program = tmp_path / "driver"
        source = str(tmp_path / "driver.cpp")
        subprocess.run([compiler, *WARNINGS, *flags, source, "-o", str(program)], check=True)
        command = [str(program), str(tmp_path), str(inputs[0].envs)]
        # 3: a function allocated memory, or the compiler fused products and sums.
        assert subprocess.run(command, check=False).returncode == 0, flags
        for chain, records in zip(chains, wanted, strict=True):
            outputs = {
                name: np.fromfile(tmp_path / chain.name / f"{name}.out", expected.dtype)
                for name, expected in records.items()
            }
            assert_same(
                {name: rows.reshape(records[name].shape) for name, rows in outputs.items()}, records
            )
