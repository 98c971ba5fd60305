"""Base class of ``SerialEnv`` and ``ParallelEnv``."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self

import torch
from tensordict import LazyStackedTensorDict, TensorDictBase
from torch import Tensor

from tdx.core.envs import EnvBase
from tdx.core.envs.done_flags import reset_masks
from tdx.core.envs.env_specs import EnvSpecs
from tdx.envs.batched.env_creator import CreateEnv, EnvFactory, Kwargs, create_env_factories
from tdx.envs.batched.metadata import EnvKeys, EnvMetaData, SpecsOnlyEnv
from tdx.envs.batched.shared_memory import TensorLayout, has_fixed_shape
from tdx.foundation.errors import ArgumentError, EnvError
from tdx.foundation.keys import NestedKey
from tdx.foundation.tensordicts import plain_entries, read
from tdx.specs import StackedComposite
from tdx.specs.arguments import Value
from tdx.specs.violations import SpecViolation

_PARTS = {
    "output_spec": ("full_observation_spec", "full_reward_spec", "full_done_spec"),
    "input_spec": ("full_state_spec", "full_action_spec"),
}


class BatchedEnv(EnvBase):
    """Several envs as one, with batch size ``[num_workers, *B]``."""

    writes_all_outputs: ClassVar[bool] = True
    is_closed: bool

    def __init__(
        self,
        num_workers: int,
        create_env_fn: CreateEnv | Sequence[CreateEnv],
        create_env_kwargs: Kwargs | Sequence[Kwargs] | None,
        device: torch.device | str | int | None,
        non_blocking: bool,
    ) -> None:
        factories = create_env_factories(num_workers, create_env_fn, create_env_kwargs)
        super().__init__()
        self.is_closed = True
        self.num_workers = num_workers
        self._factories: list[EnvFactory] = factories
        self._non_blocking = non_blocking
        self._metadata = self._start()
        self.is_closed = False
        try:
            self._set_specs(device)
        except BaseException:
            self.close()
            raise

    @property
    def step_reads(self) -> tuple[NestedKey, ...] | None:
        reads: dict[NestedKey, None] = {}
        for metadata in self._metadata:
            if metadata.reads is None or not self._homogeneous:
                return None
            reads.update(dict.fromkeys(metadata.reads))
        return tuple(reads)

    @abstractmethod
    def _start(self) -> list[EnvMetaData]:
        """Create the envs, and return the metadata of each."""

    @abstractmethod
    def _stop(self) -> None:
        """Close the envs."""

    @abstractmethod
    def _step_rows(self, rows: list[TensorDictBase]) -> list[TensorDictBase]:
        """Step envs with different outputs, with one TensorDict each."""

    @abstractmethod
    def _reset_rows(
        self, rows: dict[int, TensorDictBase | None], kwargs: list[Kwargs]
    ) -> dict[int, TensorDictBase]:
        """Reset some of the envs with different outputs."""

    @abstractmethod
    def _get_from_workers(self, name: str) -> Any:
        """Return the attribute of each env, or a function that calls the method of each."""

    def _set_specs(self, device: torch.device | str | int | None) -> None:
        metadata = self._metadata
        sizes = [row.batch_size for row in metadata]
        odd = next((index for index, size in enumerate(sizes) if size != sizes[0]), None)
        if odd is not None:
            raise ArgumentError(
                f"the env of worker {odd} has batch size {tuple(sizes[odd])}, that of worker 0 "
                f"{tuple(sizes[0])}",
                hint="use envs of the same batch size",
            )
        devices = {row.device for row in metadata}
        self._env_device = devices.pop() if len(devices) == 1 else None
        self.env_specs = EnvSpecs(
            device if device is not None else self._env_device,
            torch.Size((self.num_workers, *sizes[0])),
        )
        for side, parts in _PARTS.items():
            for part in parts:
                specs = [getattr(row, side)[part] for row in metadata]
                first = specs[0]
                if all(spec == first for spec in specs[1:]):
                    stacked = first.expand(len(specs), *first.shape)
                else:
                    stacked = torch.stack(specs, 0)
                setattr(self, part, stacked)
        self._keys = EnvKeys.of(metadata[0])
        # The outputs of the envs can be stacked: same keys, shapes and dtypes.
        layout = TensorLayout.of(metadata[:1])
        self._homogeneous = _is_regular(metadata[0]) and all(
            EnvKeys.of(row) == self._keys and TensorLayout.of([row]) == layout and _is_regular(row)
            for row in metadata[1:]
        )
        self._members = () if self._homogeneous else tuple(metadata)
        self.steps_some_rows = self._homogeneous and not metadata[0].batch_size

    @property
    def _model(self) -> SpecsOnlyEnv:
        """Env that implements ``step_mdp`` etc. row by row, for envs with different outputs."""
        cache = self.env_specs.cache
        model: SpecsOnlyEnv | None = cache.get("model")
        if model is None:
            model = cache["model"] = SpecsOnlyEnv(EnvMetaData.of(self))
        return model

    def start(self) -> None:
        """Create the envs again after :meth:`close`. Does nothing if they are open."""
        if self.is_closed:
            self._metadata = self._start()
            self.is_closed = False

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Close the envs. :meth:`reset` and :meth:`start` create them again."""
        if not self.is_closed:
            self.is_closed = True
            self._stop()

    def _check_open(self) -> None:
        if self.is_closed:
            raise EnvError(
                f"this {type(self).__name__} is closed", hint="call reset() to start it again"
            )

    def set_seed(self, seed: int | None = None, static_seed: bool = False) -> int | None:
        """Seed each env with the seed that the previous env returned.

        Args:
            seed: Seed of the first env.
            static_seed: True to use the same seed for all envs.

        Returns:
            Seed for the next env.
        """
        self.start()
        for index in range(self.num_workers):
            seed = self._seed_worker(index, seed, static_seed)
        return seed

    @abstractmethod
    def _seed_worker(self, index: int, seed: int | None, static_seed: bool) -> int | None:
        """Seed one env, and return the seed for the next."""

    def _set_seed(self, seed: int | None) -> None:
        self.set_seed(seed)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self._check_open()
        if self._homogeneous:
            return self._step_homogeneous(tensordict)
        rows = self._step_rows(list(tensordict.unbind(0)))
        return self._stack_lazily(rows)

    @abstractmethod
    def _step_homogeneous(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Step envs whose outputs can be stacked."""

    def reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        """Start new episodes.

        Args:
            tensordict: Output, ``[num_workers, *B]``. If it has ``_reset`` masks, only the envs
                with a true flag are reset, and the others are not called.
            **kwargs: Arguments for each env's reset, except ``list_of_kwargs``: a list with a
                dict of arguments for each env.

        Returns:
            ``tensordict``, or a new one.

        Raises:
            EnvError: A mask has an invalid shape or dtype.
        """
        if self._homogeneous:
            return super().reset(tensordict, **kwargs)
        return self._reset(tensordict, **kwargs)

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        self.start()
        by_row = self._split_kwargs(kwargs)
        if self._homogeneous:
            return self._reset_homogeneous(tensordict, by_row)
        if tensordict is None:
            everyone = dict.fromkeys(range(self.num_workers))
            results = self._reset_rows(everyone, by_row)
            return self._stack_lazily([results[index] for index in everyone])
        return self._reset_heterogeneous(tensordict, by_row)

    @abstractmethod
    def _reset_homogeneous(
        self, tensordict: TensorDictBase | None, kwargs: list[Kwargs]
    ) -> TensorDictBase:
        """Reset envs whose outputs can be stacked. Rows that are not reset keep their values."""

    def _reset_heterogeneous(
        self, tensordict: TensorDictBase, kwargs: list[Kwargs]
    ) -> TensorDictBase:
        self._check_batch(tensordict)
        masks = reset_masks(tensordict, self._keys.masks)
        rows: list[TensorDictBase] = list(tensordict.unbind(0))
        wanted = {
            index: rows[index] for index, (some, _) in enumerate(self._mask_extent(masks)) if some
        }
        results = self._reset_rows({**wanted}, kwargs)
        for index, row in enumerate(rows):
            if index in results:
                rows[index] = results[index]
            else:
                rows[index] = row.exclude(*masks)
        return self._stack_lazily(rows)

    def _rows_to_step(self, mask: Tensor) -> list[int]:
        """Return the workers with a true flag in the ``_step`` mask."""
        flags = mask.reshape(self.num_workers, -1).any(1).tolist()
        return [index for index, flag in enumerate(flags) if flag]

    def _mask_extent(self, masks: dict[NestedKey, Tensor]) -> list[tuple[bool, bool]]:
        """Return for each worker whether any flag and whether all flags of the masks are true."""
        if not masks:
            return [(True, True)] * self.num_workers
        flat = torch.cat([mask.reshape(self.num_workers, -1) for mask in masks.values()], 1)
        complete = len(masks) == len(self._keys.masks)
        extent = torch.stack([flat.any(1), flat.all(1)], 1).tolist()
        return [(some, every and complete) for some, every in extent]

    def _split_kwargs(self, kwargs: dict[str, Any]) -> list[Kwargs]:
        shared = {name: value for name, value in kwargs.items() if name != "list_of_kwargs"}
        own = kwargs.get("list_of_kwargs") or [{}] * self.num_workers
        if len(own) != self.num_workers:
            raise ArgumentError(
                f"list_of_kwargs has {len(own)} entries for {self.num_workers} workers",
                hint="pass one dict of arguments for each worker",
            )
        return [{**shared, **one} for one in own]

    def _collect_inputs(self, tensordict: TensorDictBase) -> dict[NestedKey, Value]:
        entries = plain_entries(tensordict)
        inputs: dict[NestedKey, Value] = {}
        for key in self._keys.inputs:
            if entries is not None and type(key) is str:
                value = entries.get(key)
            else:
                value = read(tensordict, key)
            if value is not None:
                inputs[key] = value
        return inputs

    def _stack_lazily(self, rows: list[TensorDictBase]) -> TensorDictBase:
        moved = [row if row.device == self.device else row.to(self.device) for row in rows]
        return LazyStackedTensorDict.lazy_stack(moved, 0)

    def step_mdp(self, tensordict: TensorDictBase) -> TensorDictBase:
        if self._homogeneous:
            return super().step_mdp(tensordict)
        return self._model.step_mdp(tensordict)

    def rand_action(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        if self._homogeneous:
            return super().rand_action(tensordict)
        return self._model.rand_action(tensordict)

    def find_stage_violations(
        self, check_dtype: bool, tensordict: TensorDictBase | None, steps: int
    ) -> list[SpecViolation]:
        """Check the stages of the envs' own chains, env by env."""
        per_env = self._get_from_workers("find_stage_violations")(check_dtype, None, steps)
        return [
            replace(finding, message=f"in the env of worker {index}: {finding.message}")
            for index, findings in enumerate(per_env)
            for finding in findings
        ]

    def fake_tensordict(self) -> TensorDictBase:
        return super().fake_tensordict() if self._homogeneous else self._model.fake_tensordict()

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("_") or self.__dict__.get("is_closed", True):
                raise
        return self._get_from_workers(name)

    def __repr__(self) -> str:
        kind = type(self).__name__
        return f"{kind}(\n    env={self._metadata[0].name},\n    batch_size={self.batch_size})"

    def __enter__(self) -> Self:
        self.start()
        return self


def _is_regular(metadata: EnvMetaData) -> bool:
    """Return True if no entry has an unknown size, and members of stacks have the same keys."""
    for part in metadata.parts:
        inner = [spec for spec in (part, *part.values(True)) if isinstance(spec, StackedComposite)]
        for stack in inner:
            keys = set(stack.keys(True, True))
            if any(set(member.keys(True, True)) != keys for member in stack.specs):
                return False
        if not all(has_fixed_shape(leaf) for leaf in part.values(True, True)):
            return False
    return True
