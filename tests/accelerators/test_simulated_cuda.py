"""The simulated device: where the host waits, and values equal to those of the host."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tdx.foundation.simulated_cuda import DEVICE, DeviceCall, SimulatedCuda
from tests.accelerators.snippets import SNIPPETS, Snippet

FILE = Path(inspect.getfile(SNIPPETS[0]))


def marked_lines(snippet: Snippet) -> set[int]:
    lines, first = inspect.getsourcelines(snippet)
    return {first + index for index, line in enumerate(lines) if line.rstrip().endswith("# wait")}


def run(snippet: Snippet) -> tuple[Any, set[int]]:
    calls: list[DeviceCall] = []
    with SimulatedCuda(calls.append):
        result = snippet(DEVICE)
    waits = {call.location for call in calls if call.kind == "wait"}
    assert all(location.partition(":")[0].endswith(FILE.name) for location in waits), waits
    return result, {int(location.rpartition(":")[2]) for location in waits}


def assert_same(result: Any, expected: Any) -> None:
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(result, expected, rtol=0, atol=0, equal_nan=True)
    elif isinstance(expected, np.ndarray):
        np.testing.assert_array_equal(result, expected)
    elif isinstance(expected, dict):
        assert list(result) == list(expected)
        for name, value in expected.items():
            assert_same(result[name], value)
    elif isinstance(expected, list | tuple):
        for one, other in zip(result, expected, strict=True):
            assert_same(one, other)
    else:
        assert result == expected


@pytest.mark.parametrize("snippet", SNIPPETS, ids=lambda snippet: snippet.__name__)
def test_lines_that_wait_are_found(snippet: Snippet) -> None:
    expected = snippet(torch.device("cpu"))
    result, waits = run(snippet)
    assert waits == marked_lines(snippet)
    assert_same(result, expected)
