"""From ``create_env_fn`` in each of its forms to one factory a worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import cloudpickle

from tdx.core.envs import EnvBase
from tdx.errors import ArgumentError

CreateEnv = Callable[..., EnvBase] | EnvBase


class EnvFactory:
    """Makes one worker's env, and can be sent to a process even where it is a lambda.

    Args:
        create: makes the env, or is the env.
        kwargs: passed to ``create``.
    """

    def __init__(self, create: CreateEnv, kwargs: Mapping[str, Any]) -> None:
        self._parts: tuple[CreateEnv, dict[str, Any]] | bytes = (create, dict(kwargs))

    @property
    def create(self) -> CreateEnv:
        """What makes the env, or is it."""
        return self._unpacked()[0]

    @property
    def kwargs(self) -> dict[str, Any]:
        """What it is called with."""
        return self._unpacked()[1]

    def _unpacked(self) -> tuple[CreateEnv, dict[str, Any]]:
        # Only on first use, so that what goes wrong in the imports that it needs is reported
        # like any other failure to make the env.
        if isinstance(self._parts, bytes):
            self._parts = cloudpickle.loads(self._parts)
        assert not isinstance(self._parts, bytes)
        return self._parts

    def __call__(self) -> EnvBase:
        # An EnvBase is a module and so callable, though not a factory.
        env = self.create if isinstance(self.create, EnvBase) else self.create(**self.kwargs)
        if not isinstance(env, EnvBase):
            raise ArgumentError(
                f"create_env_fn returned a {type(env).__name__}, not an env",
                hint="return an EnvBase, for example GymEnv('Pendulum-v1')",
            )
        return env

    def __reduce__(self) -> tuple[Any, ...]:
        return _packed, (cloudpickle.dumps(self._unpacked()),)


def _packed(data: bytes) -> EnvFactory:
    factory = EnvFactory.__new__(EnvFactory)
    factory._parts = data
    return factory


def env_factories(
    num_workers: int,
    create_env_fn: CreateEnv | Sequence[CreateEnv],
    create_env_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None,
) -> list[EnvFactory]:
    """One factory for each worker.

    Raises:
        ArgumentError: there are not as many as workers, or one of them cannot make an env.
    """
    if type(num_workers) is not int or num_workers < 1:
        raise ArgumentError(
            f"num_workers must be a whole number of at least 1, got {num_workers}",
            hint="pass the number of envs, such as 2",
        )
    creates = _one_each(num_workers, create_env_fn, "create_env_fn")
    given = {} if create_env_kwargs is None else create_env_kwargs
    kwargs = _one_each(num_workers, given, "create_env_kwargs")
    for index, create in enumerate(creates):
        if not callable(create):
            raise ArgumentError(
                f"create_env_fn of worker {index} is a {type(create).__name__}",
                hint="give a function that makes an env, or a list of them",
            )
    instances = [create for create in creates if isinstance(create, EnvBase)]
    if len({id(env) for env in instances}) < len(instances):
        raise ArgumentError(
            "one env cannot be run by several workers",
            hint="give a function that makes an env: lambda: GymEnv('Pendulum-v1')",
        )
    return [EnvFactory(create, kwargs[index]) for index, create in enumerate(creates)]


def _one_each(num_workers: int, given: Any, name: str) -> list[Any]:
    if isinstance(given, str) or not isinstance(given, Sequence):
        return [given] * num_workers
    if len(given) != num_workers:
        raise ArgumentError(
            f"{name} has {len(given)} entries for {num_workers} workers",
            hint="give one for each worker, or a single one for all",
        )
    return list(given)
