"""The worker process of an env: its signals, and a server that executes the parent's commands."""

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
from tdx.envs.batched.buffers import RowBuffers
from tdx.envs.batched.factories import EnvFactory
from tdx.envs.batched.metadata import EnvMetaData


@dataclass(frozen=True)
class WorkerSettings:
    """How a worker process is set up.

    Args:
        seed: for the global generators of torch, NumPy and Python.
        num_threads: how many threads torch may use.
        environ: the parent's environment variables, which a fork server may have older ones of.
    """

    seed: int
    num_threads: int
    environ: dict[str, str]


def run_worker(
    factory: EnvFactory,
    connection: Connection,
    settings: WorkerSettings,
    not_mine: Sequence[Connection] = (),
) -> None:
    """Make the env and serve it until the parent closes it or is gone.

    Args:
        factory: makes the env.
        connection: to the parent.
        settings: how to set this process up.
        not_mine: connections that a forked process inherits; while it holds them open, nobody
            else can see that they have ended.
    """
    ignore_interrupts()
    for other in not_mine:
        other.close()
    end_with_parent()
    _prepare(settings)
    _say(connection, protocol.DONE)
    try:
        env = factory()
        ready = protocol.pack(protocol.VALUE, EnvMetaData.of(env))
    except BaseException as error:
        _say(connection, protocol.pack(protocol.FAILED, protocol.Failure.of(error)))
        return
    _say(connection, ready)
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


def _say(connection: Connection, message: bytes) -> None:
    try:
        connection.send_bytes(message)
    except OSError:
        # The parent is gone; the next read says so too, and ends the worker.
        return


class _Server:
    """Answers one message after another.

    Args:
        env: the worker's env.
        connection: to the parent.
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
            _say(self._connection, reply)

    def _attach(self, _: None) -> bytes:
        # The buffers come by themselves: what they hold cannot be pickled by value.
        buffers = self._connection.recv()
        self._buffers = RowBuffers(self._env, *buffers)
        return protocol.DONE

    def _step(self, news: Any) -> bytes:
        assert self._buffers is not None
        following = self._env._completed_step(self._buffers.step_input(news))
        return _noted(self._buffers.put_step(following))

    def _reset(self, news: Any) -> bytes:
        assert self._buffers is not None
        present, others, kwargs = news
        tensordict = self._buffers.reset_input(present, others)
        return _noted(self._buffers.put_reset(self._env._completed_reset(tensordict, **kwargs)))

    def _step_row(self, tensordict: Any) -> bytes:
        following = self._env._completed_step(tensordict.to(self._env.device))
        return protocol.pack(protocol.VALUE, following.detach().cpu())

    def _reset_row(self, news: Any) -> bytes:
        tensordict, kwargs = news
        if tensordict is not None:
            tensordict = tensordict.to(self._env.device)
        result = self._env.reset(tensordict, **kwargs)
        return protocol.pack(protocol.VALUE, result.detach().cpu())

    def _set_seed(self, news: Any) -> bytes:
        seed, static_seed = news
        return protocol.pack(protocol.VALUE, self._env.set_seed(seed, static_seed=static_seed))

    def _attribute(self, name: str) -> bytes:
        try:
            value = getattr(self._env, name)
        except AttributeError as error:
            return protocol.pack(protocol.REFUSED, protocol.Failure.of(error))
        if is_method(value):
            return protocol.DONE
        return self._sent_or_refused(value)

    def _call(self, news: Any) -> bytes:
        name, args, kwargs = news
        try:
            value = getattr(self._env, name)(*args, **kwargs)
        except Exception as error:
            return protocol.pack(protocol.REFUSED, protocol.Failure.of(error))
        return self._sent_or_refused(value)

    def _sent_or_refused(self, value: Any) -> bytes:
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


def _noted(others: Any) -> bytes:
    return protocol.DONE if others is None else protocol.pack(protocol.VALUE, others)


def is_method(value: Any) -> bool:
    """Whether an env's attribute is something to call; a module is a value, though callable."""
    return callable(value) and not isinstance(value, (nn.Module, type))


_GRACE = 5.0


@contextmanager
def interrupts_held_back() -> Iterator[None]:
    """Deliver Ctrl-C only when the block has ended.

    A process that is started inside has it blocked from its first instruction on, so that it
    cannot be interrupted, and print a traceback, before it is able to say that it ignores it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pressed: list[int] = []
    # Blocking is not enough: the signal may reach another thread, and is handled in this one.
    handler = signal.signal(signal.SIGINT, lambda number, frame: pressed.append(number))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        signal.signal(signal.SIGINT, handler)
        if pressed and callable(handler):
            handler(signal.SIGINT, None)


def ignore_interrupts() -> None:
    """Leave Ctrl-C to the parent, and let it end this process with ``SIGTERM``."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def end_with_parent() -> None:
    """End this process soon after its parent has ended, whatever it is busy with."""
    parent = parent_process()
    if parent is not None:
        threading.Thread(target=_watch, args=(parent.sentinel,), daemon=True).start()


def _watch(sentinel: int) -> None:
    wait([sentinel])
    time.sleep(_GRACE)
    os._exit(1)
