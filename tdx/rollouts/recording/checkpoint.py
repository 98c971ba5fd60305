"""State of a rollout between two chunks, from which it is resumed: plain values, without pickle.

A rollout of an env whose state is not known (:mod:`tdx.envs.batched.env_state`) is resumed by
running it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from tdx import transforms
from tdx.core import TransformedEnv
from tdx.data.layout import Layout
from tdx.envs import EnvBase
from tdx.envs.batched.env_state import restore_env_state, save_env_state
from tdx.foundation.errors import ArgumentError
from tdx.foundation.serialization import to_plain
from tdx.foundation.text import dtype_name
from tdx.rollouts.dump.entries import flatten_tensors, unflatten_tensors
from tdx.rollouts.recording.raw_envs import RecordingEnv

STATE_FIELDS = frozenset(
    ("steps", "rng", "device_rng", "chain", "memory", "env", "root", "groups", "raw_root")
)
"""Fields of a saved state, unless its env is unknown."""
_MAX_DESCRIBED = 10_000
"""Size of the largest tensor that a manifest describes; weights of an encoder are larger."""
_RUNS_USER_CODE = (transforms.CallableTransform, transforms.BurnInTransform)
_MODULE_ATTRIBUTES = frozenset(vars(nn.Module()))
Memory = dict[str, dict[str, Any]]
"""Tensors of the stages by stage and attribute."""


def read_chain_state(env: EnvBase) -> dict[str, Tensor]:
    """Return parameters and buffers of the stages of an env's chain, by stage and name."""
    found = env.transform.state_dict() if isinstance(env, TransformedEnv) else {}
    return {name: value.detach() for name, value in found.items() if isinstance(value, Tensor)}


