"""``tdx schema``."""

from __future__ import annotations

import sys

from tdx.cli.options import DebugOptions


def schema(debug: DebugOptions) -> None:
    """Print the JSON Schema of the pipeline file, for completion in an editor.

    tdx schema > tdx.schema.json
    """
    from tdx.pipeline.json_schema import SCHEMA_FILE

    sys.stdout.write(SCHEMA_FILE.read_text(encoding="utf-8"))
