"""Codecs of a whole env: dict and tuple spaces, observations, actions and rewards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from tensordict import TensorDict, TensorDictBase

from tdx.envs.gym.codec import Codec, Encode, Layout
from tdx.envs.gym.spaces import codec_of
from tdx.envs.gym.values import WrongValueError, checked_elements, checked_mapping, missing_value
from tdx.errors import SpecError, Where
from tdx.specs import Composite, NonTensor
from tdx.tensordicts import new_tensordict, read

_CPU = torch.device("cpu")


@codec_of.register
def _dict(space: spaces.Dict, layout: Layout) -> Codec:
    names = list(space.spaces)
    keys = [entry_key(name, names, layout) for name in names]
    return _nested(names, keys, [codec_of(space.spaces[name], layout) for name in names], layout)


def entry_key(name: Any, names: list[Any], layout: Layout) -> str:
    """Return the key of an entry of a dict space: its name, or ``observation`` for ``state``."""
    if layout.remap_state and name == "state" and "observation" not in names:
        return "observation"
    return str(name)


def _nested(names: list[Any], keys: list[str], codecs: list[Codec], layout: Layout) -> Codec:
    size = torch.Size(layout.lead)
    encoders = [
        (name, key, codec.encode) for name, key, codec in zip(names, keys, codecs, strict=True)
    ]
    decoders = [
        (name, key, codec.decode) for name, key, codec in zip(names, keys, codecs, strict=True)
    ]

    fields_of = _entry_encoder(encoders)

    def encode(value: Any) -> TensorDict:
        return new_tensordict(fields_of(value), size, _CPU)

    def decode(tensordict: TensorDictBase) -> dict[Any, Any]:
        return {name: inner(read(tensordict, key)) for name, key, inner in decoders}

    specs = {key: codec.spec for key, codec in zip(keys, codecs, strict=True)}
    return Codec(Composite(specs, shape=layout.lead), encode, decode)


@codec_of.register(spaces.Tuple)
def _tuple(space: spaces.Tuple[Any], layout: Layout) -> Codec:
    codecs = [codec_of(inner, layout) for inner in space.spaces]
    if _are_stackable(codecs):
        return _stack_codecs(codecs, layout)
    names = list(range(len(codecs)))
    by_index = _nested(names, [str(name) for name in names], codecs, layout)

    def encode(value: Any) -> Any:
        return by_index.encode(dict(enumerate(checked_elements(value, len(names)))))

    def decode(tensordict: TensorDictBase) -> tuple[Any, ...]:
        return tuple(by_index.decode(tensordict).values())

    return Codec(by_index.spec, encode, decode)


def _are_stackable(codecs: list[Codec]) -> bool:
    """Return True if the values of all codecs can be stacked."""
    if not codecs or any(isinstance(codec.spec, NonTensor) for codec in codecs):
        return False
    first = codecs[0].spec
    if isinstance(first, Composite):
        dense = all(not isinstance(leaf, NonTensor) for leaf in first.values(True, True))
        return dense and all(codec.spec == first for codec in codecs)
    return all(
        type(codec.spec) is type(first)
        and codec.spec.shape == first.shape
        and codec.spec.dtype == first.dtype
        for codec in codecs
    )


def _stack_codecs(codecs: list[Codec], layout: Layout) -> Codec:
    """Create the codec of elements stacked along a dim after the batch dims."""
    dim = len(layout.lead)
    encoders = [codec.encode for codec in codecs]
    decoders = [codec.decode for codec in codecs]

    def encode(value: Any) -> Any:
        elements = checked_elements(value, len(encoders))
        parts = [inner(part) for inner, part in zip(encoders, elements, strict=True)]
        return torch.stack(parts, dim)

    size = torch.Size((*layout.lead, len(codecs)))

    def decode(block: Any) -> tuple[Any, ...]:
        if isinstance(block, TensorDictBase) and block.batch_size != size:
            # Written leaf by leaf it has the batch size of the TensorDict around it.
            block = block.copy()
            block.batch_size = size
        return tuple(inner(part) for inner, part in zip(decoders, block.unbind(dim), strict=True))

    specs: list[Any] = [codec.spec for codec in codecs]
    stacked: Any = torch.stack(specs, dim)
    return Codec(stacked, encode, decode)


def observation_codec(space: spaces.Space[Any], layout: Layout) -> Codec:
    """Create the codec of an observation, whose ``encode`` returns the root entries by key.

    Entries of a dict space have their own keys. An image (integers, ``[H, W, 3]``) is at
    ``pixels``, any other observation at ``observation``.
    """
    if isinstance(space, spaces.Dict):
        return _root_dict(space, layout)
    codec = codec_of(space, layout)
    key, encode_value = "pixels" if is_image(space) else "observation", codec.encode

    def encode(value: Any) -> dict[str, Any]:
        try:
            return {key: encode_value(value)}
        except WrongValueError as wrong:
            raise wrong.below(key) from None

    return Codec(Composite({key: codec.spec}, shape=layout.lead), encode, codec.decode, codec.held)


def _root_dict(space: spaces.Dict, layout: Layout) -> Codec:
    codec = codec_of(space, layout)
    names = list(space.spaces)
    parts = [
        (name, entry_key(name, names, layout), codec_of(inner, layout).encode)
        for name, inner in space.spaces.items()
    ]
    return Codec(codec.spec, _entry_encoder(parts), codec.decode)


def _entry_encoder(parts: Sequence[tuple[Any, str, Encode]]) -> Callable[[Any], dict[str, Any]]:
    """Create the encoder of a dict from its parts: name in the dict, key, encoder of the entry.

    It raises ``WrongValueError`` with the key for an entry that is missing or invalid.
    """

    def encode(value: Any) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        key = ""
        try:
            for name, key, inner in parts:
                fields[key] = inner(value[name])
        except WrongValueError as wrong:
            raise wrong.below(key) from None
        except (KeyError, TypeError, IndexError):
            given = checked_mapping(value, [name for name, _, _ in parts])
            for name, key, _ in parts:
                if name not in given:
                    raise missing_value(name).below(key) from None
            raise
        return fields

    return encode


def is_image(space: spaces.Space[Any]) -> bool:
    """Return True if the values are images: integers of shape ``[H, W, 3]``."""
    return (
        isinstance(space, spaces.Box)
        and len(space.shape) == 3
        and space.shape[-1] == 3
        and np.dtype(space.dtype).kind in "iu"
    )


def action_codec(space: spaces.Space[Any], layout: Layout) -> Codec:
    """Create the codec of an action, whose ``decode`` takes the whole TensorDict, ``[*B]``.

    The entries of a dict space are at the root, any other action is at ``action``.
    """
    codec = codec_of(space, layout)
    if isinstance(space, spaces.Dict):
        return codec
    decode_value = codec.decode

    if codec.held is None:

        def decode(tensordict: TensorDictBase) -> Any:
            return decode_value(read(tensordict, "action"))
    else:

        def decode(tensordict: TensorDictBase) -> Any:
            action = read(tensordict, "action")
            return (action.detach() if action.requires_grad else action).numpy()

    rows_of = codec.decode_rows

    def decode_rows(tensordict: TensorDictBase) -> Any:
        assert rows_of is not None
        return rows_of(read(tensordict, "action"))

    spec = Composite({"action": codec.spec}, shape=layout.lead)
    many = None if rows_of is None else decode_rows
    return Codec(spec, codec.encode, decode, None, many, decode_value)


_SPACE = "reward_space"
_RESULTS = ("reward", "done", "terminated", "truncated", "next", "_reset")


@dataclass(frozen=True, slots=True)
class EnvCodecs:
    """Codecs of one env.

    Args:
        observation: Codec whose ``encode`` returns the root entries by key.
        action: Codec whose ``decode`` takes the whole TensorDict.
        reward: Codec of the reward space. ``None``: rewards are numbers.
    """

    observation: Codec
    action: Codec
    reward: Codec | None


def create_env_codecs(env: Any, name: str, layout: Layout) -> EnvCodecs:
    """Create the codecs of an env or a vector env.

    Args:
        env: Gymnasium env or vector env.
        name: Name of the env for error messages.
        layout: Properties that the codecs share.

    Raises:
        SpecError: An observation has the key of an action or result.
    """
    prefix = "" if layout.rows is None else "single_"
    observation = observation_codec(getattr(env, f"{prefix}observation_space"), layout)
    action = action_codec(getattr(env, f"{prefix}action_space"), layout)
    _check_keys(root_spec(observation), root_spec(action), name)
    space = reward_space_of(env)
    if space is None:
        return EnvCodecs(observation, action, None)
    reward = replace(codec_of(space, layout), encode=reward_encoder(space, layout))
    return EnvCodecs(observation, action, reward)


def reward_space_of(env: Any) -> spaces.Box | None:
    """Return the reward space of a single env; ``None`` if rewards are numbers.

    Args:
        env: Env or vector env. The attribute ``reward_space`` may be set on any wrapper; on a
            vector env it may be batched, or the space of a single env.
    """
    if not isinstance(env, gymnasium.vector.VectorEnv):
        space = env.get_wrapper_attr(_SPACE) if env.has_wrapper_attr(_SPACE) else None
    else:
        base = env.unwrapped
        space = getattr(base, f"single_{_SPACE}", None) or getattr(base, _SPACE, None)
    if not isinstance(space, spaces.Box) or not space.shape:
        return None
    rows = getattr(env, "num_envs", None)
    if rows is not None and len(space.shape) > 1 and space.shape[0] == rows:
        return spaces.Box(space.low[0], space.high[0], dtype=space.dtype.type)
    return space


def reward_encoder(space: spaces.Box, layout: Layout) -> Encode:
    """Create the encoder of rewards; its ``WrongValueError`` names the key ``reward``."""
    encode_value = codec_of(space, layout).encode

    def encode(reward: Any) -> Any:
        try:
            return encode_value(reward)
        except WrongValueError as wrong:
            wrong.hint = "fix the env, or its reward_space: rewards must be in the space"
            raise wrong.below("reward") from None

    return encode


def root_spec(codec: Codec) -> Composite:
    """Return the spec of a codec of root entries."""
    assert isinstance(codec.spec, Composite)
    return codec.spec


def _check_keys(observation: Composite, action: Composite, name: str) -> None:
    taken = {str(key) for key in action.keys()}
    for key in observation.keys():
        if key in _RESULTS or key in taken:
            raise SpecError(
                f"the observation entry {key!r} has the same key as the "
                f"{'action' if key in taken else 'result'}",
                hint="rename it with gymnasium.wrappers.TransformObservation",
                where=Where(env=name),
            )
