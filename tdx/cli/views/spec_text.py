"""Specs in one line, as every face writes them."""

from __future__ import annotations

from tdx.inspection.spec_text import SpecText, domain_text, shape_text

__all__ = ["SpecText", "domain_text", "shape_text"]
