"""What a contract knows about the observation terms, actions and joints of a policy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isfinite, prod
from pathlib import Path
from typing import TYPE_CHECKING

from tdx.stacks.descriptors.model import Action, Descriptor, Numbers, Robot, Term, number_repeats

if TYPE_CHECKING:
    from tdx.compare.model import Contract, SpecRecord

CONTRACT = "contract"
"""Library of a descriptor that was made from a contract."""
_JOINTS = ("joint_names", "joint_order", "joints")
_POSITIONS = (
    *("default_joint_pos", "default_joint_positions", "default_joint_angles"),
    *("default_positions", "default_qpos"),
)
_STIFFNESS = ("joint_stiffness", "default_joint_stiffness", "stiffness")
_DAMPING = ("joint_damping", "default_joint_damping", "damping")
_FRAMES = ("stack_size", "num_stack", "n_stack", "N")
_VOCABULARY = frozenset(
    {
        *("actions", "term shape", "observation size"),
        *("action shape", "action scale", "action offset", "action joints"),
        *("joints", "positions", "stiffness", "damping", "step"),
    }
)


def describe_contract(contract: Contract, path: str | Path) -> Descriptor:
    """Describe what the policy of a contract reads and returns, as far as the contract knows it.

    Joints, default positions and action scales are arguments of its stages, by their usual names.
    A single vector has the terms of which it is a copy.
    """
    from tdx.compare.model import display_key
    from tdx.compare.roles import STACK
    from tdx.compare.stacks import passive_keys

    ignored = passive_keys(contract)
    last = contract.stage(contract.last)
    observations = [
        spec for spec in last.specs if spec.part == "observation" and spec.key not in ignored
    ]
    actions = [spec for spec in last.specs if spec.part == "action"]
    joints = next((names for names in _texts(contract, _JOINTS)), ())
    stacks = [stage for stage in contract.stages[1:] if stage.role == STACK]
    frames = [stage.arguments.get(name) for stage in stacks for name in _FRAMES]
    history = next((count for count in frames if isinstance(count, int)), None)
    sizes: list[tuple[str, tuple[int, ...]]] = []
    if len(observations) == 1:
        sizes = [(name, (size,)) for name, size in _parts(contract, observations[0])]
    elif history is None:
        sizes = [(display_key(spec.key).rpartition(".")[2], spec.shape) for spec in observations]
    names = number_repeats(tuple(name for name, _ in sizes))
    scale, offset = _scaling(contract, joints)
    step = contract.stage(-1).arguments.get("fps")
    return Descriptor(
        Path(path),
        CONTRACT,
        tuple(Term(name, shape, history) for name, (_, shape) in zip(names, sizes, strict=True)),
        # The last dim is that of the joints; others are chunks and sub-envs.
        tuple(
            Action("action", spec.shape[-1:] or (1,), scale, offset, joints=joints)
            for spec in actions[:1]
            if len(actions) == 1
        ),
        Robot(
            joints,
            *(_numbers(contract, names, joints) for names in (_POSITIONS, _STIFFNESS, _DAMPING)),
        ),
        1 / step if isinstance(step, int | float) and step > 0 else None,
        is_ordered=len(observations) == 1,
        observation_size=prod(observations[0].shape) if len(observations) == 1 else None,
        # Without a stack of frames, an env may have a history that the contract does not see.
        vocabulary=_VOCABULARY if history is None else _VOCABULARY | {"term history"},
    )


def _parts(contract: Contract, observation: SpecRecord) -> list[tuple[str, int]]:
    """Return name and size of the entries of which a vector is a copy, in order."""
    from tdx.compare.model import display_key

    for stage in reversed(contract.stages[1:]):
        spec = stage.spec(observation.key)
        # Constant features may come from any entry.
        if spec is None or not spec.features or "?" in spec.features:
            continue
        parts: list[tuple[str, int]] = []
        for feature in spec.features:
            key, _, place = feature.rpartition("[")
            name = display_key(key).rpartition(".")[2]
            if place == "0]":
                parts.append((name, 1))
            elif parts and (name, f"{parts[-1][1]}]") == (parts[-1][0], place):
                parts[-1] = name, parts[-1][1] + 1
            else:
                return []
        # A stage outside of it that has a single source reorders or keeps the vector.
        if len(parts) > 1:
            return parts
    return []


def _arguments(contract: Contract, names: tuple[str, ...]) -> Iterator[object]:
    """Yield the arguments with some names, outermost first: those that the policy sees."""
    for stage in reversed(contract.stages):
        yield from (stage.arguments[name] for name in names if name in stage.arguments)


def _texts(contract: Contract, names: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for value in _arguments(contract, names):
        if isinstance(value, list) and value and all(isinstance(name, str) for name in value):
            yield tuple(value)


def _numbers(contract: Contract, names: tuple[str, ...], joints: tuple[str, ...]) -> Numbers | None:
    values = (_as_numbers(value, joints) for value in _arguments(contract, names))
    return next((numbers for numbers in values if numbers is not None), None)


def _as_numbers(value: object, joints: tuple[str, ...]) -> Numbers | None:
    """Return a number, a list of numbers, or a mapping by joint in the order of the joints."""
    if isinstance(value, Mapping):
        if set(value) != set(joints):
            return None
        value = [value[joint] for joint in joints]
    items = value if isinstance(value, list) else [value]
    numbers = [
        float(item)
        for item in items
        if isinstance(item, int | float) and not isinstance(item, bool) and isfinite(item)
    ]
    return tuple(numbers) if numbers and len(numbers) == len(items) else None


def _scaling(contract: Contract, joints: tuple[str, ...]) -> tuple[Numbers | None, Numbers | None]:
    """Return factor and summand of the actions: those of the only stage that changes them."""
    from tdx.compare.roles import PASSIVE

    scaling = [
        stage
        for stage in contract.stages[1:]
        if any(lane == "inverse" for lane, _ in stage.written)
        and stage.role not in ("clip action", *PASSIVE)
    ]
    if len(scaling) != 1:
        return None, None
    arguments = scaling[0].arguments
    scale, offset = (
        next((arguments[name] for name in names if name in arguments), None)
        for names in (("action_scale", "scale"), ("action_offset", "offset", "loc"))
    )
    return _as_numbers(scale, joints), _as_numbers(offset, joints)
