"""Completion of keys inside a stage, and a cache of keys, as finding them loads torch."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tdx import __version__

_MAX_ENTRIES = 100
_LIST = re.compile(
    r"""(?P<before>.*\b(?P<name>\w*keys\w*)\s*=\s*\[(?:[^\[\]]*,)?\s*)(?P<quote>["']?)(?P<word>[\w.]*)"""
)
"""A stage that ends inside a list of keys, before the quote that closes a key."""


def complete_keys_of_stage(params: Mapping[str, Any], words: list[str], stage: str) -> list[str]:
    """Complete the last key in a list of keys, such as ``CatFrames(in_keys=["obs``.

    Args:
        params: Values of the options before it.
        words: Words without an option before it.
        stage: Unfinished stage.

    Returns:
        Completed stages; empty if the stage does not end inside a list of keys.
    """
    found = _LIST.fullmatch(stage)
    if found is None or found["name"].startswith("out_"):
        return []
    target = next(filter(None, [params.get("env"), params.get("pipeline"), *words]), None)
    if target is None or target == "-":
        return []
    values = {name: params.get(name) for name in ("transforms", "env_kwargs", "from_pixels")}
    keys = cached_names([target, values], lambda: _chain_keys(target, values))
    quote = found["quote"] or _other_quote(stage)
    taken = set(re.findall(r"[\w.]+", found["before"].rpartition("[")[2]))
    completed = [
        f"{found['before']}{quote}{key}{quote}"
        for key in keys
        if key.startswith(found["word"]) and key not in taken and "." not in key
    ]
    # A shell closes the quotes after a single completion; a second one keeps them open.
    return [*completed, f"{completed[0]}]"] if len(completed) == 1 else completed


def _other_quote(stage: str) -> str:
    """Return the quote that does not end the word on the command line."""
    line = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS") or ""
    start = line.rfind(stage)
    return '"' if start > 0 and line[start - 1] == "'" else "'"


def _chain_keys(target: str, values: Mapping[str, Any]) -> list[str]:
    from tdx.inspection.lineage import inspect_keys
    from tdx.pipeline import EnvConfig, Pipeline, PipelineFile, parse_stage
    from tdx.pipeline.grammar import parse_kwargs
    from tdx.stacks.building import build_env

    if Path(target).is_file():
        pipeline = PipelineFile.load(target).pipeline
    else:
        kwargs = parse_kwargs(values["env_kwargs"]) if values["env_kwargs"] else {}
        pipeline = Pipeline(EnvConfig(target, kwargs=kwargs))
    stages = map(parse_stage, values["transforms"] or ())
    pipeline = pipeline.with_stages(*pipeline.transforms, *stages)
    if values["from_pixels"]:
        pipeline = replace(pipeline, env=replace(pipeline.env, from_pixels=True))
    env = build_env(pipeline, False)
    try:
        return inspect_keys(env).keys()
    finally:
        env.close()


def cached_names(question: Any, find: Callable[[], list[str]]) -> list[str]:
    """Return names from the cache of completions, or find and store them.

    Args:
        question: What the names depend on, as plain data; files count with their time of change.
        find: Returns the names. What it prints is discarded; if it fails, there are none.
    """
    changed = [_change_time(word) for word in _texts(question)]
    fingerprint = json.dumps([__version__, os.getcwd(), question, changed], default=str)
    stored = _read_cache()
    if fingerprint in stored:
        return stored[fingerprint]
    names: list[str] = []
    output = io.StringIO()
    # If the command line is invalid, or the env fails, there is nothing to complete.
    with (
        contextlib.suppress(Exception),
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(output),
    ):
        names = find()
    if names:
        _write_cache({**dict(list(stored.items())[1 - _MAX_ENTRIES :]), fingerprint: names})
    return names


def _texts(question: Any) -> Iterator[str]:
    if isinstance(question, str):
        yield question
    elif isinstance(question, Mapping):
        yield from _texts(list(question.values()))
    elif isinstance(question, list | tuple):
        for each in question:
            yield from _texts(each)


def _change_time(word: str) -> int | None:
    try:
        return os.stat(word).st_mtime_ns
    except (OSError, ValueError):
        return None


def _cache_path() -> Path:
    from platformdirs import user_cache_path

    return user_cache_path("tdx") / "keys.json"


def _read_cache() -> dict[str, list[str]]:
    try:
        stored = json.loads(_cache_path().read_text(encoding="utf-8"))
        return {str(name): [str(key) for key in keys] for name, keys in stored.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _write_cache(stored: Mapping[str, list[str]]) -> None:
    from tdx.errors import ArgumentError
    from tdx.files import write_atomically

    path = _cache_path()
    with contextlib.suppress(OSError, ArgumentError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(stored), sync=False)
