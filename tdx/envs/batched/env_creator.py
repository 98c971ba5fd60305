"""Env factories: one for each worker of a batch, and ``EnvCreator`` with shared state."""

from __future__ import annotations

import multiprocessing
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from copy import copy
from typing import Any, Self

import cloudpickle
import torch
from torch import Tensor, nn

from tdx.core.envs import EnvBase
from tdx.core.transforms.validation import check_integer
from tdx.envs.batched.metadata import EnvMetaData
from tdx.envs.batched.shared_memory import Field, TensorBlock
from tdx.foundation.errors import ArgumentError, KeyNotFoundError, WorkerError, did_you_mean
from tdx.foundation.safe_path import safe_path

CreateEnv = Callable[..., EnvBase] | EnvBase
Kwargs = Mapping[str, Any]
"""Keyword arguments of a function that creates an env, or of a reset."""


class EnvFactory:
    """Creates the env of one worker. It can be pickled even if the function is a lambda."""

    def __init__(self, create: CreateEnv, kwargs: Kwargs) -> None:
        self._parts: tuple[CreateEnv, Kwargs] | bytes = (create, dict(kwargs))

    @property
    def create(self) -> CreateEnv:
        """Function that creates the env, or the env itself."""
        return self._unpickle()[0]

    @property
    def kwargs(self) -> Kwargs:
        """Keyword arguments for the function."""
        return self._unpickle()[1]

    def _unpickle(self) -> tuple[CreateEnv, Kwargs]:
        # On first use, so that an import error is reported like other errors of construction.
        if isinstance(self._parts, bytes):
            self._parts = cloudpickle.loads(self._parts)
        assert not isinstance(self._parts, bytes)
        return self._parts

    def __call__(self) -> EnvBase:
        # An EnvBase is an nn.Module and so callable, but it is not a factory.
        env = self.create if isinstance(self.create, EnvBase) else self.create(**self.kwargs)
        if not isinstance(env, EnvBase):
            raise ArgumentError(
                f"create_env_fn returned a {type(env).__name__}, not an env",
                hint="return an EnvBase, for example GymEnv('Pendulum-v1')",
            )
        return env

    def __getstate__(self) -> dict[str, bytes]:
        return {"_parts": cloudpickle.dumps(self._unpickle())}


def create_env_factories(
    num_workers: int,
    create_env_fn: CreateEnv | Sequence[CreateEnv],
    create_env_kwargs: Kwargs | Sequence[Kwargs] | None,
) -> list[EnvFactory]:
    """Create one factory for each worker."""
    check_integer(num_workers, "num_workers", 1, "pass the number of envs, such as 2")
    creates = _repeat_for_workers(num_workers, create_env_fn, "create_env_fn")
    kwargs_or_list = {} if create_env_kwargs is None else create_env_kwargs
    kwargs = _repeat_for_workers(num_workers, kwargs_or_list, "create_env_kwargs")
    for index, create in enumerate(creates):
        if not callable(create):
            raise ArgumentError(
                f"create_env_fn of worker {index} is a {type(create).__name__}",
                hint="pass a function that creates an env, or a list of them",
            )
    instances = [create for create in creates if isinstance(create, EnvBase)]
    if len({id(env) for env in instances}) < len(instances):
        raise ArgumentError(
            "an env cannot be shared by several workers",
            hint="pass a function that creates an env: lambda: GymEnv('Pendulum-v1')",
        )
    return [EnvFactory(create, kwargs[index]) for index, create in enumerate(creates)]


def _repeat_for_workers(num_workers: int, value: Any, name: str) -> list[Any]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        return [value] * num_workers
    if len(value) != num_workers:
        raise ArgumentError(
            f"{name} has {len(value)} entries for {num_workers} workers",
            hint="pass one for each worker, or a single one for all",
        )
    return list(value)


