"""Prioritized sampling."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tdx.data.layout import Index, StateDict
from tdx.data.samplers import Sampler, on_device_of
from tdx.data.storage import Storage
from tdx.data.writers import REDUCTIONS
from tdx.foundation.errors import ArgumentError, StorageError

WEIGHT = "priority_weight"
PRIORITIES = "priorities"
StepNumbers = NDArray[np.int64]
Floats = NDArray[np.float64]


class PrioritizedSampler(Sampler):
    """Draws steps in proportion to their priorities, with replacement.

    The probability of a step is proportional to ``(priority + eps) ** alpha``. New steps get the
    largest priority so far. A batch comes with importance weights ``priority_weight`` ``[N]``:
    ``(p / min p) ** -beta``, at most 1.

    Args:
        max_capacity: Capacity of the storage in steps; it grows with the storage.
        alpha: Exponent of the priorities; 0: uniform.
        beta: Exponent of the importance weights.
        eps: Small number added to priorities, so that no step has probability zero.
        dtype: Dtype of the weights. Priorities are float64.
        reduction: How the priority entry of a step with several elements becomes one number:
            ``max``, ``min``, ``mean`` or ``median``.
        max_priority_within_buffer: New steps get the largest priority of the stored steps.
        device: Must be ``None`` or ``cpu``.

    Raises:
        ArgumentError: An argument is out of range.

    Example:
        >>> import torch
        >>> from tdx import LazyTensorStorage, PrioritizedSampler, ReplayBuffer
        >>> sampler = PrioritizedSampler(max_capacity=9, alpha=0.7, beta=0.5)
        >>> buffer = ReplayBuffer(storage=LazyTensorStorage(9), sampler=sampler, batch_size=4)
        >>> index = buffer.extend(torch.arange(9))
        >>> buffer.update_priority(index, torch.tensor([0.0] * 8 + [1e9]))
        >>> batch, info = buffer.sample(return_info=True)
        >>> batch
        tensor([8, 8, 8, 8])
    """

    changes_when_drawing = False

    def __init__(
        self,
        max_capacity: int,
        alpha: float,
        beta: float,
        eps: float = 1e-8,
        dtype: torch.dtype = torch.float32,
        reduction: str = "max",
        max_priority_within_buffer: bool = False,
        device: torch.device | str | None = None,
    ) -> None:
        if alpha < 0 or beta < 0:
            name = "alpha" if alpha < 0 else "beta"
            raise ArgumentError(f"{name} must be greater or equal to 0", hint="0 means uniform")
        if reduction not in REDUCTIONS:
            raise ArgumentError(
                f"unknown reduction {reduction!r}", hint=f"use one of {', '.join(REDUCTIONS)}"
            )
        if device is not None and torch.device(device).type != "cpu":
            raise ArgumentError(
                f"priorities are on the CPU, got device {str(device)!r}", hint="remove device"
            )
        self._max_capacity = max_capacity
        self._alpha, self.beta, self._eps = alpha, beta, eps
        self.dtype = dtype
        self.reduction = reduction
        self._max_priority_within_buffer = max_priority_within_buffer
        self.reset()

    @property
    def max_size(self) -> int:
        """Capacity in steps."""
        return self._max_capacity

    @property
    def alpha(self) -> float:
        """Exponent of the priorities. A new value maps the current ones."""
        return self._alpha

    @alpha.setter
    def alpha(self, alpha: float) -> None:
        if alpha < 0:
            raise ArgumentError("alpha must be greater or equal to 0", hint="0 means uniform")
        written = np.flatnonzero(self._sum_tree.values)
        if len(written) and alpha != self._alpha:
            if self._alpha == 0:
                warnings.warn(
                    "changing alpha away from 0 keeps equal priorities until they are updated",
                    stacklevel=2,
                )
            else:
                self._write(written, self._sum_tree[written] ** float(alpha / self._alpha))
        self._alpha = alpha

    def reset(self) -> None:
        """Forget all priorities."""
        super().reset()
        self._create_trees()
        self._max_priority: tuple[float | None, int | None] = (None, None)

    # Drawing

    def draw(self, storage: Storage, batch_size: int) -> tuple[Tensor, StateDict]:
        if not any(listener is self for listener in storage.listeners):
            self.fill_missing(storage)
        part = torch.rand(batch_size, generator=self.generator, dtype=torch.float64)
        steps = self._sum_tree.find(part.numpy() * self._sum_tree.total)
        return on_device_of(storage, torch.from_numpy(steps)), {
            "info": {WEIGHT: self.weights(steps, storage)}
        }

    def weights(self, steps: StepNumbers, storage: Storage) -> Tensor:
        """Return the importance weight of each step, ``[N]``."""
        ratio = self._sum_tree[steps] / self._min_tree.query(0, len(storage))
        weights = torch.from_numpy(ratio ** -float(self.beta))
        return weights.to(device=storage.device, dtype=self.dtype)

    def fill_missing(self, storage: Storage) -> None:
        """Give the default priority to stored steps that have none."""
        count = len(storage)
        self._grow(count)
        missing = np.flatnonzero(self._sum_tree.values[:count] == 0)
        if len(missing):
            self.mark_update(torch.from_numpy(missing))

    def attach_to(self, storage: Storage) -> None:
        self.fill_missing(storage)
        super().attach_to(storage)

    # Priorities

    @property
    def default_priority(self) -> float:
        """Priority of new steps: the largest one so far, or 1."""
        largest = self._max_priority[0]
        return 1.0 if largest is None else largest

    def add(self, index: int) -> None:
        self.mark_update(index)

    def extend(self, index: Index) -> None:
        self.mark_update(index)

    def mark_update(self, index: Index, *, storage: Storage | None = None) -> None:
        """Give new steps the default priority."""
        steps = self._steps(index, storage)
        if self._max_priority_within_buffer and self._max_priority[1] in steps:
            self._write(steps, 0.0)
            self._find_largest()
        self.update_priority(steps, self.default_priority)

    def update_priority(
        self, index: Index, priority: Tensor | float, *, storage: Storage | None = None
    ) -> None:
        """Set the priorities of steps.

        Args:
            index: Steps, int64 ``[N]``, or their positions ``[N, ndim]`` or one tensor per dim.
                Negative ones are skipped.
            priority: One number, or one per step.
            storage: Storage of the steps; required if it has several dims.

        Raises:
            ArgumentError: The numbers of steps and priorities differ, or one is negative.
        """
        steps = self._steps(index, storage)
        values = torch.as_tensor(priority).detach().cpu().double().reshape(-1).numpy()
        if len(values) not in (1, len(steps)):
            raise ArgumentError(
                f"got {len(values)} priorities for {len(steps)} steps",
                hint="pass one priority, or one per step",
            )
        if (values < 0).any():
            raise ArgumentError("priorities must not be negative", hint="pass absolute errors")
        values = np.broadcast_to(values, steps.shape)[steps >= 0]
        steps = steps[steps >= 0]
        if not len(steps):
            return
        largest, place = self._max_priority
        highest = int(values.argmax())
        rises = largest is None or values[highest] > largest
        if rises:
            self._max_priority = (float(values[highest]), int(steps[highest]))
        # Rounded, so that a priority of 1 is 1 and not 1 + eps.
        self._write(steps, ((values + self._eps) ** float(self._alpha)).astype(np.float32))
        if self._max_priority_within_buffer and (rises or place in steps):
            self._find_largest()

    def _steps(self, index: Index, storage: Storage | None) -> StepNumbers:
        """Return step numbers, int64 ``[N]``."""
        if isinstance(index, np.ndarray):
            return index
        steps = torch.as_tensor(index) if storage is None else storage.step_numbers(index)
        if steps.ndim > 1 and steps.shape[-1] > 1:
            raise ArgumentError(
                f"an index of shape {tuple(steps.shape)} needs the storage",
                hint="pass storage=, or use update_priority of the buffer",
            )
        return steps.reshape(-1).cpu().numpy()

    def _grow(self, count: int) -> None:
        """Make room for the priorities of a larger storage."""
        if count <= self._max_capacity:
            return
        values = self._sum_tree.values
        self._max_capacity = max(count, 2 * self._max_capacity)
        self._create_trees()
        self._write(np.arange(len(values)), values)

    def _create_trees(self) -> None:
        self._sum_tree = SegmentTree(self._max_capacity, np.add, 0.0)
        self._min_tree = SegmentTree(self._max_capacity, np.minimum, float("inf"))

    def _write(self, steps: StepNumbers, values: NDArray[np.floating] | float) -> None:
        self._grow(int(steps.max()) + 1 if len(steps) else 0)
        self._sum_tree[steps] = values
        self._min_tree[steps] = np.where(np.asarray(values) > 0, values, np.inf)

    def _find_largest(self) -> None:
        """Find the largest stored priority; with ``alpha=0`` it is not stored."""
        if self._alpha == 0:
            return
        place = int(self._sum_tree.values.argmax())
        value = float(self._sum_tree[place])
        raw = max(value ** (1 / float(self._alpha)) - self._eps, 0.0)
        self._max_priority = (raw, place) if value else (None, None)

    # State

    def state(self) -> StateDict:
        """Return the priorities, float64 ``[max_capacity]``, and the parameters."""
        largest, place = self._max_priority
        return {
            PRIORITIES: torch.from_numpy(self._sum_tree.values.copy()),
            "max_priority": largest,
            "max_index": place,
            "alpha": float(self._alpha),
            "beta": float(self.beta),
            "eps": self._eps,
        }

    def restore(self, state: StateDict) -> None:
        """Continue from what :meth:`state` returned.

        Raises:
            StorageError: It is not such a state.
        """
        super().restore(state)
        if PRIORITIES not in state:
            return
        try:
            values = torch.as_tensor(state[PRIORITIES], dtype=torch.float64).numpy()
            numbers = [float(state[name]) for name in ("alpha", "beta", "eps")]
            largest, place = state["max_priority"], state["max_index"]
            max_priority = (None if largest is None else float(largest), place)
            valid = np.isfinite(values).all() and (values >= 0).all() and min(numbers) >= 0
            if values.ndim != 1 or not valid:
                raise ValueError(f"priorities of shape {values.shape}")
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise StorageError(
                f"the state of the priorities is not valid: {error}",
                hint="save the buffer again",
            ) from error
        self.reset()
        self._alpha, self.beta, self._eps = numbers
        self._write(np.arange(len(values)), values)
        self._max_priority = max_priority

    def __repr__(self) -> str:
        return f"{type(self).__name__}(alpha={self._alpha}, beta={self.beta}, eps={self._eps})"


class SegmentTree:
    """An array of float64 that reduces any range in logarithmic time.

    The operation is ``np.add`` or ``np.minimum``; elements that were not set are ``neutral``.
    """

    def __init__(self, size: int, operation: np.ufunc, neutral: float) -> None:
        self.size = size
        self.operation = operation
        self.neutral = neutral
        self._first = 1 << max(size - 1, 0).bit_length()
        self._nodes: Floats = np.full(2 * self._first, neutral)

    @property
    def values(self) -> Floats:
        """All elements; a view."""
        return self._nodes[self._first : self._first + self.size]

    @property
    def total(self) -> float:
        """Reduction of all elements."""
        return float(self._nodes[1])

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: Index) -> Any:
        return self.values[index]

    def __setitem__(self, index: Index, values: NDArray[np.floating] | float) -> None:
        self.values[index] = values
        changed = np.atleast_1d(np.arange(self._first, self._first + self.size)[index])
        while len(changed) and changed[0] > 1:
            changed = np.unique(changed >> 1)
            children = 2 * changed
            self._nodes[changed] = self.operation(self._nodes[children], self._nodes[children + 1])

    def query(self, start: int, stop: int) -> float:
        """Return the reduction of the elements from ``start`` to ``stop`` (excluded)."""
        low, high = start + self._first, min(stop, self.size) + self._first
        result = self.neutral
        while low < high:
            if low & 1:
                result, low = float(self.operation(result, self._nodes[low])), low + 1
            if high & 1:
                high -= 1
                result = float(self.operation(result, self._nodes[high]))
            low, high = low >> 1, high >> 1
        return result

    def find(self, mass: Floats) -> NDArray[np.int64]:
        """Return the element in which the cumulative sum reaches each mass; never one of zero."""
        node = np.ones(len(mass), dtype=np.int64)
        left_mass = np.asarray(mass, dtype=np.float64)
        while node[0] < self._first:
            left, right = self._nodes[2 * node], self._nodes[2 * node + 1]
            goes_right = (left_mass >= left) & (right > 0)
            left_mass = np.where(goes_right, left_mass - left, left_mass)
            node = 2 * node + goes_right
        return node - self._first