def describe_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return tensors as plain data, without very large ones."""
    return {
        name: {
            "dtype": dtype_name(value.dtype),
            "shape": list(value.shape),
            "values": to_plain(value.cpu().flatten().tolist(), strict=True),
        }
        for name, value in tensors.items()
        if value.numel() <= _MAX_DESCRIBED
    }


class Checkpointer:
    """Saves and restores the state from which a rollout continues.

    A policy in Python code (``has_code``) may have a state that cannot be saved.
    """

    def __init__(self, env: TransformedEnv, has_code: bool = False) -> None:
        self._env, self._has_code = env, has_code
        self._built = {name: value.clone() for name, value in read_chain_state(env).items()}

    def _changes(self) -> dict[str, Tensor]:
        """Return the tensors of the chain that changed since it was built."""
        return {
            name: value.clone()
            for name, value in read_chain_state(self._env).items()
            if name not in self._built or not torch.equal(value, self._built[name])
        }

    def describe_changes(self) -> dict[str, Any]:
        """Return the tensors of the chain that changed as plain data, by stage and name."""
        return describe_tensors(self._changes())

    def save(self, chunk: TensorDictBase, steps: int) -> dict[str, Any]:
        """Return the state after a chunk ``[*B, T]``, as plain values and tensors.

        ``steps`` is the number of steps of the rollout up to the end of the chunk.
        """
        env, base = self._env, self._env.base_env
        root = self._next_root(chunk)
        try:
            leaves = dict(flatten_tensors(root))
        except ArgumentError:
            # Entries that are not tensors cannot be saved: the steps have to be run again.
            return {"steps": steps, "env": None}
        layout, device = Layout.of(root, leaves, root.ndim), env.main_device
        is_known = not self._has_code and has_known_state(env.transform)
        return {
            "steps": steps,
            "rng": torch.get_rng_state(),
            "device_rng": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
            "chain": self._changes(),
            "memory": save_memory(env.transform),
            "env": save_env_state(self._stepped_env()) if is_known else None,
            "root": leaves,
            "groups": {path: tuple(size) for path, size in layout.groups.items() if path},
            "raw_root": dict(base.root) if isinstance(base, RecordingEnv) else None,
        }

    def _stepped_env(self) -> EnvBase:
        base = self._env.base_env
        return base.inner if isinstance(base, RecordingEnv) else base

    def _next_root(self, chunk: TensorDictBase) -> TensorDictBase:
        last = chunk[(*[slice(None)] * len(self._env.batch_size), -1)]
        return self._env.step_mdp(last.clone())

    def start_after(self, chunk: TensorDictBase) -> TensorDictBase:
        """Return the root of the step after a chunk that this env has just run, ``[*B]``."""
        return self._env.maybe_reset(self._next_root(chunk))

    def restore(self, state: dict[str, Any]) -> TensorDictBase:
        """Put the env into a saved state, and return the root of the next step, ``[*B]``."""
        env = self._env
        env.reset()
        restore_env_state(self._stepped_env(), state["env"])
        if isinstance(env.base_env, RecordingEnv):
            env.base_env.resume_from(state["raw_root"])
        if state["chain"]:
            chain = env.transform.state_dict()
            chain.update({name: value.to(env.device) for name, value in state["chain"].items()})
            env.transform.load_state_dict(chain)
        restore_memory(env.transform, state["memory"], env.main_device)
        torch.set_rng_state(state["rng"])
        if state["device_rng"] is not None:
            torch.cuda.set_rng_state(state["device_rng"], env.main_device)
        root = unflatten_tensors(state["root"], env.batch_size, state["groups"]).to(env.device)
        return env.maybe_reset(root)


def has_known_state(chain: nn.Module) -> bool:
    """Return True if every stage is a transform of tdx, which keeps its state in tensors.

    Transforms of other packages, and transforms that run functions or modules of the user, may keep
    a state that :func:`save_memory` does not see.
    """
    return all(
        getattr(transforms, type(stage).__name__, None) is type(stage)
        and not isinstance(stage, _RUNS_USER_CODE)
        for stage in chain.modules()
        if isinstance(stage, transforms.Transform)
    )


def save_memory(chain: nn.Module) -> Memory:
    """Return the tensors of the running episodes that the stages keep as plain attributes."""
    found = {
        name: {attribute: _copy(value) for attribute, value in _find_memory(module)}
        for name, module in chain.named_modules()
    }
    return {name: memory for name, memory in found.items() if memory}


def restore_memory(chain: nn.Module, memory: Memory, device: torch.device) -> None:
    """Put the result of :func:`save_memory` into the stages.

    Raises:
        ValueError: An attribute cannot hold state.
    """
    modules = dict(chain.named_modules())
    for name, module in modules.items():
        for _, value in _find_memory(module):
            if isinstance(value, dict):
                # Other objects may refer to this very dict.
                value.clear()
        for attribute, saved in memory.get(name, {}).items():
            if attribute in _MODULE_ATTRIBUTES or callable(getattr(type(module), attribute, None)):
                raise ValueError(f"{attribute!r} is not an attribute that holds state")
            current, value = vars(module).get(attribute), _copy(saved, device)
            if isinstance(current, dict) and isinstance(value, dict):
                current.update(value)
            else:
                setattr(module, attribute, value)


def _find_memory(module: nn.Module) -> list[tuple[str, Any]]:
    return [
        (name, value)
        for name, value in vars(module).items()
        if name not in _MODULE_ATTRIBUTES and _is_memory(value)
    ]


def _is_memory(value: Any) -> bool:
    if isinstance(value, dict):
        return bool(value) and all(map(_is_memory, value.values()))
    if isinstance(value, list):
        return bool(value) and all(isinstance(item, Tensor) for item in value)
    return isinstance(value, Tensor)


def _copy(value: Any, device: torch.device | None = None) -> Any:
    if isinstance(value, dict):
        return {key: _copy(item, device) for key, item in value.items()}
    if isinstance(value, list):
        return [_copy(item, device) for item in value]
    return value.clone() if device is None else value.to(device)
