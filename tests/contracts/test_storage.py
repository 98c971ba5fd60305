"""Contracts on disk: what is written, and what a contract from a stranger cannot do."""

from __future__ import annotations

import os
import pickle
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load, save

import tdx
from tdx.contracts.storage import DOCUMENT, NUMBERS
from tests.contracts import envs as made
from tests.programs import exhaustive


@pytest.fixture(scope="module")
def contract() -> tdx.Contract:
    return tdx.freeze(made.gym_normalized(env=made.rescaled()))


@pytest.fixture
def folder(contract: tdx.Contract, tmp_path: Path) -> Path:
    tdx.save_contract(contract, tmp_path / "contract")
    return tmp_path / "contract"


@exhaustive
def test_contract_is_read_as_it_was_written(contract: tdx.Contract, folder: Path) -> None:
    read = tdx.load_contract(folder)
    assert read.stages == contract.stages
    assert read.libraries == contract.libraries
    assert [each.steps for each in read.inputs] == [8, 4]
    assert tdx.check_contract(made.gym_normalized(env=made.rescaled()), read).same


@exhaustive
def test_same_env_gives_the_same_contract(contract: tdx.Contract, folder: Path) -> None:
    other = folder.with_name("other")
    tdx.save_contract(tdx.freeze(made.gym_normalized(env=made.rescaled())), other)
    for name in (DOCUMENT, NUMBERS):
        assert (folder / name).read_bytes() == (other / name).read_bytes()


