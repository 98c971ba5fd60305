"""``EnvCreator``: an env factory whose envs share the state of their modules."""

from __future__ import annotations

import multiprocessing
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from copy import copy
from typing import Any, Self

import torch
from torch import Tensor, nn

from tdx.core.envs import EnvBase
from tdx.envs.batched.factories import EnvFactory
from tdx.envs.batched.metadata import EnvMetaData
from tdx.envs.batched.shared_memory import Field, TensorBlock
from tdx.errors import KeyNotFoundError, WorkerError, did_you_mean


class EnvCreator:
    """Makes envs that all read and write the same module state, also across processes.

    One env is made at once to learn its specs and its ``state_dict``. The parameters and buffers
    of every env made later *are* the tensors of that first state, so that statistics which a
    transform updates in place are those of all envs together. A lock keeps the updates of
    several processes apart.

    Args:
        create_env_fn: makes an env.
        create_env_kwargs: passed to ``create_env_fn``.
        share_memory: whether processes share the state; otherwise each begins with a copy, which
            the envs of one process share.
        **kwargs: also passed to ``create_env_fn``.

    Raises:
        ArgumentError: ``create_env_fn`` does not make an env.

    Example:
        >>> from tdx import EnvCreator, PendulumEnv, SerialEnv
        >>> SerialEnv(2, EnvCreator(PendulumEnv)).batch_size
        torch.Size([2])
    """

    def __init__(
        self,
        create_env_fn: Callable[..., EnvBase],
        create_env_kwargs: Mapping[str, Any] | None = None,
        share_memory: bool = True,
        **kwargs: Any,
    ) -> None:
        self._factory = EnvFactory(create_env_fn, {**(create_env_kwargs or {}), **kwargs})
        env = self._factory()
        self._meta_data = EnvMetaData.of(env)
        state = _shareable_state(env)
        fields = {name: Field.of(tensor) for name, tensor in state.items()}
        self._block = TensorBlock(fields, shared=share_memory)
        for name, shared in self._block.tensors().items():
            shared.copy_(state[name].detach())
        self._lock = StateLock() if share_memory else None
        env.close()

    @property
    def create_env_fn(self) -> Any:
        """The function that makes the envs."""
        return self._factory.create

    @property
    def create_env_kwargs(self) -> dict[str, Any]:
        """What it is called with."""
        return dict(self._factory.kwargs)

    @property
    def meta_data(self) -> EnvMetaData:
        """Specs, batch size and device of the envs it makes."""
        return self._meta_data

    def make_variant(self, **kwargs: Any) -> Self:
        """A creator with some keyword arguments changed, over the same shared state."""
        variant = copy(self)
        variant._factory = EnvFactory(self._factory.create, {**self._factory.kwargs, **kwargs})
        return variant

    def __copy__(self) -> Self:
        twin = type(self).__new__(type(self))
        twin.__dict__.update(self.__dict__)
        return twin

    def __call__(self, **kwargs: Any) -> EnvBase:
        factory = self._factory
        env = EnvFactory(factory.create, {**factory.kwargs, **kwargs})()
        env.output_spec  # noqa: B018 - a module may have some of its state from the specs only
        for name, shared in self._block.tensors().items():
            _put_in_place(env, name, shared)
        if self._lock is not None:
            _hand_out(env, self._lock)
        return env

    def state_dict(self) -> OrderedDict[str, Tensor]:
        """The shared tensors themselves, by their names in the env's ``state_dict``."""
        return OrderedDict(self._block.tensors())

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Write values into the shared tensors, and so into every env made here.

        Raises:
            KeyNotFoundError: a name is missing.
        """
        for name in self._block.tensors():
            if name not in state_dict:
                hint = did_you_mean(name, state_dict, "it belongs to an env of another kind")
                raise KeyNotFoundError(f"the state has no {name!r}", hint=hint)
        with self._lock or nullcontext():
            for name, shared in self._block.tensors().items():
                shared.copy_(state_dict[name])

    def __repr__(self) -> str:
        return f"EnvCreator({self.create_env_fn!r}, {self.create_env_kwargs!r})"


def _shareable_state(env: EnvBase) -> dict[str, Tensor]:
    return {
        name: value
        for name, value in env.state_dict().items()
        if isinstance(value, Tensor) and not nn.parameter.is_lazy(value) and _owner(env, name)
    }


def _owner(env: EnvBase, name: str) -> tuple[nn.Module, str] | None:
    path, _, leaf = name.rpartition(".")
    try:
        module = env.get_submodule(path)
    except AttributeError:
        return None
    return (module, leaf) if leaf in module._buffers or leaf in module._parameters else None


def _hand_out(env: EnvBase, lock: StateLock) -> None:
    """Give the lock to those modules that change their state in several operations."""
    for module in env.modules():
        take: Callable[[StateLock], None] | None = getattr(module, "_take_lock", None)
        if take is not None:
            take(lock)


def _put_in_place(env: EnvBase, name: str, shared: Tensor) -> None:
    found = _owner(env, name)
    if found is None:
        return
    module, leaf = found
    parameter = module._parameters.get(leaf)
    current = module._buffers.get(leaf) if parameter is None else parameter
    if current is None or _kind(current) != _kind(shared):
        return
    if parameter is None:
        module._buffers[leaf] = shared
    else:
        parameter.data = shared


def _kind(tensor: Tensor) -> tuple[torch.device, Field]:
    return tensor.device, Field.of(tensor)


_HELD_FOR_LONG = 60.0


class StateLock:
    """A context manager that one process at a time is in; sent to another it is the same lock.

    What is done under it takes microseconds. One that does not come free was held by a process
    that was killed, which is said instead of waiting for ever.

    Raises:
        WorkerError: it did not come free.
    """

    def __init__(self) -> None:
        # A lock of the fork context could not be sent to workers that are not forked.
        self._lock = multiprocessing.get_context("spawn").Lock()

    def __enter__(self) -> None:
        if not self._lock.acquire(timeout=_HELD_FOR_LONG):
            raise WorkerError(
                "the lock of the envs' shared state does not come free",
                hint="a worker was killed while it held it: make a new EnvCreator",
            )

    def __exit__(self, *exc_info: object) -> None:
        self._lock.release()
