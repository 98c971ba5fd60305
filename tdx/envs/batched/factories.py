"""From ``create_env_fn`` in each of its forms to one factory a worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import cloudpickle

from tdx.envs.base import EnvBase
from tdx.errors import ArgumentError

CreateEnv = Callable[..., EnvBase] | EnvBase


class EnvFactory:
    """Makes one worker's env, and can be sent to a process even where it is a lambda.

    Args:
        create: makes the env, or is the env.
        kwargs: passed to ``create``.
    """

    def __init__(self, create: CreateEnv, kwargs: Mapping[str, Any]) -> None:
        self.create = create
        self.kwargs = dict(kwargs)

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
        return PackedFactory, (cloudpickle.dumps((self.create, self.kwargs)),)


class PackedFactory:
    """A factory as it arrives in another process, unpacked only when it is called.

    So what goes wrong in the imports that it needs is reported like any other failure to make
    the env.

    Args:
        data: what was sent.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __call__(self) -> EnvBase:
        return EnvFactory(*cloudpickle.loads(self._data))()


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
        raise ArgumentError(f"num_workers must be a whole number of at least 1, got {num_workers}")
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
