"""Pages of the documentation site that are generated from the code."""

from __future__ import annotations

import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

import tdx
from tdx.cli.commands import build_root
from tdx.inspection.transform_example import find_example
from tdx.pipeline import load_catalog

FOLDER = Path(__file__).parents[1] / "docs" / "site"


def load_extension(name: str) -> ModuleType:
    """Import a Sphinx extension from the folder of the site."""
    spec = spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    """Return the module that generates the reference."""
    return load_extension("reference")


def test_page_of_a_transform_has_arguments_and_specs_before_and_after(
    reference: ModuleType,
) -> None:
    info = load_catalog()["RewardClipping"]
    page = reference.transform_page(info, find_example(info))
    assert page.startswith("# RewardClipping\n")
    assert re.search(r"^\| `clamp_min` \| .+ \|$", page, re.MULTILINE)
    assert "## Specs before and after" in page
    assert re.search(
        r"^\| reward \| ~ \| reward \| \[1\]  float32  any \| .+ \|$", page, re.MULTILINE
    )
    assert re.search(r"^```sh\ntdx inspect spec .*RewardClipping", page, re.MULTILINE)
    assert "### Args" not in page


def test_page_of_a_transform_is_found_by_its_names_in_other_libraries(
    reference: ModuleType,
) -> None:
    page = reference.transform_page(load_catalog()["CatFrames"], None)
    assert re.search(r"^```\{index\} .*! Frame Stack,", page, re.MULTILINE)
    assert "Similar in other libraries: `FrameStack`" in page


def test_sentences_wrap_and_tables_keep_their_columns() -> None:
    is_wrapped = load_extension("examples").is_wrapped
    finding = "$ tdx check x\nx: TDX601 stage 0 (unnormalizer): no statistics\n"
    assert is_wrapped("console", finding)
    assert is_wrapped("sh", "tdx check x")
    assert not is_wrapped("measured", "$ tdx profile x\nstage  time\n")


def test_every_command_has_a_page_with_its_options(reference: ModuleType) -> None:
    pages = dict(reference.command_pages())
    names = build_root().list_commands(None)
    assert set(pages) == {f"commands/{name}.md" for name in ("index", *names)}
    assert "| `--fix` |" in pages["commands/check.md"]
    assert "## tdx inspect spec\n" in pages["commands/inspect.md"]
    assert re.search(
        r"^```sh\ntdx check [^`]+ -t StepCounter\ntdx check ",
        pages["commands/check.md"],
        re.MULTILINE,
    )
    # An option in a sentence is formatted as code, not as a dash or a list.
    assert "`--allow-code` a function" in pages["commands/check.md"]


def test_every_public_name_is_in_the_reference(reference: ModuleType) -> None:
    pages = dict(reference.api_pages())
    shown = set(re.findall(r"^\.\. auto\w+:: tdx\.(\w+)$", "".join(pages.values()), re.MULTILINE))
    transforms = set(load_catalog().names)
    modules = {"testing", "functional"}
    assert set(tdx.__all__) - transforms - modules - shown == set()


def test_sentences_with_a_colon_are_not_parsed_as_types() -> None:
    docstrings = load_extension("docstrings")
    text = [
        "Names. Default: none.",
        "",
        "Returns:",
        "    Position: an index.",
        "",
        "Args:",
        "    x: A.",
    ]
    lines = list(text)
    docstrings.hide_colons(None, "property", "tdx.stacks.Stack.notes", None, None, lines)
    assert [number for number, line in enumerate(lines) if ": " in line] == [6]
    docstrings.restore_colons(None, "property", "tdx.stacks.Stack.notes", None, None, lines)
    assert lines == text
