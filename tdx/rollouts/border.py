"""The state of a rollout between two chunks: all that is needed to go on as if nothing happened."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.core import TransformedEnv
from tdx.data.layout import Layout
from tdx.envs import EnvBase
from tdx.errors import ArgumentError
from tdx.rollouts.chain_state import is_known, memory_of, restore_memory
from tdx.rollouts.env_state import env_state, restore_env
from tdx.rollouts.recording import RecordingEnv
from tdx.rollouts.track import from_tensors, tensors_of

_MOST_READABLE = 10_000
"""Larger states, such as the weights of an encoder, are not written as text."""


def chain_state(env: EnvBase) -> dict[str, Tensor]:
    """What the stages of an env's chain hold, by stage and name."""
    held = env.transform.state_dict() if isinstance(env, TransformedEnv) else {}
    return {name: value.detach() for name, value in held.items() if isinstance(value, Tensor)}


def as_plain(held: Mapping[str, Tensor]) -> dict[str, Any]:
    """Tensors as plain data, without those that nobody would read."""
    return {
        name: {
            "dtype": str(value.dtype).removeprefix("torch."),
            "shape": list(value.shape),
            "values": [_number(each) for each in value.cpu().flatten().tolist()],
        }
        for name, value in held.items()
        if value.numel() <= _MOST_READABLE
    }


class Border:
    """Takes down and restores what a rollout goes on from.

    Args:
        env: the env with its chain, as it was built.
        is_known: whether nothing but env and chain has a state, such as a policy in Python code.
    """

    def __init__(self, env: TransformedEnv, is_known: bool = True) -> None:
        self._env, self._is_known = env, is_known
        self._built = {name: value.clone() for name, value in self._chain_state().items()}

    def _chain_state(self) -> dict[str, Tensor]:
        return chain_state(self._env)

    def changed(self) -> dict[str, Tensor]:
        """What the chain's stages hold that is another than when they were built."""
        return {
            name: value.clone()
            for name, value in self._chain_state().items()
            if name not in self._built or not _equal(value, self._built[name])
        }

    def readable(self) -> dict[str, Any]:
        """The same as plain data, by stage and name."""
        return as_plain(self.changed())

    def state(self, chunk: TensorDictBase, steps: int) -> dict[str, Any]:
        """All that is needed after a chunk, as plain values.

        Args:
            chunk: the chunk, ``[*B, T]``, with every entry.
            steps: how many steps were made in all.
        """
        env, recorder = self._env, self._env.base_env
        root = self._following(chunk)
        try:
            leaves = dict(tensors_of(root))
        except ArgumentError:
            # What is no tensor can be made again only.
            return {"steps": steps, "env": None}
        return {
            "steps": steps,
            "rng": torch.get_rng_state(),
            "device_rng": _device_rng(env.device),
            "chain": self.changed(),
            "memory": memory_of(env.transform),
            "env": env_state(env) if self._is_known and is_known(env.transform) else None,
            "root": leaves,
            "groups": _groups(root),
            "raw_root": dict(recorder.root) if isinstance(recorder, RecordingEnv) else None,
        }

    def _following(self, chunk: TensorDictBase) -> TensorDictBase:
        last = chunk[(*[slice(None)] * len(self._env.batch_size), -1)]
        return self._env.step_mdp(last.clone())

    def start(self, chunk: TensorDictBase) -> TensorDictBase:
        """The root of the step after a chunk that this env has just made, ``[*B]``."""
        return self._env.maybe_reset(self._following(chunk))

    def restore(self, state: dict[str, Any]) -> TensorDictBase:
        """Put the env into a state; returns the root of its next step, ``[*B]``.

        Args:
            state: as :meth:`state` gave it.
        """
        env = self._env
        env.reset()
        restore_env(env, state["env"])
        if isinstance(env.base_env, RecordingEnv):
            env.base_env.resume_from(state["raw_root"])
        if state["chain"]:
            held = env.transform.state_dict()
            held.update({name: value.to(env.device) for name, value in state["chain"].items()})
            env.transform.load_state_dict(held)
        restore_memory(env.transform, state["memory"], env.device)
        torch.set_rng_state(state["rng"])
        if state["device_rng"] is not None:
            torch.cuda.set_rng_state(state["device_rng"], env.device)
        root = from_tensors(state["root"], env.batch_size, state["groups"]).to(env.device)
        return env.maybe_reset(root)


def _groups(root: TensorDictBase) -> dict[tuple[str, ...], tuple[int, ...]]:
    layout = Layout.of(root, tensors_of(root), root.ndim)
    return {path: tuple(size) for path, size in layout.groups.items() if path}


def _device_rng(device: torch.device) -> Tensor | None:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else None


def _equal(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.equal(one, other)


def _number(value: float) -> float | str:
    finite = not isinstance(value, float) or (value == value and abs(value) != float("inf"))
    return value if finite else str(value)
