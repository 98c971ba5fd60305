"""Worker process of an env: its signals, and a server that executes the parent's commands."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np
import torch
from torch import nn

from tdx.core.envs import EnvBase
from tdx.envs.batched import protocol
from tdx.envs.batched.env_creator import EnvFactory
from tdx.envs.batched.metadata import EnvMetaData
from tdx.envs.batched.shared_memory import RowBuffers


@dataclass(frozen=True)
class WorkerSettings:
    """Settings of a worker process.

    Args:
        seed: Seed of the global generators of torch, NumPy and Python.
        num_threads: Number of threads for torch.
        environ: Environment variables of the parent; those of a fork server may be outdated.
    """

    seed: int
    num_threads: int
    environ: dict[str, str]


def run_worker(
    factory: EnvFactory,
    connection: Connection,
    settings: WorkerSettings,
    inherited: Sequence[Connection] = (),
) -> None:
    """Create the env, and serve it until the parent closes it or exits.

    Args:
        factory: Creates the env.
        connection: Connection to the parent.
        settings: Settings of this process.
        inherited: Connections of other workers, inherited by a forked process. They are closed,
            since an open copy hides from their owners that the other side has exited.
    """
    ignore_interrupts()
    for other in inherited:
        other.close()
    end_with_parent()
    _prepare(settings)
    _send(connection, protocol.DONE)
    try:
        env = factory()
        ready = protocol.pack(protocol.VALUE, EnvMetaData.of(env))
    except BaseException as error:
        _send(connection, protocol.pack(protocol.FAILED, protocol.Failure.of(error)))
        return
    _send(connection, ready)
    try:
        _Server(env, connection).serve()
    finally:
        env.close()


def _prepare(settings: WorkerSettings) -> None:
    os.environ.update(settings.environ)
    torch.set_num_threads(settings.num_threads)
    torch.manual_seed(settings.seed)
    np.random.seed(settings.seed % 2**32)
    random.seed(settings.seed)


def _send(connection: Connection, message: bytes) -> None:
    try:
        connection.send_bytes(message)
    except OSError:
        # The parent has exited. The next read fails too, which ends the worker.
        return


class _Server:
    """Executes commands of the parent.

    Args:
        env: Env of the worker.
        connection: Connection to the parent.
    """

    def __init__(self, env: EnvBase, connection: Connection) -> None:
        self._env = env
        self._connection = connection
        self._buffers: RowBuffers | None = None
        self._answers: dict[bytes, Callable[[Any], bytes]] = {
            protocol.STEP: self._step,
            protocol.RESET: self._reset,
            protocol.STEP_ROW: self._step_row,
            protocol.RESET_ROW: self._reset_row,
            protocol.SET_SEED: self._set_seed,
            protocol.ATTRIBUTE: self._attribute,
            protocol.CALL: self._call,
            protocol.STATE_DICT: self._state_dict,
            protocol.LOAD_STATE_DICT: self._load_state_dict,
            protocol.TRAIN: self._train,
            protocol.ATTACH: self._attach,
        }

    def serve(self) -> None:
        while True:
            try:
                message = self._connection.recv_bytes()
            except (EOFError, OSError):
                return
            if message == protocol.CLOSE:
                return
            try:
                reply = self._answers[message[:1]](protocol.unpack(message))
            except BaseException as error:
                reply = protocol.pack(protocol.FAILED, protocol.Failure.of(error))
            _send(self._connection, reply)

    def _attach(self, _: None) -> bytes:
        # Received separately, because shared memory cannot be pickled by value.
        buffers = self._connection.recv()
        self._buffers = RowBuffers(self._env, *buffers)
        return protocol.DONE

    def _step(self, content: Any) -> bytes:
        assert self._buffers is not None
        following = self._env._completed_step(self._buffers.step_input(content))
        return _pack_report(self._buffers.put_step(following))

    def _reset(self, content: Any) -> bytes:
        assert self._buffers is not None
        present, others, kwargs = content
        tensordict = self._buffers.reset_input(present, others)
        return _pack_report(
            self._buffers.put_reset(self._env._completed_reset(tensordict, **kwargs))
        )

    def _step_row(self, tensordict: Any) -> bytes:
        following = self._env._completed_step(tensordict.to(self._env.device))
        return protocol.pack(protocol.VALUE, following.detach().cpu())

    def _reset_row(self, content: Any) -> bytes:
        tensordict, kwargs = content
        if tensordict is not None:
            tensordict = tensordict.to(self._env.device)
        result = self._env.reset(tensordict, **kwargs)
        return protocol.pack(protocol.VALUE, result.detach().cpu())

    def _set_seed(self, content: Any) -> bytes:
        seed, static_seed = content
        return protocol.pack(protocol.VALUE, self._env.set_seed(seed, static_seed=static_seed))

    def _attribute(self, name: str) -> bytes:
        try:
            value = getattr(self._env, name)
        except AttributeError as error:
            return protocol.pack(protocol.REFUSED, protocol.Failure.of(error))
        if is_method(value):
            return protocol.DONE
        return self._pack_or_refuse(value)

    def _call(self, content: Any) -> bytes:
        name, args, kwargs = content
        try:
            value = getattr(self._env, name)(*args, **kwargs)
        except Exception as error:
            return protocol.pack(protocol.REFUSED, protocol.Failure.of(error))
        return self._pack_or_refuse(value)

    def _pack_or_refuse(self, value: Any) -> bytes:
        try:
            return protocol.pack(protocol.VALUE, value)
        except Exception as error:
            return protocol.pack(protocol.REFUSED, protocol.Failure.of(error))

    def _state_dict(self, _: None) -> bytes:
        return protocol.pack(protocol.VALUE, dict(self._env.state_dict()))

    def _load_state_dict(self, state: dict[str, Any]) -> bytes:
        keys = self._env.load_state_dict(state, strict=False)
        return protocol.pack(protocol.VALUE, (list(keys.missing_keys), list(keys.unexpected_keys)))

    def _train(self, mode: bool) -> bytes:
        self._env.train(mode)
        return protocol.DONE


def _pack_report(others: Any) -> bytes:
    return protocol.DONE if others is None else protocol.pack(protocol.VALUE, others)


def is_method(value: Any) -> bool:
    """Return True if an attribute of an env is a method. Modules are values, although callable."""
    return callable(value) and not isinstance(value, (nn.Module, type))


_GRACE = 5.0


@contextmanager
def delay_interrupts() -> Iterator[None]:
    """Delay Ctrl-C until the block ends.

    A process that is started in the block inherits the blocked signal, so it cannot be interrupted
    and print a traceback before it ignores the signal.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pending: list[int] = []
    # Blocking is not enough: another thread may receive the signal, and this one handles it.
    handler = signal.signal(signal.SIGINT, lambda number, frame: pending.append(number))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        signal.signal(signal.SIGINT, handler)
        if pending and callable(handler):
            handler(signal.SIGINT, None)


def ignore_interrupts() -> None:
    """Ignore Ctrl-C, which the parent handles, and let ``SIGTERM`` end this process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def end_with_parent(grace: float = _GRACE) -> None:
    """End this process soon after its parent has exited, even if it is busy.

    Args:
        grace: Seconds in which it may end by itself.
    """
    parent = parent_process()
    if parent is not None:
        arguments = (parent.sentinel, grace)
        threading.Thread(target=_exit_after_parent, args=arguments, daemon=True).start()


def _exit_after_parent(sentinel: int, grace: float) -> None:
    wait([sentinel])
    time.sleep(grace)
    os._exit(1)
