"""The forms that each transform can be exported to, which docs/export-chain.md lists.

With TDX_UPDATE_GOLDEN=1, these tests update the page.
"""

from __future__ import annotations

import os
import re
from importlib import import_module
from pathlib import Path

import pytest

from tdx.artifacts.artifact import output_bounds
from tdx.artifacts.backends import load_backend
from tdx.artifacts.functions import ChainFunctions, chain_functions
from tdx.artifacts.verifier import compare
from tdx.core.transforms import Transform
from tdx.core.transforms.families import StoredDataTransform
from tdx.foundation.errors import ChainError
from tdx.pipeline import load_catalog
from tdx.stacks.native import format_stages
from tests.artifacts.catalog_examples import CHAINS, example_env
from tests.artifacts.test_generated_code import numpy_calls
from tests.programs import sampled

PAGE = Path(__file__).parents[2] / "docs" / "export-chain.md"
TABLE = re.compile(
    r"(?<=\| transform \| forms \| remarks \|\n\| --- \| --- \| --- \|\n)(\| .*\n)+(?=\n|\Z)"
)
UPDATE = "run this test with TDX_UPDATE_GOLDEN=1 to update the page"
NAMES = sorted(info.name for info in load_catalog().transforms)


def read_rows() -> dict[str, str]:
    """Return the rows of the table by transform."""
    table = TABLE.search(PAGE.read_text(encoding="utf-8"))
    assert table is not None
    return {line.split("`")[1]: line for line in table[0].splitlines()}


def write_row(name: str, row: str) -> None:
    """Compare a row of the table; replace it in an update."""
    rows = read_rows()
    if os.environ.get("TDX_UPDATE_GOLDEN"):
        kept = {other: rows.get(other, f"| `{other}` | | |") for other in NAMES} | {name: row}
        lines = "".join(f"{kept[other]}\n" for other in NAMES)
        text = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(TABLE.sub(lambda _: lines, text), encoding="utf-8")
    else:
        assert rows.get(name) == row, UPDATE


def why_refused(kind: type[Transform]) -> str | None:
    """Return why no instance of a class can be exported."""
    if issubclass(kind, StoredDataTransform):
        return kind.ENV_ERR
    if kind.why_not_exported is None and kind.changes_batch is True:
        return "it changes the batch"
    return kind.why_not_exported


def describe(reason: str) -> str:
    """Return the operator of a reason as code, without its arguments."""
    return re.sub(r"^aten\.(\w+)\.\w+", r"`\1`", reason)


def returns_its_inputs(chain: ChainFunctions) -> bool:
    """Return True if each output is an input with the same key."""
    return not any(function.name == "act" for function in chain.functions) and all(
        compare(call.outputs[entry.name].numpy(), call.inputs[f"env_{entry.name}"].numpy(), 0.0)
        is None
        if f"env_{entry.name}" in call.inputs
        else False
        for call in chain.calls
        for function in chain.functions
        if function.name == call.function
        for entry in function.outputs
    )


@pytest.mark.parametrize("name", sorted({*NAMES} - {*CHAINS}))
def test_a_transform_that_cannot_be_exported_says_why(name: str) -> None:
    reason = why_refused(getattr(import_module(load_catalog()[name].module), name))
    assert reason is not None, "add an example to catalog_examples.py, or declare why_not_exported"
    write_row(name, f"| `{name}` | – | {reason} |")


@sampled(7)
@pytest.mark.parametrize("name", sorted(CHAINS))
def test_a_transform_is_exported_to_the_forms_of_its_row(name: str) -> None:
    env = example_env(name)
    # This compares the graphs with the stages, bit by bit: they are what pt2 stores.
    chain = chain_functions(env, "chain", format_stages(env, expanded=True))
    env.close()
    assert len(chain.calls) > 5
    forms, reasons = ["pt2"], []
    for form in ("numpy", "cpp"):
        try:
            operators = load_backend(form).check(chain)
            assert load_backend(form).files(chain)
        except ChainError as error:
            reasons.append(error.message.replace(f"{form} cannot express ", ""))
            continue
        forms.append(form)
    if "numpy" in forms:
        bounds = output_bounds(chain, operators)
        calls = numpy_calls(chain)
        state = {key: value.numpy() for key, value in chain.initial.items()}
        for call in chain.calls:
            outputs = calls[call.function](
                {**{key: value.numpy() for key, value in call.inputs.items()}, **state}
            )
            for key, value in outputs.items():
                wanted = call.outputs[key].numpy()
                assert compare(value, wanted, bounds[call.function][key]) is None, key
            state |= {key: value for key, value in outputs.items() if key in state}
    notes = [f"`numpy` and `cpp` cannot express {describe(reasons[0])}"] if reasons else []
    if returns_its_inputs(chain):
        notes.append("changes no values")
    write_row(name, f"| `{name}` | {', '.join(forms)} | {', '.join(notes)} |")
