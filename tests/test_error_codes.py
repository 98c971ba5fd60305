"""Codes of errors, which scripts distinguish."""

from __future__ import annotations

from tdx.foundation import errors
from tdx.foundation.errors import TdxError


def test_error_codes_are_unique() -> None:
    kinds = [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, TdxError)
    ]
    assert TdxError in kinds
    assert len({kind.code for kind in kinds}) == len(kinds)
