"""The file that takes the state of stages to another stack."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tdx.compare.roles import PASSIVE, role_of
from tdx.compare.statistics import is_of_episode, is_statistic
from tdx.contracts.decoding import parse_tensors, tensors_to_bytes
from tdx.foundation.errors import ArgumentError, StorageError, Where
from tdx.foundation.files import (
    check_replaceable,
    report_read_errors,
    report_write_errors,
    write_atomically,
)
from tdx.foundation.untrusted import MAX_POLICY_BYTES, read_limited
from tdx.stacks import open_stack

if TYPE_CHECKING:
    from torch import Tensor

    from tdx.stacks import Stack, StackState


_HINT = "`tdx inspect state --export` writes such a file"


def save_state(env: object, path: str | Path, *, force: bool = False) -> tuple[str, ...]:
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
    state: dict[int, dict[str, Tensor]] = {}
    known = stack.state()
    for stage in stack.stages:
        values = dict(known.get(stage.index, {}))
        kept = {
            name: value
            for name, value in values.items()
            if is_statistic(name, values) or value.is_floating_point()
        }
        # Counters and queues belong to an episode.
        kept = {name: value for name, value in kept.items() if not is_of_episode(name)}
        if kept and role_of(stage.name) not in PASSIVE:
            state[stage.index] = kept
    if not state:
        raise ArgumentError(
            "no stage has statistics or buffers",
            hint="`tdx inspect state` shows the state of each stage",
        )
    names = {stage.index: stage.name for stage in stack.stages}
    tensors = {
        f"{stack.kind}/{index}/{names[index]}/{name}": value
        for index, values in state.items()
        for name, value in values.items()
    }
    with report_write_errors(path, "name another file", kind=StorageError):
        write_atomically(path, tensors_to_bytes(tensors))
    return tuple(f"{index}.{name}" for index, values in state.items() for name in values)


def load_state(env: object, path: str | Path) -> tuple[str, ...]:
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
    return tuple(name for name in loaded if name not in missing)


def _read(stack: Stack, path: str | Path) -> dict[int, dict[str, Tensor]]:
    with report_read_errors(path, _HINT):
        data = read_limited(Path(path), MAX_POLICY_BYTES)
    names = {stage.index: stage.name for stage in stack.stages}
    state: dict[int, dict[str, Tensor]] = {}
    for full, value in parse_tensors(data, str(path)).items():
        kind, *rest = full.split("/", 3)
        if len(rest) != 3 or not rest[0].isdecimal() or len(rest[0]) > 6:
            raise StorageError(
                f"{path} is not a state of a stack: {full!r:.60}",
                hint=_HINT,
            )
        if kind != stack.kind:
            raise ArgumentError(
                f"{path} is the state of a stack of {kind}, and this one is of {stack.kind}",
                hint="load it into a stack of the same library",
            )
        index, name = int(rest[0]), rest[1]
        if names.get(index) != name:
            present = f"{names[index]} there" if index in names else "no such stage"
            raise ArgumentError(
                f"{path} has the state of stage {index} ({name}), and the stack has {present}",
                hint="create the stack with the same stages",
            )
        state.setdefault(index, {})[rest[2]] = value
    return state


def _check_shapes(stack: Stack, state: dict[int, dict[str, Tensor]], path: str | Path) -> None:
    """Refuse statistics of other shapes, and leave out other tensors."""
    current: StackState = stack.state()
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
