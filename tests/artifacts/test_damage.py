"""Damaged artifacts are rejected by their hashes, and without these by their values."""

from __future__ import annotations

import hashlib
import json
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tdx.artifacts.verifier import MANIFEST, check_files, verify
from tdx.foundation.container import seal
from tests.artifacts.conftest import STAGES
from tests.programs import exhaustive, require_program, sampled

NUMBER = re.compile(r"(?<![\w.\[])-?(?:0x[\da-f.]+p[+-]\d+|\d+\.\d+(?:e[+-]?\d+)?)")
Damage = Callable[[str, random.Random], str]


def pick(text: str, pattern: str | re.Pattern[str], rng: random.Random) -> re.Match[str] | None:
    # Comments have the ranges of entries.
    comments = [range(*match.span()) for match in re.finditer(r"(#|//)[^\n]*", text)]
    matches = [
        match
        for match in re.finditer(pattern, text)
        if not any(match.start() in comment for comment in comments)
    ]
    return rng.choice(matches) if matches else None


def replaced(text: str, match: re.Match[str], new: str) -> str:
    return text[: match.start()] + new + text[match.end() :]


def change_constant(text: str, rng: random.Random) -> str:
    """Change a number: by a thousandth, by a half, or its sign."""
    match = pick(text, NUMBER, rng)
    assert match is not None
    old = float.fromhex(match[0]) if "0x" in match[0] else float(match[0])
    new = rng.choice([old * 1.001 + 1e-3, old + 0.5, -old - 0.25])
    # The suffix of a float of C++ follows.
    return replaced(text, match, new.hex() if text[match.end()] == "f" else repr(new))


def change_order(text: str, rng: random.Random) -> str:
    """Swap the operands of a subtraction or division, or two parts of a concatenation."""
    match = pick(text, r"(?<== )([\w.\[\]]+) ([-/]) ([\w.\[\](]+\)?)(?=;?\n)", rng)
    parts = pick(text, r"(?<=np\.concatenate\(\[)([^,\]]+), ([^,\]]+)(?=[,\]])", rng)
    if parts is not None and parts[1] != parts[2] and (match is None or rng.random() < 0.5):
        return replaced(text, parts, f"{parts[2]}, {parts[1]}")
    if match is None or match[1] == match[3]:
        return text
    return replaced(text, match, f"{match[3]} {match[2]} {match[1]}")


def change_index(text: str, rng: random.Random) -> str:
    """Write the neighbor of an element."""
    match = pick(text, r"(?<=\w)\[([1-9]\d*) \+ i\](?= = )", rng)
    return text if match is None else replaced(text, match, f"[{int(match[1]) - 1} + i]")


def change_shape(text: str, rng: random.Random) -> str:
    match = pick(text, r"\.reshape\(\((\d+),\)\)", rng)
    return text if match is None else replaced(text, match, f".reshape((1, {match[1]}))")


def change_reset(text: str, rng: random.Random) -> str:
    """Return another state from a reset, or begin with another one."""
    first = text.find("def reset(") if "def reset(" in text else text.find("inline void reset(")
    last = text.index("def step(" if "def reset(" in text else "struct StepInput", first)
    pattern = r"np\.array\((\w+)\)(?=[^\n]*kept by|[^\n]*last call)|(?<=] = )[^;\n]+(?=;)"
    match = pick(text[first:last], pattern, rng)
    if match is None:
        return text
    new = f"np.array({match[1]} + 1)" if match[1] else f"({match[0]}) + 1"
    return text[:first] + replaced(text[first:last], match, new) + text[last:]


DAMAGES: dict[str, Damage] = {
    "constant": change_constant,
    "order": change_order,
    "index": change_index,
    "shape": change_shape,
    "reset": change_reset,
}


def reseal(folder: Path, **parts: Any) -> None:
    """Write the manifest with the hashes of the files as they are now."""
    manifest = json.loads((folder / MANIFEST).read_text()) | parts
    del manifest["check"]
    for name, facts in manifest["files"].items():
        facts["sha256"] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    (folder / MANIFEST).write_bytes(seal(manifest, indent=2)[0])


