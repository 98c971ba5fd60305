"""Generate the files derived from the transforms: ``python -m tdx.pipeline.generate``.

These are the catalog, the JSON Schema, and the blocks of ``tdx/__init__.pyi`` and
``tdx/transforms/__init__.pyi`` that name every transform. ``--check`` writes nothing; the exit code
says whether the files are up to date.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from tdx.pipeline.catalog import CATALOG_FILE, TransformInfo, format_catalog
from tdx.pipeline.declarations import read_declarations
from tdx.pipeline.json_schema import SCHEMA_FILE, format_schema

PACKAGE = Path(__file__).parent.parent
STUB_FILES = {
    "tdx": PACKAGE / "__init__.pyi",
    "tdx.transforms": PACKAGE / "transforms/__init__.pyi",
}
STUB_START = "# transforms: generated"
STUB_END = "# transforms: end"


def public_transforms() -> list[tuple[str, str]]:
    """Return (module, class name) of every public transform, sorted by class name."""
    return sorted(_module_names(read_declarations(PACKAGE)), key=lambda pair: pair[1])


def update_stub(stub: str, transforms: list[TransformInfo], package: str = "tdx") -> str:
    """Replace the block between the two markers of a stub; without markers it stays unchanged."""
    if STUB_START not in stub or STUB_END not in stub:
        return stub
    before, _, rest = stub.partition(STUB_START)
    after = rest.partition(STUB_END)[2]
    pairs = sorted(_module_names(transforms))
    lines = [
        f"from {_relative_module(module, package)} import {name} as {name}"
        for module, name in pairs
    ]
    return "\n".join([before + STUB_START, *lines, STUB_END]) + after


def render_files() -> Iterator[tuple[Path, str]]:
    """Yield every generated file with its up-to-date text."""
    transforms = read_declarations(PACKAGE)
    yield CATALOG_FILE, format_catalog(transforms)
    yield SCHEMA_FILE, format_schema(transforms)
    for package, stub in STUB_FILES.items():
        if stub.exists():
            yield stub, update_stub(_read(stub), transforms, package)


def find_stale() -> list[Path]:
    """Return the generated files that do not match the sources."""
    return [path for path, text in render_files() if not path.exists() or _read(path) != text]


def main(arguments: list[str]) -> int:
    """Write the files; with ``--check``, print stale files."""
    outdated = find_stale()
    if "--check" in arguments:
        for path in outdated:
            print(f"{path.relative_to(PACKAGE.parent)} is out of date", file=sys.stderr)
        return 1 if outdated else 0
    for path, text in render_files():
        if path in outdated:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path.relative_to(PACKAGE.parent)}")
    return 0


def _module_names(transforms: list[TransformInfo]) -> Iterator[tuple[str, str]]:
    return ((info.module, info.name) for info in transforms)


def _relative_module(module: str, package: str) -> str:
    return module.removeprefix(package)


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
