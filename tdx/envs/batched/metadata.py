"""Metadata of the envs of a batch, and TensorDicts of their rows that are built from it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from tensordict import LazyStackedTensorDict, TensorDict, TensorDictBase, is_non_tensor
from torch import Tensor, nn

from tdx.core.envs import EnvBase
from tdx.core.planned.actions import shares_torch_rng
from tdx.foundation.errors import EnvError, Where
from tdx.foundation.keys import NestedKey, normalize_key, split_key, unique_keys
from tdx.foundation.tensordicts import make_tensordict_factory, new_tensordict, plain_entries, read
from tdx.specs import Composite
from tdx.specs.arguments import Value


@dataclass(frozen=True)
class EnvMetaData:
    """Specs and properties of an env as plain data that can be sent to another process.

    Args:
        input_spec: Specs of actions and state.
        output_spec: Specs of observations, rewards and done flags.
        batch_size: Batch size of the env, ``[*B]``.
        device: Device of the env. ``None``: its entries are on several.
        name: The env's ``repr``.
        members: Metadata of each env in a batch of envs with different outputs; else empty.
        reads: Keys that a step reads, except actions and masks. ``None``: unknown.
        draws: True if it draws from torch's global generator. ``None``: unknown.
    """

    input_spec: Composite
    output_spec: Composite
    batch_size: torch.Size
    device: torch.device | None
    name: str
    members: tuple[EnvMetaData, ...] = ()
    reads: tuple[NestedKey, ...] | None = None
    draws: bool | None = None

    @property
    def parts(self) -> list[Composite]:
        """Composites of observations, rewards, done flags, state and actions."""
        parts = [*self.output_spec.values(), *self.input_spec.values()]
        return [part for part in parts if isinstance(part, Composite)]

    @classmethod
    def of(cls, env: EnvBase) -> EnvMetaData:
        """Collect the metadata of an env."""
        members = env.__dict__.get("_members", ())
        return cls(
            env.input_spec,
            env.output_spec,
            env.batch_size,
            env.device,
            repr(env),
            members,
            env.step_reads,
            shares_torch_rng(env),
        )


class SpecsOnlyEnv(EnvBase):
    """Implements the methods of an env that need only its specs, for an env in another process."""

    def __init__(self, metadata: EnvMetaData) -> None:
        super().__init__(device=metadata.device, batch_size=metadata.batch_size)
        self.env_specs.set_specs(metadata.input_spec, metadata.output_spec)
        self._rows = [SpecsOnlyEnv(row) for row in metadata.members]

    def step_mdp(self, tensordict: TensorDictBase) -> TensorDictBase:
        if not self._rows:
            return super().step_mdp(tensordict)
        pairs = zip(self._rows, tensordict.unbind(0), strict=True)
        return self._stack([row.step_mdp(part) for row, part in pairs])

    def rand_action(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        if not self._rows:
            return super().rand_action(tensordict)
        parts = [None] * len(self._rows) if tensordict is None else tensordict.unbind(0)
        pairs = zip(self._rows, parts, strict=True)
        return self._stack([row.rand_action(part) for row, part in pairs])

    def fake_tensordict(self) -> TensorDictBase:
        if not self._rows:
            return super().fake_tensordict()
        return self._stack([row.fake_tensordict() for row in self._rows])

    def _stack(self, rows: list[TensorDictBase]) -> TensorDictBase:
        return LazyStackedTensorDict.lazy_stack([row.to(self.device) for row in rows], 0)


@dataclass(frozen=True)
class EnvKeys:
    """Keys of an env's leaves by use."""

    inputs: list[NestedKey]  # what step and reset may read: actions, state, observations, flags
    masks: list[NestedKey]  # of a partial reset
    step_outputs: list[NestedKey]
    reset_outputs: list[NestedKey]

    @classmethod
    def of(cls, metadata: EnvMetaData) -> EnvKeys:
        """Collect the keys of an env from its specs."""
        env = SpecsOnlyEnv(metadata)
        written = [*env.observation_keys, *env.done_keys]
        return cls(
            inputs=unique_keys([*env.action_keys, *env.state_keys, *written]),
            masks=env.reset_keys,
            step_outputs=unique_keys([*written, *env.reward_keys]),
            reset_outputs=unique_keys(written),
        )


def is_method(value: object) -> bool:
    """Return True if an attribute of an env is a method. Modules are values, although callable."""
    return callable(value) and not isinstance(value, (nn.Module, type))


def flat_items(
    tensordict: TensorDictBase, prefix: tuple[str, ...] = ()
) -> Iterator[tuple[NestedKey, Value]]:
    """Iterate over all leaves with their full keys, including non-tensor leaves."""
    for name, value in tensordict.items():
        if isinstance(value, Tensor) or is_non_tensor(value):
            yield (*prefix, name) if prefix else name, value
        else:
            yield from flat_items(value, (*prefix, name))


