"""Conversion between the values of a Gymnasium env and TensorDicts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase

from tdx.envs.gym.codec import Codec
from tdx.envs.gym.failures import env_error
from tdx.envs.gym.infos import InfoReader
from tdx.errors import KeyNotFoundError, TdxError, Where
from tdx.keys import NestedKey, format_key
from tdx.tensordicts import read

Raw = tuple[Any, Any, Any, Any, dict[str, Any]]

_CPU = torch.device("cpu")


@dataclass(slots=True)
class PendingSeed:
    """Seed for the next reset. Gymnasium seeds an env only in ``reset``.

    Args:
        value: The seed. ``None``: it was used.
    """

    value: int | None = None

    def take(self) -> int | None:
        """Return the seed and clear it."""
        taken, self.value = self.value, None
        return taken


@dataclass(frozen=True, slots=True)
class Conversion:
    """Conversion between the values of an env and TensorDicts.

    Args:
        name: Name of the env, as the user gave it.
        observation: Codec whose ``encode`` returns the root entries by key.
        action: Codec whose ``decode`` takes the whole TensorDict.
        action_keys: Keys of the action.
        reward: Codec of the reward space. ``None``: rewards are numbers.
        readers: Readers of ``info``.
        batch_size: Batch size of the env.
        device: Device of the env.
    """

    name: str
    observation: Codec
    action: Codec
    action_keys: tuple[NestedKey, ...]
    reward: Codec | None
    readers: tuple[InfoReader, ...]
    batch_size: torch.Size
    device: torch.device

    def action_decoder(self) -> Callable[[TensorDictBase], Any]:
        """Return the function that converts the action in a TensorDict for the env."""
        decode, keys = self.action.decode, self.action_keys
        if self.device.type == "cpu":
            return decode
        return lambda tensordict: decode(tensordict.select(*keys).to(_CPU))

    def result_finisher(self) -> Callable[[TensorDict, Any], TensorDict] | None:
        """Return the function that completes a result from its info; ``None`` if none is needed."""
        readers, device = self.readers, self.device
        if not readers and device.type == "cpu":
            return None

        def finished(result: TensorDict, info: Any) -> TensorDict:
            for reader in readers:
                read_into = reader(info, result)
                result = result if read_into is None else read_into
            return result if device.type == "cpu" else result.to(device)

        return finished

    def failure(self, tensordict: TensorDictBase | None, phase: str, error: Exception) -> TdxError:
        """Create the error to raise for an error of the env."""
        if tensordict is not None:
            for key in self.action_keys:
                if read(tensordict, key) is None:
                    return KeyNotFoundError(
                        f"the input of step has no key {format_key(key)!r}",
                        hint="write an action first, with env.rand_action(td) or a policy",
                        where=Where(env=self.name),
                    )
        return env_error(self.name, phase, error)


def keep_current_values(tensordict: TensorDictBase, conversion: Conversion) -> TensorDictBase:
    """Return the current values of a TensorDict, as the result of a reset that resets no row."""
    others = ["_reset", "next", *conversion.action_keys]
    return tensordict.exclude(*others)
