"""Hostile policies that write a file when they are loaded or run."""

from __future__ import annotations

import base64
import io
import json
import os
import pickle
import warnings
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

KINDS = ("pickle", "script", "export", "sequence", "sb3")


class _Payload:
    """Object that creates a folder when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = str(marker)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.marker,)


class _Writes(nn.Module):
    """Module that writes a file through a shared memory map when it acts."""

    def __init__(self, marker: str) -> None:
        super().__init__()
        self.marker = marker

    def forward(self, observation: Tensor) -> Tensor:
        shared = torch.from_file(self.marker, shared=True, size=16)
        return observation[..., :1] * 0.5 + shared.fill_(0.0)[:1]


def write_hostile(kind: str, folder: Path, marker: Path) -> str:
    """Write a hostile policy into a folder and return its name for ``--policy``.

    Args:
        kind: One of :data:`KINDS`.
        folder: Folder of the policy file.
        marker: Path that exists after the code has run.
    """
    suffix = {"pickle": "pt", "sequence": "pt", "sb3": "zip"}.get(kind, "pt2")
    file = folder / f"policy.{suffix}"
    if kind == "script":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.jit.script(_Writes(str(marker))).save(file)
    elif kind == "export":
        _write_export(file, marker)
    elif kind == "sb3":
        saved = base64.b64encode(pickle.dumps(_Payload(marker))).decode()
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("data", json.dumps({"policy_class": {":serialized:": saved}}))
    else:
        file.write_bytes(_pickled(marker))
    return f"{kind if kind in ('sequence', 'sb3') else 'module'}:{file.name}"


def _pickled(marker: Path) -> bytes:
    stream = io.BytesIO()
    torch.save({"weights": _Payload(marker)}, stream)
    return stream.getvalue()


def _write_export(file: Path, marker: Path) -> None:
    plain = io.BytesIO()
    torch.export.save(torch.export.export(nn.Linear(3, 1), (torch.zeros(3),)), plain)
    with zipfile.ZipFile(plain) as archive, zipfile.ZipFile(file, "w") as changed:
        for info in archive.infolist():
            data = archive.read(info)
            is_input = info.filename.endswith("sample_inputs/model.pt")
            changed.writestr(info.filename, _pickled(marker) if is_input else data)
