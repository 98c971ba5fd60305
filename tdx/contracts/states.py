"""State of stages: its statistics, its comparison, and the file that takes it to another stack."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tdx.compare.values import Tolerance, compare_tensors, digest, format_number
from tdx.contracts.decoding import parse_tensors, tensors_to_bytes
from tdx.contracts.model import StageRecord, StateRecord
from tdx.contracts.report import Difference
from tdx.contracts.roles import PASSIVE, role_of
from tdx.foundation.errors import ArgumentError, StorageError, Where
from tdx.foundation.files import check_replaceable, report_write_errors, write_atomically
from tdx.foundation.untrusted import MAX_POLICY_BYTES, read_limited
from tdx.stacks import open_stack

if TYPE_CHECKING:
    from torch import Tensor

    from tdx.stacks import Stack

_PAIRS = ({"mean", "var"}, {"loc", "var"}, {"loc", "scale"}, {"sum", "ssq"}, {"statistics"})
_REWARD = re.compile(r"(^|[._/])(ret|return|returns|reward)([._/]|_rms|$)")
_EPISODE = re.compile(r"(^|[._/])(returns|discounted_reward|accumulated_reward)$")
FRESH_COUNT = 1.0
"""Number of values up to which statistics count as fresh."""


def is_statistic(name: str, names: Mapping[str, Any]) -> bool:
    """Return True if a tensor of the state is a part of running statistics.

    Args:
        name: Name of the tensor.
        names: All tensors of the stage by name.
    """
    parts = {each: set(re.split(r"[._/]", each)) for each in names}
    for pair in _PAIRS:
        found = {each for each, words in parts.items() if words & pair}
        if all(any(part in parts[each] for each in found) for part in pair):
            return name in found or _is_count(name)
    return False


def is_of_reward(name: str) -> bool:
    """Return True if a tensor belongs to statistics of rewards.

    Example:
        >>> is_of_reward("ret_rms.mean"), is_of_reward("obs_rms.mean")
        (True, False)
    """
    return _REWARD.search(name) is not None


def is_of_episode(name: str) -> bool:
    """Return True for a sum of rewards that begins again with each episode."""
    return _EPISODE.search(name) is not None


def _is_count(name: str) -> bool:
    return "count" in re.split(r"[._/]", name)


def read_counts(state: Mapping[str, Any]) -> dict[str, float]:
    """Return how many values the statistics of a stage have counted, by name.

    Args:
        state: Tensors of the stage by name.
    """
    counts: dict[str, float] = {}
    for name, value in state.items():
        if not is_statistic(name, state):
            continue
        if _is_count(name):
            counts[name] = float(value.double().max())
        elif name.startswith("statistics/") and value.ndim and len(value) == 3:
            # Moments of tdx: sum, sum of squares, count.
            counts[name] = float(value[2].double().max())
    return counts


_TOLERANCE = Tolerance(1e-6, 1e-12)


def compare_states(
    a: StageRecord,
    b: StageRecord,
    *,
    evaluation: bool,
    in_rows: tuple[bool, bool] = (False, False),
) -> Iterator[Difference]:
    """Yield how the state of a target's stage differs from that of the contract.

    Statistics of rewards are left out: a policy does not read them.

    Args:
        a: Stage of the contract.
        b: Stage of the target.
        evaluation: The target is used for evaluation: its statistics must not change.
        in_rows: Whether each sub-env has the stage, so that the first dim of its state is that of
            the sub-envs. Those that both have are compared.
    """
    ours, theirs = _compared(a), _compared(b)
    if any(in_rows):
        ours, theirs = _common_rows(ours, theirs, in_rows)
    key = next((name.partition(" ")[2] for name in (*a.writes, *b.writes)), None)
    found = _missing_or_fresh(a, b, ours, theirs, key)
    if found is None and a.name == b.name:
        found = _other_values(a, b, ours, theirs, key)
    if found is not None:
        yield found
    learns = [each.name for each in theirs.values() if each.changes]
    learned = [each.name for each in ours.values() if each.changes]
    if learns and (evaluation or (ours and not learned)):
        text = f"its statistics change with every step ({', '.join(learns[:3])})"
        if not evaluation:
            text += ", those of the contract do not"
        yield Difference("state still learning", b.index, a.index, b.name, key, text, None, _STOP)


_STOP = (
    "stop the updates: training = False in Stable-Baselines3, update_running_mean = False in "
    "Gymnasium, freeze() in TorchRL and tdx"
)


def _compared(stage: StageRecord) -> dict[str, StateRecord]:
    return {each.name: each for each in stage.state if not is_of_reward(each.name)}


def _common_rows(
    ours: dict[str, StateRecord], theirs: dict[str, StateRecord], in_rows: tuple[bool, bool]
) -> tuple[dict[str, StateRecord], dict[str, StateRecord]]:
    """Return both states with one row for each sub-env that both have."""
    rows = min(
        (
            record.shape[0] if batched else 1
            for side, batched in zip((ours, theirs), in_rows, strict=True)
            for record in side.values()
            if record.shape or not batched
        ),
        default=1,
    )

    def cut(state: dict[str, StateRecord], *, batched: bool) -> dict[str, StateRecord]:
        kept: dict[str, StateRecord] = {}
        for name, record in state.items():
            value = record.value
            if value is not None:
                value = value[:rows] if batched else value[None]
            shape = (rows, *(record.shape[1:] if batched else record.shape))
            code = record.digest if value is None else digest(value)
            kept[name] = replace(record, shape=shape, digest=code, value=value)
        return kept

    return cut(ours, batched=in_rows[0]), cut(theirs, batched=in_rows[1])


def _missing_or_fresh(
    a: StageRecord,
    b: StageRecord,
    ours: Mapping[str, StateRecord],
    theirs: Mapping[str, StateRecord],
    key: str | None,
) -> Difference | None:
    counts = _counts(ours), _counts(theirs)
    trained = max(counts[0].values(), default=None)
    if ours and (trained is None or trained > FRESH_COUNT) and _is_missing(ours, theirs):
        text = f"it has no statistics, the contract has {', '.join(list(ours)[:3])}"
        if trained is not None:
            text += f" of {format_number(trained)} values"
        hint = f"load the state of the training into {b.name}"
        return Difference("state missing", b.index, a.index, b.name, key, text, None, hint)
    present = max(counts[1].values(), default=None)
    if trained is not None and present is not None and present <= FRESH_COUNT < trained:
        name = max(counts[1], key=lambda each: counts[1][each])
        text = (
            f"its statistics are fresh: its count ({name}) is {format_number(present)}, in the "
            f"contract {format_number(trained)}"
        )
        hint = f"load the statistics of the training into {b.name}"
        return Difference("state fresh", b.index, a.index, b.name, key, text, None, hint)
    return None


def _is_missing(ours: Mapping[str, StateRecord], theirs: Mapping[str, StateRecord]) -> bool:
    if not theirs:
        return True
    # The statistics exist only after the first step.
    return all(each.value is None for each in theirs.values()) and any(
        each.value is not None for each in ours.values()
    )


def _counts(state: Mapping[str, StateRecord]) -> dict[str, float]:
    return read_counts({name: each.value for name, each in state.items() if each.value is not None})


def _other_values(
    a: StageRecord,
    b: StageRecord,
    ours: Mapping[str, StateRecord],
    theirs: Mapping[str, StateRecord],
    key: str | None,
) -> Difference | None:
    for name, one in ours.items():
        other = theirs.get(name)
        if other is None:
            if not one.changes:
                continue
            text = f"it has no state {name}"
            return Difference("state missing", b.index, a.index, b.name, key, text)
        if one.shape != other.shape:
            text = f"{name} has the shape {list(other.shape)} instead of {list(one.shape)}"
            return Difference("spec", b.index, a.index, b.name, key, text)
        if one.digest == other.digest or one.value is None or other.value is None:
            continue
        change = compare_tensors(one.value.double(), other.value.double(), _TOLERANCE)
        if change is not None and change.size is not None:
            text = f"{name} differs by up to {format_number(change.size)}"
            hint = f"load the state of the training into {b.name}"
            if not one.changes:
                hint = f"give {b.name} the {name} of the training, or load its state"
            return Difference("value", b.index, a.index, b.name, name, text, change.size, hint)
    return None


State = dict[int, dict[str, "Tensor"]]


def save_state(env: Any, path: str | Path, *, force: bool = False) -> tuple[str, ...]:
    """Write the statistics and buffers of the stages of an env to a ``.safetensors`` file.

    Counters and queues that belong to an episode are left out.

    Args:
        env: Env of any supported library with its wrappers.
        path: File to write.
        force: True to replace an existing file.

    Returns:
        Names of the tensors, such as ``5.obs_rms.mean``.

    Raises:
        ArgumentError: The file exists and ``force`` is False, or no stage has a state.
        StorageError: It cannot be written.
    """
    check_replaceable(path, force=force)
    stack = open_stack(env)
    state = kept_state(stack)
    if not state:
        raise ArgumentError(
            "no stage has statistics or buffers",
            hint="`tdx inspect state` shows the state of each stage",
        )
    names = {each.index: each.name for each in stack.stages}
    tensors = {
        f"{stack.kind}/{index}/{names[index]}/{name}": value
        for index, values in state.items()
        for name, value in values.items()
    }
    with report_write_errors(path, "name another file", kind=StorageError):
        write_atomically(path, tensors_to_bytes(tensors))
    return tuple(f"{index}.{name}" for index, values in state.items() for name in values)


def kept_state(stack: Stack) -> State:
    """Return the state of a stack without what belongs to an episode."""
    found: State = {}
    for stage in stack.stages:
        values = dict(stack.state().get(stage.index, {}))
        kept = {
            name: value
            for name, value in values.items()
            if is_statistic(name, values) or value.is_floating_point()
        }
        kept = {name: value for name, value in kept.items() if not is_of_episode(name)}
        if kept and role_of(stage.name) not in PASSIVE:
            found[stage.index] = kept
    return found


def load_state(env: Any, path: str | Path) -> tuple[str, ...]:
    """Load a state that :func:`save_state` wrote; nothing changes if it does not fit.

    The file is data: no code runs.

    Args:
        env: Env with the same stages, in the same library.
        path: The file.

    Returns:
        Names of the tensors that were loaded.

    Raises:
        ArgumentError: It is the state of another kind of stack, of other stages, or of other
            shapes.
        StorageError: The file cannot be read.
    """
    stack = open_stack(env)
    state = _read(stack, path)
    _check_shapes(stack, state, path)
    missing = set(stack.load_state(state))
    loaded = [f"{index}.{name}" for index, values in state.items() for name in values]
    return tuple(each for each in loaded if each not in missing)


def _read(stack: Stack, path: str | Path) -> State:
    try:
        data = read_limited(Path(path), MAX_POLICY_BYTES)
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        reason = (error.strerror or str(error)).lower()
        raise StorageError(
            f"cannot read {path}: {reason}", hint="`tdx inspect state --export` writes such a file"
        ) from error
    names = {each.index: each.name for each in stack.stages}
    state: State = {}
    for full, value in parse_tensors(data, str(path)).items():
        kind, *rest = full.split("/", 3)
        if len(rest) != 3 or not rest[0].isdecimal() or len(rest[0]) > 6:
            raise StorageError(
                f"{path} is not a state of a stack: {full!r:.60}",
                hint="`tdx inspect state --export` writes such a file",
            )
        if kind != stack.kind:
            raise ArgumentError(
                f"{path} is the state of a stack of {kind}, and this one is of {stack.kind}",
                hint="load it into a stack of the same library",
            )
        index, name = int(rest[0]), rest[1]
        if names.get(index) != name:
            found = f"{names[index]} there" if index in names else "no such stage"
            raise ArgumentError(
                f"{path} has the state of stage {index} ({name}), and the stack has {found}",
                hint="create the stack with the same stages",
            )
        state.setdefault(index, {})[rest[2]] = value
    return state


def _check_shapes(stack: Stack, state: State, path: str | Path) -> None:
    """Refuse statistics of other shapes, and leave out other tensors."""
    current: Mapping[int, Mapping[str, Tensor]] = stack.state()
    for index, values in state.items():
        known = current.get(index, {})
        in_rows = stack.stages[index].rows is not None
        for name, value in list(values.items()):
            old = known.get(name)
            if old is None:
                continue
            one, other = value.shape, old.shape
            if in_rows:
                one, other = one[1:], other[1:]
            if one != other and not is_statistic(name, values):
                del values[name]
            elif one != other:
                raise ArgumentError(
                    f"{name} in {path} has the shape {list(one)}, and the stage {list(other)}",
                    hint="create the stack on the same env",
                    where=Where(stage=index, transform=stack.stages[index].name),
                )
