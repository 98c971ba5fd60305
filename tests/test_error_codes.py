"""Scripts tell errors apart by their codes."""

from __future__ import annotations

from tdx import errors
from tdx.errors import TdxError


def test_every_error_has_a_code_of_its_own() -> None:
    kinds = [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, TdxError)
    ]
    assert len(kinds) > 15
    assert len({kind.code for kind in kinds}) == len(kinds)
