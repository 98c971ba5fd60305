"""Where the file of a policy may be, and its bytes.

A user who types ``--policy mlp:FILE`` may name any file. A pipeline file or a dump is data from a
stranger: it may only name files in its own folder, which are opened without following links.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tdx.errors import PipelineError, StorageError
from tdx.files import open_below, open_folder
from tdx.pipeline.policies import PolicySource, parse_policy
from tdx.untrusted import MAX_POLICY_BYTES

if TYPE_CHECKING:
    from tdx.pipeline import Pipeline

KEPT = "policy"
"""Name, without suffix, of the copy of a policy's file in a dump."""
KEPT_FILES = frozenset(f"{KEPT}{suffix}" for suffix in (".safetensors", ".npy", ".json"))
"""Names that the copy of a policy's file can have in a dump."""


@dataclass(frozen=True, slots=True)
class PolicyRequest:
    """A policy, and whose word it is.

    Args:
        source: The policy.
        folder: Folder that its file must be in, for a name that a stranger may have written;
            ``None`` for one that the user typed.
        allow_code: Whether it may be code. The user then trusts the file that names it, and it may
            name files anywhere.
    """

    source: PolicySource
    folder: Path | None = None
    allow_code: bool = False

    @classmethod
    def of(
        cls, pipeline: Pipeline, typed: str | None = None, allow_code: bool = False
    ) -> PolicyRequest:
        """The policy of a pipeline, or the one that the user typed instead of it.

        Relative paths in a pipeline file start at the folder of the file.

        Raises:
            TdxError: There is no policy of that name.
        """
        if typed is not None or pipeline.policy is None or pipeline.file is None:
            source = parse_policy(typed or pipeline.policy or "random")
            return cls(source, None, allow_code)
        try:
            source = parse_policy(pipeline.policy)
        except PipelineError as error:
            raise error.at(file=pipeline.file) from None
        return cls(source, Path(pipeline.file).parent, allow_code)

    @property
    def path(self) -> Path:
        """The file's path, relative to where tdx runs."""
        assert self.source.file is not None
        return Path(self.source.file) if self.folder is None else self.folder / self.source.file

    @property
    def name(self) -> str:
        """The policy's name with that path, as a dump records it."""
        if self.source.file is None:
            return str(self.source)
        return str(self.source.with_file(str(self.path)))

    def check_allowed(self) -> None:
        """Refuse code, and files elsewhere, before anything is opened.

        Raises:
            CodeNotAllowedError: It is code, which is not allowed.
            StorageError: Its file is not in the folder.
        """
        self.source.check_allowed(self.allow_code)
        file = self.source.file
        if file is None or self.folder is None or self.allow_code:
            return
        parts = file.split("/")
        if any(part in ("", ".", "..") for part in parts):
            raise StorageError(
                f"the policy's file {file} is not in {self.folder}/",
                hint=f"to use it all the same, type --policy {self.source}",
            )
        step = self.folder
        for part in parts:
            step /= part
            if step.is_symlink():
                raise StorageError(
                    f"{step} is a symbolic link, which is not followed",
                    hint=f"to use the file all the same, type --policy {self.source}",
                )

    def read(self) -> bytes:
        """The whole file.

        Raises:
            StorageError: It cannot be read, is no regular file, or is too large.
        """
        try:
            if self.folder is None or self.allow_code:
                return _read(os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), self)
            with open_folder(self.folder) as folder:
                return _read(open_below(folder, self.source.file or ""), self)
        except OSError as error:
            if isinstance(error, StorageError):
                raise
            reason = (error.strerror or str(error)).lower()
            raise StorageError(f"cannot read {self.path}: {reason}", hint=self._hint) from error

    @property
    def _hint(self) -> str:
        if self.folder is None:
            return "a relative path starts where tdx runs"
        return f"a relative path in the pipeline file starts at {self.folder}/"


def _read(descriptor: int, request: PolicyRequest) -> bytes:
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise StorageError(f"{request.path} is not a regular file", hint="name another file")
        if found.st_size > MAX_POLICY_BYTES:
            raise StorageError(
                f"{request.path} has {found.st_size:,} bytes, the limit of a policy is "
                f"{MAX_POLICY_BYTES:,}",
                hint="record the actions as a dump and name that: sequence:DUMP",
            )
        return file.read(MAX_POLICY_BYTES)
