"""Worker process of some envs: a server that executes the parent's commands."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.core import TransformedEnv
from tdx.core.envs import EnvBase
from tdx.core.planned.actions import shares_torch_rng
from tdx.core.planned.workers import ChunkTask
from tdx.envs.batched import protocol
from tdx.envs.batched.chunk_runner import ChunkRunner
from tdx.envs.batched.env_creator import EnvFactory, Kwargs
from tdx.envs.batched.env_state import EnvState, restore_env_state, save_env_state
from tdx.envs.batched.metadata import EnvMetaData, is_method
from tdx.envs.batched.shared_memory import RowBuffers, TensorBlock, ValueEntries, WriteReport
from tdx.foundation.generators import GeneratorStates, get_generators, set_generators
from tdx.foundation.keys import NestedKey


def run_worker(
    connection: Connection, factories: Sequence[EnvFactory], seed: int, num_threads: int
) -> None:
    """Create the envs, and serve them until the parent closes them or exits.

    The seed is that of the global generators of torch, NumPy and Python for the first env.
    """
    torch.set_num_threads(num_threads)
    _seed_generators(seed)
    _send(connection, protocol.DONE)
    rows = _Rows(seed)
    try:
        try:
            for factory in factories:
                rows.add(factory)
            ready = protocol.pack(protocol.VALUE, [EnvMetaData.of(env) for env in rows.envs])
        except BaseException as error:
            failure = protocol.Failure.of(error, len(rows.envs))
            _send(connection, protocol.pack(protocol.FAILED, failure))
            return
        _send(connection, ready)
        _Server(rows, connection).serve()
    finally:
        for env in rows.envs:
            env.close()


def _seed_generators(seed: int) -> None:
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def _send(connection: Connection, message: bytes) -> None:
    try:
        connection.send_bytes(message)
    except OSError:
        # The parent has exited. The next read fails too, which ends the worker.
        return


class _Rows:
    """Envs of a process, each with the global generators of torch, NumPy and Python to itself.

    The draws of an env must not depend on the other envs in its process. The generators are only
    exchanged if an env may draw from them. The first env has the seed, the next one the next seed.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self.envs: list[EnvBase] = []
        self._states: list[GeneratorStates | None] = []
        self._current = 0
        self._exchanges: bool | None = None

    def add(self, factory: EnvFactory) -> None:
        """Create the next env."""
        if self.envs:
            self._states[self._current] = get_generators()
            _seed_generators((self._seed + len(self.envs)) % 2**63)
        self._current = len(self.envs)
        self._states.append(None)
        self.envs.append(factory())

    def select(self, place: int) -> EnvBase:
        """Return an env whose generators are now the global ones."""
        if self._exchanges is None:
            known = [shares_torch_rng(env) for env in self.envs]
            self._exchanges = len(known) > 1 and any(use is not False for use in known)
        if self._exchanges and place != self._current:
            self._states[self._current] = get_generators()
            states = self._states[place]
            assert states is not None
            set_generators(states)
            self._current = place
        return self.envs[place]


