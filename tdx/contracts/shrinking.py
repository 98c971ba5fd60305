"""Reduce a contract to the few steps that show a difference, as files that show it again."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from tdx.compare.model import Contract, Segment, display_key
from tdx.compare.values import differing_elements
from tdx.contracts.check import check_contract
from tdx.contracts.decoding import tensors_to_bytes
from tdx.contracts.storage import save_contract
from tdx.foundation.errors import StorageError
from tdx.foundation.files import atomic_folder, report_write_errors

if TYPE_CHECKING:
    from torch import Tensor

    from tdx.compare.report import ContractReport, Difference


def shrink_contract(
    env: object, contract: Contract, report: ContractReport, *, evaluation: bool = False
) -> tuple[Contract, ContractReport]:
    """Return the contract with the fewest steps and sub-envs that shows the first difference.

    Args:
        env: The env that was compared.
        contract: The contract.
        report: What :func:`check_contract` found.
        evaluation: As for :func:`check_contract`.

    Returns:
        The smaller contract, and what the check of the env finds with it.

    Raises:
        ArgumentError: ``env`` is neither an env nor a stack, or its env cannot be replaced.

    Example:
        >>> import gymnasium, tdx
        >>> env = gymnasium.make("Pendulum-v1")
        >>> contract = tdx.freeze(env)
        >>> changed = gymnasium.wrappers.TransformObservation(env, lambda x: x[::-1], None)
        >>> report = tdx.check_contract(changed, contract)
        >>> contract.steps, shrink_contract(changed, contract, report)[0].steps
        (12, 1)
    """
    first = report.first
    if first is None:
        return contract, report
    for smaller in _prefixes(contract):
        found = check_contract(
            env, smaller, report.target, evaluation=evaluation, reference=report.reference
        )
        if found.first is not None and _is_same(found.first, first):
            return smaller, found
    return contract, report


def _is_same(one: Difference, other: Difference) -> bool:
    places = (
        (
            *(each.kind, each.stage, each.reference_stage, each.key),
            None if each.explanation is None else each.explanation.kind,
        )
        for each in (one, other)
    )
    return next(places) == next(places)


def _prefixes(contract: Contract) -> Iterator[Contract]:
    """Yield the contract with fewer steps, the fewest first."""
    for steps in range(1, contract.steps):
        segments: list[Segment] = []
        left = steps
        for segment in contract.inputs:
            taken = min(left, segment.steps)
            if taken:
                calls = {key: value[: taken + 1] for key, value in segment.calls.items()}
                actions = {key: value[:taken] for key, value in segment.actions.items()}
                segments.append(Segment(calls, actions))
            left -= taken
        recording = contract.recording
        if recording is not None:
            places = [place for place, root in enumerate(recording.roots) if root.takes_action]
            end = places[steps - 1] + 1
            # A step of a VecEnv is two calls.
            end += any(root.method == "step_wait" for root in recording.roots[end : end + 1])
            recording = replace(recording, roots=recording.roots[:end])
        records = {"forward": steps + len(segments), "inverse": steps}
        values = {
            place: replace(
                known,
                numbers=known.numbers[: records[place[0]]],
                digests=known.digests[: records[place[0]]],
            )
            for place, known in contract.values.items()
        }
        states = contract.states
        if states is not None:
            end = records["forward"]
            states = replace(
                states,
                values={place: value[:end] for place, value in states.values.items()},
                streams={name: value[:end] for name, value in states.streams.items()},
            )
        yield replace(
            contract, inputs=tuple(segments), values=values, recording=recording, states=states
        )


def write_counterexample(
    contract: Contract, report: ContractReport, path: str | Path, command: Sequence[str]
) -> None:
    """Write a contract, the expected and obtained values, and a script that runs the check.

    Args:
        contract: The contract; see :func:`shrink_contract`.
        report: What the check of the target finds with it.
        path: Folder to create.
        command: Arguments of the command that checks the target, without the contract.

    Raises:
        ArgumentError: The path exists.
        StorageError: The folder cannot be written.
    """
    target = Path(path)
    first = report.first
    assert first is not None
    here = os.path.relpath(os.getcwd(), target)
    script = _SCRIPT.format(
        sentence=first.sentence.replace("\\", "\\\\").replace('"', "'"),
        command=json.dumps([*command]),
        here=json.dumps(here),
    )
    with (
        report_write_errors(target, "choose another path", kind=StorageError),
        atomic_folder(target) as folder,
    ):
        save_contract(contract, folder / "contract")
        (folder / "values.safetensors").write_bytes(tensors_to_bytes(_values_of(report, first)))
        (folder / "reproduce.py").write_text(script, encoding="utf-8")


def _values_of(report: ContractReport, first: Difference) -> dict[str, Tensor]:
    """Return the first record in which a key differs on both sides, and its features."""
    for row in report.rows:
        if first not in row.differences:
            continue
        for each in row.keys:
            if display_key(each.key) != first.key or each.a is None or each.b is None:
                continue
            one, other = each.a.numbers[:, :1], each.b.numbers[:, :1]
            if one.shape != other.shape:
                return {"expected": one[0, 0], "obtained": other[0, 0]}
            differing = differing_elements(one, other, each.tolerance).flatten(1)
            records = differing.any(1).nonzero().flatten()
            if not len(records):
                continue
            record = int(records[0])
            return {
                "record": torch.tensor(record),
                "elements": differing[record].nonzero().flatten(),
                "expected": one[record, 0],
                "obtained": other[record, 0],
            }
    return {}


_SCRIPT = '''\
"""{sentence}.

Prints the first values that differ, and checks the target against the contract in this folder.
Exits with 1 as long as they differ.
"""

import subprocess
import sys
from pathlib import Path

from safetensors.numpy import load_file

COMMAND = {command}

folder = Path(__file__).resolve().parent
for name, value in sorted(load_file(folder / "values.safetensors").items()):
    print(f"{{name}}: {{value.tolist()}}")
arguments = [*COMMAND, "--against", str(folder / "contract")]
check = subprocess.run([sys.executable, "-m", "tdx", *arguments], cwd=folder / {here})
sys.exit(check.returncode)
'''
