"""Preparation of the batches of a replay buffer: its chain of transforms, and prefetching."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from threading import Lock
from typing import Any, NamedTuple

from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.transforms import CallableTransform, Compose, TimeBehavior, Transform
from tdx.foundation.errors import ArgumentError, ChainError
from tdx.foundation.keys import NestedKey
from tdx.foundation.tensordicts import read, write
from tdx.foundation.torch_internals import forward_hooks

Pairs = tuple[tuple[NestedKey, NestedKey], ...]


class Batch(NamedTuple):
    """A sampled batch.

    Args:
        data: Batch.
        info: Positions of its steps, and entries that the sampler wrote.
        ended: True if it is the last one of a pass.
        before: State of the sampler before it was drawn.
    """

    data: Any
    info: dict[Any, Any]
    ended: bool
    before: dict[str, Any]


class ChainProgram:
    """Runs ``chain(data)`` with less overhead for transforms that map tensor by tensor.

    Args:
        chain: Chain of transforms; a changed chain needs a new program.
    """

    def __init__(self, chain: Compose) -> None:
        self.chain = chain
        functions = [each.function for each in chain if isinstance(each, CallableTransform)]
        self._functions = functions if len(functions) == len(chain) else None
        self._hooks = forward_hooks(chain)
        self._steps = tuple((stage, _plain_pairs(stage), *forward_hooks(stage)) for stage in chain)

    def __call__(self, data: Any) -> Any:
        """Map a batch; most transforms do so in place.

        Args:
            data: Batch ``[N, ...]`` that the caller owns.

        Raises:
            ChainError: The batch is not a TensorDict, and a stage is not a plain function.
        """
        if not self._steps:
            return data
        if not isinstance(data, TensorDictBase):
            if self._functions is not None:
                for function in self._functions:
                    data = function(data)
                return data
            raise ChainError(
                f"transforms map TensorDicts, but the batches are {type(data).__name__}",
                hint="store TensorDicts, or pass a collate_fn that returns them",
            )
        if self._hooks[0] or self._hooks[1] or self._has_own_forward():
            return self.chain(data)
        stage: Transform
        try:
            for stage, pairs, hooks, pre_hooks in self._steps:
                if pairs is None or hooks or pre_hooks:
                    data = stage(data)
                else:
                    _map_each(stage, pairs, data)
        except Exception as error:
            raise self.chain._located(error, stage, "sampling") from error.__cause__
        return data

    def _has_own_forward(self) -> bool:
        """Return True if the chain's ``forward`` was replaced."""
        return "forward" in self.chain.__dict__ or type(self.chain).forward is not Compose.forward


def _plain_pairs(stage: Transform) -> Pairs | None:
    return stage._pairs if type(stage).forward is Transform.forward else None


def _map_each(stage: Transform, pairs: Pairs, data: TensorDictBase) -> None:
    for in_key, out_key in pairs:
        value = read(data, in_key)
        if value is None:
            if stage.missing_tolerance:
                continue
            raise stage._missing_key(in_key, data)
        result: Any = stage._apply_transform(value)
        alike = type(result) is Tensor and result.shape == value.shape
        if alike and result.device == value.device:
            write(data, out_key, result)
        else:
            data.set(out_key, result)


class InvertedTransform(Transform):
    """Swaps ``forward`` and ``inv`` of a transform.

    Args:
        transform: Transform to invert.
    """

    time_behavior = TimeBehavior.CONTROL

    def __init__(self, transform: Transform) -> None:
        super().__init__()
        self.transform = transform
        transform.set_container(self)

    @property
    def invertible(self) -> bool:
        """Always true."""
        return True

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Map sampled data by the inverse of the transform."""
        return self.transform.inv(tensordict)

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self.transform(tensordict)

    def __repr__(self) -> str:
        return f"InvertedTransform({self.transform})"


class Prefetcher:
    """A queue of prefetched batches. With ``ahead=0`` each batch is prepared when it is requested.

    A single thread prepares them in order, so that the order of the batches is that of the
    random numbers.

    Args:
        ahead: Number of batches to prepare in advance.

    Raises:
        ArgumentError: The number is not an integer of at least 0.
    """

    def __init__(self, ahead: int) -> None:
        if not isinstance(ahead, int) or ahead < 0:
            raise ArgumentError(
                f"prefetch must be an integer of at least 0, got {ahead!r}",
                hint="pass the number of batches to prepare, or None",
            )
        self.ahead = ahead
        self._pool: ThreadPoolExecutor | None = None
        self._queue: deque[Future[Batch]] = deque()
        self._size = 0
        self._lock = Lock()

    def fits(self, size: int) -> bool:
        """Return True if the queue is empty or contains batches of this size."""
        return not self._queue or self._size == size

    def next(self, size: int, make: Callable[[int], Batch]) -> Batch:
        """Return the next batch, and schedule the ones after it.

        Args:
            size: Batch size.
            make: Prepares a batch of a size.
        """
        if not self.ahead:
            return make(size)
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(1, thread_name_prefix="tdx-prefetch")
            self._size = size
            while len(self._queue) <= self.ahead:
                self._queue.append(self._pool.submit(make, size))
            first = self._queue.popleft()
        return first.result()

    def settle(self) -> None:
        """Wait until all scheduled batches are prepared."""
        if not self.ahead:
            return
        with self._lock:
            pending = list(self._queue)
        wait(pending)

    def discard(self) -> Batch | None:
        """Discard all scheduled batches, and return the first one, if there is one."""
        if not self.ahead:
            return None
        with self._lock:
            pending = list(self._queue)
            self._queue.clear()
        wait(pending)
        for future in pending:
            if future.exception() is None:
                return future.result()
        return None

    def close(self) -> None:
        """Stop the thread."""
        self.discard()
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown()
