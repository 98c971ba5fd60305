"""Env factories: one for each worker, from the accepted forms of ``create_env_fn``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import cloudpickle

from tdx.core.envs import EnvBase
from tdx.errors import ArgumentError

CreateEnv = Callable[..., EnvBase] | EnvBase


class EnvFactory:
    """Creates the env of one worker. It can be pickled even if the function is a lambda.

    Args:
        create: Function that creates the env, or the env itself.
        kwargs: Keyword arguments for the function.
    """

    def __init__(self, create: CreateEnv, kwargs: Mapping[str, Any]) -> None:
        self._parts: tuple[CreateEnv, dict[str, Any]] | bytes = (create, dict(kwargs))

    @property
    def create(self) -> CreateEnv:
        """Function that creates the env, or the env itself."""
        return self._unpickle()[0]

    @property
    def kwargs(self) -> dict[str, Any]:
        """Keyword arguments for the function."""
        return self._unpickle()[1]

    def _unpickle(self) -> tuple[CreateEnv, dict[str, Any]]:
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

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle_factory, (cloudpickle.dumps(self._unpickle()),)


def _unpickle_factory(data: bytes) -> EnvFactory:
    factory = EnvFactory.__new__(EnvFactory)
    factory._parts = data
    return factory


def create_env_factories(
    num_workers: int,
    create_env_fn: CreateEnv | Sequence[CreateEnv],
    create_env_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None,
) -> list[EnvFactory]:
    """Create one factory for each worker.

    Raises:
        ArgumentError: The number of functions differs from ``num_workers``, or a function or env
            is invalid.
    """
    if type(num_workers) is not int or num_workers < 1:
        raise ArgumentError(
            f"num_workers must be an integer of at least 1, got {num_workers!r}",
            hint="pass the number of envs, such as 2",
        )
    creates = _repeat_for_workers(num_workers, create_env_fn, "create_env_fn")
    given = {} if create_env_kwargs is None else create_env_kwargs
    kwargs = _repeat_for_workers(num_workers, given, "create_env_kwargs")
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


def _repeat_for_workers(num_workers: int, given: Any, name: str) -> list[Any]:
    if isinstance(given, str) or not isinstance(given, Sequence):
        return [given] * num_workers
    if len(given) != num_workers:
        raise ArgumentError(
            f"{name} has {len(given)} entries for {num_workers} workers",
            hint="pass one for each worker, or a single one for all",
        )
    return list(given)
