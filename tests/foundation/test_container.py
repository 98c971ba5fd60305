"""Paths below a folder cannot lead out of it, and links are not followed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tdx.foundation.container import Container
from tdx.foundation.errors import StorageError


@pytest.mark.parametrize("name", ["../a", "/etc/passwd", "a/../../b", "", "a//b", ".", "a\0b"])
def test_path_that_leads_out_is_rejected(tmp_path: Path, name: str) -> None:
    with Container.open(tmp_path) as folder, pytest.raises(StorageError, match="inside the folder"):
        folder.open_file(name, os.O_WRONLY | os.O_CREAT)


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_RDWR | os.O_CREAT, os.O_WRONLY | os.O_TRUNC])
def test_links_below_a_folder_are_rejected(tmp_path: Path, flags: int) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "x").write_text("precious")
    inside = tmp_path / "dump"
    inside.mkdir()
    (inside / "x").symlink_to(outside / "x")
    (inside / "data").symlink_to(outside)
    with Container.open(inside) as folder:
        for name in ("x", "data/x"):
            with pytest.raises(StorageError, match="is a symbolic link"):
                folder.open_file(name, flags)
        with pytest.raises(StorageError, match="is a symbolic link"):
            folder.replace("data/y", "new")
    assert (outside / "x").read_text() == "precious"
    assert os.listdir(outside) == ["x"]


def test_opening_a_pipe_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with Container.open(tmp_path) as folder:
        for flags in (os.O_RDONLY, os.O_WRONLY):
            with pytest.raises(StorageError, match="not a regular file"):
                folder.open_file("pipe", flags)


def test_replacing_changes_a_link_and_not_its_target(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "dump").mkdir()
    (tmp_path / "dump" / "a").symlink_to(tmp_path / "victim")
    with Container.open(tmp_path / "dump") as folder:
        folder.replace("a", "new")
        folder.replace("b/c", b"made")
    assert (tmp_path / "victim").read_text() == "precious"
    assert (tmp_path / "dump" / "a").read_text() == "new"
    assert (tmp_path / "dump" / "b" / "c").read_bytes() == b"made"