class TensorDictBuilder:
    """Builds TensorDicts ``[*B]``; nested ones have the batch sizes that specs declare."""

    def __init__(
        self, specs: Iterable[Composite], batch_size: torch.Size, device: torch.device
    ) -> None:
        self._batch_size = batch_size
        self._device = device
        self._factory = make_tensordict_factory(batch_size, device)
        nested = {
            split_key(key): spec
            for composite in specs
            for key, spec in composite.items(True)
            if isinstance(spec, Composite)
        }
        self._shapes = {path: spec.shape for path, spec in nested.items()}
        self._classes = {path: spec.data_cls for path, spec in nested.items() if spec.data_cls}

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != "_factory"}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._factory = make_tensordict_factory(self._batch_size, self._device)

    def for_batch(self, num_workers: int) -> TensorDictBuilder:
        """Return the builder for stacked TensorDicts of all workers."""
        nest = TensorDictBuilder((), torch.Size((num_workers, *self._batch_size)), self._device)
        nest._shapes = {
            path: torch.Size((num_workers, *shape)) for path, shape in self._shapes.items()
        }
        nest._classes = self._classes
        return nest

    def keep_row(
        self, sources: Iterable[TensorDictBase | None], like: TensorDictBase
    ) -> TensorDict:
        """Build the row of an env that is not reset, from the first source that has each entry.

        The sources are the input of that row, and its last output; then ``like``, whose keys are
        used.
        """
        known = [source for source in (*sources, like) if source is not None]
        fields = {}
        for key, value in flat_items(like):
            values = (read(source, key) for source in known)
            fields[key] = next((one for one in values if one is not None), value)
        return self.build(fields)

    def build_rows(
        self, keys: list[NestedKey], columns: Sequence[Sequence[Value]]
    ) -> list[TensorDict]:
        """Build a TensorDict for each worker from the entries of all workers by key."""
        rows = [dict(zip(keys, parts, strict=True)) for parts in zip(*columns, strict=True)]
        build: Any = self._factory if all(type(key) is str for key in keys) else self.build
        return [build(row) for row in rows]

    def build(self, fields: dict[NestedKey, Value]) -> TensorDict:
        """Build a TensorDict of tensors with its size and device; it owns the dict then."""
        if all(type(key) is str for key in fields):
            return self._factory(cast("dict[str, Value]", fields))
        root: dict[str, Value] = {}
        nodes: dict[tuple[str, ...], dict[str, Value]] = {(): root}
        for key, value in fields.items():
            if type(key) is str:
                root[key] = value
            else:
                parts = split_key(key)
                _find_node(nodes, parts[:-1])[parts[-1]] = value
        # Longest paths first, so that a node is complete before it is added to its parent.
        for path in sorted(nodes, key=len, reverse=True)[:-1]:
            shape = self._shapes.get(path, self._batch_size)
            node = new_tensordict(nodes[path], shape, self._device)
            kind = self._classes.get(path)
            nodes[path[:-1]][path[-1]] = node if kind is None else kind.from_tensordict(node)
        return self._factory(root)


def _find_node(
    nodes: dict[tuple[str, ...], dict[str, Value]], path: tuple[str, ...]
) -> dict[str, Value]:
    if path not in nodes:
        _find_node(nodes, path[:-1])
        nodes[path] = {}
    return nodes[path]


def stack_rows(
    rows: Sequence[TensorDictBase],
    like: TensorDictBase,
    device: torch.device,
    path: tuple[str, ...] = (),
) -> TensorDictBase:
    """Stack ``n`` rows ``[*B]`` with the keys of ``like`` to ``[n, *B]``."""
    if type(like) is not TensorDict:
        return LazyStackedTensorDict.lazy_stack(list(rows), 0)
    fields: dict[str, Value] = {}
    entries = [plain_entries(row) for row in rows]
    for name, value in like.items():
        parts: list[Value] = [
            read(row, name) if known is None else known.get(name)
            for row, known in zip(rows, entries, strict=True)
        ]
        try:
            if isinstance(value, Tensor):
                fields[name] = torch.stack(parts)
            elif is_non_tensor(value):
                fields[name] = LazyStackedTensorDict.lazy_stack(parts, 0)
            else:
                fields[name] = stack_rows(parts, value, device, (*path, name))
        except EnvError:
            raise
        except (RuntimeError, TypeError, AttributeError) as error:
            raise _mismatch_error((*path, name), parts) from error
    return new_tensordict(fields, torch.Size((len(rows), *like.batch_size)), device)


def _mismatch_error(key: NestedKey, parts: Sequence[object]) -> EnvError:
    kinds = [_describe(part) for part in parts]
    odd = next((index for index, kind in enumerate(kinds) if kind != kinds[0]), 0)
    return EnvError(
        f"worker 0 wrote {kinds[0]}, worker {odd} wrote {kinds[odd]}",
        hint="all envs of a batch must return the same keys, shapes and dtypes in every step",
        where=Where(key=normalize_key(key)),
    )


def _describe(value: object) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, Tensor):
        return f"{value.dtype} of shape {tuple(value.shape)}"
    return f"a {type(value).__name__}"
