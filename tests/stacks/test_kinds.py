"""A kind of stack of a third party, from the entry-point group ``tdx.stacks``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import tdx
from tdx.cli.process import run
from tdx.foundation.errors import ArgumentError
from tdx.stacks import kinds, open_stack
from tests.plugins.installed import install, installed
from tests.stacks import toy_package
from tests.stacks.toy_framework import make


@pytest.fixture
def register(tmp_path: Path) -> Iterator[Any]:
    with ExitStack() as stack:

        def use(value: str) -> None:
            install(tmp_path / "site", {kinds.GROUP: {"toy": value}})
            stack.enter_context(installed(tmp_path / "site"))

        yield use


MAKE = ("--env", "tests.stacks.toy_framework:make", "--allow-code")


def test_registered_kind_gets_all_jobs(register: Any) -> None:
    register(f"{toy_package.__name__}:KIND")
    assert open_stack(make()).kind == "toy"
    report = tdx.inspect(make(), steps=2, seed=0)
    assert [stage.call for stage in report.stages] == ["Scale(factor=2.0)", "Scale(factor=-0.5)"]
    assert tdx.check(make(), seed=0).ok
    chain = make()
    with tdx.profile(chain) as measured:
        chain.run(0.5)
    assert measured.result.subject == "Walk"
    assert chain.run(0.5) == -1.0
    trace = tdx.trace(chain).run(1).last
    assert trace is not None
    assert [stage.place for stage in trace.stages] == ["Walk", "0 Scale", "1 Scale"]


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (("inspect", "spec"), "0 Scale(factor=2.0)"),
        (("inspect", "chain"), "1 Scale  forward  observation"),
        (("inspect", "keys"), "observation"),
        (("inspect", "values", "--steps", "3"), "0 Scale  observation@1"),
        (("check",), "all checks passed"),
        (("profile", "--steps", "5", "--repeat", "2"), "wrapper Scale"),
    ],
    ids=lambda part: " ".join(part) if isinstance(part, tuple) else "",
)
def test_registered_kind_gets_all_commands(
    register: Any, capsys: pytest.CaptureFixture[str], command: tuple[str, ...], shown: str
) -> None:
    register(f"{toy_package.__name__}:KIND")
    assert run([*command, *MAKE]) == 0
    assert shown in capsys.readouterr().out


def test_kind_that_cannot_be_loaded_is_named(register: Any) -> None:
    register("no_such_package:KIND")
    with (
        pytest.warns(UserWarning, match="kind of stack toy of toy 1.0 cannot be imported"),
        pytest.raises(ArgumentError, match="cannot be imported: ModuleNotFoundError"),
    ):
        open_stack(3)