def assert_rejected(folder: Path, detail: str) -> None:
    _, problems = check_files(folder)
    assert problems
    reseal(folder)
    assert not check_files(folder)[1]
    try:
        _, problems = verify(folder)
    except Exception as error:  # shapes that do not fit, or code that does not compile
        problems = [repr(error)]
    assert problems, detail


def damaged(source: Path, folder: Path, name: str, kind: str, seed: int) -> str | None:
    """Damage a file of a copy; return its change, or ``None`` if the file has nothing to change."""
    shutil.copytree(source, folder)
    text = (folder / name).read_text()
    # The helpers have constants of their own.
    start = text.index("INITIAL = {") if "INITIAL = {" in text else text.index("struct ")
    new = text[:start] + DAMAGES[kind](text[start:], random.Random(seed))
    if new == text:
        return None
    (folder / name).write_text(new)
    changed = zip(text.splitlines(), new.splitlines(), strict=True)
    return "\n".join(f"{a}\n{b}" for a, b in changed if a != b)


@exhaustive
def test_damaged_numpy_is_rejected(write: Callable[..., Path], tmp_path: Path) -> None:
    kinds = {*DAMAGES} - {"index"}  # NumPy code reads whole arrays
    rejected = set()
    for number in range(len(STAGES)):
        for kind in sorted(kinds):
            for seed in range(5):
                folder = tmp_path / f"{number}_{kind}_{seed}"
                change = damaged(write("numpy", number), folder, "chain.py", kind, seed)
                if change is not None:
                    assert_rejected(folder, change)
                    rejected.add(kind)
    assert rejected == kinds


@exhaustive
def test_damaged_cpp_is_rejected(write: Callable[..., Path], tmp_path: Path) -> None:
    require_program("c++", "g++", "clang++")
    kinds = {"constant", "index", "reset"}
    rejected = set()
    for kind in sorted(kinds):
        for seed in range(4):
            folder = tmp_path / f"{kind}_{seed}"
            change = damaged(write("cpp", 0), folder, "chain.hpp", kind, seed)
            if change is not None:
                assert_rejected(folder, change)
                rejected.add(kind)
    assert rejected == kinds


@sampled(5)
@pytest.mark.parametrize("kind", ["reset", "order", "constant", "index", "shape"])
def test_damaged_graphs_are_rejected(kind: str, write: Callable[..., Path], tmp_path: Path) -> None:
    folder = tmp_path / "chain"
    shutil.copytree(write("pt2", 0), folder)
    path = folder / ("reset.pt2" if kind == "reset" else "step.pt2")
    program = torch.export.load(path)
    named = {str(node.target): node for node in program.graph.nodes}
    cat = named["aten.cat.default"]
    parts: Any = cat.args[0]
    match kind:
        case "constant":
            name, value = next(iter({**program.state_dict, **program.constants}.items()))
            held = program.state_dict if name in program.state_dict else program.constants
            held[name] = value * 1.001
        case "order":
            cat.args = (parts[::-1], *cat.args[1:])
        case "index":
            cat.args = ([parts[0], *parts[:-1]], *cat.args[1:])
        case "shape":
            cat.args = ([*parts, parts[0]], *cat.args[1:])
        case "reset":
            named["aten.zeros.default"].target = torch.ops.aten.ones.default
    program.graph_module.recompile()
    torch.export.save(program, path)
    assert_rejected(folder, kind)


def test_a_manifest_with_another_shape_order_or_state_is_rejected(
    write: Callable[..., Path], tmp_path: Path
) -> None:
    def change_step(functions: Any, change: str) -> None:
        entries = functions["step"]["inputs"]
        if change == "order":
            entries.reverse()
        elif change == "shape":
            entries[0]["shape"] = [*entries[0]["shape"], 1]
        elif change == "dtype":
            entries[0]["dtype"] = "float64"
        else:
            functions.pop("act")

    for change in ("order", "shape", "dtype", "function"):
        folder = tmp_path / change
        shutil.copytree(write("numpy", 0), folder)
        functions = json.loads((folder / MANIFEST).read_text())["functions"]
        change_step(functions, change)
        reseal(folder, functions=functions)
        try:
            _, problems = verify(folder)
        except (TypeError, ValueError, KeyError) as error:
            problems = [repr(error)]
        assert problems, change
