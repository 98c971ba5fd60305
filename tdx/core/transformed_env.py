"""An env with a chain of transforms around it."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import nn

from tdx.core.envs.env_base import EnvBase
from tdx.core.stage_forms import StepProgram, compile_steps, note_only_stage, plan_stage
from tdx.core.transforms import Compose, TimeBehaviour, Transform
from tdx.core.transforms.callable_transform import TensorDictFunction, as_transform
from tdx.errors import ArgumentError, ChainError
from tdx.keys import NestedKey
from tdx.specs import Composite, TensorSpec
from tdx.tensordicts import flat_entries, new_tensordict, read, write


class TransformedEnv(EnvBase):
    """An env whose inputs and outputs go through a chain of transforms.

    Args:
        env: The env inside, which may be transformed itself.
        transform: A transform, a ``Compose`` of transforms, or a function over a TensorDict; none
            by default.
        device: Device to move the env to; its own device by default.
        planned: If True, rollouts may run by a plan that applies deferred stages to many steps at
            once. The result is the same either way.
        compile: If True, compile neighboring pointwise stages that are deferred into one function
            with ``torch.compile``; a string is the name of its backend. It pays off on an
            accelerator and in long rollouts. Values then agree within float rounding.

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

    def __init__(
        self,
        env: EnvBase,
        transform: Transform | TensorDictFunction | None = None,
        *,
        device: torch.device | str | int | None = None,
        planned: bool = True,
        compile: bool | str = False,
    ) -> None:
        if not isinstance(env, EnvBase):
            raise ArgumentError(
                f"env must be an env, got {type(env).__name__}",
                hint="wrap a Gymnasium env first: GymWrapper(env)",
            )
        super().__init__(device=env.device, batch_size=env.batch_size)
        if device is not None:
            env.to(device)
        self._known_base_version = self._placed_version = -1
        self._program: StepProgram | None = None
        self.planned = planned
        self.compiler = "inductor" if compile is True else compile or None
        self.base_env = env
        self._set_transform(Compose() if transform is None else as_transform(transform))

    # The chain

    def _set_transform(self, transform: Transform) -> None:
        transform.set_container(self)
        transform.train(self.training)
        self._modules["transform"] = transform
        self._chain_changed()

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "transform":
            replaced, chain = self._chain, as_transform(value)
            if chain is not replaced:
                self._set_transform(chain)
                replaced.reset_parent()
            return
        super().__setattr__(name, value)
        if name == "base_env":
            # nn.Module looks up submodules slowly; the step loop reads this attribute.
            self.__dict__["_inner"] = value
            if "transform" in self._modules:
                self._chain_changed()

    def _chain_changed(self) -> None:
        self.__dict__["_outermost"] = self._chain
        self._placed_version = -1
        self._place()
        self._forget_specs()

    def _place(self) -> None:
        """Update batch size and device if the env inside has changed."""
        version = self._inner._spec_version
        if version != self._placed_version:
            chain, inner = self._chain, self._inner
            self._batch_size = chain.transform_env_batch_size(inner.batch_size)
            self._device = torch.device(chain.transform_env_device(inner.device))
            self._placed_version = version

    @property
    def _chain(self) -> Transform:
        found = self.transform
        assert isinstance(found, Transform)
        return found

    @property
    def stages(self) -> tuple[Transform, ...]:
        """Transforms in order."""
        chain = self._chain
        return tuple(chain) if isinstance(chain, Compose) else (chain,)

    @property
    def _first_stage(self) -> int:
        """Index of this chain's first stage, counted from the innermost chain."""
        inner = self.base_env
        if not isinstance(inner, TransformedEnv):
            return 0
        return inner._first_stage + len(inner.stages)

    def append_transform(self, transform: nn.Module | TensorDictFunction) -> TransformedEnv:
        """Append a stage to the chain; it takes over train or eval mode.

        Args:
            transform: A transform, or a function over a TensorDict.

        Returns:
            This env.
        """
        return self.insert_transform(len(self.stages), transform)

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
        stage, chain = as_transform(transform), self._chain
        # Raises for a stage that fits no env, before the chain is changed.
        stage.transform_env_batch_size(self.batch_size)
        if isinstance(chain, Compose):
            chain.insert(index, stage)
            return self
        chain.reset_parent()
        longer = Compose(chain)
        longer.insert(index, stage)
        self._set_transform(longer)
        return self

    def _env_before(self, stage: Transform) -> TransformedEnv:
        """Return the env as the outermost transform sees it."""
        return TransformedEnv(self.base_env)

    # Specs

    @property
    def _spec_version(self) -> int:
        version: int = self._inner._spec_version
        return self._own_spec_version + version

    @property
    def _is_stale(self) -> bool:
        """True if everything derived from the env inside and the chain has to be computed again."""
        return self._output_spec is None or self._inner._spec_version != self._known_base_version

    @property
    def _key_cache(self) -> dict[str, Any]:
        if self._is_stale:
            self._compute_specs()
        cache: dict[str, Any] = self.__dict__["_keys"]
        return cache

    @_key_cache.setter
    def _key_cache(self, value: dict[str, Any]) -> None:
        self.__dict__["_keys"] = value

    @property
    def batch_size(self) -> torch.Size:
        """Number of envs that run at once, ``[*B]``, after the chain."""
        self._place()
        return self._batch_size

    @batch_size.setter
    def batch_size(self, value: object) -> None:
        raise ChainError(
            "cannot set the batch size of a transformed env: it follows from the chain",
            hint="set it on the env inside: env.base_env.batch_size = ...",
        )

    @property
    def device(self) -> torch.device:
        """Device of the env's tensors, after the chain."""
        self._place()
        return self._device

    @property
    def output_spec(self) -> Composite:
        """What the env returns after the chain; computed without a step, locked."""
        self._compute_specs()
        assert self._output_spec is not None
        return self._output_spec

    @property
    def input_spec(self) -> Composite:
        """What the env takes before the chain; computed without a step, locked."""
        self._compute_specs()
        assert self._input_spec is not None
        return self._input_spec

    def _compute_specs(self) -> None:
        if not self._is_stale:
            return
        base = self.base_env
        known = base.input_spec, base.output_spec
        self._place()
        self._chain._follow_device(base.device)
        input_spec, output_spec = self._chain._transform_specs(*known)
        self._input_spec = self._placed(input_spec)
        self._output_spec = self._placed(output_spec)
        self._key_cache = {}
        self._known_base_version = base._spec_version
        self._inverts = self._chain.invertible
        self._exposed_keys = self._chain._exposed_keys
        self._program = compile_steps(base, self._chain, self.stages)

    def _measure_with(self, meter: Any) -> None:
        """Measure the calls of this chain. ``None``: stop measuring."""
        if meter is None:
            self.__dict__.pop("_meter", None)
        else:
            self._meter = meter
        # Programs that hold hooks of the stages are built again.
        self._key_cache.pop("programs", None)
        self._program = compile_steps(self.base_env, self._chain, self.stages)

    def _placed(self, spec: Composite) -> Composite:
        if spec.device != self._device:
            spec = spec.clone()
            spec.unlock_()
            spec = spec.to(self._device)
        return spec if spec.is_locked else spec.lock_()

    def _forget_specs(self) -> None:
        super()._forget_specs()
        self._input_spec = self._output_spec = None
        self._program = None

    def _set_part(self, side: str, part: str, leaf_name: str | None, value: TensorSpec) -> None:
        raise ChainError(
            f"cannot set {part} of a transformed env: it follows from the chain",
            hint=f"set it on the env inside: env.base_env.{part.removeprefix('full_')} = ...",
        )

    # Data

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # The completed hooks below would skip a hook that a subclass overrides.
        for hook in ("_step", "_reset"):
            if hook in cls.__dict__:
                setattr(cls, f"_completed{hook}", getattr(EnvBase, f"_completed{hook}"))

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        return TransformedEnv._completed_step(self, tensordict)

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        return TransformedEnv._completed_reset(self, tensordict, **kwargs)

    def _set_seed(self, seed: int | None) -> None:
        self.base_env._set_seed(seed)

    def _completed_step(
        self, tensordict: TensorDictBase, preset: TensorDictBase | None = None
    ) -> TensorDictBase:
        if self._output_spec is None or self._inner._spec_version != self._known_base_version:
            self._compute_specs()
        if self._inverts:
            inner = self._outermost._inv_call(tensordict.clone(recurse=False))
            for key in self._exposed_keys:
                write(tensordict, key, read(inner, key))
            tensordict = inner
        program = self._program
        if program is not None and type(tensordict) is TensorDict:
            if preset is None:
                return program.step(tensordict, None)
            entries = flat_entries(preset)
            if entries is not None:
                return program.step(tensordict, entries)
        following = self._inner._completed_step(tensordict)
        if preset is not None:
            known = set(following.keys(True, True))
            following.update(self._outermost._to_inner_batch(preset.exclude(*known)))
        try:
            return self._outermost._step(tensordict, following)
        except Exception as error:
            if not isinstance(self._outermost, Compose):
                note_only_stage(error, self._outermost)
            raise

    def _completed_reset(
        self, tensordict: TensorDictBase | None = None, **kwargs: Any
    ) -> TensorDictBase:
        self._compute_specs()
        given = new_tensordict({}, self._batch_size, self._device)
        if tensordict is not None:
            given = tensordict
        inner = self._outermost._reset_env_preprocess(given.clone(recurse=False))
        is_trivial = inner.is_empty() and inner.batch_size == self._inner.batch_size
        passed = None if tensordict is None and is_trivial else inner
        result = self._inner._completed_reset(passed, **kwargs)
        try:
            return self._outermost._reset(given, result)
        except Exception as error:
            if not isinstance(self._outermost, Compose):
                note_only_stage(error, self._outermost)
            raise

    def set_seed(self, seed: int | None = None, static_seed: bool = False) -> int | None:
        """Seed the env inside; see :meth:`EnvBase.set_seed`."""
        return self.base_env.set_seed(seed, static_seed=static_seed)

    @property
    def _steps_some_rows(self) -> bool:  # type: ignore[override]
        alone = all(stage.time_behaviour is TimeBehaviour.POINTWISE for stage in self.stages)
        return alone and self.base_env._steps_some_rows

    @property
    def _resets_by_mask(self) -> bool:
        cache = self._key_cache
        if "resets_by_mask" not in cache:
            known = self._step_reads is not None
            cache["resets_by_mask"] = known and self.base_env._resets_by_mask
        return bool(cache["resets_by_mask"])

    @property
    def _step_reads(self) -> tuple[NestedKey, ...] | None:
        base: EnvBase = self
        stages: tuple[Transform, ...] = ()
        while isinstance(base, TransformedEnv):
            stages = (*flatten_stages(base.stages), *stages)
            base = base.base_env
        reads = base._step_reads
        if reads is None or type(self) is not TransformedEnv:
            return None
        found = dict.fromkeys(reads)
        for index, stage in enumerate(stages):
            planned = plan_stage(index, stage)
            outer = set(stage.in_keys_inv) - set(base.action_keys)
            if planned.sees_input or (stage.invertible and outer):
                return None
            found.update(dict.fromkeys(planned.root))
        return tuple(found)

    @property
    def batch_locked(self) -> bool:
        """True if the env takes TensorDicts of its own batch size only."""
        return self.base_env.batch_locked

    def _move(self, device: torch.device) -> None:
        self.base_env._move_to(device)
        self._chain_changed()

    def close(self) -> None:
        """Close the transforms and the env inside."""
        self._chain.close()
        self.base_env.close()
        super().close()

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("_") or "base_env" not in self.__dict__.get("_modules", {}):
                raise
        return getattr(self.base_env, name)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_program": None}

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
        self.__dict__["_inner"] = self.base_env
        self._chain.reset_parent()
        self._chain.set_container(self)
        self._chain_changed()

    def __repr__(self) -> str:
        inner = str(self.base_env).replace("\n", "\n    ")
        chain = str(self._chain).replace("\n", "\n    ")
        return f"TransformedEnv(\n    env={inner},\n    transform={chain})"


def flatten_stages(stages: tuple[Transform, ...]) -> tuple[Transform, ...]:
    """Return the stages with those of nested ``Compose`` in their place."""
    found: list[Transform] = []
    for stage in stages:
        found.extend(flatten_stages(tuple(stage)) if type(stage) is Compose else (stage,))
    return tuple(found)
