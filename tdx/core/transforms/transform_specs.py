"""What a transform does to the specs of an env."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch

from tdx.core.transforms.key_pairs import require_keys
from tdx.core.transforms.transform_keys import TransformKeys
from tdx.errors import ChainError, Where
from tdx.keys import NestedKey, format_key, normalize_key
from tdx.specs import Composite, StackedComposite, TensorSpec


class TransformSpecs(TransformKeys):
    """The spec hooks, each on a copy of what it is given; see :class:`Transform`."""

    @abstractmethod
    def _overrides(self, *hooks: str) -> bool:
        """Whether a subclass implements any of these hooks of :class:`Transform` anew."""

    def _transform_spec(self, spec: Any) -> TensorSpec:
        """The spec of what :meth:`_apply_transform` returns for a tensor of this spec."""
        result: TensorSpec = spec
        return result

    def _inv_transform_spec(self, spec: Any) -> TensorSpec:
        """The spec of what the outside may give, where the env takes a tensor of this spec."""
        result: TensorSpec = spec
        return result

    def _mapped(self, spec: Composite) -> Composite:
        present = [pair for pair in self._pairs if spec.get(pair[0], None) is not None]
        if not present:
            return spec
        result = spec.clone()
        result.unlock_()
        for in_key, out_key in present:
            self._refuse_group(spec[in_key], in_key)
            result[out_key] = self._transform_spec(spec[in_key])
        return result

    def _refuse_group(self, spec: TensorSpec, key: NestedKey) -> None:
        if isinstance(spec, Composite) and self._overrides("_transform_spec"):
            inner, name = next(iter(spec.keys(True, True)), "..."), type(self).__name__
            inner = normalize_key((key, inner))
            raise ChainError(
                f"{format_key(key)!r} is a group of entries, and {name} maps tensors",
                hint=f"name its entries, such as {inner!r}",
                where=Where(key=key),
            )

    def _inverse_mapped(self, spec: Composite) -> Composite:
        present = [pair for pair in self._inverse_pairs if spec.get(pair[0], None) is not None]
        if not present:
            return spec
        result = spec.clone()
        result.unlock_()
        for in_key, out_key in present:
            self._refuse_group(spec[in_key], in_key)
            if out_key != in_key:
                del result[in_key]
            result[out_key] = self._inv_transform_spec(spec[in_key])
        return result

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """The observation spec after this transform; the argument stays as it is."""
        return self._mapped(observation_spec)

    def transform_reward_spec(self, reward_spec: Composite) -> Composite:
        """The reward spec after this transform; the argument stays as it is."""
        return self._mapped(reward_spec)

    def transform_done_spec(self, done_spec: Composite) -> Composite:
        """The done flags' spec after this transform; the argument stays as it is."""
        return self._mapped(done_spec)

    def transform_action_spec(self, action_spec: Composite) -> Composite:
        """The action spec that the outside sees; the argument stays as it is."""
        return self._inverse_mapped(action_spec)

    def transform_state_spec(self, state_spec: Composite) -> Composite:
        """The state spec that the outside sees; the argument stays as it is."""
        return self._inverse_mapped(state_spec)

    def transform_output_spec(self, output_spec: Composite) -> Composite:
        """The output spec after this transform, part by part; the argument stays as it is.

        Raises:
            KeyNotFoundError: an in-key is in no part of it.
        """
        self._check_in_keys(output_spec)
        result = output_spec.clone()
        # A hook gets what it may write to: custom ones often do, and return their argument.
        result.unlock_()
        for part, hook in (
            ("full_observation_spec", self.transform_observation_spec),
            ("full_reward_spec", self.transform_reward_spec),
            ("full_done_spec", self.transform_done_spec),
        ):
            before = result.get(part, None)
            if before is not None:
                result[part] = hook(before)
        return result

    def transform_input_spec(self, input_spec: Composite) -> Composite:
        """The input spec that the outside sees, part by part; the argument stays as it is.

        Raises:
            KeyNotFoundError: a key that the env should be given is in no part of it.
        """
        self._check_inverse_keys(input_spec)
        result = input_spec.clone()
        result.unlock_()
        for part, hook in (
            ("full_action_spec", self.transform_action_spec),
            ("full_state_spec", self.transform_state_spec),
        ):
            before = result.get(part, None)
            if before is not None:
                result[part] = hook(before)
        return result

    def _check_in_keys(self, output_spec: Composite) -> None:
        if not self._missing_tolerance and not self._overrides("_call"):
            require_keys(output_spec, self._in_keys, "the env at this stage")

    def _check_inverse_keys(self, input_spec: Composite) -> None:
        if not self._missing_tolerance and not self._overrides("_inv_call"):
            require_keys(input_spec, self._in_keys_inv, "the env's input at this stage")

    def _transform_specs(
        self, input_spec: Composite, output_spec: Composite
    ) -> tuple[Composite, Composite]:
        """Both specs after this transform, which first takes from them what it left open."""
        self._refuse_unlike(output_spec)
        self._bind(input_spec, output_spec)
        if self._overrides("transform_input_spec"):
            input_spec = input_spec.clone()
            input_spec.unlock_()
        if self._overrides("transform_output_spec"):
            output_spec = output_spec.clone()
            output_spec.unlock_()
        return self.transform_input_spec(input_spec), self.transform_output_spec(output_spec)

    def _refuse_unlike(self, output_spec: Composite) -> None:
        for part in output_spec.values():
            if isinstance(part, StackedComposite):
                for key in self._in_keys:
                    spec = part.get(key, None)
                    if spec is not None and -1 in spec.shape:
                        raise ChainError(
                            "its shape differs between the envs of the batch",
                            hint="put the transform into the envs, where each has a shape",
                            where=Where(key=key),
                        )

    def _bind(self, input_spec: Composite, output_spec: Composite) -> None:
        """Take from the specs upstream what the constructor left open, such as in-keys."""

    def transform_env_batch_size(self, batch_size: torch.Size) -> torch.Size:
        """The env's batch size after this transform."""
        return batch_size

    def _follow(self, device: torch.device) -> None:
        """Move parameters and buffers to where the data at this place of a chain lives.

        Args:
            device: that of the env before this transform.
        """
        held: list[Any] = [*self._parameters.values(), *self._buffers.values()]
        if self._modules:
            held = [*self.parameters(), *self.buffers()]
        if any(tensor is not None and tensor.device != device for tensor in held):
            self.to(device)

    def transform_env_device(self, device: torch.device) -> torch.device:
        """The env's device after this transform."""
        return device
