"""TensorDict is imported without torch's compiler, and compiles as if both were imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.programs import exhaustive

ROOT = Path(__file__).parents[2]
COMPILE = """
import sys
import torch
from tensordict import TensorDict

def add_one(batch):
    return torch.vmap(lambda row: row.apply(lambda value: value + 1))(batch)

batch = TensorDict(a=torch.zeros(3, 2), batch_size=[3])
compiled = torch.compile(add_one, fullgraph=True, backend="eager")
assert (compiled(batch)["a"] == 1).all()
assert "torch._dynamo" in sys.modules
"""


def run_python(code: str) -> str:
    """Run code in another process, and return its stderr."""
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return run.stderr if run.returncode else ""


@exhaustive
def test_libraries_are_imported_when_they_are_needed() -> None:
    """One process answers for all of them, because importing torch takes seconds."""
    code = (
        "import sys, torch, torch.compiler as compiler\n"
        "before = compiler.allow_in_graph, compiler.assume_constant_result\n"
        "import tdx, tensordict\n"
        "from tdx.core.transforms.callable_transform import foreign_library\n"
        "tdx.to_torchrl\n"
        "assert foreign_library(print) is None\n"
        "keys = ['observation']\n"
        "norm = tdx.ObservationNorm(torch.zeros(1), torch.ones(3), in_keys=keys)\n"
        "joined = tdx.CatTensors(in_keys=keys, out_key='vector')\n"
        "chain = tdx.Compose(tdx.StepCounter(), norm, joined)\n"
        "env = tdx.TransformedEnv(tdx.GymEnv('Pendulum-v1'), chain)\n"
        "env.rollout(3), env.step(env.rand_action(env.reset()))\n"
        "images = tdx.ToTensorImage(), tdx.GrayScale(), tdx.CenterCrop(8), tdx.Resize(4)\n"
        "pixels = torch.zeros(16, 16, 3, dtype=torch.uint8)\n"
        "tdx.Compose(*images)(tensordict.TensorDict(pixels=pixels))\n"
        "tdx.R3MTransform('resnet18', download='DEFAULT')\n"
        "optional = {'torchrl', 'stable_baselines3', 'gym', 'torchvision', 'sympy'}\n"
        "optional |= {'torch._dynamo'}\n"
        "assert not optional & set(sys.modules), optional & set(sys.modules)\n"
        "assert (compiler.allow_in_graph, compiler.assume_constant_result) == before\n"
    )
    assert run_python(code + COMPILE) == ""


@exhaustive
@pytest.mark.parametrize(
    "imports", ["import tensordict, tdx", "import torch._dynamo, tdx, tensordict"]
)
def test_functions_of_tensordict_compile_after_imports_in_any_order(imports: str) -> None:
    """The marks are needed: without them, ``torch.vmap`` over a TensorDict does not compile."""
    assert run_python(f"{imports}\n{COMPILE}") == ""


@exhaustive
def test_compile_needs_the_marks() -> None:
    code = (
        "import sys, tdx, tensordict\n"
        "from tdx.foundation.compiler_import import CompilerImport\n"
        "hook = next(each for each in sys.meta_path if isinstance(each, CompilerImport))\n"
        "assert hook._waiting, 'TensorDict marks no functions any more: remove the hook'\n"
        "hook._waiting.clear()\n"
    )
    assert "does not know how to trace" in run_python(code + COMPILE)
