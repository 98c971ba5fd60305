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
from typing import IO, TYPE_CHECKING, Any

import torch

from tdx.envs import ActionSequence, EnvBase
from tdx.foundation.container import Container
from tdx.foundation.errors import (
    ArgumentError,
    PipelineError,
    StorageError,
    TdxError,
    explain_os_error,
    get_first_line,
)
from tdx.foundation.untrusted import MAX_POLICY_BYTES
from tdx.pipeline.arguments import ValueResolver
from tdx.pipeline.policies import PolicySource, parse_policy
from tdx.rollouts.dump.folder import POLICY_COPY
from tdx.rollouts.policies.lerobot import LeRobotPolicy, hash_folder
from tdx.rollouts.policies.loaders import (
    build_zero_actions,
    expand_to_batch,
    load_mlp,
    load_module,
    read_actions,
    read_dump_actions,
)
from tdx.rollouts.policies.sb3 import Sb3Model, Sb3Policy, load_sb3_for_stack

if TYPE_CHECKING:
    from tdx.pipeline import Pipeline
    from tdx.stacks.stack import Stack


@dataclass(frozen=True, slots=True)
class PolicyRequest:
    """A policy, and who named it."""

    source: PolicySource
    # Folder that its file must be in, for an untrusted name. None: the user typed it.
    folder: Path | None = None
    # It may be code. The user then trusts the name, which may refer to any file.
    allow_code: bool = False

    @classmethod
    def of(
        cls, pipeline: Pipeline, typed: str | None = None, allow_code: bool = False
    ) -> PolicyRequest:
        """Return the request for the policy of a pipeline, or for the one that the user typed.

        Relative paths in a pipeline file start at the folder of the file.
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
        """Path of the file, relative to the working directory."""
        assert self.source.file is not None
        return Path(self.source.file) if self.folder is None else self.folder / self.source.file

    @property
    def name(self) -> str:
        """Name of the policy with the path of its file, as a dump records it."""
        if self.source.file is None:
            return str(self.source)
        return str(self.source.with_file(str(self.path)))

    def check_allowed(self) -> None:
        """Refuse code, and files outside the folder, before anything is opened.

        Raises:
            CodeNotAllowedError: The policy is code, which is not allowed.
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
                hint=f"to use it anyway, pass --policy {self.source}",
            )
        step = self.folder
        for part in parts:
            step /= part
            if step.is_symlink():
                raise StorageError(
                    f"{step} is a symbolic link, which is not followed",
                    hint=f"to use the file anyway, pass --policy {self.source}",
                )

    def read(self) -> bytes:
        """Read the whole file."""
        try:
            if self.folder is None or self.allow_code:
                flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
                opened: IO[bytes] = os.fdopen(os.open(self.path, flags), "rb")
            else:
                with Container.open(self.folder) as folder:
                    opened = folder.open_file(self.source.file or "")
            with opened as file:
                found = os.fstat(file.fileno())
                if not stat.S_ISREG(found.st_mode):
                    raise StorageError(
                        f"{self.path} is not a regular file", hint="name another file"
                    )
                if found.st_size > MAX_POLICY_BYTES:
                    raise StorageError(
                        f"{self.path} has {found.st_size:,} bytes, the limit of a policy is "
                        f"{MAX_POLICY_BYTES:,}",
                        hint="record the actions as a dump and name that: sequence:DUMP",
                    )
                return file.read(MAX_POLICY_BYTES)
        except OSError as error:
            if isinstance(error, StorageError):
                raise
            reason = explain_os_error(error)
            raise StorageError(f"cannot read {self.path}: {reason}", hint=self._hint) from error

    @property
    def _hint(self) -> str:
        if self.folder is None:
            return "a relative path starts at the working directory"
        return f"a relative path in the pipeline file starts at {self.folder}/"


