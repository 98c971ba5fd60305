"""Serialization of result dataclasses."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import pytest

from tdx.foundation.errors import ArgumentError
from tdx.foundation.keys import NestedKey
from tdx.foundation.serialization import Entries, Entry, Result, key_entry, keys_entry, to_plain


@dataclass(frozen=True, slots=True)
class Range(Result):
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Column(Result):
    json_entries: ClassVar[Entries] = (
        key_entry("key"),
        keys_entry("readers"),
        Entry("range", inline=True),
        Entry("lowest", "range.low"),
        Entry("digest", omit_none=True),
        "is_read",
    )
    key: NestedKey
    readers: tuple[NestedKey, ...]
    range: Range
    digest: str | None = None

    @property
    def is_read(self) -> bool:
        return bool(self.readers)


def test_fields_are_entries_by_default() -> None:
    assert Range(0.0, math.inf).to_dict() == {"low": 0.0, "high": "inf"}


def test_entries_have_the_declared_order_and_names() -> None:
    column = Column(("next", "reward"), ("done",), Range(0.0, 1.0))
    assert list(column.to_dict().items()) == [
        ("key", "next.reward"),
        ("readers", ["done"]),
        ("low", 0.0),
        ("high", 1.0),
        ("lowest", 0.0),
        ("is_read", True),
    ]


def test_optional_entry_is_present_if_set() -> None:
    assert Column("a", (), Range(0.0, 1.0), "f00d").to_dict()["digest"] == "f00d"


def test_errors_and_containers_are_serialized() -> None:
    error = ArgumentError("steps must be at least 1, got 0")
    assert to_plain({"errors": (error,), "nan": math.nan}, strict=True) == {
        "errors": [error.to_dict()],
        "nan": "nan",
    }


def test_unknown_type_is_refused() -> None:
    with pytest.raises(TypeError, match="JSON cannot represent complex"):
        to_plain([1j], strict=True)
