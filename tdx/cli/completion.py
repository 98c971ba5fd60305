"""Shell completion that loads neither torch nor Gymnasium, once env ids and keys are cached."""

from __future__ import annotations

import contextlib
import io
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tdx import __version__
from tdx.foundation.errors import ArgumentError, TdxError

if TYPE_CHECKING:
    from tdx.pipeline.transform_info import Type

Completion = tuple[str, str]
"""Completed word and its description."""

_POLICIES = ("random", "zero", "sequence:", "mlp:", "module:", "sb3:", "lerobot:")
_DEVICES = ("cpu", "cuda", "cuda:0", "cuda:1", "mps", "simulated")
_BRACKETS = {"(": ")", "[": "]", "{": "}"}


def complete_env(incomplete: str) -> list[Completion]:
    """Complete env ids: by prefix, or else by substring."""
    from tdx.inspection.envs import list_envs

    return _matching(incomplete, [(env.id, env.package) for env in list_envs()])


def complete_policy(incomplete: str) -> list[str]:
    """Complete the kind of a policy; the shell completes the file after it."""
    return [name for name in _POLICIES if name.startswith(incomplete)]


def complete_device(incomplete: str) -> list[str]:
    """Complete the names of devices; asking torch which of them exist takes seconds."""
    return [name for name in _DEVICES if name.startswith(incomplete)]


def complete_dump(incomplete: str) -> list[Completion]:
    """Complete dumps, and folders that may contain some."""
    return [
        (word, "dump") if _is_dump(path) else (f"{word}/", "folder")
        for word, path in _list_paths(incomplete)
        if path.is_dir()
    ]


def _list_paths(incomplete: str) -> Iterator[tuple[str, Path]]:
    """Yield the visible files and folders that a path may become, as they are typed."""
    folder, slash, _ = incomplete.rpartition("/")
    with contextlib.suppress(OSError):
        for path in sorted(Path(folder or (slash or ".")).iterdir()):
            word = f"{folder}{slash}{path.name}"
            if word.startswith(incomplete) and not path.name.startswith("."):
                yield word, path


def _is_dump(path: Path) -> bool:
    return (path / "manifest.json").is_file()


DUMP: Any = typer.Argument(metavar="DUMP", autocompletion=complete_dump, help="Folder of a dump.")
"""Declaration of an argument that names a dump."""


def complete_target(incomplete: str) -> list[Completion]:
    """Complete the pipeline files and dumps of a folder, or else env ids."""
    paths: list[Completion] = []
    for word, path in _list_paths(incomplete):
        if path.suffix in {".yaml", ".yml"}:
            paths.append((word, "pipeline file"))
        elif _is_dump(path):
            paths.append((word, "dump"))
        elif path.is_dir() and "/" in incomplete:
            paths.append((f"{word}/", "folder"))
    return paths + (complete_env(incomplete) if incomplete or not paths else [])


def complete_name(incomplete: str) -> list[Completion]:
    """Complete names of transforms: by prefix, else by substring, else by another library's name.

    Example:
        >>> complete_name("FrameSta")[0][0]
        'CatFrames'
    """
    from tdx.pipeline.aliases import aliases_of
    from tdx.pipeline.catalog import load_catalog
    from tdx.pipeline.transform_info import strip_markup

    infos = load_catalog().transforms
    named = [(info.name, strip_markup(info.summary)) for info in infos]
    folded = incomplete.casefold()
    return _matching(incomplete, named) or [
        item
        for info, item in zip(infos, named, strict=True)
        if any(alias.casefold().startswith(folded) for alias in aliases_of(info.name))
    ]


def complete_export(incomplete: str) -> list[Completion]:
    """Complete the formats of ``tdx export``, without loading those of plugins."""
    from tdx.foundation.plugins import find_plugins
    from tdx.rollouts.formats.registry import builtin_formats

    known = [(name, kind.title) for name, (kind, _) in builtin_formats().items()]
    known += [(plugin.name, f"of {plugin.package}") for plugin in find_plugins("tdx.exporters")]
    return _matching(incomplete, known)


