"""Envs of TorchRL, with their transforms, as envs of tdx."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, Self

import torch
from tensordict import TensorDictBase
from torchrl import envs as rl

from tdx.core import TransformedEnv
from tdx.envs import EnvBase
from tdx.foundation.errors import ArgumentError
from tdx.foundation.keys import NestedKey, normalize_key
from tdx.foundation.patches import Patches, recording_thread
from tdx.specs import Composite
from tdx.stacks.torchrl.specs import convert_from_torchrl, convert_to_torchrl
from tdx.transforms import Compose, Transform


class ChainState:
    """What the stages of one ``TransformedEnv`` of TorchRL share.

    TorchRL gives its transforms the input of a reset that their inverses have mapped, reduced to
    masks and state. The last stage reduces it and the first one stores it, since inverses run
    backwards.

    Args:
        source: The ``TransformedEnv``. Its transforms refer to it weakly.
        count: Number of its transforms.
        is_outermost: True if rewards get the shape of their spec after this chain.
    """

    def __init__(self, source: Any, count: int, is_outermost: bool) -> None:
        self.source = source
        self.last = count - 1
        self.is_outermost = is_outermost
        self.reset_input: TensorDictBase | None = None

    def reduce(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Select the masks, or else the state, of an input ``[*B]``."""
        source = self.source
        masks = tensordict.select(*source.reset_keys, strict=False)
        if not masks.is_empty():
            return masks
        return tensordict.select(*source.state_spec.keys(True, True), strict=False)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "reset_input": None}


