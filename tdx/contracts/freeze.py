"""Record what the stages of a stack do, and the state that they have."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import torch

from tdx.compare.arguments import plain_arguments
from tdx.compare.model import (
    DEFAULT_PARTS,
    OPAQUE,
    Contract,
    Segment,
    SpecRecord,
    StageRecord,
    StateHistory,
    StateRecord,
)
from tdx.compare.replay import record, replay, restored
from tdx.compare.roles import PASSIVE, SKIP, role_of, tolerance_of
from tdx.compare.stacks import compare_contracts
from tdx.compare.states import STATE_TOLERANCE
from tdx.compare.statistics import is_of_episode, is_statistic
from tdx.compare.values import (
    Values,
    compare_tensors,
    compare_values,
    digest,
    float_tolerance,
)
from tdx.contracts.reference_run import (
    STEPS,
    ContractLayout,
    ReferenceRun,
    collect_inputs,
    observed_levels,
    run_inputs,
)
from tdx.contracts.tolerances import Tolerances, with_tolerances
from tdx.foundation.errors import ArgumentError
from tdx.foundation.plugins import installed_version
from tdx.foundation.text import dtype_name
from tdx.specs.leaf import domain_text
from tdx.stacks import open_stack
from tdx.stacks.checkpoints.stack import DatasetStack
from tdx.stacks.kinds import CHECKPOINT

if TYPE_CHECKING:
    from tdx.specs.leaf import LeafSpec
    from tdx.stacks import Stack, StageInfo
    from tdx.stacks.observe import CallRecording

# The version of a library in use does not change; each lookup parses the metadata of its package.
_loaded_version = cache(installed_version)
_LIBRARIES = ("gymnasium", "numpy", "stable-baselines3", "tdx", "torch", "torchrl")
_MAX_FEATURES = 256
_MAX_STEPS = 500


def freeze(
    env: object,
    *,
    seed: int = 0,
    steps: int = STEPS,
    compare: Sequence[str] = DEFAULT_PARTS,
    tolerances: Tolerances | None = None,
) -> Contract:
    """Record the stages of an env: arguments, specs, state and reference values.

    The env makes a few random steps; the state of its stages is restored afterwards. Reset the env
    before you continue.

    Args:
        env: Env of any supported library with its wrappers, or an algorithm of Stable-Baselines3.
        seed: Seed of the reference steps.
        steps: Number of reference steps.
        compare: Parts to compare later: ``observation``, ``action``, ``reward`` and ``done``.
        tolerances: Tolerances of keys, as for :func:`check_contract`. Those of the stages follow
            from what they do and from the dtypes.

    Returns:
        The contract, for :func:`save_contract` and :func:`check_contract`.

    Raises:
        ArgumentError: ``env`` is neither an env nor a stack, its env cannot be replaced, or
            ``steps`` is not 1 to 500, or a tolerance is invalid.
        TdxError: The env or a stage raised.

    Example:
        >>> import gymnasium, tdx
        >>> env = gymnasium.wrappers.NormalizeObservation(gymnasium.make("Pendulum-v1"))
        >>> contract = tdx.freeze(env)
        >>> [stage.role for stage in contract.stages][-1]
        'normalize'
    """
    if not 1 <= steps <= _MAX_STEPS:
        raise ArgumentError(
            f"steps must be 1 to {_MAX_STEPS}, got {steps}", hint="a dozen steps are enough"
        )
    opened = open_stack(env)
    if isinstance(opened, DatasetStack):
        raise CHECKPOINT.refusal(opened.original)
    with stack_in_this_process(opened) as (stack, notes):
        layout = ContractLayout(stack)
        recorded = record(stack, seed, steps)
        recording, again = (None, None) if recorded is None else recorded
        with restored(stack):
            inputs = collect_inputs(stack, layout.actions_of, seed, steps)
        contract = observe(
            stack, inputs, seed, compare, layout, find_random=True, recording=recording
        )
        if recording is not None and not recording.env_repeats:
            notes = (*notes, "the env does not repeat itself; its recorded results are replayed")
        in_rows = [stage.index for stage in stack.stages if stage.rows is not None]
    contract = with_tolerances(replace(contract, notes=notes), tolerances)
    own = compare_contracts(contract, contract, ("contract", contract.env), again, in_rows=in_rows)
    if not own.same:
        first = own.first.sentence if own.first is not None else "; ".join(own.excluded)
        if all(stage.index < 0 for stage in contract.stages):
            first = "there are no stages, and the env returns other values in each run"
        if own.first is None and any(stage.random == OPAQUE for stage in contract.stages):
            raise ArgumentError(
                f"too little of the stack is run for a contract: {own.coverage}; {first}",
                hint="check the folder without a contract, or compare two with tdx diff",
            )
        raise ArgumentError(
            f"the stack does not repeat itself, so that a contract would prove nothing: {first}; "
            f"{own.coverage}",
            hint="draw random numbers from env.np_random, NumPy or torch, which are seeded",
        )
    return contract


def observe(
    stack: Stack,
    inputs: Sequence[Segment],
    seed: int,
    compare: Sequence[str],
    layout: ContractLayout | None = None,
    *,
    find_random: bool = False,
    recording: CallRecording | None = None,
) -> Contract:
    """Record the stages of a stack on given inputs, with the env inside replaced.

    The env is not stepped, and the state of the stages is restored. ``find_random`` runs the stages
    again, to find the random ones. Recorded calls show what each stage does by itself; with them, a
    stage may fail without the env inside, whose state it reads.

    Raises:
        TdxError: A stage raised.
    """
    layout = ContractLayout(stack) if layout is None else layout
    with restored(stack):
        learned = run_inputs(stack, layout, inputs, seed, learning=True)
        # A stack without a state has nothing to learn, and does the same again.
        has_state = any((*learned.before.values(), *learned.after.values()))
        frozen = learned
        if has_state or learned.error is not None:
            frozen = run_inputs(stack, layout, inputs, seed, learning=False)
        if frozen.error is not None and learned.error is None:
            # Statistics that do not exist yet cannot be frozen.
            frozen = learned
        golden_random: Mapping[int, str] = {}
        states = learned.states
        if find_random and frozen.error is None:
            golden_random = _find_random(stack, layout, inputs, seed, frozen)
        if find_random and states is not None and (states.values or states.streams):
            again = run_inputs(stack, layout, inputs, seed, learning=True)
            states = None if again.states is None else _repeated(states, again.states)
    if frozen.error is not None and recording is None:
        raise frozen.error
    random = golden_random
    if recording is not None:
        random = {}
        if find_random:
            # The stages that follow the seed, and those that do not repeat themselves.
            same = {index: index for index in recording.forms}
            other = replay(stack, replace(recording, seed=recording.seed + 1), same)
            random = dict.fromkeys(other.changed_levels(), "seeded")
            random |= dict.fromkeys(recording.unrepeatable, "excluded")
    opaque = [info.index for info in stack.stages if info.is_opaque]
    builder = _Builder(layout, learned, frozen, {**random, **dict.fromkeys(opaque, OPAQUE)})
    inside = builder.stage(-1, stack.name, None)
    stages = [replace(inside, arguments=plain_arguments(stack.settings))]
    stages += [builder.stage(info.index, info.name, info) for info in stack.stages]
    used = [library for library in _LIBRARIES if library.replace("-", "_") in sys.modules]
    installed = {library: _loaded_version(library) for library in used}
    return Contract(
        stack.kind,
        stack.name,
        seed,
        {library: version for library, version in installed.items() if version is not None},
        tuple(compare),
        tuple(stages),
        tuple(inputs),
        frozen.values,
        recording=recording,
        golden_random=golden_random,
        states=states,
    )


def _repeated(states: StateHistory, again: StateHistory) -> StateHistory:
    """Return the states that another run repeats: not those that depend on a clock, for example."""
    return replace(
        states,
        values={
            place: value
            for place, value in states.values.items()
            if place in again.values
            and compare_tensors(value, again.values[place], STATE_TOLERANCE) is None
        },
        streams={
            name: value
            for name, value in states.streams.items()
            if name in again.streams and torch.equal(value, again.streams[name])
        },
    )


@contextmanager
def stack_in_this_process(stack: Stack) -> Iterator[tuple[Stack, tuple[str, ...]]]:
    """Yield a stack with as many of its stages in this process as possible, and notes about it.

    Raises:
        ArgumentError: The stack has no env that can be replaced.
        EnvError: Its sub-envs cannot be created again.
    """
    observed_levels(stack)
    with stack.in_this_process() as local:
        yield local, tuple(stack.hidden if local is stack else local.notes)


def _find_random(
    stack: Stack, layout: ContractLayout, inputs: Sequence[Segment], seed: int, first: ReferenceRun
) -> dict[int, str]:
    """Return the stages whose values another run, or another seed, changes."""
    again = run_inputs(stack, layout, inputs, seed, learning=False)
    other = run_inputs(stack, layout, inputs, seed + 1, learning=False)
    random: dict[int, str] = {}
    for run, kind in ((again, "excluded"), (other, "seeded")):
        places = [
            place
            for place, values in first.values.items()
            if place in run.values
            and compare_values(values, run.values[place], float_tolerance([values.dtype]))
        ]
        for lane in ("forward", "inverse"):
            indices = [index for at, index, _ in places if at == lane and index >= 0]
            if indices:
                # The values of the stages after it follow from it.
                origin = min(indices) if lane == "forward" else max(indices)
                random.setdefault(min(origin, layout.last), kind)
    return random


class _Builder:
    def __init__(
        self,
        layout: ContractLayout,
        learned: ReferenceRun,
        frozen: ReferenceRun,
        random: Mapping[int, str],
    ) -> None:
        self._layout, self._learned, self._frozen = layout, learned, frozen
        self._random = random
        self._rounds = False

    def stage(self, index: int, name: str, info: StageInfo | None) -> StageRecord:
        """Describe a stage."""
        class_role = role = "env" if info is None else role_of(name)
        if role == name and index in self._frozen.repeating:
            role = SKIP
        writes = tuple(
            f"{lane} {key}" for lane, at, key in self._frozen.values if at == index and at >= -1
        )
        state = () if info is None else tuple(self._state(index, role))
        arguments = {} if info is None else plain_arguments(info.arguments)
        # The values of a buffer are state.
        known = {tensor.name for tensor in state}
        dtypes = [
            values.dtype
            for (lane, at, key), values in self._frozen.values.items()
            if at == index and (lane == "inverse" or key != "reward")
        ]
        leaves = self._layout.leaves[index + 1].values()
        dtypes = dtypes or [leaf.dtype for leaf in leaves if leaf.part == "observation"]
        # A class of the user may also compute, such as a mean of the frames.
        tolerance = tolerance_of(class_role, dtypes, first=not self._rounds)
        self._rounds |= info is not None and bool(writes) and tolerance.rtol > 0
        return StageRecord(
            index,
            name,
            role,
            {key: value for key, value in arguments.items() if key not in known},
            tuple(self._specs(index)),
            state,
            tolerance,
            writes,
            self._random.get(index),
        )

    def _specs(self, index: int) -> Iterator[SpecRecord]:
        lead = self._layout.batch_dims
        for key, leaf in self._layout.leaves[index + 1].items():
            shape = tuple(leaf.shape[lead:])
            if (leaf.part == "reward" or leaf.part == "done") and shape == (1,):
                shape = ()
            features = self._features(index, key, leaf)
            text = domain_text(leaf, whole=False)
            yield SpecRecord(key, leaf.part, shape, leaf.dtype, text, features)

    def _features(self, index: int, key: str, leaf: LeafSpec) -> tuple[str, ...]:
        """Return where the features of a vector come from: the entries of which it is a copy."""
        after = self._frozen.values.get(("forward", index, key))
        if index < 0 or after is None or after.digests or after.numbers.ndim != 3:
            return ()
        if not 0 < after.numbers.shape[2] <= _MAX_FEATURES or leaf.part != "observation":
            return ()
        origins: dict[bytes, str] = {}
        for name in self._layout.leaves[index]:
            before = next(
                (
                    self._frozen.values["forward", at, name]
                    for at in range(index - 1, -2, -1)
                    if ("forward", at, name) in self._frozen.values
                ),
                None,
            )
            if before is None or before.numbers.ndim != 3 or before.digests:
                continue
            if len(before.numbers) == len(after.numbers):
                for place, column in enumerate(_columns(before)):
                    # A constant column may be any.
                    origins[column] = "?" if column in origins else f"{name}[{place}]"
        features = tuple(origins.get(column, "?") for column in _columns(after))
        return () if set(features) == {"?"} else features

    def _state(self, index: int, role: str) -> Iterator[StateRecord]:
        """Yield the state that a stage keeps across episodes.

        A tensor that steps without learning change belongs to the episode.
        """
        if role in PASSIVE:
            return
        before = self._frozen.before.get(index, {})
        # Statistics that the first step creates.
        created = {} if before else self._learned.after.get(index, {})
        for name, value in (before or created).items():
            statistic = is_statistic(name, before or created) and not is_of_episode(name)
            is_kept = statistic or (
                not created and value.is_floating_point() and not self._frozen.changed(index, name)
            )
            if value.dtype is torch.bool or not is_kept:
                continue
            changes = statistic and self._learned.changed(index, name)
            yield StateRecord(
                name,
                tuple(value.shape),
                dtype_name(value.dtype),
                digest(value),
                changes,
                None if created else value,
            )


def _columns(values: Values) -> list[bytes]:
    numbers = values.numbers.flatten(0, 1).double()
    return [column.contiguous().numpy().tobytes() for column in numbers.unbind(1)]