def complete_import(incomplete: str) -> list[Completion]:
    """Complete the formats of ``tdx import``."""
    from tdx.rollouts.formats.registry import export_formats

    formats = [form for form in export_formats() if form.can_import]
    return _matching(incomplete, [(form.name, form.title) for form in formats])


def complete_codes(incomplete: str) -> list[Completion]:
    """Complete codes of errors and rules: by prefix, or else by substring."""
    from tdx.inspection.explanations import all_explanations

    return _matching(
        incomplete, [(explanation.code, explanation.title) for explanation in all_explanations()]
    )


def complete_rules(incomplete: str) -> list[Completion]:
    """Complete the last of a comma-separated list of rule codes."""
    from tdx.inspection.lint.linter import all_rules

    done, comma, word = incomplete.rpartition(",")
    matches = _matching(word, [(rule.code, rule.title) for rule in all_rules()])
    return [(f"{done}{comma}{code}", title) for code, title in matches]


def complete_transform(incomplete: str) -> list[Completion]:
    """Complete a stage: names of transforms, then names and values of their arguments.

    Example:
        >>> complete_transform("StepCounter(ma")[0][0]
        'StepCounter(max_steps='
    """
    from tdx.pipeline.catalog import load_catalog
    from tdx.pipeline.transform_info import strip_markup

    name, bracket, inside = incomplete.partition("(")
    info = load_catalog().find(name.strip())
    if not bracket or info is None:
        return [] if bracket else complete_name(incomplete)
    arguments = split_arguments(inside)
    if arguments is None:
        return []
    *done, current = arguments
    word = current.lstrip()
    before = incomplete[: len(incomplete) - len(word)]
    argument, equals, value = word.partition("=")
    if equals:
        parameter = info.parameter(argument.strip())
        values = _values(parameter.type) if parameter else ()
        return [(f"{before}{argument}={one}", "") for one in values if one.startswith(value)]
    names = {one.partition("=")[0].strip() for one in done if "=" in one}
    positional = sum("=" not in one for one in done)
    parameters = [
        parameter
        for parameter in info.parameters[positional:]
        if parameter.name.startswith(word) and parameter.name not in names
        if parameter.kind in ("positional", "keyword")
    ]
    completions = [(f"{before}{one.name}=", strip_markup(one.help)) for one in parameters]
    if len(parameters) == 1 and parameters[0].default is not None:
        # A shell closes the quotes after a single completion; a second one keeps them open.
        completions.append((f"{before}{parameters[0].name}={parameters[0].default}", "the default"))
    return completions


def split_arguments(inside: str) -> list[str] | None:
    """Split the arguments after an opening bracket; the last one is unfinished.

    Returns:
        The arguments, or ``None`` if the bracket is closed or the text ends inside a value.

    Example:
        >>> split_arguments("4, in_keys=['a', 'b'], pad")
        ['4', " in_keys=['a', 'b']", ' pad']
        >>> split_arguments("4)") is None
        True
    """
    arguments, expected, quote = [""], [")"], ""
    for character in inside:
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        elif character in _BRACKETS:
            expected.append(_BRACKETS[character])
        elif character == expected[-1]:
            expected.pop()
            if not expected:
                return None
        elif character == "," and len(expected) == 1:
            arguments.append("")
            continue
        arguments[-1] += character
    in_value = len(expected) > 1 or (quote and "=" not in arguments[-1])
    return None if in_value else arguments


def _values(kind: Type) -> Iterator[str]:
    """Return the values of an argument, if it has a limited number."""
    from tdx.pipeline.grammar import format_value

    for option in kind.options:
        if option.name == "literal":
            yield from (format_value(value) for value in option.values)
        elif option.name == "bool":
            yield from ("True", "False")
        elif option.name == "none":
            yield "None"


def _matching(incomplete: str, candidates: list[Completion]) -> list[Completion]:
    folded = incomplete.casefold()
    matches = [item for item in candidates if item[0].casefold().startswith(folded)]
    return matches or [item for item in candidates if folded in item[0].casefold()]


def complete_last(incomplete: str, names: Iterable[str]) -> list[str]:
    """Complete the last of a comma-separated list of names."""
    done, comma, word = incomplete.rpartition(",")
    return [f"{done}{comma}{name}" for name in names if name.startswith(word)]