class TorchRLStage(Transform):
    """A transform of TorchRL in a chain of tdx; it runs the original.

    The stages of one chain share ``chain``, which is ``None`` until the stage is in an env.
    """

    steps_env = True
    needs_declared_input = True
    original: Any
    _chain: Any

    def __init__(self, original: Any, chain: ChainState | None, position: int) -> None:
        super().__init__()
        self._chain = chain
        self._position = position
        self.original = original

    # Keys: they may change until the specs are known, and their numbers may differ.

    @property  # type: ignore[misc]
    def in_keys(self) -> list[NestedKey]:
        return _keys(self.original, "in_keys")

    @property  # type: ignore[misc]
    def out_keys(self) -> list[NestedKey]:
        return _keys(self.original, "out_keys")

    @property  # type: ignore[misc]
    def in_keys_inv(self) -> list[NestedKey]:
        return _keys(self.original, "in_keys_inv")

    @property  # type: ignore[misc]
    def out_keys_inv(self) -> list[NestedKey]:
        return _keys(self.original, "out_keys_inv")

    @property
    def invertible(self) -> bool:
        own = type(self.original)
        return bool(self.in_keys_inv) or own._inv_call is not rl.transforms.Transform._inv_call

    # Values

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        return self.original._call(next_tensordict)

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        result = self.original._step(tensordict, next_tensordict)
        chain = self._chain
        if chain.is_outermost and self._position == chain.last:
            return chain.source._step_proc_data(result)
        return result

    def _reset(
        self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        given = self._chain.reset_input
        if given is None or given.is_empty():
            given = tensordict_reset.empty()
        return self.original._reset(given, tensordict_reset)

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self.original._inv_call(tensordict)

    def _reset_env_preprocess(self, tensordict: TensorDictBase) -> TensorDictBase:
        chain = self._chain
        if self._position == chain.last:
            tensordict = chain.reduce(tensordict)
        result = self.original._reset_env_preprocess(None if tensordict.is_empty() else tensordict)
        if result is None:
            result = tensordict
        if self._position == 0:
            chain.reset_input = result
        return result

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self.original.forward(tensordict)

    def init(self, tensordict: TensorDictBase) -> None:
        self.original.init(tensordict)

    # Specs, batch size and device

    def transform_output_spec(self, output_spec: Composite) -> Composite:
        spec = convert_to_torchrl(output_spec.clone().unlock_())
        return _unlocked(self.original.transform_output_spec(spec))

    def transform_input_spec(self, input_spec: Composite) -> Composite:
        spec = convert_to_torchrl(input_spec.clone().unlock_())
        return _unlocked(self.original.transform_input_spec(spec))

    def transform_env_batch_size(self, batch_size: torch.Size) -> torch.Size:
        return torch.Size(self.original.transform_env_batch_size(batch_size))

    def transform_env_device(self, device: torch.device | None) -> torch.device | None:
        outer = self.original.transform_env_device(device) or device
        return None if outer is None else torch.device(outer)

    # The original belongs to its own env.

    def train(self, mode: bool = True) -> Self:
        """Leave the mode of the original unchanged."""
        return self

    def follow_env_device(self, device: torch.device | None) -> None:
        """Leave the original on its device."""

    def close(self) -> None:
        self.original.close()

    def __reduce__(self) -> Any:
        # Its own class was made for the original, and has no name that pickle finds.
        return _new_stage, (type(self.original), type(self).__base__), self.__getstate__()

    def __repr__(self) -> str:
        return str(self.original)


@cache
def stage_class(kind: Any, base: Any) -> Any:
    """Return a subclass of a stage with the name and docstring of a transform of TorchRL."""
    return type(kind.__name__, (base,), {"__doc__": kind.__doc__})


def _new_stage(kind: object, base: object) -> TorchRLStage:
    created = stage_class(kind, base)
    new: TorchRLStage = created.__new__(created)
    return new


def _keys(original: object, name: str) -> list[NestedKey]:
    keys = getattr(original, name, None)
    return [] if keys is None else [normalize_key(key) for key in keys]


def _unlocked(spec: object) -> Composite:
    converted: Composite = convert_from_torchrl(spec)
    return converted.unlock_() if converted.is_locked else converted


SeedOptions = Callable[[object, int], Mapping[str, object] | None]

_PARTS = (
    "full_observation_spec",
    "full_reward_spec",
    "full_done_spec",
    "full_action_spec",
    "full_state_spec",
)


class TorchRLBase(EnvBase):
    """An env of TorchRL as the innermost env of a chain.

    Args:
        original: The env.
        in_chain: True if stages reduce the input of a reset, and shape the rewards.
        seed_options: Returns the arguments of a reset that seed the env, or ``None``. By default
            ``set_seed`` of TorchRL seeds it, which resets a Gymnasium env.
    """

    writes_all_outputs = True
    original: Any

    def __init__(
        self, original: Any, in_chain: bool = False, seed_options: SeedOptions | None = None
    ) -> None:
        super().__init__(
            device=original.device,
            batch_size=original.batch_size,
            _batch_locked=original.batch_locked,
        )
        # Not a submodule: train() and state_dict() would start the workers of a ParallelEnv.
        self.__dict__["original"] = original
        self._in_chain = in_chain
        self._seed_options = seed_options
        self._next_reset: Mapping[str, Any] = {}
        for part in _PARTS:
            spec = convert_from_torchrl(getattr(self.original, part)).clone()
            setattr(self, part, spec.unlock_().to(self.device))

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        original = self.original
        result = original._step(tensordict)
        if self._in_chain:
            return original._complete_done(original.full_done_spec, result)
        return original._step_proc_data(result)

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: object) -> TensorDictBase:
        original = self.original
        kwargs |= self._next_reset
        self._next_reset = {}
        is_partial = False
        if tensordict is not None:
            masks = tensordict.select(*original.reset_keys, strict=False)
            is_partial = not masks.is_empty()
            if is_partial and not self._in_chain:
                tensordict = masks
        set_state = original._resolve_set_state(
            kwargs.pop("set_state", None), tensordict, is_partial
        )
        if set_state is not None:
            kwargs["set_state"] = set_state
        result = original._reset(tensordict, **kwargs)
        return original._complete_done(original.full_done_spec, result)

    def rand_action(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        """Write a random action as the env of TorchRL draws it."""
        return self.original.rand_action(tensordict)

    def _set_seed(self, seed: int | None) -> None:
        self.original.set_seed(seed)

    def set_seed(self, seed: int | None = None, static_seed: bool = False) -> int | None:
        """Seed the env of TorchRL; the next seed is drawn as in TorchRL."""
        if self._seed_options is not None and seed is not None:
            options = self._seed_options(self.original, seed)
            if options is not None:
                self._next_reset = options
                return seed
        return self.original.set_seed(seed, static_seed=static_seed)

    @contextmanager
    def record_threads(self, threads: set[int]) -> Iterator[None]:
        """Note the threads that reset or step the env of TorchRL in a block."""
        wrap = partial(recording_thread, threads=threads)
        with Patches() as patches:
            patches.hook(self.original, "_reset", wrap)
            patches.hook(self.original, "_step", wrap)
            yield

    def _move(self, device: torch.device) -> None:
        self.__dict__["original"] = self.original.to(device)
        super()._move(device)

    def close(self, *, raise_if_closed: bool = True) -> None:
        if not self.original.is_closed:
            self.original.close()
        super().close()

    def __repr__(self) -> str:
        return str(self.original)


class TorchRLChain(TransformedEnv):
    """A ``TransformedEnv`` of TorchRL with one stage for each of its transforms."""

    original: Any

    def __init__(self, env: EnvBase, transform: Compose, original: Any) -> None:
        super().__init__(env, transform)
        self.__dict__["original"] = original

    def rand_action(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        """Write a random action as the env of TorchRL draws it, for example with its mask."""
        return self.original.rand_action(tensordict)

    def _move(self, device: torch.device) -> None:
        # Its transforms read the specs that it has cached, which would stay on the other device.
        self.__dict__["original"] = self.original.to(device)
        super()._move(device)


def convert_env(env: object, seed_options: SeedOptions | None = None) -> EnvBase:
    """Convert an env of TorchRL; see :func:`tdx.from_torchrl`."""
    if not isinstance(env, rl.EnvBase):
        raise ArgumentError(
            f"from_torchrl takes an env of TorchRL, got {type(env).__name__}",
            hint="pass a torchrl.envs.EnvBase, such as torchrl.envs.GymEnv('Pendulum-v1')",
        )
    _check_resets(env)
    return _convert(env, False, seed_options)


def _convert(env: Any, in_chain: bool, seed_options: SeedOptions | None) -> EnvBase:
    if not _has_stages(env):
        return TorchRLBase(env, in_chain, seed_options)
    originals = flatten_transforms(env.transform)
    chain = ChainState(env, len(originals), is_outermost=not in_chain)
    kinds: list[Any] = [type(original) for original in originals]
    stages = [
        stage_class(kind, TorchRLStage)(original, chain, index)
        for index, (kind, original) in enumerate(zip(kinds, originals, strict=True))
    ]
    base = _convert(env.base_env, bool(stages) or in_chain, seed_options)
    return TorchRLChain(base, Compose(*stages), env)


def list_transforms(env: Any) -> tuple[Any, list[Any]]:
    """Return the env inside and its transforms, innermost first."""
    if not _has_stages(env):
        return env, []
    base, inner = list_transforms(env.base_env)
    return base, [*inner, *flatten_transforms(env.transform)]


def _has_stages(env: object) -> bool:
    """Return True if an env runs its transforms as ``TransformedEnv`` does."""
    kind = type(env)
    return isinstance(env, rl.TransformedEnv) and all(
        getattr(kind, name) is getattr(rl.TransformedEnv, name) for name in ("_step", "_reset")
    )


def flatten_transforms(transform: Any) -> list[Any]:
    """Return a transform, or the transforms of a (nested) ``Compose``, in order."""
    if type(transform) is not rl.Compose:
        return [transform]
    return [inner for stage in transform for inner in flatten_transforms(stage)]


def _check_resets(env: object) -> None:
    inner = env
    while inner is not None:
        if inner.__dict__.get("_torchrl_native_autoreset", False):
            raise ArgumentError(
                f"{type(inner).__name__} resets itself during a step",
                hint="create it without native auto-reset",
            )
        inner = inner.__dict__.get("_modules", {}).get("base_env")
