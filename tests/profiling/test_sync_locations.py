"""Locations of CUDA synchronizations, from the warnings of torch."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
import torch

from tdx.profiling.passes.accelerator import watch_syncs

WAIT = "called a synchronizing CUDA operation (Triggered internally at CUDAFunctions.cpp:273.)"


@pytest.fixture(autouse=True)
def modes(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Return the list of sync debug modes set in torch, starting with the initial one."""
    values: list[object] = [0]

    def set_mode(mode: object) -> None:
        values.append(mode)
        if mode == "warn":
            warnings.warn("Synchronization debug mode is a prototype feature", stacklevel=2)

    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: values[-1])
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", set_mode)
    return values


def noting(places: list[str]) -> Callable[[str, bool], AbstractContextManager[None]]:
    """Return a callback that appends each place."""

    @contextmanager
    def note(place: str, is_over: bool) -> Iterator[None]:
        assert is_over
        places.append(place)
        yield

    return note


def test_each_sync_is_reported_with_its_line(modes: list[object]) -> None:
    places: list[str] = []
    with watch_syncs(noting(places)):
        for _ in range(2):
            line = sys._getframe().f_lineno + 1
            warnings.warn(WAIT, stacklevel=1)
    assert places == [f"tests/profiling/test_sync_locations.py:{line}"] * 2
    assert modes == [0, "warn", 0]


def test_reported_line_is_outside_torch() -> None:
    places: list[str] = []
    module = {"__name__": "torch._tensor", "warnings": warnings}
    source = f"def item():\n    warnings.warn({WAIT!r}, stacklevel=1)"
    exec(compile(source, str(Path(torch.__file__).with_name("_tensor.py")), "exec"), module)
    item = module["item"]
    assert callable(item)
    with watch_syncs(noting(places)):
        item()
    assert [Path(place).name.partition(":")[0] for place in places] == ["test_sync_locations.py"]


def test_other_warnings_are_not_affected(modes: list[object]) -> None:
    shown, filters = warnings.showwarning, list(warnings.filters)
    with pytest.warns(UserWarning, match="something else"), watch_syncs(noting([])):
        warnings.warn("something else", stacklevel=1)
    with pytest.raises(DeprecationWarning), watch_syncs(noting([])):
        warnings.warn("an error here", DeprecationWarning, stacklevel=1)
    assert (warnings.showwarning, list(warnings.filters)) == (shown, filters)
    assert modes[-1] == 0


def test_functions_that_wait_without_a_warning_are_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log: list[str] = []

    @contextmanager
    def around(place: str, is_over: bool) -> Iterator[None]:
        assert not is_over
        log.append(place)
        yield
        log.append("end")

    monkeypatch.setattr(torch.cuda, "synchronize", lambda: log.append("waited"))
    with watch_syncs(around):
        line = sys._getframe().f_lineno + 1
        torch.cuda.synchronize()
    torch.cuda.synchronize()
    place = f"tests/profiling/test_sync_locations.py:{line}"
    assert log == [place, "waited", "end", "waited"]