@exhaustive
def test_pixels_are_packed_thumbnails_and_hashes(tmp_path: Path) -> None:
    tdx.save_contract(tdx.freeze(made.Mapped(made.Camera(96), lambda x: x // 2)), tmp_path / "c")
    text = (tmp_path / "c" / DOCUMENT).read_text()
    assert "hashes" in text
    read = tdx.load_contract(tmp_path / "c")
    values = read.values["forward", 0, "observation"]
    assert values.shape == (96, 96, 3)
    assert values.numbers.shape[2:] == (16, 16, 3)
    assert tdx.check_contract(made.Mapped(made.Camera(96), lambda x: x // 2), read).same


@exhaustive
def test_existing_folder_is_kept(contract: tdx.Contract, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(tdx.ArgumentError, match="already exists"):
        tdx.save_contract(contract, folder)
    tdx.save_contract(contract, folder, force=True)
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(tdx.ArgumentError, match="is not a contract"):
        tdx.save_contract(contract, folder, force=True)
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(tdx.ArgumentError, match="symbolic link"):
        tdx.save_contract(contract, tmp_path / "link", force=True)


@exhaustive
def test_contract_that_could_not_be_read_again_is_not_written(
    contract: tdx.Contract, tmp_path: Path
) -> None:
    notes = tuple("x" * 100 for _ in range(3_000))
    with pytest.raises(tdx.StorageError, match="too large to be read again"):
        tdx.save_contract(replace(contract, notes=notes), tmp_path / "c")
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("name", [DOCUMENT, NUMBERS])
def test_link_in_the_folder_is_refused(folder: Path, tmp_path: Path, name: str) -> None:
    (folder / name).rename(tmp_path / "elsewhere")
    (folder / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(tdx.StorageError, match="symbolic link"):
        tdx.load_contract(folder)


def test_missing_folder_and_other_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(tdx.StorageError, match="cannot read the contract"):
        tdx.load_contract(tmp_path / "none")
    (tmp_path / "model.pkl").write_bytes(pickle.dumps({}))
    with pytest.raises(tdx.StorageError, match="not a folder"):
        tdx.load_contract(tmp_path / "model.pkl")


class _Evil:
    def __reduce__(self) -> Any:
        return os.system, ("touch pwned",)


def test_pickle_is_not_run(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (folder / NUMBERS).write_bytes(pickle.dumps(_Evil()))
    with pytest.raises(tdx.StorageError, match="does not match the hash"):
        tdx.load_contract(folder)
    assert not (tmp_path / "pwned").exists()


def replace_text(folder: Path, old: str, new: str) -> None:
    text = (folder / DOCUMENT).read_text()
    assert old in text
    (folder / DOCUMENT).write_text(text.replace(old, new, 1))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("contract: 2", "contract: 99", "version 99"),
        ("contract: 2", "contract: one", "'contract' is not a whole number"),
        ("seed: 0", "seed: 1" + "0" * 400, "'seed' is not a whole number"),
        ("seed: 0", "seed: !!python/object:os.system {}", "damaged"),
        ("kind: gymnasium", "kind: [gymnasium]", "'kind' is not text"),
        ("compare:", "compare: {}\nunknown:", "damaged"),
        ("stages:", "stages: 3\nmore:", "unknown entry 'more'"),
        ("stage: 0", "stage: 7", "not numbered in order"),
        ("shape: [3]", "shape: [-3]", "invalid size -3"),
        ("shape: [3]", "shape: [4611686018427387904, 4]", "impossibly large"),
        ("rtol: ", "rtol: -", "'rtol' is not a number"),
        ("rtol: 0.0001", "rtol: .nan", "'rtol' is not a number"),
        ("episodes:", "episodes: 3\nlater:", "damaged"),
        ("- 8", "- 9999999", "has not 9999999 steps"),
        ("sha256: ", "sha256: 0", "does not match the hash"),
        ("contract: 2", "contract: &a [*a]", "damaged"),
    ],
)
def test_damaged_document_gets_a_sentence(folder: Path, old: str, new: str, message: str) -> None:
    replace_text(folder, old, new)
    with pytest.raises(tdx.StorageError, match=message) as caught:
        tdx.load_contract(folder)
    assert caught.value.hint
    assert "\n" not in caught.value.message


def rewrite_numbers(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    """Change the tensors, with the hash that belongs to them."""
    from tdx.contracts.storage import content_hash

    old = (folder / NUMBERS).read_bytes()
    tensors = load(old)
    change(tensors)
    new = save(tensors)
    (folder / NUMBERS).write_bytes(new)
    replace_text(folder, content_hash(old), content_hash(new))


def _state_name(tensors: dict[str, torch.Tensor]) -> str:
    return next(name for name in tensors if name.endswith("obs_rms.mean"))


CHANGES: dict[str, Callable[[dict[str, torch.Tensor]], Any]] = {
    "state of another shape": lambda t: t.update({_state_name(t): torch.zeros(5)}),
    "state of other values": lambda t: t.update({_state_name(t): torch.full((3,), 9.0).double()}),
    "no inputs": lambda t: [t.pop(name) for name in list(t) if name.startswith("inputs/0")],
    "empty inputs": lambda t: t.update({"inputs/0/calls/observation": torch.zeros(0, 0)}),
    "a stage that does not exist": lambda t: t.update({"values/forward/99/x": torch.zeros(1, 1)}),
    "a path as a name": lambda t: t.update({"values/../../etc": torch.zeros(1, 1)}),
}


@pytest.mark.parametrize("name", CHANGES)
def test_numbers_that_contradict_the_document_get_a_sentence(folder: Path, name: str) -> None:
    rewrite_numbers(folder, CHANGES[name])
    with pytest.raises(tdx.StorageError) as caught:
        tdx.load_contract(folder)
    assert "damaged" in caught.value.message


def test_unpacked_pixels_have_the_declared_size(tmp_path: Path) -> None:
    tdx.save_contract(tdx.freeze(made.Camera(96)), tmp_path / "c")
    text = (tmp_path / "c" / DOCUMENT).read_text()
    for old, new in (("[9, 1, 96, 96, 3]", "[9, 1, 96, 96, 1]"), ("[9, 1, 96", "[900000, 1, 96")):
        (tmp_path / "c" / DOCUMENT).write_text(text.replace(old, new))
        with pytest.raises(tdx.StorageError, match=r"size that it declares|declares 2"):
            tdx.load_contract(tmp_path / "c")


@exhaustive
def test_random_damage_never_raises_anything_else(folder: Path) -> None:
    generator = random.Random(0)
    document, numbers = ((folder / name).read_bytes() for name in (DOCUMENT, NUMBERS))
    for round_number in range(60):
        data = bytearray(document if round_number % 3 else numbers)
        for _ in range(generator.randrange(1, 6)):
            place = generator.randrange(len(data))
            data[place] = generator.randrange(256)
        if round_number % 5 == 0:
            data = data[: generator.randrange(len(data))]
        (folder / DOCUMENT).write_bytes(data if round_number % 3 else document)
        (folder / NUMBERS).write_bytes(numbers if round_number % 3 else data)
        with suppress(tdx.StorageError):
            tdx.load_contract(folder)


def test_golden_inputs_of_a_stranger_do_not_crash_the_check(folder: Path) -> None:
    """They are of another shape than the env returns: the difference is reported."""

    def change(tensors: dict[str, torch.Tensor]) -> None:
        for name, value in list(tensors.items()):
            if name.startswith("inputs/"):
                tensors[name] = torch.full((*value.shape[:2], 7), torch.nan)

    rewrite_numbers(folder, change)
    # A stack of another library gets them.
    report = tdx.check_contract(made.chain(made.fixed_norm()), tdx.load_contract(folder))
    assert not report.same
