"""Limits on nesting and on sizes that a header declares."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tdx.foundation.errors import StorageError
from tdx.foundation.untrusted import (
    MAX_NESTING,
    check_claimed_bytes,
    json_depth,
    parse_json,
    read_limited,
    validate_shape,
)

PLAIN = st.recursive(
    st.none() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def _depth(value: object) -> int:
    if isinstance(value, dict):
        return 1 + max(map(_depth, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(_depth, value), default=0)
    return 0


@given(PLAIN)
def test_depth_is_that_of_the_document(value: object) -> None:
    assert json_depth(json.dumps(value)) == _depth(value)
    assert parse_json(json.dumps(value), "x") == value


@pytest.mark.parametrize("text", ["[" * 20_000, "[" * 20_000 + "]" * 20_000, '{"a":' * 20_000])
def test_deep_nesting_is_rejected(text: str) -> None:
    with pytest.raises(StorageError, match=f"nested more than {MAX_NESTING} levels"):
        parse_json(text, "manifest.json")


@pytest.mark.parametrize("text", [b"\xff", b"{", b"", b"nope", b"1" * 10_000])
def test_damaged_json_names_the_file(text: bytes) -> None:
    with pytest.raises(StorageError, match=r"manifest\.json is not valid JSON") as caught:
        parse_json(text, "manifest.json")
    assert caught.value.hint


def test_depth_takes_linear_time_on_an_unterminated_string() -> None:
    assert json_depth('["' + '\\"' * 1_000_000) == 1


def test_endless_file_is_rejected() -> None:
    with pytest.raises(StorageError, match="more than 1,000 bytes"):
        read_limited(Path("/dev/zero"), 1000)


@pytest.mark.parametrize(
    "sizes", [[-1], [1.5], ["2"], [True], [None], [2**40, 2**40], [1] * 33, 5, "33"]
)
def test_impossible_shape_is_rejected(sizes: object) -> None:
    with pytest.raises(StorageError, match="batch_size"):
        validate_shape(sizes, "batch_size")  # type: ignore[arg-type]


def test_declared_size_is_compared_with_the_file(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(bytes(100))
    check_claimed_bytes(100, file, "the array")
    with pytest.raises(StorageError, match="the array declares 101 bytes"):
        check_claimed_bytes(101, file, "the array")