class _Server:
    """Executes commands of the parent."""

    def __init__(self, rows: _Rows, connection: Connection) -> None:
        self._rows = rows
        self._connection = connection
        self._buffers: list[RowBuffers] = []
        self._place = 0
        self._chunks = ChunkRunner(rows.envs)
        self._receivers: dict[bytes, Callable[[Any], None]] = {
            protocol.ATTACH: self._attach,
            protocol.COPIES: lambda content: self._chunks.take_copies(*content),
            protocol.MEMORY: self._chunks.take_memory,
        }
        self._answers: dict[bytes, Callable[[EnvBase, Any], object]] = {
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
            protocol.SAVE_STATE: self._save_state,
            protocol.RESTORE_STATE: self._restore_state,
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
                reply = self._reply(message)
            except _RefusedError as error:
                failure = protocol.Failure.of(error.reason, self._place)
                reply = protocol.pack(protocol.REFUSED, failure)
            except BaseException as error:
                reply = protocol.pack(protocol.FAILED, protocol.Failure.of(error, self._place))
            _send(self._connection, reply)

    def _reply(self, message: bytes) -> bytes:
        kind = message[:1]
        if kind in self._receivers:
            # Received separately, because shared memory cannot be pickled by value.
            self._receivers[kind](self._connection.recv())
            return protocol.DONE
        if kind == protocol.CHUNK:
            return self._run_chunk(protocol.unpack(message))
        if kind == protocol.FETCH:
            self._chunks.write(protocol.unpack(message))
            return protocol.DONE
        content = protocol.unpack(message)
        answer, values = self._answers[kind], {}
        arguments = dict.fromkeys(range(len(self._rows.envs))) if content is None else content
        for self._place, argument in arguments.items():
            values[self._place] = answer(self._rows.select(self._place), argument)
        if all(value is None for value in values.values()):
            return protocol.DONE
        try:
            return protocol.pack(protocol.VALUE, values)
        except Exception as error:
            if kind in (protocol.ATTRIBUTE, protocol.CALL):
                raise _RefusedError(error) from error
            raise

    def _run_chunk(self, content: tuple[ChunkTask, range]) -> bytes:
        report = self._chunks.run(*content)
        if report is None:
            return protocol.DONE
        # A partial reset returns the latest output of the rows that it leaves alone.
        for buffers, row in zip(self._buffers, self._chunks.last_rows(), strict=True):
            if row is not None:
                buffers.put_step(row)
        return protocol.pack(protocol.VALUE, report)

    def _attach(self, content: tuple[TensorBlock, int]) -> None:
        block, first = content
        envs = self._rows.envs
        self._buffers = [RowBuffers(env, block, first + place) for place, env in enumerate(envs)]

    def _step(self, env: EnvBase, report: WriteReport | None) -> WriteReport | None:
        buffers = self._buffers[self._place]
        return buffers.put_step(env.completed_step(buffers.step_input(report)))

    def _reset(
        self, env: EnvBase, content: tuple[Sequence[NestedKey], ValueEntries, Kwargs]
    ) -> WriteReport | None:
        buffers, (present, others, kwargs) = self._buffers[self._place], content
        tensordict = buffers.input(present, others)
        return buffers.put_reset(env.completed_reset(tensordict, **kwargs))

    def _step_row(self, env: EnvBase, tensordict: TensorDictBase) -> TensorDictBase:
        return env.completed_step(tensordict.to(env.main_device)).detach().cpu()

    def _reset_row(
        self, env: EnvBase, content: tuple[TensorDictBase | None, Kwargs]
    ) -> TensorDictBase:
        tensordict, kwargs = content
        if tensordict is not None:
            tensordict = tensordict.to(env.main_device)
        return env.reset(tensordict, **kwargs).detach().cpu()

    def _set_seed(self, env: EnvBase, content: tuple[int | None, bool]) -> int | None:
        seed, static_seed = content
        return env.set_seed(seed, static_seed=static_seed)

    def _attribute(self, env: EnvBase, name: str) -> tuple[bool, object]:
        try:
            value = getattr(env, name)
        except AttributeError as error:
            raise _RefusedError(error) from error
        return (True, None) if is_method(value) else (False, value)

    def _call(self, env: EnvBase, content: tuple[str, Sequence[object], Kwargs]) -> tuple[object]:
        name, args, kwargs = content
        try:
            return (getattr(env, name)(*args, **kwargs),)
        except Exception as error:
            raise _RefusedError(error) from error

    def _state_dict(self, env: EnvBase, _: None) -> dict[str, Tensor]:
        return dict(env.state_dict())

    def _load_state_dict(
        self, env: EnvBase, state: dict[str, Tensor]
    ) -> tuple[list[str], list[str]]:
        keys = env.load_state_dict(state, strict=False)
        return list(keys.missing_keys), list(keys.unexpected_keys)

    def _train(self, env: EnvBase, mode: bool) -> None:
        env.train(mode)

    def _save_state(self, env: EnvBase, _: None) -> EnvState | None:
        # The stages of a chain have a state of their own.
        return None if isinstance(env, TransformedEnv) else save_env_state(env)

    def _restore_state(self, env: EnvBase, state: EnvState) -> None:
        env.reset()
        restore_env_state(env, state)


class _RefusedError(Exception):
    """The user's request failed, and the env can be used further."""

    def __init__(self, reason: BaseException) -> None:
        super().__init__(str(reason))
        self.reason = reason
