"""What the shell offers for a key, which only the env itself can tell: it is built for that."""

from __future__ import annotations

import contextlib
import io
from dataclasses import fields
from typing import Any

import typer

from tdx.cli.options import PipelineOptions
from tdx.errors import TdxError


def complete_policy_key(ctx: typer.Context, incomplete: str) -> list[str]:
    """The keys that a policy may read from the env that the line names so far.

    Args:
        ctx: the line so far.
        incomplete: the word to complete.
    """
    return [key for key in _policy_keys(ctx.params) if key.startswith(incomplete)]


def _policy_keys(given: dict[str, Any]) -> list[str]:
    from tdx.cli.source import built_env, read_pipeline
    from tdx.inspection.plan_report import policy_keys
    from tdx.keys import format_key

    known = {
        field.name: given[field.name] for field in fields(PipelineOptions) if field.name in given
    }
    options = PipelineOptions(**known)
    if options.pipeline == "-":
        return []
    silent = io.StringIO()
    with (
        contextlib.suppress(TdxError),
        contextlib.redirect_stdout(silent),
        contextlib.redirect_stderr(silent),
        built_env(read_pipeline(options), options) as env,
    ):
        return [format_key(key) for key in policy_keys(env)]
    return []
