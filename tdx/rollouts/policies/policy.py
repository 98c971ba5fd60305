"""Load a policy by its name, and check it against an env.

A user who types ``--policy mlp:FILE`` may name any file. Pipeline files and dumps are untrusted:
they may only name files in their own folder, which are opened without following links.
"""

from __future__ import annotations

import hashlib
import os
import stat
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from tdx.envs import ActionSequence, EnvBase
from tdx.errors import ArgumentError, PipelineError, StorageError, TdxError, first_line
from tdx.files import open_below, open_folder, write_below
from tdx.pipeline import CodeReference
from tdx.pipeline.policy_source import PolicySource, parse_policy
from tdx.pipeline.realise import Realiser
from tdx.rollouts.dump.folder import KEPT
from tdx.rollouts.policies.actions import (
    _of_dump,
    _zero,
    actions_in_batch,
    read_actions,
)
from tdx.rollouts.policies.networks import load_mlp, load_module
from tdx.untrusted import MAX_POLICY_BYTES

if TYPE_CHECKING:
    from tdx.pipeline import Pipeline


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


@dataclass(frozen=True, slots=True)
class NamedPolicy:
    """A policy and where it comes from.

    Args:
        name: As a dump records it; the path of its file is relative to where tdx runs.
        sha256: Checksum of its file. ``None``: it has no file.
        steps: Number of actions that it has. ``None``: any number.
        after: Returns what ``env.rollout`` takes, for a rollout that continues after that many
            steps.
        is_code: True for a Python object, which may keep state between steps.
        kept: Name and content of the copy that a dump needs to be resumed without the file;
            ``None`` where it needs none.
    """

    name: str
    sha256: str | None
    steps: int | None
    after: Callable[[int], Any]
    is_code: bool = False
    kept: tuple[str, bytes] | None = None

    def keep(self, folder: Path) -> None:
        """Copy its file into a dump, so that the dump can be resumed from its folder alone.

        Raises:
            OSError: It cannot be written.
        """
        if self.kept is not None:
            with open_folder(folder) as opened:
                write_below(opened, *self.kept)


def named_policy(
    policy: str | PolicySource | PolicyRequest, env: EnvBase, allow_code: bool = False
) -> NamedPolicy:
    """Load a policy.

    Args:
        policy: ``random``, ``zero``, ``sequence:FILE``, ``mlp:FILE``, ``module:FILE`` or
            ``package.module:name`` as the user typed it; or a request, for a name that a stranger
            may have written.
        env: The env that it is to act in, with its chain.
        allow_code: Whether it may be code; a request has this itself.

    Raises:
        ArgumentError: There is no such policy, or it does not fit the env.
        CodeNotAllowedError: It is code and that is not allowed. Its file has not been opened.
        StorageError: Its file cannot be read.
    """
    if isinstance(policy, PolicyRequest):
        request = policy
    else:
        source = parse_policy(policy) if isinstance(policy, str) else policy
        request = PolicyRequest(source, allow_code=allow_code)
    request.check_allowed()
    source = request.source
    if source.kind == "random":
        return NamedPolicy(request.name, None, None, _random)
    if source.kind == "zero":
        zeros = _zero(env)
        return NamedPolicy(request.name, None, None, lambda made: ActionSequence(zeros))
    if source.kind == "sequence":
        return _sequence(request, env)
    if source.kind == "code":
        assert source.reference is not None
        return _code(request, source.reference)
    data = request.read()
    module = (
        load_mlp(request.path, data, source.settings, env)
        if source.kind == "mlp"
        else load_module(request.path, data, env)
    )
    kept = (f"{KEPT}.safetensors", data) if source.kind == "mlp" else None
    return NamedPolicy(request.name, _sha256(data), None, lambda made: module, kept=kept)


