"""Shell completion for keys: builds the env of the command line to find them."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import typer

from tdx.cli.options import PipelineOptions
from tdx.cli.pipelines import open_env, read_pipeline

if TYPE_CHECKING:
    from tdx.envs import EnvBase


def complete_policy_key(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the keys that a policy can read from the env.

    Args:
        ctx: Command line so far.
        incomplete: Word to complete.
    """
    return [key for key in _keys(ctx, _policy_keys) if key.startswith(incomplete)]


def complete_key(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the keys of the env and of its chain."""
    return [key for key in _keys(ctx, _chain_keys) if key.startswith(incomplete)]


def complete_stored_keys(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the last of a comma-separated list of entries that a rollout can store."""
    done, comma, word = incomplete.rpartition(",")
    return [f"{done}{comma}{key}" for key in _keys(ctx, _rollout_keys) if key.startswith(word)]


def _policy_keys(env: EnvBase) -> list[str]:
    from tdx.inspection.plan_report import policy_keys
    from tdx.keys import format_key

    return [format_key(key) for key in policy_keys(env)]


def _chain_keys(env: EnvBase) -> list[str]:
    from tdx.inspection.lineage import inspect_keys

    return inspect_keys(env).keys()


def _rollout_keys(env: EnvBase) -> list[str]:
    from tdx.rollouts.dump.entries import key_names, list_keys

    names = [name for key in list_keys(env.fake_tensordict()) for name in key_names(key)]
    return list(dict.fromkeys(names))


def _keys(ctx: typer.Context, find_keys: Callable[[EnvBase], list[str]]) -> list[str]:
    values: dict[str, Any] = {
        field.name: ctx.params[field.name]
        for field in fields(PipelineOptions)
        if field.name in ctx.params
    }
    if "file" in ctx.params:
        # Typer does not parse the words after an option without a value.
        words = [ctx.params["file"], *(word for word in ctx.args if not word.startswith("-"))]
        values["pipeline"] = next(filter(None, words), values.get("pipeline"))
    options = PipelineOptions(**values)
    if options.pipeline == "-":
        return []
    output = io.StringIO()
    # If the command line is invalid, or the env fails, there is nothing to complete.
    with (
        contextlib.suppress(Exception),
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(output),
        open_env(read_pipeline(options), options) as env,
    ):
        return find_keys(env)
    return []
