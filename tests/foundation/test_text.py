"""Control characters are escaped."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tdx.foundation.text import escape_control_characters


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J", r"\x1b[2J"),
        ("\x9b2J", r"\x9b2J"),
        ("a\u202eb", r"a\u202eb"),
        ("\u2066x\u2069", r"\u2066x\u2069"),
        ("a\r\nb", r"a\r\nb"),
        ("\ud800", r"\ud800"),
        ("\U000e0041", r"\U000e0041"),
        ("naïve 日本 ±1 ≤ 2 µs", "naïve 日本 ±1 ≤ 2 µs"),
    ],
)
def test_control_characters_are_escaped(text: str, shown: str) -> None:
    assert escape_control_characters(text) == shown


def test_kept_characters_pass() -> None:
    assert escape_control_characters("a\n\tb\x1b", keep="\n\t") == "a\n\tb\\x1b"


@given(st.text(st.characters()))
def test_escaped_text_has_no_control_character(text: str) -> None:
    shown = escape_control_characters(text)
    kinds = {unicodedata.category(character) for character in shown}
    assert not kinds & {"Cc", "Cs", "Zl", "Zp"}
    bidirectional = {unicodedata.bidirectional(character) for character in shown}
    assert not bidirectional & {"LRE", "RLE", "PDF", "LRO", "RLO", "LRI", "RLI", "FSI", "PDI"}
    assert escape_control_characters(shown) == shown
