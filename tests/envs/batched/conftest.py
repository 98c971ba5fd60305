"""Batches of envs in both classes, closed after each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tdx.envs.batched import ParallelEnv, SerialEnv

MakeBatch = Callable[..., Any]


def _maker(kind: type[Any]) -> Iterator[MakeBatch]:
    made: list[Any] = []

    def make(*args: Any, **kwargs: Any) -> Any:
        # A fork has imported the test already; other tests start workers as a user does.
        kwargs.setdefault("mp_start_method", "fork")
        # A process per env, on a machine of any size.
        kwargs.setdefault("processes", 64)
        made.append(kind(*args, **kwargs))
        return made[-1]

    yield make
    for env in made:
        env.close()


@pytest.fixture(params=[SerialEnv, ParallelEnv], ids=["serial", "parallel"])
def make_batch(request: pytest.FixtureRequest) -> Iterator[MakeBatch]:
    """Return a constructor of either class."""
    yield from _maker(request.param)


@pytest.fixture
def make_serial() -> Iterator[MakeBatch]:
    """Return a constructor of serial batches."""
    yield from _maker(SerialEnv)


@pytest.fixture
def make_parallel() -> Iterator[MakeBatch]:
    """Return a constructor of parallel batches."""
    yield from _maker(ParallelEnv)
