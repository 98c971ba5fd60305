"""Small states in JSON files."""

from __future__ import annotations

import json
import os
from pathlib import Path as FilePath
from typing import Any

from torch import Tensor

from tdx.confined_files import open_below, open_folder, write_below
from tdx.errors import StorageError
from tdx.untrusted import MAX_HEADER_BYTES, parse_json


def save_state(folder: str | os.PathLike[str], name: str, state: dict[str, Any]) -> None:
    """Write a state of plain data and tensors, which become lists.

    Args:
        folder: Folder; created if it does not exist.
        name: Name of the file.
        state: State.
    """
    lists = {
        key: each.tolist() if isinstance(each, Tensor) else each for key, each in state.items()
    }
    FilePath(folder).mkdir(parents=True, exist_ok=True)
    with open_folder(folder if isinstance(folder, str) else FilePath(folder)) as descriptor:
        write_below(descriptor, name, json.dumps(lists))


def load_state(folder: str | os.PathLike[str], name: str) -> dict[str, Any]:
    """Read what :func:`save_state` wrote.

    Raises:
        StorageError: The file is missing, or not a JSON object.
    """
    path = FilePath(folder)
    try:
        with (
            open_folder(path) as descriptor,
            os.fdopen(open_below(descriptor, name), "rb") as file,
        ):
            state = parse_json(file.read(MAX_HEADER_BYTES), path / name)
    except FileNotFoundError as error:
        raise StorageError(
            f"{path} has no {name}", hint="pass the folder that dumps() was given"
        ) from error
    if not isinstance(state, dict):
        raise StorageError(f"{path / name} is not a state", hint="save it again")
    return state
