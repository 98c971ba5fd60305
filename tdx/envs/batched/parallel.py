"""``ParallelEnv``: several envs, each in a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.envs.done_flags import reset_masks
from tdx.envs.batched import protocol
from tdx.envs.batched.batch_buffers import BatchBuffers
from tdx.envs.batched.batched_env import BatchedEnv
from tdx.envs.batched.factories import CreateEnv
from tdx.envs.batched.metadata import EnvMetaData
from tdx.envs.batched.processes import ProcessOptions, WorkerPool, start_method_or_default
from tdx.envs.batched.rows import Others
from tdx.envs.batched.serial import SerialEnv
from tdx.errors import ArgumentError
from tdx.keys import NestedKey
from tdx.tensordicts import read


class ParallelEnv(BatchedEnv):
    """Several envs, each in a process of its own, as one env with a dim more.

    Tensors go through shared memory; what is not a tensor, or differs between the envs in its
    shape, is sent by value. The envs are made in their processes only, when the batch is made.
    Use it as a context manager or call :meth:`close`; otherwise the processes end with the
    object or with the program. A script needs ``if __name__ == "__main__":`` around its work.

    A public attribute or method that the batch lacks is that of each env: reading it gives a
    list with a value for each worker, calling it a list of results.

    Args:
        num_workers: how many envs and processes.
        create_env_fn: makes an env; or a list with one such function for each worker. Lambdas
            and local functions can be sent too.
        create_env_kwargs: passed to ``create_env_fn``; or a list of them.
        device: where the batch's tensors live; the envs stay on their own device, and what they
            take and return is moved. By default that of the envs.
        non_blocking: whether copies to the device may be asynchronous.
        serial_for_single: whether a single env is run without a process: the result is then a
            :class:`SerialEnv`.
        num_threads: torch threads of this process from now on; unchanged by default.
        num_sub_threads: torch threads of each worker.
        mp_start_method: ``forkserver``, ``spawn`` or ``fork``; ``forkserver`` by default, which
            is safe beside threads and CUDA, and loads torch once for all workers.
        use_buffers: whether tensors go through shared memory; they do by default.
        daemon: whether the processes are daemons, whose envs may not have processes of their
            own.
        shutdown_timeout: seconds that the workers get to close their envs.
        worker_timeout: seconds without an answer from any worker after which those that are
            waited for count as hung; ``None`` to wait for ever.

    Raises:
        ArgumentError: the functions or their arguments do not fit the number of workers, or the
            envs do not fit each other.
        WorkerError: a worker raised or died, now or in any later call; all workers are ended
            then. Its cause is the worker's own exception, with the traceback as a note.
        WorkerTimeoutError: a worker hung; all are ended.

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
        create_env_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        device: torch.device | str | int | None = None,
        non_blocking: bool = False,
        serial_for_single: bool = False,
        num_threads: int | None = None,
        num_sub_threads: int = 1,
        mp_start_method: str | None = None,
        use_buffers: bool | None = None,
        daemon: bool = False,
        shutdown_timeout: float = 10.0,
        worker_timeout: float | None = 120.0,
    ) -> None:
        if worker_timeout is not None and not worker_timeout > 0:
            raise ArgumentError(
                f"worker_timeout must be above 0, got {worker_timeout}",
                hint="None waits for ever",
            )
        self._options = ProcessOptions(
            start_method=start_method_or_default(mp_start_method),
            threads=num_sub_threads,
            daemon=daemon,
            timeout=worker_timeout,
            shutdown_timeout=shutdown_timeout,
        )
        if num_threads is not None:
            torch.set_num_threads(num_threads)
        super().__init__(num_workers, create_env_fn, create_env_kwargs, device, non_blocking)
        self._use_memory = use_buffers is not False
        self._attach()

    _pool: WorkerPool
    _memory: BatchBuffers | None = None

    def _start(self) -> list[EnvMetaData]:
        self._pool = WorkerPool(self._factories, self._options)
        return self._pool.metadata

    def start(self) -> None:
        if self.is_closed:
            super().start()
            self._attach()

    def _attach(self) -> None:
        if not self._alike:
            return
        try:
            memory = BatchBuffers(
                self._metadata,
                self._keys,
                use_memory=self._use_memory,
                non_blocking=self._non_blocking,
            )
            self._pool.attach(memory.block)
            self._memory = memory
        except BaseException:
            self.close()
            raise

    def _stop(self) -> None:
        self._memory = None
        self._pool.close()

    @property
    def worker_pids(self) -> list[int]:
        """The process ids of the workers; empty after :meth:`close`."""
        return self._pool.pids

    def _ask(self, messages: Mapping[int, bytes]) -> dict[int, bytes]:
        self._check_open()
        try:
            return self._pool.ask(messages)
        except BaseException:
            # The pool has ended its workers.
            self.close()
            raise

    def _ask_all(self, kind: bytes, content: Any) -> list[Any]:
        message = protocol.pack(kind, content)
        replies = self._ask(dict.fromkeys(range(self.num_workers), message))
        return [protocol.unpack(replies[index]) for index in range(self.num_workers)]

    def _seed_worker(self, index: int, seed: int | None, static_seed: bool) -> int | None:
        message = protocol.pack(protocol.SET_SEED, (seed, static_seed))
        following: int | None = protocol.unpack(self._ask({index: message})[index])
        return following

    def _step_alike(self, tensordict: TensorDictBase) -> TensorDictBase:
        memory = self._memory
        assert memory is not None
        inputs, mask = self._inputs_of(tensordict), read(tensordict, "_step")
        if mask is not None:
            return self._step_some(memory, {**inputs, "_step": mask}, mask)
        present, others = memory.put(inputs)
        if memory.is_expected(present, others):
            messages = dict.fromkeys(range(self.num_workers), protocol.STEP)
        else:
            messages = {
                index: protocol.pack(protocol.STEP, (present, row))
                for index, row in enumerate(others)
            }
        replies = self._ask(messages)
        news = {index: protocol.unpack(reply) for index, reply in replies.items()}
        return memory.take("step", news, self._device)

    def _step_some(
        self, memory: BatchBuffers, inputs: dict[NestedKey, Any], mask: Tensor
    ) -> TensorDictBase:
        """The step of the rows that the mask asks for, right after one of all rows."""
        present, others = memory.put(inputs)
        messages = {
            index: protocol.pack(protocol.STEP, (present, others[index]))
            for index in self._rows_to_step(mask)
        }
        news = {index: protocol.unpack(reply) for index, reply in self._ask(messages).items()}
        return memory.take("step", news, self._device, memory.given(present, others))

    def _reset_alike(
        self, tensordict: TensorDictBase | None, kwargs: list[dict[str, Any]]
    ) -> TensorDictBase:
        memory = self._memory
        assert memory is not None
        masks = reset_masks(tensordict, self._keys.masks)
        inputs = {} if tensordict is None else self._inputs_of(tensordict) | masks
        present, others = memory.put(inputs)
        messages = {}
        for index, (some, every) in enumerate(self._mask_extent(masks)):
            if some:
                left_out = set(masks) if every else set()
                news = _without(present, others[index], left_out)
                messages[index] = protocol.pack(protocol.RESET, (*news, kwargs[index]))
        replies = self._ask(messages) if messages else {}
        answers = {index: protocol.unpack(reply) for index, reply in replies.items()}
        given = memory.given(present, others)
        return memory.take("reset", answers, self._device, given)

    def _step_rows(self, rows: list[TensorDictBase]) -> list[TensorDictBase]:
        messages = {
            index: protocol.pack(protocol.STEP_ROW, _sendable(row))
            for index, row in enumerate(rows)
        }
        replies = self._ask(messages)
        return [protocol.unpack(replies[index]) for index in range(self.num_workers)]

    def _reset_rows(
        self, rows: dict[int, TensorDictBase | None], kwargs: list[dict[str, Any]]
    ) -> dict[int, TensorDictBase]:
        messages = {
            index: protocol.pack(
                protocol.RESET_ROW, (None if row is None else _sendable(row), kwargs[index])
            )
            for index, row in rows.items()
        }
        replies = self._ask(messages)
        return {index: protocol.unpack(reply) for index, reply in replies.items()}

    def _uses_global_generator(self) -> bool | None:
        # The envs draw in their own processes.
        return False

    def _ask_attribute(self, name: str) -> Any:
        message = protocol.pack(protocol.ATTRIBUTE, name)
        replies = self._ask(dict.fromkeys(range(self.num_workers), message))
        for index in range(self.num_workers):
            if replies[index][:1] == protocol.REFUSED:
                raise AttributeError(_refusal(replies[index], index).message)
        if any(reply == protocol.DONE for reply in replies.values()):
            return self._caller(name)
        return [protocol.unpack(replies[index]) for index in range(self.num_workers)]

    def _caller(self, name: str) -> Callable[..., list[Any]]:
        def call(*args: Any, **kwargs: Any) -> list[Any]:
            message = protocol.pack(protocol.CALL, (name, args, kwargs))
            replies = self._ask(dict.fromkeys(range(self.num_workers), message))
            for index in range(self.num_workers):
                if replies[index][:1] == protocol.REFUSED:
                    raise _refusal(replies[index], index, name)
            return [protocol.unpack(replies[index]) for index in range(self.num_workers)]

        return call

    def train(self, mode: bool = True) -> Any:
        if not self.__dict__.get("is_closed", True):
            self._ask_all(protocol.TRAIN, mode)
        return super().train(mode)

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self.is_closed:
            return
        for index, state in enumerate(self._ask_all(protocol.STATE_DICT, None)):
            destination.update({f"{prefix}worker{index}.{key}": state[key] for key in state})

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Mapping[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        self.start()
        messages = {}
        for index in range(self.num_workers):
            mine = f"{prefix}worker{index}."
            state = {
                key[len(mine) :]: state_dict[key] for key in state_dict if key.startswith(mine)
            }
            messages[index] = protocol.pack(protocol.LOAD_STATE_DICT, state)
        for index, reply in self._ask(messages).items():
            missing, unexpected = protocol.unpack(reply)
            missing_keys.extend(f"{prefix}worker{index}.{key}" for key in missing)
            unexpected_keys.extend(f"{prefix}worker{index}.{key}" for key in unexpected)


def _without(
    present: list[NestedKey], others: Others, keys: set[NestedKey]
) -> tuple[list[NestedKey], Others]:
    kept = {key: value for key, value in others.items() if key not in keys}
    return [key for key in present if key not in keys], kept


def _sendable(row: TensorDictBase) -> TensorDictBase:
    # A view would be sent with all of the memory that it looks into.
    return row.detach().cpu().clone()


def _refusal(reply: bytes, index: int, doing: str = "") -> Any:
    failure: protocol.Failure = protocol.unpack(reply)
    return failure.raised_in(index, doing)
