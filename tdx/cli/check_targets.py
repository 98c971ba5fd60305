"""Targets of ``tdx check``: names on the command line, and what folders contain."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path

from tdx.foundation.errors import ArgumentError
from tdx.foundation.files import PIPELINE_SUFFIXES

_YAML_NAMES = re.compile(r"""(?m)^(?:["']?)(env|transforms|version)(?:["']?)[ \t]*:""")
_SKIPPED_FOLDERS = ("__pycache__", "node_modules", "site-packages")
_MAX_BYTES = 1 << 20
"""Larger files in a folder are data, not pipelines."""


def find_targets(names: Sequence[str], exclude: Sequence[str]) -> tuple[list[str], bool]:
    """Return the targets of a command, with folders replaced by what they contain.

    The flag is True for several targets, and for those of a folder.
    """
    targets: list[str] = []
    has_folder = False
    for position, name in enumerate(names):
        if _is_searched(name):
            has_folder = True
            if not (contents := list(_search(Path(name), exclude))):
                raise ArgumentError(
                    f"{name} is a folder without a pipeline file, a dump or a checkpoint",
                    hint="name an env, a pipeline file or a dump",
                )
            targets += contents
            continue
        if position and re.fullmatch(r"[A-Z]\w*(\(.*\))?", name) and not os.path.exists(name):
            from tdx.pipeline.catalog import load_catalog

            if load_catalog().find(name.partition("(")[0]) is not None:
                raise ArgumentError(
                    f"{name} is a transform, not a target", hint=f"write a stage as -t {name!r}"
                )
        targets.append(name)
    kept = [name for name in dict.fromkeys(targets) if not _is_excluded(name, exclude)]
    if names and not kept:
        raise ArgumentError("--exclude leaves out every target", hint="use a narrower pattern")
    return kept, has_folder or len(names) > 1


def _is_excluded(path: str, patterns: Sequence[str]) -> bool:
    parts = (os.path.normpath(path), *Path(path).parts)
    return any(fnmatch(part, pattern) for pattern in patterns for part in parts)


def _is_searched(name: str) -> bool:
    """Return True for a folder that is no target itself."""
    from tdx.envs.gym.registry import find_env
    from tdx.foundation.errors import TdxError
    from tdx.foundation.files import is_artifact, is_contract
    from tdx.stacks.checkpoints import is_checkpoint, is_dataset
    from tdx.stacks.descriptors import is_descriptor

    path = Path(name)
    if ":" in name or not path.is_dir() or (path / "manifest.json").exists():
        return False
    tests = (is_artifact, is_contract, is_checkpoint, is_dataset, is_descriptor)
    if any(test(name) for test in tests):
        return False
    try:
        find_env(name)
    except TdxError:
        return True
    return False


def _search(folder: Path, exclude: Sequence[str]) -> Iterator[str]:
    """Yield the pipeline files and checkpoints below a folder; links are not followed."""
    from tdx.foundation.files import is_artifact, is_contract
    from tdx.stacks.checkpoints import is_checkpoint, is_dataset

    for root, folders, files in os.walk(folder):
        kept = []
        for name in sorted(folders):
            path = Path(root, name)
            if name.startswith(".") or name in _SKIPPED_FOLDERS or path.is_symlink():
                continue
            if _is_excluded(str(path), exclude):
                continue
            if is_checkpoint(path):
                yield str(path)
            # What tdx and LeRobot wrote is data; the pipelines in it belong to it.
            elif not (
                is_artifact(path)
                or is_contract(path)
                or is_dataset(path)
                or (path / "manifest.json").exists()
            ):
                kept.append(name)
        folders[:] = kept
        for name in sorted(files):
            path = Path(root, name)
            if path.suffix in PIPELINE_SUFFIXES and not path.is_symlink() and _is_pipeline(path):
                yield str(path)


def _is_pipeline(path: Path) -> bool:
    """Return True if a file has the top-level keys of a pipeline, also if it is invalid."""
    try:
        if not path.is_file() or path.stat().st_size > _MAX_BYTES:
            return False
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".json":
            document = json.loads(text)
            names = set(document) if isinstance(document, dict) else set()
        else:
            names = {match[1] for match in _YAML_NAMES.finditer(text)}
    except (OSError, ValueError, RecursionError):
        return False
    return "env" in names and not names.isdisjoint({"transforms", "version"})
