"""Conversion between the values of a Gymnasium env and TensorDicts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase

from tdx.envs.gym.codec import Codec
from tdx.envs.gym.failures import env_failed
from tdx.envs.gym.infos import InfoReader
from tdx.errors import KeyNotFoundError, TdxError, Where
from tdx.keys import NestedKey, format_key
from tdx.tensordicts import read

Raw = tuple[Any, Any, Any, Any, dict[str, Any]]

_CPU = torch.device("cpu")


@dataclass(slots=True)
class PendingSeed:
    """The seed for the next reset; Gymnasium seeds nowhere else.

    Args:
        value: none once it is used.
    """

    value: int | None = None

    def take(self) -> int | None:
        """The seed, once."""
        taken, self.value = self.value, None
        return taken


@dataclass(frozen=True, slots=True)
class Conversion:
    """All that stands between an env's own values and TensorDicts.

    Args:
        name: the env, as the user named it.
        observation: ``encode`` gives the root's entries by key.
        action: ``decode`` takes the whole TensorDict.
        action_keys: where its parts are.
        reward: the codec of an env that declares a reward space; otherwise one number an env.
        readers: what is read from ``info``.
        batch_size: the env's.
        device: the env's.
    """

    name: str
    observation: Codec
    action: Codec
    action_keys: tuple[NestedKey, ...]
    reward: Codec | None
    readers: tuple[InfoReader, ...]
    batch_size: torch.Size
    device: torch.device

    def act(self) -> Callable[[TensorDictBase], Any]:
        """The action of a TensorDict as the env takes it."""
        decode, keys = self.action.decode, self.action_keys
        if self.device.type == "cpu":
            return decode
        return lambda tensordict: decode(tensordict.select(*keys).to(_CPU))

    def finish(self) -> Callable[[TensorDict, Any], TensorDict] | None:
        """What is left to do with a result and its info; nothing in the common case."""
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
        """The error to raise instead of ``error``."""
        if tensordict is not None:
            for key in self.action_keys:
                if read(tensordict, key) is None:
                    return KeyNotFoundError(
                        f"the step's input has no {format_key(key)!r}",
                        hint="write an action first: env.rand_action(td), or a policy",
                        where=Where(env=self.name),
                    )
        return env_failed(self.name, phase, error)


def unchanged(tensordict: TensorDictBase, conversion: Conversion) -> TensorDictBase:
    """What the TensorDict holds already, for a reset that resets no row."""
    others = ["_reset", "next", *conversion.action_keys]
    return tensordict.exclude(*others)
