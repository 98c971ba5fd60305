"""Conversion between the values of a Gymnasium env and TensorDicts: observation, action, reward."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from tensordict import TensorDict, TensorDictBase

from tdx.core.envs.failures import ENV_ERROR_HINT
from tdx.envs.gym.infos import InfoReader
from tdx.envs.gym.interface import AnyEnv, AnySpace, AnyVectorEnv, Batch, DType, Info
from tdx.envs.gym.numeric_spaces import Codec, CodecOptions, Encode
from tdx.envs.gym.spaces import codec_of, dict_encoder, entry_key
from tdx.envs.gym.values import WrongValueError, to_array
from tdx.foundation.array_files import Array
from tdx.foundation.errors import (
    EnvError,
    KeyNotFoundError,
    SpecError,
    TdxError,
    Where,
    summarize_error,
)
from tdx.foundation.keys import NestedKey, format_key, normalize_key
from tdx.foundation.tensordicts import read
from tdx.specs import Composite
from tdx.specs.arguments import Value

_CPU = torch.device("cpu")
_RESULTS = ("reward", "done", "terminated", "truncated", "next", "_reset")


@dataclass(frozen=True, slots=True)
class Conversion:
    """Conversion between the values of an env and TensorDicts.

    Args:
        name: Name of the env, as the user gave it.
        observation: Codec whose ``encode`` returns the root entries by key.
        array: Form of the observation if it is a single array that ``encode`` only copies.
        entries: Entries of an observation of a Dict space; empty for other spaces.
        action: Codec whose ``decode`` takes the whole TensorDict.
        action_keys: Keys of the action.
        reward: Codec of the reward space. ``None``: rewards are numbers.
        batch_size: Batch size of the env.
        device: Device of the env.
        readers: Readers of ``info``.
    """

    name: str
    observation: Codec
    array: EntryForm | None
    entries: tuple[EntryPart, ...]
    action: Codec
    action_keys: tuple[NestedKey, ...]
    reward: Codec | None
    batch_size: torch.Size
    device: torch.device
    readers: tuple[InfoReader, ...] = ()

    def action_decoder(self) -> Callable[[TensorDictBase], object]:
        """Return the function that converts the action in a TensorDict for the env."""
        decode, keys = self.action.decode, self.action_keys
        if self.device.type == "cpu":
            return decode
        return lambda tensordict: decode(tensordict.select(*keys).to(_CPU))

    def result_finisher(self) -> Callable[[TensorDict, Info], TensorDict] | None:
        """Return the function that completes a result from its info; ``None`` if none is needed."""
        readers, device = self.readers, self.device
        if not readers and device.type == "cpu":
            return None

        def finish(result: TensorDict, info: Info) -> TensorDict:
            for reader in readers:
                read_into = reader(info, result)
                result = result if read_into is None else read_into
            return result if device.type == "cpu" else result.to(device)

        return finish

    def keep_current_values(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Return the current values of a TensorDict, as the result of a reset of no rows."""
        return tensordict.exclude("_reset", "next", *self.action_keys)

    def failure(self, tensordict: TensorDictBase | None, phase: str, error: Exception) -> TdxError:
        """Create the error to raise for an error of the env in a method."""
        where = Where(env=self.name)
        if tensordict is not None:
            for key in self.action_keys:
                if read(tensordict, key) is None:
                    return KeyNotFoundError(
                        f"the input of step has no key {format_key(key)!r}",
                        hint="write an action first, with env.rand_action(td) or a policy",
                        where=where,
                    )
        if isinstance(error, TdxError):
            return error
        if isinstance(error, WrongValueError):
            wrong_key = normalize_key(error.path) if error.path else None
            row = "" if error.row is None else f" of env {error.row}"
            message = f"{phase}{row} returned {error.problem}"
            return EnvError(message, hint=error.hint, where=Where(env=self.name, key=wrong_key))
        return EnvError(
            f"{phase} raised {summarize_error(error)}", hint=ENV_ERROR_HINT, where=where
        )


def create_conversion(
    env: AnyEnv | AnyVectorEnv,
    name: str,
    options: CodecOptions,
    batch_size: torch.Size,
    device: torch.device,
) -> Conversion:
    """Create the conversion of an env or a vector env, without readers of ``info``."""
    prefix = "" if options.rows is None else "single_"
    observation, form = _observation_codec(getattr(env, f"{prefix}observation_space"), options)
    action = _action_codec(getattr(env, f"{prefix}action_space"), options)
    _check_keys(root_spec(observation), root_spec(action), name)
    space = reward_space_of(env)
    reward = None
    if space is not None:
        reward = replace(codec_of(space, options), encode=reward_encoder(space, options))
    keys = tuple(normalize_key(key) for key in root_spec(action).keys(True, True))
    array, entries = (None, form) if isinstance(form, tuple) else (form, ())
    return Conversion(name, observation, array, entries, action, keys, reward, batch_size, device)


def root_spec(codec: Codec) -> Composite:
    """Return the spec of a codec of root entries."""
    assert isinstance(codec.spec, Composite)
    return codec.spec


def _check_keys(observation: Composite, action: Composite, name: str) -> None:
    action_keys = {str(key) for key in action.keys()}
    for key in observation.keys():
        if key in _RESULTS or key in action_keys:
            raise SpecError(
                f"the observation entry {key!r} has the same key as the "
                f"{'action' if key in action_keys else 'result'}",
                hint="rename it with gymnasium.wrappers.TransformObservation",
                where=Where(env=name),
            )


