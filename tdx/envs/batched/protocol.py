"""What a worker and its parent say to each other.

A message is one byte that says what it is, followed by a pickle where there is more to say.
Tensors in that pickle go by value: those that matter for speed lie in shared memory.
"""

from __future__ import annotations

import pickle
import traceback
from dataclasses import dataclass
from typing import Any

import cloudpickle

from tdx.core.envs.failures import ENV_ERROR_HINT
from tdx.errors import EnvError, TdxError, WorkerError

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
CLOSE = b"q"

COMMANDS = {
    STEP: "step",
    RESET: "reset",
    STEP_ROW: "step",
    RESET_ROW: "reset",
    SET_SEED: "set_seed",
    ATTRIBUTE: "an attribute",
    CALL: "a method",
    STATE_DICT: "state_dict",
    LOAD_STATE_DICT: "load_state_dict",
    TRAIN: "train",
    ATTACH: "start",
    CLOSE: "close",
}

DONE = b"k"
VALUE = b"v"
REFUSED = b"x"
FAILED = b"e"


def pack(kind: bytes, content: Any) -> bytes:
    """A message with content."""
    try:
        return kind + pickle.dumps(content, protocol=pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, AttributeError, TypeError):
        return kind + cloudpickle.dumps(content)


def unpack(message: bytes) -> Any:
    """The content of a message, or ``None``."""
    return pickle.loads(memoryview(message)[1:]) if len(message) > 1 else None


@dataclass(frozen=True)
class Failure:
    """An exception on its way from a worker to its parent.

    Args:
        kind: the exception's class name.
        message: what it says.
        trace: its traceback as text.
        exception: the exception, pickled, or ``None`` where it cannot be.
    """

    kind: str
    message: str
    trace: str
    exception: bytes | None

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """The failure that an exception is."""
        trace = "".join(traceback.format_exception(error))
        return cls(type(error).__name__, _text_of(error), trace, _pickled(error))

    def raised_in(self, worker: int, doing: str) -> WorkerError:
        """The error to raise in the parent; the worker's own one is its cause."""
        original, hint, where = self.original(worker), ENV_ERROR_HINT, None
        if isinstance(original, TdxError):
            told = f"worker {worker} failed in {doing}: {original.message}"
            hint, where = original.hint or hint, original.where
        else:
            first = self.message.strip().split("\n")[0]
            told = f"worker {worker} raised {self.kind} in {doing}" + (
                f": {first}" if first else ""
            )
        error = WorkerError(told, hint=hint, where=where)
        error.__cause__ = original
        return error

    def original(self, worker: int) -> BaseException:
        """The worker's exception, with its traceback there as a note."""
        error = _unpickled(self.exception)
        if error is None:
            error = EnvError(f"{self.kind}: {self.message}", hint=ENV_ERROR_HINT)
        error.add_note(f"traceback in worker {worker}:\n{self.trace}")
        return error

    def is_own(self) -> bool:
        """Whether it is an error that tdx raised on purpose."""
        return isinstance(_unpickled(self.exception), TdxError)


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return ""


def _pickled(error: BaseException) -> bytes | None:
    try:
        data = cloudpickle.dumps(error)
        pickle.loads(data)
    except Exception:
        return None
    return data


def _unpickled(data: bytes | None) -> BaseException | None:
    try:
        error = None if data is None else pickle.loads(data)
    except Exception:
        return None
    return error if isinstance(error, BaseException) else None