def resumed_policy(
    name: str,
    sha256: str | None,
    folder: Path,
    env: EnvBase,
    *,
    typed: str | None = None,
    allow_code: bool = False,
) -> NamedPolicy:
    """Load the policy of a dump that is resumed.

    Its file is the copy in the dump. Files elsewhere are only opened if the user typed their name,
    or allows code.

    Args:
        name: As the manifest has it.
        sha256: As the manifest has it.
        folder: Folder of the dump.
        env: The env with its chain.
        typed: Policy that the user typed for the one in the manifest.
        allow_code: Whether it may be code.

    Raises:
        TdxError: It cannot be loaded, or is not the policy that the dump was recorded with.
    """
    source = parse_policy(typed or name)
    source.check_allowed(allow_code)
    request = PolicyRequest(source, allow_code=allow_code)
    if typed is None and source.file is not None and not source.is_code:
        copy = _kept_copy(source)
        if os.path.lexists(folder / copy):
            request = PolicyRequest(source.with_file(copy), folder)
        elif not allow_code:
            raise ArgumentError(
                f"{folder} has no copy of its policy {name}",
                hint=f"type the policy: --out {folder} --resume --policy '{name}'",
            )
    policy = named_policy(request, env)
    if policy.sha256 != sha256:
        raise ArgumentError(
            f"{policy.name} is not the file that the dump was recorded with",
            hint="restore that file, or record the dump again with --force",
        )
    return policy


def _kept_copy(source: PolicySource) -> str:
    is_mlp = source.kind == "mlp"
    return f"{KEPT}{'.safetensors' if is_mlp else Path(source.file or '').suffix}"


def _random(made: int) -> None:
    return None


def _code(request: PolicyRequest, reference: CodeReference) -> NamedPolicy:
    found = Realiser(request.allow_code).imported(reference)
    policy = found() if isinstance(found, type) else found
    return NamedPolicy(request.name, None, None, lambda made: policy, is_code=True)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _sequence(request: PolicyRequest, env: EnvBase) -> NamedPolicy:
    file, kept = request.path, None
    if file.is_dir():
        actions, digest = _of_dump(file, env), None
    else:
        data = request.read()
        digest = _sha256(data)
        actions = actions_in_batch(read_actions(file, data), env, file)
        if not request.source.is_code:
            kept = (f"{KEPT}{file.suffix}", data)
    dim = len(env.batch_size)
    steps = int(actions.shape[dim])

    def after(made: int) -> ActionSequence:
        return ActionSequence(actions[(*[slice(None)] * dim, slice(made, None))])

    return NamedPolicy(request.name, digest, steps, after, kept=kept)


def check_length(policy: NamedPolicy, steps: int) -> None:
    """Check that a policy has enough actions.

    Raises:
        ArgumentError: It has fewer than ``steps``.
    """
    if policy.steps is not None and steps > policy.steps:
        raise ArgumentError(
            f"{policy.name} has {policy.steps:,} actions, the rollout needs {steps:,}",
            hint=f"use --steps {policy.steps} or less",
        )


def check_policy(policy: NamedPolicy, env: EnvBase) -> None:
    """Check a module against the env's specs, without a step.

    Raises:
        ArgumentError: A key that it reads is missing, or its action does not fit the env.
    """
    module = policy.after(0)
    if module is None or isinstance(module, ActionSequence):
        return
    from tdx.core.envs.policies import ActionCheck, as_policy

    with torch.random.fork_rng(devices=[]), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        given = env.fake_tensordict().exclude("next", *env.action_keys)
        missing = [key for key in getattr(module, "in_keys", ()) if given.get(key) is None]
        if missing:
            known = ", ".join(map(str, env.observation_keys))
            raise ArgumentError(
                f"the policy {policy.name} reads {missing[0]!r}, which the env does not have",
                hint=f"the env has {known}",
            )
        try:
            result = as_policy(module, env)(given.clone())
            ActionCheck(env)(result.get)
        except TdxError as error:
            message = error.message.removeprefix("the policy ").removesuffix(" at step 0")
            raise ArgumentError(
                f"the policy {policy.name} does not fit: it {message}",
                hint=error.hint or "compare it with `tdx inspect spec`",
            ) from error
        except Exception as error:
            told = first_line(error)
            raise ArgumentError(
                f"the policy {policy.name} does not fit the env: {told}",
                hint="compare what it reads with `tdx inspect spec`",
            ) from error
