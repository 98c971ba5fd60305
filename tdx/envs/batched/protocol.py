"""Messages between a worker process and its parent.

A message is one byte for its kind, followed by a pickle of its content if there is any. Tensors in
the pickle are sent by value. The inputs and outputs of steps go through shared memory.

The content of a command is a dict with an argument for each env that it concerns, by its place in
the process, or ``None`` for all envs without an argument. The reply has a value for each of them;
a reply without content stands for ``None`` from each.
"""

from __future__ import annotations

import io
import pickle
import traceback
from dataclasses import dataclass, replace
from typing import Any

import cloudpickle
import torch
from torch import Tensor

from tdx.core.envs.failures import ENV_ERROR_HINT
from tdx.foundation.errors import EnvError, TdxError, WorkerError

STEP = b"s"
RESET = b"r"
STEP_ROW = b"S"
RESET_ROW = b"R"
SET_SEED = b"d"
ATTRIBUTE = b"a"
CALL = b"c"
STATE_DICT = b"o"
LOAD_STATE_DICT = b"l"
TRAIN = b"t"
ATTACH = b"m"
COPIES = b"C"
MEMORY = b"M"
CHUNK = b"K"
FETCH = b"F"
SAVE_STATE = b"w"
RESTORE_STATE = b"W"
CLOSE = b"q"

COMMANDS = {
    STEP: "step",
    RESET: "reset",
    STEP_ROW: "step",
    RESET_ROW: "reset",
    SET_SEED: "set_seed",
    ATTRIBUTE: "attribute access",
    CALL: "a method call",
    STATE_DICT: "state_dict",
    LOAD_STATE_DICT: "load_state_dict",
    TRAIN: "train",
    ATTACH: "startup",
    COPIES: "the copy of chain and policy",
    MEMORY: "the exchange of memory",
    CHUNK: "a rollout",
    FETCH: "a rollout",
    SAVE_STATE: "the copy of the env's state",
    RESTORE_STATE: "the copy of the env's state",
    CLOSE: "close",
}

DONE = b"k"
VALUE = b"v"
REFUSED = b"x"
FAILED = b"e"


class _Pickler(pickle.Pickler):
    """Pickles tensors as arrays, which takes a tenth of the time."""

    def reducer_override(self, obj: object) -> Any:
        if type(obj) is not Tensor or obj.dtype not in _AS_ARRAYS or obj.requires_grad:
            return NotImplemented
        if obj.device.type == "cpu" and obj.layout is torch.strided:
            return torch.from_numpy, (obj.numpy(),)
        return NotImplemented


_AS_ARRAYS = frozenset(
    (
        *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.float16, torch.float32, torch.float64),
    )
)


def pack(kind: bytes, content: object) -> bytes:
    """Create a message with content."""
    file = io.BytesIO()
    file.write(kind)
    try:
        _Pickler(file, pickle.HIGHEST_PROTOCOL).dump(content)
    except (pickle.PicklingError, AttributeError, TypeError):
        return kind + cloudpickle.dumps(content)
    return file.getvalue()


def unpack(message: bytes) -> Any:
    """Return the content of a message, or ``None``."""
    return pickle.loads(memoryview(message)[1:]) if len(message) > 1 else None


@dataclass(frozen=True)
class Failure:
    """An exception of a worker, in a form that can be sent to the parent."""

    kind: str  # class name of the exception
    message: str
    trace: str
    exception: bytes | None  # pickled; None: it cannot be pickled
    place: int = 0  # place in the process of the env that raised it

    @classmethod
    def of(cls, error: BaseException, place: int = 0) -> Failure:
        """Convert an exception."""
        trace = "".join(traceback.format_exception(error))
        return cls(type(error).__name__, _get_message(error), trace, _pickle(error), place)

    def to_worker_error(self, worker: int, operation: str) -> WorkerError:
        """Create the error to raise in the parent, with the worker's exception as its cause."""
        original, hint, where = self.original(worker), ENV_ERROR_HINT, None
        if isinstance(original, TdxError):
            message = f"worker {worker} failed during {operation}: {original.message}"
            # A worker counts the envs in its process only.
            hint, where = original.hint or hint, replace(original.where, row=worker)
        else:
            first = self.message.strip().split("\n")[0]
            message = f"worker {worker} raised {self.kind} during {operation}" + (
                f": {first}" if first else ""
            )
        error = WorkerError(message, hint=hint, where=where)
        error.__cause__ = original
        return error

    def original(self, worker: int) -> BaseException:
        """Return the worker's exception, with its traceback as a note."""
        error = _unpickle(self.exception)
        if error is None:
            error = EnvError(f"{self.kind}: {self.message}", hint=ENV_ERROR_HINT)
        error.add_note(f"traceback in worker {worker}:\n{self.trace}")
        return error

    def is_env_error(self) -> bool:
        """Return True if an env raised the exception, and not a policy or a stage."""
        return isinstance(_unpickle(self.exception), EnvError)

    def is_tdx_error(self) -> bool:
        """Return True if tdx raised the exception on purpose."""
        return isinstance(_unpickle(self.exception), TdxError)


def _get_message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return ""


def _pickle(error: BaseException) -> bytes | None:
    try:
        data = cloudpickle.dumps(error)
        pickle.loads(data)
    except Exception:
        return None
    return data


def _unpickle(data: bytes | None) -> BaseException | None:
    try:
        error = None if data is None else pickle.loads(data)
    except Exception:
        return None
    return error if isinstance(error, BaseException) else None
