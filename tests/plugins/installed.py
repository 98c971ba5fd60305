"""Installation of plugins for tests, as a module with metadata in a folder on the path."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

import tdx.foundation.plugins
from tdx.foundation.plugins import find_plugins
from tdx.inspection.explanations import all_explanations
from tdx.inspection.lint import linter
from tdx.inspection.lint.linter import all_rules
from tdx.pipeline import load_catalog
from tdx.rollouts.formats.registry import plugin_exporters
from tdx.stacks import kinds

EXAMPLE = Path(__file__).parents[2] / "docs/examples/plugin"


def install(
    folder: Path, entries: Mapping[str, Mapping[str, str]], source: str = "", name: str = "toy"
) -> None:
    """Write a module ``NAME_plugin`` and the metadata of a package with entry points."""
    metadata = folder / f"{name}-1.0.dist-info"
    metadata.mkdir(parents=True)
    (folder / f"{name}_plugin.py").write_text(source)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = []
    for group, points in entries.items():
        lines += [f"[{group}]", *(f"{each} = {target}" for each, target in points.items())]
    (metadata / "entry_points.txt").write_text("\n".join(lines))


def install_example(folder: Path) -> None:
    """Install the example of the documentation."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    install(folder, project["entry-points"], name="symlog")
    (folder / "tdx_symlog.py").write_text((EXAMPLE / "tdx_symlog.py").read_text())


_CACHES = (
    find_plugins,
    tdx.foundation.plugins._has_entries,
    load_catalog,
    all_rules,
    linter._plugin_rules,
    all_explanations,
    plugin_exporters,
    kinds.plugin_kinds,
)


@contextmanager
def installed(folder: Path) -> Iterator[None]:
    """Use the plugins in a folder in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TDX_PLUGINS", "1")
        patch.syspath_prepend(str(folder))
        patch.setattr(tdx.foundation.plugins, "_DISABLED", {})
        _clear_caches()
        try:
            yield
        finally:
            patch.setenv("TDX_PLUGINS", "0")
            _clear_caches()
            for file in folder.glob("*.py"):
                sys.modules.pop(file.stem, None)


def _clear_caches() -> None:
    for each in _CACHES:
        each.cache_clear()
