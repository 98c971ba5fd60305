"""``tdx list kinds``: what can be opened."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from typing import TYPE_CHECKING

from tdx.inspection.openable import list_openable
from tdx.stacks.checkpoints.folder import FORMATS
from tdx.stacks.kinds import builtin_kinds
from tests.programs import exhaustive

if TYPE_CHECKING:
    import pytest


def test_every_kind_and_format_is_listed() -> None:
    names = {entry.name for entry in list_openable()}
    assert names > {kind.title for kind in builtin_kinds()} | {form.title for form in FORMATS}


def test_versions_are_those_that_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    (entry,) = list_openable("env gymnasium.Env")
    assert (entry.package, entry.version) == ("gymnasium", metadata.version("gymnasium"))

    def find_nothing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", find_nothing)
    (entry,) = list_openable("env gymnasium.Env")
    assert not entry.available
    assert all(entry.available for entry in list_openable("checkpoint"))


def test_descriptors_are_listed() -> None:
    assert {entry.target for entry in list_openable("descriptor")} == {"FILE.onnx", "FILE.yaml"}


def test_search_finds_words_in_all_columns() -> None:
    assert {entry.group for entry in list_openable("lerobot")} == {
        "checkpoint",
        "dataset",
        "data pipeline",
    }
    assert list_openable("lerobot nothing") == ()


@exhaustive
def test_nothing_is_imported() -> None:
    program = (
        "import sys\n"
        "from tdx.inspection.openable import list_openable\n"
        "list_openable()\n"
        "print([m for m in ('torch', 'gymnasium', 'pyarrow', 'torchrl') if m in sys.modules])\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.stdout == "[]\n", result.stderr