_MAX_LINE = 2**22


def complete_dump_keys(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the last of a comma-separated list of entries of the dump on the command line."""
    from tdx.foundation.container import Container
    from tdx.foundation.untrusted import parse_json

    # Typer does not parse the words after an option without a value.
    folder = next((name for name in (ctx.params.get("dump"), *ctx.args) if name), None)
    if folder is None:
        return []
    try:
        with Container.open(folder) as root, root.open_file("chunks.jsonl") as file:
            first = parse_json(file.readline(_MAX_LINE), "chunks.jsonl")
        keys = [list(map(str, leaf["key"])) for leaf in first["tracks"]["data"]["leaves"]]
    except (OSError, TdxError, ValueError, KeyError, TypeError):
        return []
    inner = [key[1:] if key[0] == "next" else key for key in keys if key]
    return complete_last(incomplete, dict.fromkeys(".".join(key) for key in (*inner, *keys)))


_MAX_ENTRIES = 100
_WAIT_SECONDS = 1.0
"""How long a TAB waits for the process that finds the keys."""
_RETRY_SECONDS = 60.0
"""After this time, another TAB tries again to find keys that an earlier one did not get."""
_FINDS_KEYS = "_TDX_FINDS_KEYS"
"""Variable of the process that finds keys for a later TAB."""


def cached_names(question: Any, find: Callable[[], list[str]]) -> list[str]:
    """Return names from the cache of completions, or find and store them.

    Finding them imports torch, which takes seconds. A shell would hang for that time: a process in
    the background finds them instead, and if it takes long, a later TAB offers them.

    Files that the question names count with their time of change. What ``find`` prints is
    discarded; if it fails, there are no names.
    """
    changed = []
    for word in _texts(question):
        with contextlib.suppress(OSError, ValueError):
            changed.append(os.stat(word).st_mtime_ns)
    fingerprint = json.dumps([__version__, os.getcwd(), question, changed], default=str)
    from platformdirs import user_cache_path

    path = user_cache_path("tdx") / "keys.json"
    stored = _stored_names(path)
    if fingerprint in stored:
        return stored[fingerprint]
    if "_TDX_COMPLETE" in os.environ and _FINDS_KEYS not in os.environ:
        with contextlib.suppress(OSError):
            _find_in_background(path.with_name("keys.pending"), fingerprint)
            end = time.monotonic() + _WAIT_SECONDS
            while fingerprint not in (stored := _stored_names(path)) and time.monotonic() < end:
                time.sleep(0.05)
        return stored.get(fingerprint, [])
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
        from tdx.foundation.files import write_atomically

        stored = _stored_names(path)
        kept = {**dict(list(stored.items())[1 - _MAX_ENTRIES :]), fingerprint: names}
        with contextlib.suppress(OSError, ArgumentError):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, json.dumps(kept), sync=False)
    return names


def _stored_names(path: Path) -> dict[str, list[str]]:
    with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
        read = json.loads(path.read_text(encoding="utf-8"))
        return {str(name): [str(key) for key in keys] for name, keys in read.items()}
    return {}


def _find_in_background(pending: Path, fingerprint: str) -> None:
    """Complete the same command line in a new process, unless one was started recently."""
    import subprocess  # Not for TABs that the cache answers.

    from tdx.foundation.safe_path import python_command

    with contextlib.suppress(OSError, ValueError):
        age = time.time() - pending.stat().st_mtime
        if age < _RETRY_SECONDS and pending.read_text(encoding="utf-8") == fingerprint:
            return
    pending.parent.mkdir(parents=True, exist_ok=True)
    pending.write_text(fingerprint, encoding="utf-8")
    subprocess.Popen(
        python_command("-m", "tdx"),
        env={**os.environ, _FINDS_KEYS: "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # Closing the terminal or Ctrl-C at the prompt must not end it.
        start_new_session=True,
    )


def _texts(question: Any) -> Iterator[str]:
    if isinstance(question, str):
        yield question
    elif isinstance(question, Mapping):
        yield from _texts(list(question.values()))
    elif isinstance(question, list | tuple):
        for part in question:
            yield from _texts(part)