# Observations


@dataclass(frozen=True, slots=True)
class EntryForm:
    """Form of an observation that is a single array."""

    key: str
    shape: tuple[int, ...]
    dtype: DType

    def check(self, observation: object) -> Array:
        """Return an array of this form unchanged, anything else converted."""
        if (
            type(observation) is np.ndarray
            and observation.shape == self.shape
            and observation.dtype is self.dtype
        ):
            return observation
        return self.convert(observation)

    def convert(self, observation: object) -> Array:
        """Convert an observation to a new array of this form."""
        try:
            return to_array(observation, self.dtype, self.shape)
        except WrongValueError as wrong:
            raise wrong.below(self.key) from None


@dataclass(frozen=True, slots=True)
class EntryPart:
    """One entry of an observation of a Dict space."""

    name: object  # name in the observation
    key: str
    encode: Encode
    form: EntryForm | None  # None: encode() does more than copy an array

    def encode_entry(self, value: object) -> dict[str, Value]:
        """Convert its value to an entry by key."""
        try:
            return {self.key: self.encode(value)}
        except WrongValueError as wrong:
            raise wrong.below(self.key) from None


def _observation_codec(
    space: AnySpace, options: CodecOptions
) -> tuple[Codec, EntryForm | tuple[EntryPart, ...] | None]:
    """Create the codec of an observation, whose ``encode`` returns the root entries by key.

    Entries of a dict space have their own keys. An image (integers, ``[H, W, 3]``) is at
    ``pixels``, any other observation at ``observation``. Also returns the form of an observation
    that is a single array, or its entries.
    """
    codec = codec_of(space, options)
    if isinstance(space, spaces.Dict):
        names = list(space.spaces)
        parts = tuple(
            _entry_part(name, entry_key(name, names, options), codec_of(inner, options))
            for name, inner in space.spaces.items()
        )
        encode_entries = dict_encoder([(part.name, part.key, part.encode) for part in parts])
        return Codec(codec.spec, encode_entries, codec.decode), parts
    part = _entry_part(None, "pixels" if is_image(space) else "observation", codec)
    spec = Composite({part.key: codec.spec}, shape=options.lead)
    return Codec(spec, part.encode_entry, codec.decode), part.form


def _entry_part(name: object, key: str, codec: Codec) -> EntryPart:
    form = None
    if codec.array_dtype is not None:
        form = EntryForm(key, tuple(codec.spec.shape), codec.array_dtype)
    return EntryPart(name, key, codec.encode, form)


def is_image(space: AnySpace) -> bool:
    """Return True if the values are images: integers of shape ``[H, W, 3]``."""
    return (
        isinstance(space, spaces.Box)
        and len(space.shape) == 3
        and space.shape[-1] == 3
        and np.dtype(space.dtype).kind in "iu"
    )


# Actions


def _action_codec(space: AnySpace, options: CodecOptions) -> Codec:
    """Create the codec of an action, whose ``decode`` takes the whole TensorDict, ``[*B]``.

    The entries of a dict space are at the root, any other action is at ``action``.
    """
    codec = codec_of(space, options)
    if isinstance(space, spaces.Dict):
        return codec
    decode_value, rows_of = codec.decode, codec.decode_rows
    spec = Composite({"action": codec.spec}, shape=options.lead)

    def decode(tensordict: TensorDictBase) -> object:
        return decode_value(read(tensordict, "action"))

    def decode_rows(tensordict: TensorDictBase) -> Batch:
        assert rows_of is not None
        return rows_of(read(tensordict, "action"))

    many = None if rows_of is None else decode_rows
    return Codec(spec, codec.encode, decode, codec.array_dtype, many, codec)


# Reward spaces

_REWARD_SPACE = "reward_space"


def reward_space_of(env: AnyEnv | AnyVectorEnv) -> spaces.Box | None:
    """Return the reward space of a single env; ``None`` if rewards are numbers.

    The attribute ``reward_space`` may be set on any wrapper; on a vector env it may be batched, or
    the space of a single env.
    """
    if not isinstance(env, gymnasium.vector.VectorEnv):
        declared = env.has_wrapper_attr(_REWARD_SPACE)
        space = env.get_wrapper_attr(_REWARD_SPACE) if declared else None
    else:
        base = env.unwrapped
        space = getattr(base, f"single_{_REWARD_SPACE}", None) or getattr(base, _REWARD_SPACE, None)
    if not isinstance(space, spaces.Box) or not space.shape:
        return None
    rows = getattr(env, "num_envs", None)
    if rows is not None and len(space.shape) > 1 and space.shape[0] == rows:
        return spaces.Box(space.low[0], space.high[0], dtype=space.dtype.type)
    return space


def reward_encoder(space: spaces.Box, options: CodecOptions) -> Encode:
    """Create the encoder of rewards; its ``WrongValueError`` names the key ``reward``."""
    encode_value = codec_of(space, options).encode

    def encode(reward: object) -> Value:
        try:
            return encode_value(reward)
        except WrongValueError as wrong:
            wrong.hint = "fix the env, or its reward_space: rewards must be in the space"
            raise wrong.below("reward") from None

    return encode