@dataclass(frozen=True, slots=True)
class NamedPolicy:
    """A policy and where it comes from.

    Args:
        name: Name in a dump; the path of the file is relative to the working directory.
        sha256: Checksum of the file. ``None``: the policy has no file.
        steps: Number of actions. ``None``: unlimited.
        start_at: Returns the policy to pass to ``env.rollout`` from a given step on.
        is_code: True for a Python object, which may keep state between steps.
        file_copy: Name and content of the copy that a dump needs to be resumed without the file.
            ``None``: it needs none.
    """

    name: str
    sha256: str | None
    steps: int | None
    start_at: Callable[[int], Any]
    is_code: bool = False
    file_copy: tuple[str, bytes] | None = None


def load_policy(
    policy: str | PolicySource | PolicyRequest, env: EnvBase, allow_code: bool = False
) -> NamedPolicy:
    """Load a policy that the user typed, or that of a request, for an untrusted name.

    Raises:
        ArgumentError: The policy is unknown, or does not fit the env.
        CodeNotAllowedError: The policy is code, which is not allowed. Its file was not opened.
        StorageError: The file cannot be read.
    """
    if isinstance(policy, PolicyRequest):
        request = policy
    else:
        source = parse_policy(policy) if isinstance(policy, str) else policy
        request = PolicyRequest(source, allow_code=allow_code)
    request.check_allowed()
    source = request.source
    if source.kind == "random":
        return NamedPolicy(request.name, None, None, lambda step: None)
    if source.kind == "zero":
        zeros = build_zero_actions(env)
        return NamedPolicy(request.name, None, None, lambda step: ActionSequence(zeros))
    if source.kind == "sequence":
        return _sequence(request, env)
    if source.kind == "code":
        assert source.reference is not None
        found = ValueResolver(request.allow_code).import_object(source.reference)
        policy_of_code = found() if isinstance(found, type) else found
        return NamedPolicy(request.name, None, None, lambda step: policy_of_code, is_code=True)
    if source.kind == "sb3":
        data = request.read()
        policy_of_model = Sb3Policy(Sb3Model(request.path, data, source.settings, env.device), env)
        return NamedPolicy(request.name, _sha256(data), None, lambda step: policy_of_model)
    if source.kind == "lerobot":
        checkpoint = LeRobotPolicy(request.path, source.settings, env)
        # Its queue of actions is not saved, as the state of code is not.
        return NamedPolicy(
            request.name, hash_folder(request.path), None, lambda step: checkpoint, is_code=True
        )
    data = request.read()
    module = (
        load_mlp(request.path, data, source.settings, env)
        if source.kind == "mlp"
        else load_module(request.path, data, env)
    )
    file_copy = (f"{POLICY_COPY}.safetensors", data) if source.kind == "mlp" else None
    return NamedPolicy(request.name, _sha256(data), None, lambda step: module, file_copy=file_copy)


def load_actor(
    pipeline: Pipeline,
    target: EnvBase | Stack,
    *,
    name: str | None = None,
    steps: int = 1,
    allow_code: bool = False,
) -> Any:
    """Load the function that chooses the actions of an env, and check that it fits.

    A stack of another library has a policy that takes an observation.

    Args:
        pipeline: Pipeline that may name a policy.
        target: Env with its chain, or a stack.
        name: Policy that the user typed. ``None``: the policy of the pipeline, or random actions.
        steps: Number of actions that are needed.
        allow_code: If True, the policy may be Python code.

    Returns:
        Policy for ``env.rollout``, or a function of an observation; ``None`` for random actions.

    Example:
        >>> from tdx import GymEnv, Pipeline
        >>> load_actor(Pipeline.of("Pendulum-v1"), GymEnv("Pendulum-v1"), name="random") is None
        True
    """
    request = PolicyRequest.of(pipeline, name, allow_code)
    env = target if isinstance(target, EnvBase) else target.chain_env
    if env is not None:
        policy = load_policy(request, env)
        check_policy(policy, env)
        check_action_count(policy, steps)
        return policy.start_at(0)
    source = request.source
    if source.kind == "random":
        return None
    if source.kind == "sb3":
        assert not isinstance(target, EnvBase)
        request.check_allowed()
        model = Sb3Model(request.path, request.read(), source.settings)
        return load_sb3_for_stack(model, target)
    if source.reference is None:
        raise ArgumentError(
            f"the policy {source} acts on the TensorDicts of a tdx env",
            hint="pass random, sb3:FILE, or module:function of a function that takes an "
            "observation",
        )
    return ValueResolver(allow_code).import_object(source.reference)


