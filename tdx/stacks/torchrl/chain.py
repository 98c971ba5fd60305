"""Envs of TorchRL, with their transforms, as envs of tdx."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import get_ident
from typing import Any

import torch
from tensordict import TensorDictBase
from torchrl import envs as rl

from tdx.core import TransformedEnv
from tdx.envs import EnvBase
from tdx.errors import ArgumentError
from tdx.stacks.gymnasium.hooks import replaced_methods
from tdx.stacks.torchrl.specs import convert_from_torchrl
from tdx.stacks.torchrl.stage import ChainState, create_stage
from tdx.transforms import Compose

SeedOptions = Callable[[Any, int], Mapping[str, Any] | None]

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

    _writes_all_outputs = True
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
        self._read_specs()

    def _read_specs(self) -> None:
        for part in _PARTS:
            spec = convert_from_torchrl(getattr(self.original, part)).clone()
            setattr(self, part, spec.unlock_().to(self.device))

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        original = self.original
        result = original._step(tensordict)
        if self._in_chain:
            return original._complete_done(original.full_done_spec, result)
        return original._step_proc_data(result)

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
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
    def noting_threads(self, threads: set[int]) -> Iterator[None]:
        """Note the threads that reset or step the env of TorchRL in a block.

        Args:
            threads: Receives their ids.
        """

        def wrap(owner: Any, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
            def noted(*args: Any, **kwargs: Any) -> Any:
                threads.add(get_ident())
                return original(*args, **kwargs)

            return noted

        with replaced_methods([(self.original, wrap)], ("_reset", "_step")):
            yield

    def _move(self, device: torch.device) -> None:
        self.__dict__["original"] = self.original.to(device)
        super()._move(device)

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Close the env of TorchRL."""
        if not self.original.is_closed:
            self.original.close()
        super().close()

    def __repr__(self) -> str:
        return str(self.original)


class TorchRLChain(TransformedEnv):
    """A ``TransformedEnv`` of TorchRL with one stage for each of its transforms.

    Args:
        env: The converted base env.
        transform: The stages.
        original: The ``TransformedEnv`` of TorchRL.
    """

    original: Any

    def __init__(self, env: EnvBase, transform: Compose, original: Any) -> None:
        super().__init__(env, transform)
        self.__dict__["original"] = original

    def rand_action(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        """Write a random action as the env of TorchRL draws it, for example with its mask."""
        return self.original.rand_action(tensordict)


def convert_env(env: Any, seed_options: SeedOptions | None = None) -> EnvBase:
    """Convert an env of TorchRL; see :func:`tdx.from_torchrl`.

    Args:
        env: The env.
        seed_options: How its base env is seeded; see :class:`TorchRLBase`.
    """
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
    originals = _flatten(env.transform)
    chain = ChainState(env, len(originals), is_outermost=not in_chain)
    stages = [create_stage(each, chain, index) for index, each in enumerate(originals)]
    base = _convert(env.base_env, bool(stages) or in_chain, seed_options)
    return TorchRLChain(base, Compose(*stages), env)


def list_transforms(env: Any) -> tuple[Any, list[Any]]:
    """Return the env inside and its transforms, innermost first.

    Args:
        env: A ``torchrl.envs.EnvBase``.
    """
    if not _has_stages(env):
        return env, []
    base, inner = list_transforms(env.base_env)
    return base, [*inner, *_flatten(env.transform)]


def _has_stages(env: Any) -> bool:
    """Return True if an env runs its transforms as ``TransformedEnv`` does."""
    kind = type(env)
    return isinstance(env, rl.TransformedEnv) and all(
        getattr(kind, name) is getattr(rl.TransformedEnv, name) for name in ("_step", "_reset")
    )


def _flatten(transform: Any) -> list[Any]:
    """Return a transform, or the transforms of a (nested) ``Compose``, in order."""
    if type(transform) is not rl.Compose:
        return [transform]
    return [inner for each in transform for inner in _flatten(each)]


def _check_resets(env: Any) -> None:
    inner = env
    while inner is not None:
        if inner.__dict__.get("_torchrl_native_autoreset", False):
            raise ArgumentError(
                f"{type(inner).__name__} resets itself during a step",
                hint="create it without native auto-reset",
            )
        inner = inner.__dict__.get("_modules", {}).get("base_env")
