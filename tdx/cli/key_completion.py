"""What the shell offers for a key, which only the env itself can tell: it is built for that."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import typer

from tdx.cli.options import PipelineOptions

if TYPE_CHECKING:
    from tdx.envs import EnvBase


def complete_policy_key(ctx: typer.Context, incomplete: str) -> list[str]:
    """The keys that a policy may read from the env that the line names so far.

    Args:
        ctx: the line so far.
        incomplete: the word to complete.
    """
    return [key for key in _keys(ctx, _of_policy) if key.startswith(incomplete)]


def complete_key(ctx: typer.Context, incomplete: str) -> list[str]:
    """The keys that the env of the line so far has, or gets from a stage."""
    return [key for key in _keys(ctx, _of_chain) if key.startswith(incomplete)]


def complete_stored_keys(ctx: typer.Context, incomplete: str) -> list[str]:
    """The entries that a rollout can store, behind the last comma of a list of them."""
    done, comma, word = incomplete.rpartition(",")
    return [f"{done}{comma}{key}" for key in _keys(ctx, _of_rollout) if key.startswith(word)]


def _of_policy(env: EnvBase) -> list[str]:
    from tdx.inspection.plan_report import policy_keys
    from tdx.keys import format_key

    return [format_key(key) for key in policy_keys(env)]


def _of_chain(env: EnvBase) -> list[str]:
    from tdx.inspection.lineage import inspect_keys

    return inspect_keys(env).keys()


def _of_rollout(env: EnvBase) -> list[str]:
    from tdx.rollouts.dump.entries import key_names, list_keys

    names = [name for key in list_keys(env.fake_tensordict()) for name in key_names(key)]
    return list(dict.fromkeys(names))


def _keys(ctx: typer.Context, of: Callable[[EnvBase], list[str]]) -> list[str]:
    from tdx.cli.source import built_env, read_pipeline

    given: dict[str, Any] = ctx.params
    known = {
        field.name: given[field.name] for field in fields(PipelineOptions) if field.name in given
    }
    if "file" in given:
        # Behind an option without its value Typer leaves the other words unread.
        words = [given["file"], *(word for word in ctx.args if not word.startswith("-"))]
        known["pipeline"] = next(filter(None, words), known.get("pipeline"))
    options = PipelineOptions(**known)
    if options.pipeline == "-":
        return []
    silent = io.StringIO()
    # Whatever is wrong with the line so far, or with torch: TAB has nothing to say then.
    with (
        contextlib.suppress(Exception),
        contextlib.redirect_stdout(silent),
        contextlib.redirect_stderr(silent),
        built_env(read_pipeline(options), options) as env,
    ):
        return of(env)
    return []
