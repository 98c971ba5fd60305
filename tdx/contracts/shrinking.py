"""Reduce a contract to what shows a difference, as files that show it again."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

import torch

from tdx.compare.model import Contract, Lane, Place, Segment, display_key, parse_key_name
from tdx.compare.values import Values, differing_elements
from tdx.contracts.check import check_contract
from tdx.contracts.decoding import tensors_to_bytes
from tdx.contracts.freeze import observe
from tdx.contracts.storage import save_contract
from tdx.core import EnvBase, TimeBehavior, TransformedEnv
from tdx.foundation.errors import ArgumentError, StorageError, TdxError
from tdx.foundation.files import atomic_folder, report_write_errors
from tdx.stacks import open_stack

if TYPE_CHECKING:
    from tensordict import TensorDictBase
    from torch import Tensor

    from tdx.compare.report import ContractReport, Difference
    from tdx.core import StageSpecs
    from tdx.foundation.keys import NestedKey
    from tdx.stacks import Stack


@dataclass(frozen=True, slots=True)
class Counterexample:
    """The smallest contract that shows a difference.

    Args:
        contract: The contract.
        report: What the check of the target finds with it.
        stage: Stage of the target that the contract is of, built alone. ``None``: the whole target.
    """

    contract: Contract
    report: ContractReport
    stage: int | None = None

    def values(self) -> dict[str, Tensor]:
        """Return the first record that differs: ``expected``, ``obtained``, and its ``elements``.

        Empty if no value of the key differs.
        """
        first = self.report.first
        return {} if first is None else _values_of(self.report, first)


def shrink_contract(
    env: object, contract: Contract, report: ContractReport, *, evaluation: bool = False
) -> Counterexample:
    """Return the fewest stages, steps and sub-envs that show the first difference of a report.

    A stage of tdx is built alone, and gets its recorded inputs. A stage of another library needs
    the stages inside it, so that the whole target runs.

    Raises:
        ArgumentError: ``env`` is neither an env nor a stack, or its env cannot be replaced.

    Example:
        >>> import gymnasium, tdx
        >>> env = gymnasium.make("Pendulum-v1")
        >>> contract = tdx.freeze(env)
        >>> changed = gymnasium.wrappers.TransformObservation(env, lambda x: x[::-1], None)
        >>> report = tdx.check_contract(changed, contract)
        >>> contract.steps, shrink_contract(changed, contract, report).contract.steps
        (12, 1)
    """
    first = report.first
    if first is None:
        return Counterexample(contract, report)
    stack = open_stack(env)
    target: object = stack

    def check(smaller: Contract) -> ContractReport | None:
        """Return what differs with a smaller contract; ``None`` if it is something else."""
        found = check_contract(
            target, smaller, report.target, evaluation=evaluation, reference=report.reference
        )
        is_same = found.first is not None and _signature(found.first) == signature
        return found if is_same else None

    signature = _signature(first)
    smallest = Counterexample(contract, report)
    is_pointwise = False
    with suppress(TdxError):
        alone = _isolated(stack, contract, first)
        if alone is not None:
            target, of_stage, is_pointwise = alone
            signature = _signature(replace(first, stage=0, reference_stage=0))
            found = check(of_stage)
            if found is not None and _is_same_stage(found, report):
                smallest = Counterexample(of_stage, found, first.stage)
    if smallest.stage is None:
        target, signature, is_pointwise = stack, _signature(first), False
    case = first.smallest
    if case is not None and case.env is not None:
        one_row = _with_one_row(smallest.contract, case.env)
        if one_row is not None and (found := check(one_row)) is not None:
            smallest = replace(smallest, contract=one_row, report=found)
    if is_pointwise and case is not None and case.step:
        shorter = _with_one_step(smallest.contract, case.episode, case.step)
        if (found := check(shorter)) is not None:
            return replace(smallest, contract=shorter, report=found)
    for shorter in _prefixes(smallest.contract):
        if (found := check(shorter)) is not None:
            return replace(smallest, contract=shorter, report=found)
    return smallest


def _signature(difference: Difference) -> tuple[object, ...]:
    explanation = difference.explanation
    return (
        *(difference.kind, difference.stage, difference.reference_stage, difference.key),
        None if explanation is None else explanation.kind,
    )


def _is_same_stage(alone: ContractReport, whole: ContractReport) -> bool:
    """Return True if a stage alone has the numbers and the differences that it has in its chain."""
    assert alone.first is not None
    assert whole.first is not None
    known = {
        (difference.kind, difference.key)
        for difference in (*whole.causes, *whole.follows)
        if difference.stage == whole.first.stage
    }
    cases = [report.first.smallest for report in (alone, whole) if report.first is not None]
    texts = {None if case is None else case.text for case in cases}
    return len(texts) == 1 and all(
        (difference.kind, difference.key) in known and difference.stage == 0
        for difference in (*alone.causes, *alone.follows)
    )


# Stages


class _RecordedEnv(EnvBase):
    """Has the specs of an env with the first stages of its chain; its results are replaced."""

    def __init__(self, env: EnvBase, specs: StageSpecs) -> None:
        super().__init__(device=env.device, batch_size=env.batch_size)
        self.env_specs.set_specs(specs.input_spec.clone(), specs.output_spec.clone())

    def _reset(self, tensordict: TensorDictBase | None = None, **_: object) -> TensorDictBase:
        return self.full_observation_spec.zero().update(self.full_done_spec.zero())

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self._reset().update(self.full_reward_spec.zero())

    def _set_seed(self, seed: int | None) -> None:
        """Do nothing: it has no randomness."""


def build_stage_alone(stack: Stack, index: int) -> TransformedEnv:
    """Return a copy of one stage of a stack of tdx around an env with the specs before the stage.

    Raises:
        ArgumentError: The stack is of another library, or has no such stage.
    """
    env = stack.chain_env
    if env is None:
        raise ArgumentError(
            f"a stage of the kind {stack.kind!r} cannot be built without those inside it",
            hint="check the whole env against the whole contract",
        )
    specs = stack.specs()
    if not 0 <= index < len(specs) - 1:
        raise ArgumentError(
            f"there is no stage {index}", hint=f"the target has {len(specs) - 1} stages"
        )
    transform = specs[index + 1].transform
    assert transform is not None
    return TransformedEnv(_RecordedEnv(env, specs[index]), transform.clone())


def _isolated(
    stack: Stack, contract: Contract, first: Difference
) -> tuple[TransformedEnv, Contract, bool] | None:
    """Return the stage that differs with its contract, and whether each step stands alone.

    ``None``: the stage cannot be built alone, or its inputs are not known.
    """
    index, place = first.stage, first.reference_stage
    # A correction removes a stage that only the target has.
    if index is None or index < 0 or place is None or stack.chain_env is None:
        return None
    # Of large values a contract on disk has thumbnails, and the stages inside agree with it.
    target = observe(stack, contract.inputs, contract.seed, contract.compare)
    inputs = _inputs_of(target, index)
    if contract.kind != stack.kind or contract.stage(place).random is not None or inputs is None:
        return None
    values: dict[Place, Values] = {}
    places: tuple[tuple[Lane, int, int], ...] = (
        *(("forward", place - 1, -1), ("forward", place, 0)),
        *(("inverse", place + 1, 1), ("inverse", place, 0)),
    )
    for lane, old, new in places:
        for key in {key for at, _, key in contract.values if at == lane}:
            value, _ = contract.value_at(lane, old, key)
            if value is not None and (new or (lane, old, key) in contract.values):
                values[lane, new, key] = value
    inside = contract.stage(place - 1)
    stages = (
        replace(inside, index=-1, role="env", arguments={}, state=(), random=None),
        replace(contract.stage(place), index=0),
    )
    of_stage = replace(
        contract,
        stages=stages,
        inputs=inputs,
        values=values,
        notes=(),
        golden_random={},
        states=None,
    )
    alone = build_stage_alone(stack, index)
    return alone, of_stage, alone.stages[0].time_behavior is TimeBehavior.POINTWISE


def _inputs_of(contract: Contract, index: int) -> tuple[Segment, ...] | None:
    """Return what a stage received from both sides; ``None`` if it is not known."""
    received: dict[NestedKey, Tensor] = {}
    actions: dict[NestedKey, Tensor] = {}
    steps = [segment.steps for segment in contract.inputs]
    for lane, _, key in contract.values:
        inside = index - 1 if lane == "forward" else index + 1
        value, _ = contract.value_at(lane, inside, key)
        if value is None:
            continue
        numbers = value.numbers if value.whole is None else value.whole
        if value.whole is None and value.digests:
            return None
        if lane == "inverse" and len(numbers) == sum(steps):
            actions[parse_key_name(key)] = numbers
        elif lane == "forward" and len(numbers) == sum(steps):
            # A reset has no reward.
            parts = numbers.split(steps)
            padded = [torch.cat([torch.zeros_like(part[:1]), part]) for part in parts]
            received[parse_key_name(key)] = torch.cat(padded)
        elif len(numbers) == sum(steps) + len(steps):
            received[parse_key_name(key)] = numbers
        else:
            return None
    calls = {key: value.split([count + 1 for count in steps]) for key, value in received.items()}
    taken = {key: value.split(steps) for key, value in actions.items()}
    return tuple(
        Segment(
            {key: parts[place] for key, parts in calls.items()},
            {key: parts[place] for key, parts in taken.items()},
        )
        for place in range(len(steps))
    )


# Sub-envs and steps


def _with_one_row(contract: Contract, row: int) -> Contract | None:
    """Return a contract of one sub-env; ``None`` if it cannot be reduced to it."""
    values = contract.values.values()
    if contract.recording is not None or any(
        value.digests or row >= value.numbers.shape[1] for value in values
    ):
        return None
    inputs = [
        Segment(
            *(
                {key: value[:, row % value.shape[1]][:, None] for key, value in entries.items()}
                for entries in (segment.calls, segment.actions)
            )
        )
        for segment in contract.inputs
    ]
    rows = {
        place: replace(value, numbers=value.numbers[:, row : row + 1], whole=None)
        for place, value in contract.values.items()
    }
    return replace(contract, inputs=tuple(inputs), values=rows, states=None)


def _with_one_step(contract: Contract, episode: int, step: int) -> Contract:
    """Return a contract of one step; what a reset returned is that of the step before it."""
    before = contract.inputs[:episode]
    taken = sum(segment.steps for segment in before) + step
    returned = taken + len(before)
    segment = contract.inputs[episode]
    inputs = Segment(
        {key: value[step : step + 2] for key, value in segment.calls.items()},
        {key: value[step : step + 1] for key, value in segment.actions.items()},
    )
    steps = contract.steps
    values = {}
    for place, value in contract.values.items():
        has_resets = len(value.numbers) > steps
        start, count = (returned, 2) if has_resets else (taken, 1)
        values[place] = replace(
            value,
            numbers=value.numbers[start : start + count],
            digests=value.digests[start : start + count],
            whole=None if value.whole is None else value.whole[start : start + count],
        )
    return replace(contract, inputs=(inputs,), values=values, states=None)


def _prefixes(contract: Contract) -> Iterator[Contract]:
    """Yield the contract with fewer steps, the fewest first."""
    all_steps = sum(segment.steps for segment in contract.inputs)
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
        values = {}
        for place, known in contract.values.items():
            # A reward has no record of the resets, as an action has none.
            has_resets = len(known.numbers) > all_steps
            count = steps + len(segments) if has_resets else steps
            values[place] = replace(
                known,
                numbers=known.numbers[:count],
                digests=known.digests[:count],
                whole=None if known.whole is None else known.whole[:count],
            )
        states = contract.states
        if states is not None:
            end = steps + len(segments)
            states = replace(
                states,
                values={place: value[:end] for place, value in states.values.items()},
                streams={name: value[:end] for name, value in states.streams.items()},
            )
        yield replace(
            contract, inputs=tuple(segments), values=values, recording=recording, states=states
        )


def write_counterexample(
    counterexample: Counterexample,
    path: str | Path,
    command: Sequence[str],
    files: Mapping[str, str] | None = None,
) -> None:
    """Write a contract, the expected and obtained values, and a script that runs the check.

    ``command`` are the arguments of the command that checks the target, without the contract, and
    ``files`` the texts of further files by name. An existing folder is replaced.

    Raises:
        StorageError: The folder cannot be written.
    """
    target = Path(path)
    report, stage = counterexample.report, counterexample.stage
    first = report.first
    assert first is not None
    lines = [first.sentence]
    how = "Runs the whole target: the stage that differs cannot be built alone."
    if stage is not None:
        lines = [replace(first, stage=stage).sentence]
        how = f"Runs stage {stage} of the target alone, with the inputs in contract/."
        command = [*command, "--stage", str(stage)]
    if first.smallest is not None:
        lines.append(f"Smallest case: {first.smallest.text}")
        if first.smallest.inputs:
            lines.append(f"The stage received: {first.smallest.inputs}")
    lines.append(f"{how} Exits with 1 as long as the expected values differ")
    text = "\n\n".join(fill(f"{line}.", 88, break_long_words=False) for line in lines)
    script = _SCRIPT.format(
        text=text.replace("\\", "\\\\").replace('"', "'"),
        command=json.dumps([*command]),
        here=json.dumps(os.path.relpath(os.getcwd(), target)),
    )
    with (
        report_write_errors(target, "choose another path", kind=StorageError),
        atomic_folder(target) as folder,
    ):
        save_contract(counterexample.contract, folder / "contract")
        (folder / "values.safetensors").write_bytes(tensors_to_bytes(counterexample.values()))
        for name, content in {**(files or {}), "reproduce.py": script}.items():
            (folder / name).write_text(content, encoding="utf-8")


def _values_of(report: ContractReport, first: Difference) -> dict[str, Tensor]:
    """Return the first record in which a key differs on both sides, and its features."""
    key = first.key if first.smallest is None else first.smallest.key
    for row in report.rows:
        if first not in row.differences:
            continue
        for each in row.keys:
            if display_key(each.key) != key or each.a is None or each.b is None:
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
"""{text}"""

import subprocess
import sys
from pathlib import Path

COMMAND = {command}

folder = Path(__file__).resolve().parent
arguments = [*COMMAND, "--against", str(folder / "contract")]
check = subprocess.run([sys.executable, "-m", "tdx", *arguments], cwd=folder / {here})
sys.exit(check.returncode)
'''
