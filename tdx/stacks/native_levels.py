"""The levels of a chain of tdx, as :mod:`tdx.stacks.observe` calls and reads them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from tdx.core.chain import flatten_chain
from tdx.core.envs import EnvBase
from tdx.core.meter import Lane, Part, base_parts
from tdx.core.tracing.places import env_hooks, stage_hooks
from tdx.foundation.keys import NestedKey, normalize_key, split_key
from tdx.specs import TensorSpec
from tdx.stacks.observe import LevelForm, Levels, RowEntries, Slot, base_key
from tdx.stacks.observe.env_inside import fit

FLAGS = ("done", "terminated", "truncated")
_FORM = LevelForm("tensordict", is_batch=True)


class ChainLevels(Levels):
    """The env inside a chain, and its stages.

    Stages do not call each other: the env passes one TensorDict from hook to hook, which they
    change. So a trace of a chain compares references and versions of its tensors instead of copies
    (:mod:`tdx.core.tracing`), and a stage cannot be replayed by its own results alone.

    ``inside`` steps the env inside, if that is an object of another library.
    """

    def __init__(self, env: EnvBase, inside: Any = None) -> None:
        self.base, self.stages = flatten_chain(env)
        self._inside = inside
        self._size = torch.Size(self.base.batch_size)
        self.num_envs = max(self._size.numel(), 1)

    def slots(self, rows: int | None = None) -> Iterator[Slot]:
        """See :class:`~tdx.stacks.observe.Levels`; the hooks that the env calls in each step."""
        for hook in env_hooks(self.base):
            if self._inside is None:
                yield Slot(-1, 0, _FORM, hook.method, hook.owner, None, hook.name)
            else:
                yield Slot(-1, 0, _FORM, hook.method, self._inside, None, f"_{hook.method}")
        for index, stage in enumerate(self.stages):
            for hook in stage_hooks(index, stage):
                yield Slot(index, 0, _FORM, hook.method, stage, None, hook.name)

    def part(self, slot: Slot) -> Part:
        """Return the part that the time of a method belongs to."""
        if slot.level < 0:
            step, reset = base_parts(self.base.display_name)
            own: Part | None = self.base.step_part
            return own or (reset if slot.method == "reset" else step)
        lanes: dict[str, Lane] = {"step": "forward", "inverse": "inverse", "reset": "reset"}
        return Part("stage", slot.level, type(slot.owner).__name__, lanes[slot.method])

    def base_entries(self, slot: Slot, result: TensorDictBase) -> RowEntries:
        entries: RowEntries = {}
        for key in result.keys(True, True):
            value = result.get(key)
            if isinstance(value, Tensor):
                name = normalize_key(key)
                entries[base_key(name)] = to_rows(name, value.detach(), len(self._size))
        return entries

    def base_result(self, slot: Slot, entries: RowEntries, live: object) -> TensorDictBase:
        """See :class:`~tdx.stacks.observe.Levels`; in the form of the env's specs."""
        size, env = self._size, slot.owner
        result = TensorDict({}, batch_size=size, device=env.device)
        specs = [env.full_observation_spec, env.full_done_spec]
        if slot.method == "step":
            specs.append(env.full_reward_spec)
        known = dict(entries)
        if "terminated" in known and "done" not in known:
            ended = known["terminated"]
            known["done"] = ended | known.get("truncated", torch.zeros_like(ended))
        for spec in specs:
            for key in [] if spec is None else spec.keys(True, True):
                leaf = spec[key]
                value = known.get(base_key(normalize_key(key)))
                if value is None:
                    result.set(key, leaf.zero())
                else:
                    result.set(key, _fitted(leaf, repeated(value, self.num_rows), size))
        return result


def to_rows(key: NestedKey, value: Tensor, batch_dims: int) -> Tensor:
    """Return a value ``[*B, ...]`` as ``[R, ...]``; flags and rewards without their last dim."""
    rows = value.reshape(-1, *value.shape[batch_dims:]) if batch_dims else value.unsqueeze(0)
    last = split_key(key)[-1]
    if last in (*FLAGS, "reward") and rows.ndim > 1 and rows.shape[-1] == 1:
        rows = rows.squeeze(-1)
    return rows.clone()


def repeated(value: Tensor, count: int) -> list[Tensor]:
    """Return a number of rows of a value, from its first one again if there are too few."""
    return [value[index % len(value)] for index in range(count)]


def _fitted(leaf: TensorSpec, rows: Sequence[Tensor], size: torch.Size) -> Tensor:
    """Return rows in the shape, dtype and device of a leaf spec."""
    inner = torch.Size(leaf.shape)[len(size) :]
    if -1 in inner:
        # Any size is valid, such as that of a chunk of actions.
        known = rows[0].shape if rows[0].ndim == len(inner) else [1] * len(inner)
        pairs = zip(known, inner, strict=True)
        inner = torch.Size(given if length < 0 else length for given, length in pairs)
    fitted = torch.stack([fit(row, inner) for row in rows]).reshape((*size, *inner))
    return fitted.to(leaf.dtype).to(leaf.device)


def build_action(env: EnvBase, entries: RowEntries, keys: Sequence[NestedKey]) -> TensorDictBase:
    """Return the actions of an env from entries ``[R, ...]``.

    An index becomes one-hot where the env takes it so.
    """
    size = torch.Size(env.batch_size)
    count = max(size.numel(), 1)
    actions = TensorDict({}, batch_size=size, device=env.device)
    spec = env.full_action_spec
    values = list(entries.values())
    for index, key in enumerate(keys):
        leaf = spec[key]
        name = normalize_key(key)
        value = entries.get(name, values[index] if index < len(values) else None)
        rows = [torch.zeros(())] * count if value is None else repeated(value, count)
        inner = torch.Size(leaf.shape)[len(size) :]
        if type(leaf).__name__ == "OneHot" and rows[0].numel() == 1:
            rows = [
                torch.nn.functional.one_hot(row.reshape(()).long() % inner[-1], inner[-1])
                for row in rows
            ]
        actions.set(key, _fitted(leaf, rows, size))
    return actions


def learning_switches(stages: Sequence[object]) -> list[tuple[object, str, object]]:
    """Return the changes that stop the updates of running statistics.

    A normalizer without statistics yet is left out: it cannot run frozen.
    """
    changes: list[tuple[object, str, object]] = []
    for stage in stages:
        if not callable(getattr(type(stage), "freeze", None)):
            continue
        name = "_frozen" if hasattr(stage, "_frozen") else "frozen"
        if isinstance(getattr(stage, name, None), bool):
            changes.append((stage, name, True))
    return changes
