"""State of a rollout between two chunks, from which it is resumed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from tdx.core import TransformedEnv
from tdx.data.layout import Layout
from tdx.envs import EnvBase
from tdx.errors import ArgumentError
from tdx.rollouts.dump.entries import from_tensors, tensors_of
from tdx.rollouts.recording.env_state import env_state, restore_env
from tdx.rollouts.recording.raw_envs import RecordingEnv

_OF_EVERY_MODULE = frozenset(vars(nn.Module()))


_OWN = "tdx.transforms."


Memory = dict[str, dict[str, Any]]


def has_known_state(chain: nn.Module) -> bool:
    """Whether every stage is one of tdx's own, of which it is known where their state is."""
    return all(
        type(each).__module__.startswith((_OWN, "torch.nn.", "torchvision."))
        for each in chain.modules()
    )


def memory_of(chain: nn.Module) -> Memory:
    """The tensors that the stages keep of the running episodes, by stage and attribute."""
    found = {
        name: {attribute: _copy(value) for attribute, value in _memories(module)}
        for name, module in chain.named_modules()
    }
    return {name: held for name, held in found.items() if held}


def restore_memory(chain: nn.Module, memory: Memory, device: torch.device) -> None:
    """Let the stages remember what :func:`memory_of` gave.

    Args:
        chain: the stages.
        memory: what they are to remember.
        device: where the env's tensors live.
    """
    modules = dict(chain.named_modules())
    for name, module in modules.items():
        for _, value in _memories(module):
            if isinstance(value, dict):
                # Others may hold this very dict.
                value.clear()
        for attribute, kept in memory.get(name, {}).items():
            if attribute in _OF_EVERY_MODULE or callable(getattr(type(module), attribute, None)):
                raise ValueError(f"{attribute!r} is not an attribute that holds state")
            held, value = vars(module).get(attribute), _copy(kept, device)
            if isinstance(held, dict) and isinstance(value, dict):
                held.update(value)
            else:
                setattr(module, attribute, value)


def _memories(module: nn.Module) -> list[tuple[str, Any]]:
    return [
        (name, value)
        for name, value in vars(module).items()
        if name not in _OF_EVERY_MODULE and _is_memory(value)
    ]


def _is_memory(value: Any) -> bool:
    if isinstance(value, dict):
        return bool(value) and all(map(_is_memory, value.values()))
    if isinstance(value, list):
        return bool(value) and all(isinstance(each, Tensor) for each in value)
    return isinstance(value, Tensor)


def _copy(value: Any, device: torch.device | None = None) -> Any:
    if isinstance(value, dict):
        return {key: _copy(each, device) for key, each in value.items()}
    if isinstance(value, list):
        return [_copy(each, device) for each in value]
    return value.clone() if device is None else value.to(device)


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

    def __init__(self, env: TransformedEnv, has_known_state: bool = True) -> None:
        self._env, self._is_known = env, has_known_state
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
            "env": env_state(env) if self._is_known and has_known_state(env.transform) else None,
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
