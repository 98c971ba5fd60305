"""``ParallelEnv``: several envs in worker processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.envs.done_flags import reset_masks
from tdx.envs.batched import protocol
from tdx.envs.batched.batched_env import BatchedEnv
from tdx.envs.batched.chunk_pool import ChunkPool
from tdx.envs.batched.env_creator import CreateEnv, Kwargs
from tdx.envs.batched.env_state import EnvState
from tdx.envs.batched.metadata import EnvMetaData
from tdx.envs.batched.serial import SerialEnv
from tdx.envs.batched.shared_memory import BatchBuffers
from tdx.envs.batched.worker_pool import (
    ProcessOptions,
    WorkerPool,
    resolve_process_count,
    split_rows,
)
from tdx.foundation.errors import ArgumentError
from tdx.foundation.keys import NestedKey
from tdx.foundation.processes import resolve_start_method
from tdx.foundation.tensordicts import read
from tdx.specs.arguments import Value


class ParallelEnv(BatchedEnv):
    """Several envs in worker processes, as one env with an additional dim.

    Each process runs some of the envs; their number never changes a value. Tensors are exchanged
    through shared memory. Non-tensor values, and tensors whose shape differs between the envs, are
    sent by value. Each env is created in its process only. Use the batch as a context manager or
    call :meth:`close`; otherwise the processes end with the object or with the program. A script
    needs ``if __name__ == "__main__":`` around its work.

    Public attributes and methods that the batch does not have are forwarded to each env: reading
    an attribute returns a list with a value for each worker, calling a method a list of results.

    Args:
        num_workers: Number of envs.
        create_env_fn: Function that creates an env, or a list with one for each worker. Lambdas
            and local functions are supported.
        create_env_kwargs: Keyword arguments for ``create_env_fn``, or a list of them.
        device: Device of the batch. The envs keep their own device, and data is copied between
            them. ``None``: the device of the envs.
        non_blocking: True to allow asynchronous copies to the device.
        serial_for_single: True to return a :class:`SerialEnv` if there is a single env.
        consolidate: Has no effect.
        share_individual_td: Has no effect.
        shared_memory: Has no effect: see ``use_buffers``.
        memmap: Has no effect.
        pin_memory: Has no effect.
        num_threads: Number of torch threads of this process from now on; unchanged by default.
        num_sub_threads: Number of torch threads of each worker.
        mp_start_method: ``forkserver``, ``spawn`` or ``fork``. ``None``: ``forkserver``, which is
            safe with threads and CUDA, and imports torch once for all workers.
        use_buffers: False to send tensors by value instead of through shared memory.
        daemon: True for daemon processes, whose envs cannot start processes.
        shutdown_timeout: Seconds for the workers to close their envs.
        worker_timeout: Seconds without a reply from any worker until the pending ones count as
            hung. ``None``: no limit.
        processes: Number of processes, at most one per env. ``None``: as many as cores. Envs that
            wait, for a network or a device, gain from more.

    Raises:
        ArgumentError: The functions or arguments do not match the number of workers, the number of
            processes is invalid, or the envs have different batch sizes.
        WorkerError: A worker raised an error or exited, now or in a later call. All workers are
            ended. The cause is the worker's exception, with its traceback as a note.
        WorkerTimeoutError: A worker hung. All workers are ended.

    Example:
        >>> from tdx import ParallelEnv, PendulumEnv
        >>> with ParallelEnv(2, PendulumEnv) as env:
        ...     env.rollout(5)["next", "reward"].shape
        torch.Size([2, 5, 1])
    """

    _is_verified = True

    def __new__(cls, *args: Any, serial_for_single: bool = False, **kwargs: Any) -> Any:
        num_workers = args[0] if args else kwargs.get("num_workers")
        if serial_for_single and num_workers == 1:
            return SerialEnv(*args, **kwargs)
        return super().__new__(cls)

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
        if worker_timeout is not None and not worker_timeout > 0:
            raise ArgumentError(
                f"worker_timeout must be above 0, got {worker_timeout}",
                hint="pass None for no limit",
            )
        self._options = ProcessOptions(
            start_method=resolve_start_method(mp_start_method),
            threads=num_sub_threads,
            daemon=daemon,
            timeout=worker_timeout,
            shutdown_timeout=shutdown_timeout,
        )
        self._processes = processes
        if num_threads is not None:
            torch.set_num_threads(num_threads)
        super().__init__(num_workers, create_env_fn, create_env_kwargs, device, non_blocking)
        self._use_memory = use_buffers is not False
        self._attach()

    _pool: WorkerPool
    _memory: BatchBuffers | None = None
    _chunks: ChunkPool | None = None

    def _start(self) -> list[EnvMetaData]:
        count = resolve_process_count(self._processes, self.num_workers)
        groups = split_rows(self.num_workers, count)
        self._place_of = [
            (index, row - rows[0]) for index, rows in enumerate(groups) for row in rows
        ]
        self._pool = WorkerPool(self._factories, groups, self._options)
        return self._pool.metadata

    def start(self) -> None:
        if self.is_closed:
            super().start()
            self._attach()

    def _attach(self) -> None:
        if not self._homogeneous:
            return
        try:
            memory = BatchBuffers(
                self._metadata,
                self._keys,
                use_memory=self._use_memory,
                non_blocking=self._non_blocking,
            )
            groups = enumerate(self._pool.groups)
            blocks = {index: (memory.block, rows[0]) for index, rows in groups}
            self._pool.attach(protocol.ATTACH, blocks)
            self._memory = memory
        except BaseException:
            self.close()
            raise

    def _stop(self) -> None:
        self._memory = self._chunks = None
        self._pool.close()

    @property
    def worker_pids(self) -> list[int]:
        """Ids of the processes; empty after :meth:`close`."""
        return self._pool.pids

    def _request(
        self, kind: bytes, arguments: Mapping[int, object] | None, *, refusable: bool = False
    ) -> dict[int, Any]:
        """Send a command of :mod:`tdx.envs.batched.protocol` to envs; return each reply by row.

        ``arguments`` has one for each env that it concerns; ``None``: all envs, without an
        argument. If it is ``refusable``, the reply of an env that refuses is the failure.
        """
        self._check_open()
        if arguments is None:
            messages = dict.fromkeys(range(len(self._pool.groups)), kind)
        else:
            by_process: dict[int, dict[int, object]] = {}
            for row, argument in arguments.items():
                process, place = self._place_of[row]
                by_process.setdefault(process, {})[place] = argument
            messages = {
                process: protocol.pack(kind, content) for process, content in by_process.items()
            }
        try:
            replies = self._pool.request(messages)
        except BaseException:
            # The pool has already ended its workers.
            self.close()
            raise
        values: dict[int, Any] = {}
        for process, rows in enumerate(self._pool.groups):
            reply = replies.get(process)
            if reply is None:
                continue
            content = protocol.unpack(reply)
            if refusable and reply[:1] == protocol.REFUSED:
                values[rows[content.place]] = content
            elif content is None:
                values.update((row, None) for row in rows if arguments is None or row in arguments)
            else:
                values.update((rows[place], value) for place, value in content.items())
        return values

    def _request_all(self, kind: bytes, argument: object = None) -> list[Any]:
        rows = range(self.num_workers)
        replies = self._request(kind, None if argument is None else dict.fromkeys(rows, argument))
        return [replies[row] for row in rows]

    def _seed_worker(self, index: int, seed: int | None, static_seed: bool) -> int | None:
        following: int | None = self._request(protocol.SET_SEED, {index: (seed, static_seed)})[
            index
        ]
        return following

    def _step_homogeneous(self, tensordict: TensorDictBase) -> TensorDictBase:
        memory = self._memory
        assert memory is not None
        inputs, mask = self._collect_inputs(tensordict), read(tensordict, "_step")
        if mask is not None:
            return self._step_some(memory, {**inputs, "_step": mask}, mask)
        present, others = memory.put(inputs)
        arguments = None
        if not memory.is_expected(present, others):
            arguments = {index: (present, row) for index, row in enumerate(others)}
        return memory.take("step", self._request(protocol.STEP, arguments), self.main_device)

    def _step_some(
        self, memory: BatchBuffers, inputs: dict[NestedKey, Value], mask: Tensor
    ) -> TensorDictBase:
        """Step the rows that the mask selects, after a step of all rows."""
        present, others = memory.put(inputs)
        arguments = {index: (present, others[index]) for index in self._rows_to_step(mask)}
        reports = self._request(protocol.STEP, arguments)
        return memory.take(
            "step", reports, self.main_device, memory.inputs_by_worker(present, others)
        )

    def _reset_homogeneous(
        self, tensordict: TensorDictBase | None, kwargs: list[Kwargs]
    ) -> TensorDictBase:
        memory = self._memory
        assert memory is not None
        masks = reset_masks(tensordict, self._keys.masks)
        inputs = {} if tensordict is None else self._collect_inputs(tensordict) | masks
        present, others = memory.put(inputs)
        arguments = {}
        for index, (some, every) in enumerate(self._mask_extent(masks)):
            if some:
                # The reset of a whole env needs no mask.
                left_out = masks if every else {}
                arguments[index] = (
                    [key for key in present if key not in left_out],
                    {key: value for key, value in others[index].items() if key not in left_out},
                    kwargs[index],
                )
        reports = self._request(protocol.RESET, arguments) if arguments else {}
        by_worker = memory.inputs_by_worker(present, others)
        return memory.take("reset", reports, self.main_device, by_worker)

    def _step_rows(self, rows: list[TensorDictBase]) -> list[TensorDictBase]:
        arguments = {index: _copy_for_sending(row) for index, row in enumerate(rows)}
        replies = self._request(protocol.STEP_ROW, arguments)
        return [replies[index] for index in range(self.num_workers)]

    def _reset_rows(
        self, rows: dict[int, TensorDictBase | None], kwargs: list[Kwargs]
    ) -> dict[int, TensorDictBase]:
        arguments = {
            index: (None if row is None else _copy_for_sending(row), kwargs[index])
            for index, row in rows.items()
        }
        return self._request(protocol.RESET_ROW, arguments)

    @property
    def chunk_workers(self) -> ChunkPool:
        if self._chunks is None:
            self._chunks = ChunkPool(self._pool, self.close, self._why_stepwise())
        return self._chunks

    @property
    def row_states(self) -> Self:
        return self

    def save_row_states(self) -> list[EnvState | None]:
        """Return the state of each env, for ``env_state``; ``None`` where it is not known."""
        return self._request_all(protocol.SAVE_STATE)

    def restore_row_states(self, states: Sequence[EnvState]) -> None:
        """Reset each env, and put it into a state that :meth:`save_row_states` returned."""
        self._request(protocol.RESTORE_STATE, dict(enumerate(states)))

    def _why_stepwise(self) -> str:
        """Return why the processes cannot run chunks; empty if they can."""
        if type(self) is not ParallelEnv:
            return f"{type(self).__name__} may override how it steps"
        if not self._homogeneous or not self._use_memory:
            return (
                "the envs share no memory" if self._homogeneous else "the envs of the batch differ"
            )
        if not self._env_device == self.device == torch.device("cpu"):
            return "the envs are not on the CPU"
        if any(row.draws is not False for row in self._metadata):
            return "the env may draw from the global random numbers of its process"
        return ""

    def shares_torch_rng(self) -> bool | None:
        # The envs draw in their own processes.
        return False

    def _get_from_workers(self, name: str) -> Any:
        rows = range(self.num_workers)
        replies = self._request(protocol.ATTRIBUTE, dict.fromkeys(rows, name), refusable=True)
        for row, reply in sorted(replies.items()):
            if isinstance(reply, protocol.Failure):
                raise AttributeError(reply.to_worker_error(row, "").message)  # noqa: TRY004
        if any(is_callable for is_callable, _ in replies.values()):

            def call(*args: object, **kwargs: object) -> list[object]:
                arguments = dict.fromkeys(rows, (name, args, kwargs))
                replies = self._request(protocol.CALL, arguments, refusable=True)
                for row, reply in sorted(replies.items()):
                    if isinstance(reply, protocol.Failure):
                        raise reply.to_worker_error(row, name)
                return [replies[row][0] for row in rows]

            return call
        return [replies[row][1] for row in rows]

    def train(self, mode: bool = True) -> Self:
        if not self.__dict__.get("is_closed", True):
            self._request_all(protocol.TRAIN, mode)
        return super().train(mode)

    def _save_to_state_dict(
        self, destination: dict[str, object], prefix: str, keep_vars: bool
    ) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self.is_closed:
            return
        for index, state in enumerate(self._request_all(protocol.STATE_DICT)):
            destination.update({f"{prefix}worker{index}.{key}": state[key] for key in state})

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Tensor],
        prefix: str,
        local_metadata: Mapping[str, object],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        self.start()
        states = {}
        for index in range(self.num_workers):
            mine = f"{prefix}worker{index}."
            states[index] = {
                key[len(mine) :]: state_dict[key] for key in state_dict if key.startswith(mine)
            }
        for index, keys in self._request(protocol.LOAD_STATE_DICT, states).items():
            missing, unexpected = keys
            missing_keys.extend(f"{prefix}worker{index}.{key}" for key in missing)
            unexpected_keys.extend(f"{prefix}worker{index}.{key}" for key in unexpected)


def _copy_for_sending(row: TensorDictBase) -> TensorDictBase:
    # A view would be sent with the whole memory that it is a view of.
    return row.detach().cpu().clone()
