"""Run a TensorDict module as a stage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import nn

from tdx.core.transforms import TimeBehavior, Transform
from tdx.core.transforms.spec_maps import normalize_keys, unlocked_copy
from tdx.foundation.errors import ArgumentError
from tdx.foundation.keys import NestedKey, format_key
from tdx.specs import Composite, TensorSpec, Unbounded

SpecTransform = TensorSpec | Callable[[TensorSpec], TensorSpec]


class ModuleTransform(Transform):
    """Run a TensorDict module on the env's output, or on its input.

    The keys are those of the module. Entries that it writes to the env's output get the shape and
    dtype that it returns for zeros, without bounds, unless a spec is given.

    Args:
        module: A module with ``in_keys`` and ``out_keys``, such as a ``TensorDictModule``.
        module_factory: Function that creates it instead, for example in each worker.
        no_grad: Run it without gradients.
        inverse: Run it on the env's input, from the policy to the env.
        observation_spec_transform: Spec of the observations afterwards, or a function that maps
            the spec before.
        reward_spec_transform: The same for the rewards.
        done_spec_transform: The same for the done flags.
        action_spec_transform: The same for the actions that the policy writes.
        state_spec_transform: The same for the other entries of the env's input.

    Raises:
        ArgumentError: There is no module, there are two, or it has no keys.
        KeyNotFoundError: An entry that it reads is missing.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tensordict.nn import TensorDictModule
        >>> from tdx import ModuleTransform
        >>> encoder = TensorDictModule(torch.exp, in_keys=["a"], out_keys=["b"])
        >>> ModuleTransform(module=encoder)(TensorDict(a=torch.zeros(1)))["b"]
        tensor([1.])
    """

    time_behavior = TimeBehavior.CONTROL
    _requires_keys = True

    def __init__(
        self,
        *,
        module: nn.Module | None = None,
        module_factory: Callable[[], nn.Module] | None = None,
        no_grad: bool = False,
        inverse: bool = False,
        observation_spec_transform: SpecTransform | None = None,
        reward_spec_transform: SpecTransform | None = None,
        done_spec_transform: SpecTransform | None = None,
        action_spec_transform: SpecTransform | None = None,
        state_spec_transform: SpecTransform | None = None,
    ) -> None:
        if (module is None) == (module_factory is None):
            raise ArgumentError("pass either module or module_factory")
        if module is None:
            assert module_factory is not None
            module = module_factory()
        for name in ("in_keys", "out_keys"):
            if not hasattr(module, name):
                raise ArgumentError(
                    f"{type(module).__name__} has no {name}",
                    hint="wrap it: TensorDictModule(module, in_keys=[...], out_keys=[...])",
                )
        reads, writes = list(module.in_keys), list(module.out_keys)  # type: ignore[arg-type]
        if inverse:
            super().__init__([], [], writes, reads)
        else:
            super().__init__(reads, writes)
        self.module = module
        self.no_grad, self.inverse = no_grad, inverse
        # Specs of entries that the env does not have.
        self._observations: dict[NestedKey, TensorSpec] = {}
        self._spec_transforms = {
            "full_observation_spec": observation_spec_transform,
            "full_reward_spec": reward_spec_transform,
            "full_done_spec": done_spec_transform,
            "full_action_spec": action_spec_transform,
            "full_state_spec": state_spec_transform,
        }

    def _set_inverse_keys(
        self, in_keys_inv: Sequence[NestedKey] | None, out_keys_inv: Sequence[NestedKey] | None
    ) -> None:
        # The base class pairs them; a module may read and write different numbers of entries.
        self._in_keys_inv = normalize_keys(in_keys_inv, "in_keys_inv")
        self._out_keys_inv = normalize_keys(out_keys_inv, "out_keys_inv")
        self._inverse_pairs = ()

    # Data

    @property
    def invertible(self) -> bool:
        """True if the module runs on the env's input."""
        return self.inverse

    def _run(self, tensordict: TensorDictBase, keys: Sequence[NestedKey]) -> TensorDictBase:
        missing = [key for key in keys if tensordict.get(key, None) is None]
        if missing and self._missing_tolerance:
            return tensordict
        if missing:
            raise self._missing_key(missing[0], tensordict)
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.no_grad):
            result: TensorDictBase = self.module(tensordict)
        return result

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        return next_tensordict if self.inverse else self._run(next_tensordict, self._in_keys)

    def _reset(
        self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        # Before the first step there is no reward: what is computed from one starts at zero.
        if self.inverse or all(tensordict_reset.get(key, None) is not None for key in self.in_keys):
            return self._call(tensordict_reset)
        for key, spec in self._observations.items():
            tensordict_reset.set(key, spec.zero())
        return tensordict_reset

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self._run(tensordict, self._out_keys_inv) if self.inverse else tensordict

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Run the module on stored data ``[*B]``, in place."""
        return self._call(tensordict)

    # Specs

    def _check_inverse_keys(self, input_spec: Composite) -> None:
        """Accept any keys: the module may write entries that the env does not declare."""

    def transform_output_spec(self, output_spec: Composite) -> Composite:
        """Return the output spec with what the module writes, or with the given specs."""
        self._check_in_keys(output_spec)
        result = unlocked_copy(output_spec)
        if not self.inverse:
            self._observations = {}
            for key, written in self._written_specs(output_spec).items():
                parts = [part for part in result.values() if part.get(key, None) is not None]
                if not parts:
                    self._observations[key] = written
                (parts or [result["full_observation_spec"]])[0][key] = written
        return self._with_given(result)

    def transform_input_spec(self, input_spec: Composite) -> Composite:
        """Return the input spec with the given specs."""
        return self._with_given(unlocked_copy(input_spec))

    def _with_given(self, spec: Composite) -> Composite:
        for name, given in self._spec_transforms.items():
            if given is not None and name in spec.keys():
                spec[name] = given.clone() if isinstance(given, TensorSpec) else given(spec[name])
        return spec

    def _written_specs(self, output_spec: Composite) -> dict[NestedKey, TensorSpec]:
        """Return the specs of the entries that the module writes for zeros."""
        before: dict[NestedKey, Any] = {}
        for part in output_spec.values():
            before.update(part.items(True, True))
        zeros = TensorDict({}, batch_size=output_spec.shape)
        for key in self._in_keys:
            spec = before.get(key)
            if spec is None:
                return {}
            zeros.set(key, spec.zero())
        # A module may draw random numbers, which must not shift those of the env.
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            values = self.module(zeros)
        specs: dict[NestedKey, TensorSpec] = {}
        for key in self._out_keys:
            value, known = values.get(key, None), before.get(key)
            if value is None:
                raise ArgumentError(
                    f"the module does not write {format_key(key)!r}, which is one of its out_keys"
                )
            layout = None if known is None else (known.shape, known.dtype)
            if key not in self._in_keys and layout == (value.shape, value.dtype):
                continue
            specs[key] = Unbounded(value.shape, device=output_spec.device, dtype=value.dtype)
        return specs

    def __repr__(self) -> str:
        keys = self.in_keys_inv if self.inverse else self.in_keys
        return f"ModuleTransform({type(self.module).__name__}, keys={keys})"