class EnvCreator:
    """Creates envs that share their module state, also across processes.

    The constructor creates one env to read its specs and its ``state_dict``. The parameters and
    buffers of every env created later *are* the tensors of that state, so statistics that a
    transform updates in place are shared by all envs. A lock serializes the updates of several
    processes.

    Args:
        create_env_fn: Function that creates an env.
        create_env_kwargs: Keyword arguments for ``create_env_fn``.
        share_memory: True to share the state between processes. Otherwise each process starts
            with a copy, which its envs share.
        **kwargs: More keyword arguments for ``create_env_fn``.

    Raises:
        ArgumentError: ``create_env_fn`` does not return an env.

    Example:
        >>> from tdx import EnvCreator, PendulumEnv, SerialEnv
        >>> SerialEnv(2, EnvCreator(PendulumEnv)).batch_size
        torch.Size([2])
    """

    def __init__(
        self,
        create_env_fn: Callable[..., EnvBase],
        create_env_kwargs: Kwargs | None = None,
        share_memory: bool = True,
        **kwargs: Any,
    ) -> None:
        self._factory = EnvFactory(create_env_fn, {**(create_env_kwargs or {}), **kwargs})
        env = self._factory()
        self._meta_data = EnvMetaData.of(env)
        state = {
            name: value
            for name, value in env.state_dict().items()
            if isinstance(value, Tensor)
            and not nn.parameter.is_lazy(value)
            and _find_owner(env, name)
        }
        fields = {name: Field.of(tensor) for name, tensor in state.items()}
        self._block = TensorBlock(fields, shared=share_memory)
        for name, shared in self._block.tensors().items():
            shared.copy_(state[name].detach())
        self._lock = StateLock() if share_memory else None
        env.close()

    @property
    def create_env_fn(self) -> CreateEnv:
        """Function that creates the envs."""
        return self._factory.create

    @property
    def create_env_kwargs(self) -> dict[str, Any]:
        """Keyword arguments for that function."""
        return dict(self._factory.kwargs)

    @property
    def meta_data(self) -> EnvMetaData:
        """Specs, batch size and device of the envs."""
        return self._meta_data

    def make_variant(self, **kwargs: Any) -> Self:
        """Return a creator with some keyword arguments changed that shares the same state."""
        variant = copy(self)
        variant._factory = EnvFactory(self._factory.create, {**self._factory.kwargs, **kwargs})
        return variant

    def __copy__(self) -> Self:
        copied = type(self).__new__(type(self))
        copied.__dict__.update(self.__dict__)
        return copied

    def __call__(self, **kwargs: Any) -> EnvBase:
        factory = self._factory
        env = EnvFactory(factory.create, {**factory.kwargs, **kwargs})()
        env.output_spec  # noqa: B018 - some modules create state when specs are computed
        for name, shared in self._block.tensors().items():
            owner = _find_owner(env, name)
            if owner is None:
                continue
            module, leaf = owner
            current = getattr(module, leaf)
            if current is None or _signature(current) != _signature(shared):
                continue
            if isinstance(current, nn.Parameter):
                current.data = shared
            else:
                setattr(module, leaf, shared)
        if self._lock is not None:
            # For modules that update their state in several operations.
            for module in env.modules():
                take: Callable[[StateLock], None] | None = getattr(module, "_take_lock", None)
                if take is not None:
                    take(self._lock)
        return env

    def state_dict(self) -> OrderedDict[str, Tensor]:
        """Return the shared tensors themselves, by their names in the env's ``state_dict``."""
        return OrderedDict(self._block.tensors())

    def load_state_dict(self, state_dict: Mapping[str, Tensor]) -> None:
        """Copy values into the shared tensors, and so into every env of this creator.

        Raises:
            KeyNotFoundError: A name is missing in ``state_dict``.
        """
        for name in self._block.tensors():
            if name not in state_dict:
                hint = did_you_mean(name, state_dict, "it belongs to a different env")
                raise KeyNotFoundError(f"the state_dict has no {name!r}", hint=hint)
        with self._lock or nullcontext():
            for name, shared in self._block.tensors().items():
                shared.copy_(state_dict[name])

    def __repr__(self) -> str:
        return f"EnvCreator({self.create_env_fn!r}, {self.create_env_kwargs!r})"


def _find_owner(env: EnvBase, name: str) -> tuple[nn.Module, str] | None:
    path, _, leaf = name.rpartition(".")
    try:
        module = env.get_submodule(path)
    except AttributeError:
        return None
    own = [
        *module.named_buffers(recurse=False, remove_duplicate=False),
        *module.named_parameters(recurse=False, remove_duplicate=False),
    ]
    return (module, leaf) if any(known == leaf for known, _ in own) else None


def _signature(tensor: Tensor) -> tuple[torch.device, Field]:
    return tensor.device, Field.of(tensor)


_LOCK_TIMEOUT = 60.0


class StateLock:
    """Context manager that one process at a time can enter. A pickled copy is the same lock.

    It is held for microseconds. If it cannot be acquired, a process was killed while holding it,
    so entering raises an error instead of waiting forever.
    """

    def __init__(self) -> None:
        # A lock of the fork context could not be pickled for workers that are not forked.
        # The first lock starts the resource tracker.
        with safe_path():
            self._lock = multiprocessing.get_context("spawn").Lock()

    def __enter__(self) -> None:
        if not self._lock.acquire(timeout=_LOCK_TIMEOUT):
            raise WorkerError(
                f"the lock of the shared env state was not released in {_LOCK_TIMEOUT:g} s",
                hint="a worker was killed while it held the lock: create a new EnvCreator",
            )

    def __exit__(self, *exc_info: object) -> None:
        self._lock.release()
