"""An env with a chain of transforms around it."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import nn

from tdx.core.chain import ChainSpecs, flatten_chain, stage_forms
from tdx.core.eager_program import EagerProgram
from tdx.core.envs.env_base import EnvBase
from tdx.core.meter import Meter
from tdx.core.transforms import Compose, TimeBehavior, Transform
from tdx.core.transforms.callable_transform import TensorDictFunction
from tdx.core.transforms.chain_member import ChainOwner
from tdx.core.transforms.compose import as_transform
from tdx.foundation.errors import ArgumentError
from tdx.foundation.keys import NestedKey
from tdx.foundation.tensordicts import new_tensordict


class TransformedEnv(EnvBase, ChainOwner):
    """An env whose inputs and outputs go through a chain of transforms.

    Args:
        env: The env inside, which may be transformed itself.
        transform: A transform, a ``Compose`` of transforms, or a function over a TensorDict; none
            by default.
        cache_specs: Accepted for compatibility; specs always follow changes of the chain.
        base_env: Same as ``env``.
        auto_unwrap: If True and ``env`` is transformed, wrap its base env by clones of its stages
            and the transform, instead of nesting both.
        device: Device to move the env to; its own device by default.
        planned: If True, rollouts may run by a plan that applies deferred stages to many steps at
            once. The result is the same either way.

    Raises:
        ArgumentError: ``env`` is not an env, or ``transform`` is not a transform.
        ChainError: The transform is already part of a chain.

    Example:
        >>> from tdx import GymEnv, StepCounter
        >>> env = TransformedEnv(GymEnv("Pendulum-v1"), StepCounter(max_steps=20))
        >>> env.rollout(max_steps=1000).batch_size
        torch.Size([20])
    """

    _is_verified = True
    base_env: EnvBase
    env_specs: ChainSpecs

    def __init__(
        self,
        env: EnvBase | None = None,
        transform: Transform | TensorDictFunction | None = None,
        cache_specs: bool = True,
        *,
        base_env: EnvBase | None = None,
        auto_unwrap: bool = False,
        device: torch.device | str | int | None = None,
        planned: bool = True,
    ) -> None:
        env = base_env if env is None else env
        if not isinstance(env, EnvBase):
            raise ArgumentError(
                f"env must be an env, got {type(env).__name__}",
                hint="wrap a Gymnasium env first: GymWrapper(env)",
            )
        if auto_unwrap and isinstance(env, TransformedEnv):
            chain = Compose(*(stage.clone() for stage in env.stages))
            if transform is not None:
                chain.append(transform)
            env, transform = env.base_env, chain
        super().__init__(
            device=env.device,
            batch_size=env.batch_size,
            allow_done_after_reset=env.allow_done_after_reset,
        )
        if device is not None:
            env.to(device)
        self._eager_program: EagerProgram | None = None
        self._by_hooks = False
        self.planned = planned
        self.base_env = env
        self._adopt(Compose() if transform is None else as_transform(transform))
        self.env_specs = ChainSpecs(env, self.chain)

    # The chain

    def _adopt(self, transform: Transform) -> None:
        transform.set_container(self)
        transform.train(self.training)
        self._modules["transform"] = transform

    def _set_transform(self, transform: Transform) -> None:
        self._adopt(transform)
        self.env_specs.chain = transform
        self.chain_changed()

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "transform":
            replaced, chain = self.chain, as_transform(value)
            if chain is not replaced:
                self._set_transform(chain)
                replaced.reset_parent()
            return
        super().__setattr__(name, value)
        if name == "base_env" and "transform" in self._modules:
            self.env_specs.inner = value
            self.chain_changed()

    def chain_changed(self) -> None:
        self._eager_program = None
        self.env_specs.invalidate()
        self.env_specs.placed()

    @property
    def chain(self) -> Transform:
        """The chain; the same as ``env.transform``, with its type."""
        chain = self._modules["transform"]
        assert isinstance(chain, Transform)
        return chain

    @property
    def stages(self) -> tuple[Transform, ...]:
        """Transforms in order."""
        return self.env_specs.stages

    @property
    def first_stage_index(self) -> int:  # type: ignore[override]
        inner = self.base_env
        if not isinstance(inner, TransformedEnv):
            return 0
        return inner.first_stage_index + len(inner.stages)

    def append_transform(self, transform: nn.Module | TensorDictFunction) -> TransformedEnv:
        """Append a stage, or each stage of a chain; they take over train or eval mode.

        Args:
            transform: A transform, a ``Compose`` of transforms, or a function over a TensorDict.

        Returns:
            This env.
        """
        stage = as_transform(transform)
        self._extensible_chain(stage).append(stage)
        return self

    def insert_transform(
        self, index: int, transform: nn.Module | TensorDictFunction
    ) -> TransformedEnv:
        """Insert a stage at an index.

        Args:
            index: Index of the new stage, from 0; negative ones count from the end.
            transform: A transform, or a function over a TensorDict.

        Returns:
            This env.
        """
        stage = as_transform(transform)
        self._extensible_chain(stage).insert(index, stage)
        return self

    def _extensible_chain(self, stage: Transform) -> Compose:
        """Return the chain for another stage; a lone transform becomes a ``Compose``."""
        # Raises for a stage that fits no env, before the chain is changed.
        stage.transform_env_batch_size(self.batch_size)
        chain = self.chain
        if not isinstance(chain, Compose):
            chain.reset_parent()
            chain = Compose(chain)
            self._set_transform(chain)
        return chain

    def env_before(self, stage: Transform) -> TransformedEnv:
        return TransformedEnv(self.base_env)

    @property
    def _batch_locked(self) -> bool:
        return self.base_env.batch_locked

    @_batch_locked.setter
    def _batch_locked(self, value: bool) -> None:
        """Keep that of the env inside."""

    def _move(self, device: torch.device) -> None:
        self.base_env.move_to(device)
        self.chain_changed()

    # Data

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # The completed hooks below would skip a hook that a subclass overrides.
        for hook in ("_step", "_reset"):
            if hook in cls.__dict__:
                setattr(cls, f"completed{hook}", getattr(EnvBase, f"completed{hook}"))

    # A step takes `completed_step`; these two serve the `super()` calls of subclasses.
    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        return TransformedEnv.completed_step(self, tensordict)

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        return TransformedEnv.completed_reset(self, tensordict, **kwargs)

    def _set_seed(self, seed: int | None) -> None:
        self.base_env._set_seed(seed)

    def completed_step(
        self, tensordict: TensorDictBase, given_next: TensorDictBase | None = None
    ) -> TensorDictBase:
        return self._current_eager_program().step(tensordict, given_next)

    def completed_reset(
        self, tensordict: TensorDictBase | None = None, **kwargs: Any
    ) -> TensorDictBase:
        program = self._current_eager_program()
        if tensordict is not None:
            return program.reset(tensordict, False, **kwargs)
        return program.reset(new_tensordict({}, self.batch_size, self.device), True, **kwargs)

    def _current_eager_program(self) -> EagerProgram:
        """Return the program of the eager step; built again if the env inside has changed."""
        program, specs = self._eager_program, self.env_specs
        if program is None or program.version != specs.inner.env_specs.version:
            # The stages learn from the specs which keys they read and write.
            output_spec = specs.output_spec
            program = self._eager_program = EagerProgram(
                specs.inner, specs.chain, specs.stages, output_spec, by_hooks=self._by_hooks
            )
        return program

    def observe_hooks(self, on: bool) -> None:
        """Call the hooks of each stage in a step, while a tracer replaces them, or stop that."""
        self._by_hooks, self._eager_program = on, None

    def measure_with(self, meter: Meter | None) -> None:
        """Measure the calls of this chain. ``None``: stop measuring."""
        if meter is None:
            self.__dict__.pop("meter", None)
        else:
            self.meter = meter
        # Both kinds hold functions of the stages and are built again: plans of rollouts in the
        # cache, and the eager step.
        self.env_specs.cache.pop("programs", None)
        self._eager_program = None

    def set_seed(self, seed: int | None = None, static_seed: bool = False) -> int | None:
        """Seed the env inside; see :meth:`EnvBase.set_seed`."""
        return self.base_env.set_seed(seed, static_seed=static_seed)

    @property
    def steps_some_rows(self) -> bool:  # type: ignore[override]
        alone = all(stage.time_behavior is TimeBehavior.POINTWISE for stage in self.stages)
        return alone and self.base_env.steps_some_rows

    @property
    def resets_by_mask(self) -> bool:
        cache = self.env_specs.cache
        known: bool | None = cache.get("resets_by_mask")
        if known is None:
            known = self.step_reads is not None and self.base_env.resets_by_mask
            cache["resets_by_mask"] = known
        return known

    @property
    def step_reads(self) -> tuple[NestedKey, ...] | None:
        base, stages = flatten_chain(self)
        reads = base.step_reads
        if reads is None or type(self) is not TransformedEnv:
            return None
        keys = dict.fromkeys(reads)
        for index, stage in enumerate(stages):
            forms = stage_forms(index, stage)
            outer = set(stage.in_keys_inv) - set(base.action_keys)
            if forms.sees_input or (stage.invertible and outer):
                return None
            keys.update(dict.fromkeys(forms.root))
        return tuple(keys)

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Close the transforms and the env inside."""
        self.chain.close()
        self.base_env.close(raise_if_closed=raise_if_closed)
        super().close()

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("_") or "base_env" not in self.__dict__.get("_modules", {}):
                raise
        return getattr(self.base_env, name)

    def __getstate__(self) -> dict[str, Any]:
        state = {**self.__dict__, "_eager_program": None}
        del state["env_specs"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        nn.Module.__setstate__(self, state)
        self._relink()

    def __deepcopy__(self, memo: dict[int, Any]) -> TransformedEnv:
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        copied.__dict__.update(deepcopy(self.__getstate__(), memo))
        copied._relink()
        return copied

    def _relink(self) -> None:
        chain = self.chain
        chain.reset_parent()
        chain.set_container(self)
        self.env_specs = ChainSpecs(self.base_env, chain)

    def __repr__(self) -> str:
        inner = str(self.base_env).replace("\n", "\n    ")
        chain = str(self.chain).replace("\n", "\n    ")
        return f"{type(self).__name__}(\n    env={inner},\n    transform={chain})"
