"""Verify an artifact on its own reference vectors, or on the recorded steps of a contract."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from tdx.artifacts import verifier
from tdx.artifacts.artifact import read_artifact
from tdx.artifacts.verifier import Array, MissingRuntimeError
from tdx.compare.model import Lane, display_key, key_name
from tdx.compare.values import Values, compare_values
from tdx.foundation.errors import (
    ArgumentError,
    CheckError,
    CodeNotAllowedError,
    ExitCode,
    MissingPackageError,
    TdxError,
    get_first_line,
)
from tdx.foundation.keys import format_key, normalize_key
from tdx.foundation.serialization import Result

if TYPE_CHECKING:
    from torch import Tensor

    from tdx.compare.model import Contract

_MAX_PROBLEMS = 20


@dataclass(frozen=True, slots=True)
class ArtifactCheck(Result):
    """What a verification of an artifact found."""

    path: str
    form: str
    stages: int
    reference: str
    """What it was compared with."""
    calls: int
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """What was not compared."""

    @property
    def same(self) -> bool:
        """True if something was compared, and nothing differs."""
        return bool(self.calls) and not self.problems

    @property
    def exit_code(self) -> ExitCode:
        """Exit code of the command."""
        return ExitCode.OK if self.same else ExitCode.FINDINGS


def check_artifact(
    path: str | Path,
    contract: Contract | None = None,
    *,
    allow_code: bool = False,
    reference: str = "the contract",
) -> ArtifactCheck:
    """Compare what an artifact returns with its reference vectors, or on inputs of a contract."""
    folder = Path(path)
    manifest = read_artifact(folder)
    if manifest["form"] != "onnx" and not allow_code:
        raise CodeNotAllowedError(
            f"{path} is code ({manifest['form']}), which a check runs",
            hint="add --allow-code if you trust its source",
        )
    facts = str(path), str(manifest["form"]), len(manifest["stages"])
    try:
        if contract is None:
            calls, problems = verifier.verify(folder)
            return ArtifactCheck(*facts, "its own reference vectors", calls, tuple(problems))
        call = verifier.open_runtime(folder, manifest)
        _, initial = verifier.load_vectors(folder)
        count, problems, notes = _compare_with(call, manifest["functions"], initial, contract)
    except MissingRuntimeError as error:
        raise MissingPackageError(f"{path} cannot be run: {error}") from error
    except TdxError:
        raise
    except Exception as error:
        # Files and manifest may be anything, and their runtimes raise what they like.
        text = f"{path} cannot be run: {type(error).__name__}: {get_first_line(error)}"
        raise CheckError(text, hint="export the chain again") from error
    return ArtifactCheck(*facts, reference, count, tuple(problems), tuple(notes))


_Place = tuple[int, int | None]  # episode, and its step from 0; ``None``: the reset


def _compare_with(
    call: verifier.Call,
    functions: Mapping[str, Any],
    initial: Mapping[str, Array],
    contract: Contract,
) -> tuple[int, list[str], list[str]]:
    """Run the functions on the inputs of a contract; return calls, differences and notes."""
    rows = min(part.rows for part in contract.inputs)
    outputs: dict[tuple[Lane, str], dict[_Place, list[Tensor]]] = {}
    calls = 0
    for row in range(rows):
        state = dict(initial)
        for episode, segment in enumerate(contract.inputs):
            for at in range(segment.steps + 1):
                given = {key_name(key): value[at, row] for key, value in segment.calls.items()}
                if at:
                    actions = segment.actions.items()
                    given |= {key_name(key): value[at - 1, row] for key, value in actions}
                for name in ("act", "step") if at else ("reset",):
                    if name not in functions:
                        continue
                    function = functions[name]
                    inputs = _inputs(name, function["inputs"], given)
                    results = verifier.run_call(call, (name, function), inputs, state)
                    calls += 1
                    lane: Lane = "inverse" if name == "act" else "forward"
                    for entry in function["outputs"]:
                        if entry["state"]:
                            continue
                        key = key_name(normalize_key(entry["path"]))
                        records = outputs.setdefault((lane, key), {})
                        value = torch.from_numpy(results[entry["name"]].copy())
                        records.setdefault((episode, at - 1 if at else None), []).append(value)
    return calls, *_differences(outputs, contract)


def _inputs(name: str, entries: Any, given: Mapping[str, Tensor]) -> dict[str, Array]:
    """Return the inputs of a function that are not state, in its dtypes and shapes."""
    values = {}
    for entry in entries:
        if entry["state"]:
            continue
        shape, value = entry["shape"], given.get(key_name(normalize_key(entry["path"])))
        if value is None or value.numel() != math.prod(shape):
            has = "nothing" if value is None else f"the shape {list(value.shape)}"
            raise ArgumentError(
                f"{name} of the artifact takes {format_key(tuple(entry['path']))!r} of shape "
                f"{shape}, and the contract has {has}",
                hint="record the contract of the env that the chain was exported for",
            )
        values[entry["name"]] = value.numpy().astype(entry["dtype"]).reshape(shape)
    return values


def _differences(
    outputs: Mapping[tuple[Lane, str], Mapping[_Place, list[Tensor]]], contract: Contract
) -> tuple[list[str], list[str]]:
    problems: list[str] = []
    skipped: list[str] = []
    for (lane, key), records in outputs.items():
        wanted, tolerance = contract.value_at(lane, 0 if lane == "inverse" else contract.last, key)
        count = 0 if wanted is None else len(wanted.numbers)
        places = [(row[0].episode, row[0].step) for row in contract.row_places(lane, count, 1)]
        common = [index for index, place in enumerate(places) if place in records]
        if wanted is None or not common:
            skipped.append(display_key(key))
            continue
        results = [torch.stack(records[places[index]]) for index in common]
        if math.prod(results[0].shape[1:]) == math.prod(wanted.shape) == 1:
            # A contract has rewards and flags without the dim that tdx gives them.
            results = [result.reshape(-1, *wanted.shape) for result in results]
        values = Values.of(results)
        digests = tuple(wanted.digests[index] for index in common) if wanted.digests else ()
        reference = replace(wanted, numbers=wanted.numbers[common], digests=digests, whole=None)
        change = compare_values(reference, values, contract.tolerance(key, tolerance))
        if change is not None and not change.is_allowed:
            problems.append(f"{display_key(key)}: {change.text}")
    notes = [f"not in the contract: {', '.join(skipped)}"] if skipped else []
    if len(skipped) == len(outputs):
        problems.append("not comparable: the contract has none of the outputs")
    return problems[:_MAX_PROBLEMS], notes
