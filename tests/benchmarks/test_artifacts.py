"""P28: a step of a chain that was exported to C++."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import numpy as np
import torch

from tdx import CatFrames, ClipTransform, Compose, ObservationNorm, TransformedEnv
from tdx.artifacts.backends import load_backend
from tdx.artifacts.functions import chain_functions
from tests.artifacts.random_chains import Vectors
from tests.benchmarks.bars import ARTIFACT_STEP
from tests.benchmarks.conftest import Compare, Run
from tests.programs import require_program

SIZE, STEPS = 100, 20_000
DRIVER = """
#include "chain.hpp"
using namespace tdx_chain;
extern "C" void run(const float* observations, float* stacked, long steps) {
    State state;
    ResetInput first{};
    ResetOutput start;
    StepInput input{};
    StepOutput output{};
    for (long at = 0; at < steps; ++at) {
        const float* row = observations + 100 * (at % 200);
        for (int i = 0; i < 100; ++i) input.env_observation[i] = row[i];
        if (at % 200 == 0) {
            for (int i = 0; i < 100; ++i) first.env_observation[i] = row[i];
            reset(state, first, start);
        }
        step(state, input, output);
    }
    for (int i = 0; i < 400; ++i) stacked[i] = output.observation[i];
}
"""


def test_step_in_cpp(compare: Compare, tmp_path: Path) -> None:
    scale = torch.linspace(0.1, 3, SIZE)
    stages = Compose(
        ObservationNorm(torch.linspace(-1, 1, SIZE), scale, in_keys=["observation"]),
        CatFrames(4, -1, in_keys=["observation"]),
        ClipTransform(in_keys=["observation"], low=-5.0, high=5.0),
    )
    chain = chain_functions(
        TransformedEnv(Vectors(SIZE, 1), stages),
        "chain",
        ["ObservationNorm", "CatFrames", "ClipTransform"],
    )
    (tmp_path / "chain.hpp").write_bytes(load_backend("cpp").files(chain)["chain.hpp"])
    (tmp_path / "driver.cpp").write_text(DRIVER)
    command = [require_program("g++"), "-std=c++17", "-O2", "-ffp-contract=off", "-fPIC", "-shared"]
    library = tmp_path / "driver.so"
    subprocess.run([*command, str(tmp_path / "driver.cpp"), "-o", str(library)], check=True)
    observations = np.random.default_rng(0).normal(0, 2, (200, SIZE)).astype(np.float32)
    stacked = np.empty(4 * SIZE, np.float32)
    pointers = ctypes.c_void_p(observations.ctypes.data), ctypes.c_void_p(stacked.ctypes.data)
    call = ctypes.CDLL(str(library)).run

    def steps() -> None:
        call(*pointers, ctypes.c_long(STEPS))

    compare(ARTIFACT_STEP, {"tdx": Run(steps, STEPS)}, rounds=9)
    norm = stages[0]
    frames = torch.from_numpy(observations[-4:].copy())
    wanted = norm._apply_transform(frames).clamp(-5.0, 5.0).flatten()
    assert torch.equal(torch.from_numpy(stacked), wanted)