def load_recorded_policy(
    name: str,
    sha256: str | None,
    folder: Path,
    env: EnvBase,
    *,
    typed: str | None = None,
    allow_code: bool = False,
) -> NamedPolicy:
    """Load the policy that a dump was recorded with, by its name and checksum, to resume it.

    Its file is the copy in the dump. Other files are only opened if the user typed their name, or
    allows code.
    """
    source = parse_policy(typed or name)
    source.check_allowed(allow_code)
    request = PolicyRequest(source, allow_code=allow_code)
    if typed is None and source.file is not None and not source.is_code:
        suffix = ".safetensors" if source.kind == "mlp" else Path(source.file).suffix
        copy = f"{POLICY_COPY}{suffix}"
        if os.path.lexists(folder / copy):
            request = PolicyRequest(source.with_file(copy), folder)
        elif not allow_code:
            raise ArgumentError(
                f"{folder} has no copy of its policy {name}",
                hint=f"pass the policy: --out {folder} --resume --policy '{name}'",
            )
    policy = load_policy(request, env)
    if policy.sha256 != sha256:
        raise ArgumentError(
            f"{policy.name} is not the file that the dump was recorded with",
            hint="restore that file, or record the dump again with --force",
        )
    return policy


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _sequence(request: PolicyRequest, env: EnvBase) -> NamedPolicy:
    file, file_copy = request.path, None
    if file.is_dir():
        actions, digest = read_dump_actions(file, env), None
    else:
        data = request.read()
        digest = _sha256(data)
        actions = expand_to_batch(read_actions(file, data), env, file)
        if not request.source.is_code:
            file_copy = (f"{POLICY_COPY}{file.suffix}", data)
    dim = len(env.batch_size)
    steps = int(actions.shape[dim])

    def start_at(step: int) -> ActionSequence:
        return ActionSequence(actions[(*[slice(None)] * dim, slice(step, None))])

    return NamedPolicy(request.name, digest, steps, start_at, file_copy=file_copy)


def check_action_count(policy: NamedPolicy, steps: int) -> None:
    """Check that a policy has enough actions."""
    if policy.steps is not None and steps > policy.steps:
        raise ArgumentError(
            f"{policy.name} has {policy.steps:,} actions, the rollout needs {steps:,}",
            hint=f"use --steps {policy.steps} or less",
        )


def check_policy(policy: NamedPolicy, env: EnvBase) -> None:
    """Check a module against the specs of an env, without a step."""
    module = policy.start_at(0)
    if module is None or isinstance(module, ActionSequence):
        return
    from tdx.core.envs.policies import ActionCheck, as_policy

    with torch.random.fork_rng(devices=[]), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        inputs = env.fake_tensordict().exclude("next", *env.action_keys)
        missing = [key for key in getattr(module, "in_keys", ()) if inputs.get(key) is None]
        if missing:
            known = ", ".join(map(str, env.observation_keys))
            raise ArgumentError(
                f"the policy {policy.name} reads {missing[0]!r}, which the env does not have",
                hint=f"the env has {known}",
            )
        try:
            result = as_policy(module, env)(inputs.clone())
            ActionCheck(env)(result.get, result.set)
        except TdxError as error:
            message = error.message.removeprefix("the policy ").removesuffix(" at step 0")
            raise ArgumentError(
                f"the policy {policy.name} does not fit: it {message}",
                hint=error.hint or "compare it with `tdx inspect spec`",
            ) from error
        except Exception as error:
            raise ArgumentError(
                f"the policy {policy.name} does not fit the env: {get_first_line(error)}",
                hint="compare what it reads with `tdx inspect spec`",
            ) from error
