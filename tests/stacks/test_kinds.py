"""A kind of stack of a third party, from the entry-point group ``tdx.stacks``."""

from __future__ import annotations

import importlib.metadata
from importlib.metadata import EntryPoint
from typing import Any

import pytest

import tdx
from tdx.errors import EnvError
from tdx.stacks import kinds, open_stack
from tdx.stacks.gymnasium.stack import GymnasiumStack


class Toy:
    """An env of a toy framework that holds a Gymnasium env."""

    def __init__(self, env: Any) -> None:
        self.env = env


class ToyStack(GymnasiumStack):
    kind = "toy"


class ToyKind:
    title = "a toy"

    def accepts(self, target: Any) -> bool:
        return isinstance(target, Toy)

    def open(self, target: Any) -> ToyStack:
        return ToyStack(target.env)


KIND = ToyKind()


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Any:
    def use(value: str) -> None:
        entry = EntryPoint("toy", value, kinds.GROUP)
        monkeypatch.setattr(kinds, "_entry_points", lambda: (entry,))

    return use


def test_registered_kind_gets_all_jobs(register: Any) -> None:
    import gymnasium

    register(f"{__name__}:KIND")
    env = Toy(gymnasium.make("CartPole-v1", max_episode_steps=5))
    assert open_stack(env).kind == "toy"
    assert tdx.inspect(env, steps=2).kind == "toy"
    assert tdx.check(env, seed=0).ok
    with tdx.profile(env) as measured:
        env.env.reset()
    assert measured.result.subject == "CartPole-v1"


def test_kind_that_cannot_be_loaded_is_named(register: Any) -> None:
    register("no_such_package:KIND")
    with pytest.raises(EnvError, match=r"entry point 'toy' of .* cannot be loaded"):
        open_stack(3)


def test_entry_points_are_those_of_the_environment() -> None:
    found = importlib.metadata.entry_points(group=kinds.GROUP)
    assert {each.name for each in kinds._entry_points()} == {each.name for each in found}
