"""Policies by name: ``random``, ``zero``, ``sequence:FILE``, ``module:FILE``."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.envs import ActionSequence, EnvBase
from tdx.errors import ArgumentError, StorageError, TdxError, did_you_mean, first_line
from tdx.pipeline import CodeReference
from tdx.pipeline.realise import Realiser
from tdx.rollouts.module_policies import load_module
from tdx.specs import OneHot

_KINDS = ("random", "zero", "sequence:FILE", "module:FILE")
_ENDLESS = 1 << 40


@dataclass(frozen=True, slots=True)
class NamedPolicy:
    """A policy and where it comes from.

    Args:
        name: as the user wrote it.
        sha256: of its file, where it has one.
        steps: how many steps it can make; none for any number.
        after: gives what ``env.rollout`` takes, for a rollout that goes on after so many steps.
        is_code: whether it is Python code, which may remember what it has seen.
    """

    name: str
    sha256: str | None
    steps: int | None
    after: Callable[[int], Any]
    is_code: bool = False


def named_policy(name: str, env: EnvBase, allow_code: bool = False) -> NamedPolicy:
    """The policy of this name.

    Args:
        name: one of ``random``, ``zero``, ``sequence:FILE``, ``module:FILE``; or
            ``package.module:name``, which is Python code.
        env: the env that it is to act in, with its chain.
        allow_code: whether Python code may be imported.

    Raises:
        ArgumentError: there is no such policy, or it does not fit the env.
        CodeNotAllowedError: it is Python code and that is not allowed.
        StorageError: its file cannot be read.
    """
    if name == "random":
        return NamedPolicy(name, None, None, lambda made: None)
    if name == "zero":
        zeros = _zero(env)
        return NamedPolicy(name, None, None, lambda made: ActionSequence(zeros))
    kind, _, rest = name.partition(":")
    if kind == "sequence" and rest:
        return _sequence(name, Path(rest), env)
    if kind == "module" and rest:
        data = _read(Path(rest))
        module = load_module(Path(rest), data, env, allow_code)
        return NamedPolicy(name, hashlib.sha256(data).hexdigest(), None, lambda made: module)
    reference = CodeReference.of(name)
    if reference is not None:
        found = Realiser(allow_code).imported(reference)
        policy = found() if isinstance(found, type) else found
        return NamedPolicy(name, None, None, lambda made: policy, is_code=True)
    listed = f"one of {', '.join(_KINDS)}, or module:name of Python code with --allow-code"
    hint = did_you_mean(kind, ["random", "zero", "sequence", "module"], listed)
    raise ArgumentError(f"there is no policy {name!r}", hint=hint)


def _zero(env: EnvBase) -> TensorDictBase:
    spec = env.full_action_spec
    action = spec.zero()
    for key, leaf in spec.items(True, True):
        if isinstance(leaf, OneHot):
            action.get(key)[..., 0] = 1
        elif not leaf.is_in(action.get(key)):
            action.set(key, leaf.project(action.get(key)))
    dim = len(env.batch_size)
    return action.unsqueeze(dim).expand(*env.batch_size, _ENDLESS)


def _sequence(name: str, file: Path, env: EnvBase) -> NamedPolicy:
    if file.is_dir():
        actions, digest = _of_dump(file, env), None
    else:
        data = _read(file)
        digest = hashlib.sha256(data).hexdigest()
        actions = _in_batch(_tensor(file, data), env, file)
    dim = len(env.batch_size)
    steps = int(actions.shape[dim])

    def after(made: int) -> ActionSequence:
        return ActionSequence(actions[(*[slice(None)] * dim, slice(made, None))])

    return NamedPolicy(name, digest, steps, after)


def _of_dump(folder: Path, env: EnvBase) -> TensorDictBase:
    from tdx.rollouts.dump import open_dump

    actions: TensorDictBase = open_dump(folder).data.select(*env.action_keys)
    dim = len(env.batch_size)
    for key, spec in env.full_action_spec.items(True, True):
        found = actions.get(key)
        if found.shape[:dim] + found.shape[dim + 1 :] != spec.shape or found.dtype != spec.dtype:
            raise ArgumentError(
                f"the actions in {folder} are {found.dtype} {list(found.shape)}, "
                f"the env takes {spec.dtype} {list(spec.shape)} in a step",
                hint="name a dump of the same env and number of envs",
            )
    return actions


def _tensor(file: Path, data: bytes) -> Tensor:
    """The numbers in a file; no code in it is run."""
    import io

    import numpy as np

    try:
        if file.suffix == ".npy":
            return torch.from_numpy(np.load(io.BytesIO(data), allow_pickle=False))
        if file.suffix == ".json":
            return torch.tensor(json.loads(data))
        if file.suffix in (".pt", ".pth"):
            loaded = torch.load(io.BytesIO(data), weights_only=True)
            if isinstance(loaded, Tensor):
                return loaded
            raise TypeError(f"it holds {type(loaded).__name__}, no tensor")
    except Exception as error:
        told = first_line(error)
        raise ArgumentError(
            f"{file} holds no actions: {told}", hint="save a tensor [T, ...] or [*B, T, ...]"
        ) from None
    raise ArgumentError(
        f"cannot tell what kind of file {file.name} is",
        hint="actions are read from .npy, .pt, .json, or a dump",
    )


def _in_batch(actions: Tensor, env: EnvBase, file: Path) -> Tensor:
    """The actions as the env takes them, ``[*B, T, ...]``."""
    if len(env.action_keys) != 1:
        raise ArgumentError(
            f"the env takes {len(env.action_keys)} actions a step, {file.name} holds one tensor",
            hint="give a dump in the place of the file",
        )
    spec, batch = env.full_action_spec[env.action_keys[0]], tuple(env.batch_size)
    single = tuple(spec.shape[len(batch) :])
    if single == (1,) and actions.shape[1:] != single and actions.ndim in (1, len(batch) + 1):
        actions = actions.unsqueeze(-1)
    if actions.shape[1:] == single and batch:
        actions = actions.expand(*batch, *actions.shape)
    whole = actions.ndim == len(spec.shape) + 1
    if not whole or actions.shape[: len(batch)] + actions.shape[len(batch) + 1 :] != spec.shape:
        raise ArgumentError(
            f"the actions in {file} are of shape {list(actions.shape)}, "
            f"the env takes {list(spec.shape)} in a step",
            hint="save them as [T, ...] or [*B, T, ...]",
        )
    if actions.is_floating_point() != spec.dtype.is_floating_point:
        raise ArgumentError(
            f"the actions in {file} are {actions.dtype}, the env takes {spec.dtype}",
            hint=f"save them as {spec.dtype}",
        )
    return actions.to(spec.dtype)


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise StorageError(
            f"cannot read {file}: {reason}", hint="the policy's file is named from where tdx runs"
        ) from error


def check_length(policy: NamedPolicy, steps: int) -> None:
    """See whether a policy has enough actions.

    Raises:
        ArgumentError: it has not.
    """
    if policy.steps is not None and steps > policy.steps:
        raise ArgumentError(
            f"{policy.name} holds {policy.steps:,} actions, {steps:,} steps are wanted",
            hint=f"--steps {policy.steps} is the most",
        )


def check_policy(policy: NamedPolicy, env: EnvBase) -> None:
    """Hold a module against the env's specs, without a step.

    Raises:
        ArgumentError: a key that it reads is not there, or its action is none of the env's.
    """
    module = policy.after(0)
    if module is None or isinstance(module, ActionSequence):
        return
    from tdx.envs.base.policies import ActionCheck, as_policy

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
                f"the policy {policy.name} does not fit: it {message}", hint=error.hint
            ) from error
        except Exception as error:
            told = first_line(error)
            raise ArgumentError(
                f"the policy {policy.name} does not fit the env: {told}",
                hint="hold what it reads against `tdx inspect spec`",
            ) from error
