"""Dataclasses as plain data and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from tdx.foundation.serialization import from_plain, omit_empty, to_plain


@dataclass(frozen=True)
class Inner:
    name: str
    share: float = 0.5


@dataclass(frozen=True)
class Outer:
    mode: Literal["eager", "planned"]
    inner: tuple[Inner, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    limit: float | None = None
    note: str = omit_empty("")


def test_fields_keep_their_order_and_empty_ones_may_be_left_out() -> None:
    outer = Outer("eager", (Inner("a", 1 / 3),), {"steps": 3})
    assert json.dumps(to_plain(outer, digits=2)) == (
        '{"mode": "eager", "inner": [{"name": "a", "share": 0.33}], '
        '"counts": {"steps": 3}, "limit": null}'
    )
    assert to_plain(Outer("eager", note="slow"))["note"] == "slow"


def test_arrays_and_paths_become_plain() -> None:
    assert to_plain({"a": np.arange(3), "b": Path("x/y")}) == {"a": [0, 1, 2], "b": "x/y"}


def test_a_round_trip_returns_an_equal_dataclass() -> None:
    outer = Outer("planned", (Inner("a"), Inner("b", 2)), {"steps": 3}, 1.5, "note")
    assert from_plain(Outer, json.loads(json.dumps(to_plain(outer)))) == outer
    assert from_plain(Outer, {"mode": "eager", "unknown": 1}) == Outer("eager")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("mode", "fast"),
        ("inner", "ab"),
        ("inner", [{"name": 3}]),
        ("counts", {"steps": True}),
        ("limit", "3"),
        ("note", None),
    ],
)
def test_a_value_of_another_type_is_refused(name: str, value: Any) -> None:
    with pytest.raises(TypeError, match=f"^{name} cannot be "):
        from_plain(Outer, {"mode": "eager", name: value})


def test_a_missing_value_is_refused() -> None:
    with pytest.raises(TypeError, match="mode"):
        from_plain(Outer, {})
