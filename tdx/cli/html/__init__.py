"""Pages in HTML that need nothing but themselves."""

from __future__ import annotations

from tdx.cli.html.report import report_page

__all__ = ["report_page"]
