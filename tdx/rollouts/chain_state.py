"""What the stages of a chain carry from step to step, beside their parameters and buffers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

_OF_EVERY_MODULE = frozenset(vars(nn.Module()))
_OWN = "tdx.transforms."

Memory = dict[str, dict[str, Any]]


def is_known(chain: nn.Module) -> bool:
    """Whether every stage is one of tdx's own, of which it is known where their state is."""
    return all(
        type(each).__module__.startswith((_OWN, "torch.nn.", "torchvision."))
        for each in chain.modules()
    )


def memory_of(chain: nn.Module) -> Memory:
    """The tensors that the stages keep of the running episodes, by stage and attribute."""
    found = {
        name: {attribute: _copied(value) for attribute, value in _memories(module)}
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
            held, value = vars(module).get(attribute), _copied(kept, device)
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


def _copied(value: Any, device: torch.device | None = None) -> Any:
    if isinstance(value, dict):
        return {key: _copied(each, device) for key, each in value.items()}
    if isinstance(value, list):
        return [_copied(each, device) for each in value]
    return value.clone() if device is None else value.to(device)
