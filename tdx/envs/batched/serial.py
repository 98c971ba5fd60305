"""``SerialEnv``: several envs in this process, stepped one after another."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Self

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from tdx.core.chain import flatten_chain
from tdx.core.envs import EnvBase
from tdx.core.envs.capabilities import GymStepper
from tdx.core.envs.done_flags import reset_masks
from tdx.core.envs.failures import note_row
from tdx.core.planned.actions import shares_torch_rng
from tdx.core.planned.collectors import RawRows
from tdx.envs.batched.batched_env import BatchedEnv
from tdx.envs.batched.env_creator import CreateEnv, Kwargs
from tdx.envs.batched.metadata import EnvMetaData, TensorDictBuilder, is_method, stack_rows
from tdx.foundation.keys import NestedKey
from tdx.foundation.tensordicts import read
from tdx.specs.arguments import Value


class SerialEnv(BatchedEnv):
    """Several envs, stepped one after another in this process, as one env with an additional dim.

    Public attributes and methods that the batch does not have are forwarded to each env: reading
    an attribute returns a list with a value for each worker, calling a method a list of results.

    Args:
        num_workers: Number of envs.
        create_env_fn: Function that creates an env, or a list with one for each worker. An
            existing env can be used for one worker.
        create_env_kwargs: Keyword arguments for ``create_env_fn``, or a list of them.
        device: Device of the batch. The envs keep their own device, and data is copied between
            them. ``None``: the device of the envs.
        non_blocking: True to allow asynchronous copies between devices.
        serial_for_single: Has no effect. This argument and the following are accepted so that the
            class can replace :class:`ParallelEnv`.
        consolidate: Has no effect.
        share_individual_td: Has no effect.
        shared_memory: Has no effect.
        memmap: Has no effect.
        pin_memory: Has no effect.
        num_threads: Has no effect.
        num_sub_threads: Has no effect.
        mp_start_method: Has no effect.
        use_buffers: Has no effect.
        daemon: Has no effect.
        shutdown_timeout: Has no effect.
        worker_timeout: Has no effect.
        processes: Has no effect.

    Raises:
        ArgumentError: The functions or arguments do not match the number of workers, or the envs
            have different batch sizes.

    Example:
        >>> from tdx import PendulumEnv, SerialEnv
        >>> env = SerialEnv(3, PendulumEnv)
        >>> env.rollout(5)["next", "reward"].shape
        torch.Size([3, 5, 1])
    """

    _is_verified = True

    def __init__(
        self,
        num_workers: int,
        create_env_fn: CreateEnv | Sequence[CreateEnv],
        *,
        create_env_kwargs: Kwargs | Sequence[Kwargs] | None = None,
        device: torch.device | str | int | None = None,
        non_blocking: bool = False,
        serial_for_single: bool = False,
        consolidate: bool = True,
        share_individual_td: bool | None = None,
        shared_memory: bool = True,
        memmap: bool = False,
        pin_memory: bool = False,
        num_threads: int | None = None,
        num_sub_threads: int = 1,
        mp_start_method: str | None = None,
        use_buffers: bool | None = None,
        daemon: bool = False,
        shutdown_timeout: float = 10.0,
        worker_timeout: float | None = 120.0,
        processes: int | None = None,
    ) -> None:
        super().__init__(num_workers, create_env_fn, create_env_kwargs, device, non_blocking)

    def _start(self) -> list[EnvMetaData]:
        self._envs: list[EnvBase] = []
        try:
            for factory in self._factories:
                self._envs.append(factory())
        except BaseException:
            self._stop()
            raise
        for index, env in enumerate(self._envs):
            self.add_module(f"worker{index}", env)
        metadata = [EnvMetaData.of(env) for env in self._envs]
        first, device = metadata[0], self._envs[0].main_device
        self._builder = TensorDictBuilder(first.parts, first.batch_size, device)
        # Last output of each env, for the rows that a partial reset does not reset.
        self._last_rows: list[TensorDictBase | None] = [None] * len(self._envs)
        return metadata

    def _stop(self) -> None:
        for env in self._envs:
            env.close()

    @property
    def raw_rows(self) -> RawRows | None:
        on_host = self._env_device == self.env_specs.device == torch.device("cpu")
        if not on_host or not self._homogeneous or self.env_specs.batch_size != (self.num_workers,):
            return None
        rows_of_envs = [rows for env in self._envs if (rows := env.raw_rows) is not None]
        if type(self) is not SerialEnv or len(rows_of_envs) < len(self._envs):
            return None
        return rows_of_envs[0].stack(rows_of_envs, self.batch_size, self._set_last_rows)

    @property
    def gym_steppers(self) -> list[GymStepper]:
        return [one for env in self._envs for one in flatten_chain(env)[0].gym_steppers]

    def shares_torch_rng(self) -> bool | None:
        answers = {shares_torch_rng(env) for env in self._envs}
        if True in answers:
            return True
        return None if None in answers else False

    def _set_last_rows(self, last: Mapping[NestedKey, Tensor]) -> None:
        self._last_rows[:] = self._builder.build_rows(
            list(last), [value.unbind(0) for value in last.values()]
        )

    def _seed_worker(self, index: int, seed: int | None, static_seed: bool) -> int | None:
        return self._envs[index].set_seed(seed, static_seed=static_seed)

    def _step_homogeneous(self, tensordict: TensorDictBase) -> TensorDictBase:
        inputs = self._collect_inputs(tensordict)
        mask = read(tensordict, "_step")
        if mask is not None:
            return self._step_some(inputs, mask)
        rows: list[TensorDictBase] = [
            self._run(index, self._envs[index].completed_step, row)
            for index, row in enumerate(self._split(inputs))
        ]
        self._last_rows[:] = rows
        return self._stack(rows, rows[0])

    def _step_some(self, inputs: dict[NestedKey, Value], mask: Tensor) -> TensorDictBase:
        """Step the rows that the mask selects. The others keep their last outputs."""
        row_inputs = self._split({**inputs, "_step": mask})
        stepped = {
            index: self._run(index, self._envs[index].completed_step, row_inputs[index])
            for index in self._rows_to_step(mask)
        }
        like = next(iter(stepped.values()))
        rows: list[TensorDictBase] = []
        for index, last in enumerate(self._last_rows):
            # A row that was reset but not stepped has no reward yet.
            if index not in stepped:
                rows.append(self._builder.keep_row([last, row_inputs[index]], like))
            else:
                rows.append(stepped[index])
                self._last_rows[index] = stepped[index]
        return self._stack(rows, like)

    def _reset_homogeneous(
        self, tensordict: TensorDictBase | None, kwargs: list[Kwargs]
    ) -> TensorDictBase:
        masks = reset_masks(tensordict, self._keys.masks)
        inputs: Sequence[TensorDictBase | None] = [None] * self.num_workers
        if tensordict is not None:
            inputs = self._split(self._collect_inputs(tensordict) | masks)
        reset: dict[int, TensorDictBase] = {}
        for index, (some, every) in enumerate(self._mask_extent(masks)):
            row = inputs[index]
            if some:
                if row is not None and every:
                    row = row.exclude(*masks)
                completed_reset = partial(self._envs[index].completed_reset, **kwargs[index])
                reset[index] = self._run(index, completed_reset, row)
                self._last_rows[index] = reset[index]
        like = next(iter(reset.values()), None)
        if like is None:
            like = self._zeros(0)
        rows = [
            reset[index]
            if index in reset
            else self._builder.keep_row(
                [self._last_rows[index], inputs[index], self._zeros(index)], like
            )
            for index in range(self.num_workers)
        ]
        return self._stack(rows, like)

    def _zeros(self, index: int) -> TensorDictBase:
        env = self._envs[index]
        return env.full_observation_spec.zero().update(env.full_done_spec.zero())

    def _split(self, inputs: dict[NestedKey, Value]) -> list[TensorDict]:
        """Split entries of shape ``[num_workers, *B, ...]`` into an input ``[*B]`` for each env."""
        if not inputs:
            return [self._builder.build({}) for _ in self._envs]
        target = self._envs[0].main_device
        values = list(inputs.values())
        if target != self.env_specs.device:
            values = [value.to(target) for value in values]
        rows = self._builder.build_rows(list(inputs), [value.unbind(0) for value in values])
        if self._env_device is None:
            return [row.to(env.main_device) for row, env in zip(rows, self._envs, strict=True)]
        return rows

    def _stack(self, rows: list[TensorDictBase], like: TensorDictBase) -> TensorDictBase:
        if self._env_device is None:
            rows = [row.to(self.env_specs.main_device) for row in rows]
            return stack_rows(rows, like, self.env_specs.main_device)
        stacked = stack_rows(rows, like, self._env_device)
        if self._env_device != self.env_specs.device:
            stacked = stacked.to(self.env_specs.device, non_blocking=self._non_blocking)
        return stacked

    def _step_rows(self, rows: list[TensorDictBase]) -> list[TensorDictBase]:
        return [
            self._run(index, env.completed_step, row.to(env.main_device))
            for index, (env, row) in enumerate(zip(self._envs, rows, strict=True))
        ]

    def _reset_rows(
        self, rows: dict[int, TensorDictBase | None], kwargs: list[Kwargs]
    ) -> dict[int, TensorDictBase]:
        results = {}
        for index, row in rows.items():
            env = self._envs[index]
            moved = None if row is None else row.to(env.main_device)
            results[index] = self._run(index, partial(env.reset, **kwargs[index]), moved)
        return results

    @staticmethod
    def _run(
        index: int,
        function: Callable[[TensorDictBase | None], TensorDictBase],
        tensordict: TensorDictBase | None,
    ) -> TensorDictBase:
        """Step or reset an env; an error names its index."""
        try:
            return function(tensordict)
        except Exception as error:
            note_row(error, index)
            raise

    def _get_from_workers(self, name: str) -> Any:
        values = [getattr(env, name) for env in self._envs]
        if not all(map(is_method, values)):
            return values
        return lambda *args, **kwargs: [function(*args, **kwargs) for function in values]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Leave the envs on their device and dtype: only the outputs of the batch are converted."""
        moved: Self = super()._apply(fn, recurse=False)  # type: ignore[no-untyped-call]
        return moved
