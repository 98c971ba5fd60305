"""An env of tdx as an env of TorchRL, and specs of both as specs of the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import torch
from tensordict import TensorDictBase
from torchrl.data import tensor_specs as rl
from torchrl.envs import EnvBase as TorchRLEnvBase

from tdx import specs as ours
from tdx.envs import EnvBase
from tdx.errors import ArgumentError, SpecError
from tdx.keys import NestedKey, normalize_key
from tdx.specs import Categorical, MultiCategorical

Convert = Callable[[Any], Any]


def convert_to_torchrl(spec: Any) -> Any:
    """Convert a spec of tdx; see :func:`tdx.stacks.torchrl.to_torchrl_spec`."""
    return _convert(spec, _TO_TORCHRL, "tdx")


def convert_from_torchrl(spec: Any) -> Any:
    """Convert a spec of TorchRL; see :func:`tdx.stacks.torchrl.from_torchrl_spec`."""
    return _convert(spec, _FROM_TORCHRL, "TorchRL")


def _convert(spec: Any, converters: tuple[tuple[type, Convert], ...], library: str) -> Any:
    for kind, convert in converters:
        if isinstance(spec, kind):
            return convert(spec)
    raise SpecError(
        f"{type(spec).__name__} is not a spec of {library} that can be converted",
        hint=f"use one of {', '.join(kind.__name__ for kind, _ in converters)}",
    )


def _place(spec: Any) -> dict[str, Any]:
    return {"shape": spec.shape, "device": spec.device, "dtype": spec.dtype}


def _convert_unbounded(spec: Any, module: Any) -> Any:
    if spec.dtype.is_complex:
        raise SpecError(
            f"TorchRL has no spec of {spec.dtype}", hint="split it: torch.view_as_real(value)"
        )
    return module.Unbounded(**_place(spec), domain=spec.domain)


def _convert_bounded(spec: Any, module: Any) -> Any:
    low, high = spec.space.low.clone(), spec.space.high.clone()
    return module.Bounded(low, high, **_place(spec), domain=spec.domain)


def _convert_categorical(spec: Any, module: Any) -> Any:
    if spec.space.n >= 0:
        return module.Categorical(spec.space.n, **_place(spec), mask=spec.mask)
    converted = module.Categorical(-1, **_place(spec))
    if spec._provisional_n is not None:
        converted.set_provisional_n(spec._provisional_n)
    return converted


def _convert_binary(spec: Any, module: Any) -> Any:
    converted = module.Binary(**_place(spec))
    if spec.mask is not None:
        converted.update_mask(spec.mask)
    return converted


def _convert_one_hot(spec: Any, module: Any) -> Any:
    return module.OneHot(
        spec.space.n, **_place(spec), use_register=spec.use_register, mask=spec.mask
    )


def _convert_multi_one_hot(spec: Any, module: Any) -> Any:
    return module.MultiOneHot([int(n) for n in spec.nvec], **_place(spec), mask=spec.mask)


def _convert_multi_categorical(spec: Any, module: Any) -> Any:
    nvec = spec.nvec.cpu()
    if not nvec.numel() and nvec._base is not None:
        nvec = nvec._base  # an expanded nvec without elements has lost its numbers
    rows = nvec.reshape(-1, nvec.shape[-1])
    if rows.numel() and bool((rows == rows[0]).all()):
        nvec = rows[0].clone()  # the same for all leading dims, so that a mask can be split
    return module.MultiCategorical(
        nvec, **_place(spec), mask=spec.mask, remove_singleton=spec.remove_singleton
    )


def _convert_non_tensor(spec: Any, module: Any) -> Any:
    sizes = {"batched": True} if spec.batched else {"feature_dims": spec.feature_dims}
    return module.NonTensor(**_place(spec), example_data=spec.example_data, **sizes)


def _convert_choice(spec: Any, module: Any, kind: type, convert: Convert) -> Any:
    choices = [each if not isinstance(each, kind) else convert(each) for each in spec._choices]
    return module.Choice(choices)


def _convert_composite(spec: Any, module: Any, convert: Convert) -> Any:
    names = spec.names if spec.ndim else None
    converted = module.Composite(
        {},
        shape=spec.shape,
        device=spec.device,
        data_cls=spec.data_cls,
        step_mdp_static=spec.step_mdp_static,
    )
    for key, entry in spec.items():
        converted[key] = None if entry is None else _convert_entry(entry, key, convert)
    if names is not None and any(name is not None for name in names):
        converted.names = names
    if spec.is_locked:
        converted.lock_(recurse=True)
    return converted


def _convert_entry(entry: Any, key: NestedKey, convert: Convert) -> Any:
    try:
        return convert(entry)
    except SpecError as error:
        inner = error.where.key
        parts = () if inner is None else (inner,) if isinstance(inner, str) else inner
        error.where = type(error.where)(key=(str(key), *parts) if parts else key)
        raise


def _to_stacked(spec: Any) -> Any:
    return rl.Stacked(*map(convert_to_torchrl, spec.specs), dim=spec.stack_dim)


def _to_stacked_composite(spec: Any) -> Any:
    return rl.StackedComposite(*map(convert_to_torchrl, spec.specs), dim=spec.stack_dim)


def _from_stacked(spec: Any) -> Any:
    return ours.Stacked(*map(convert_from_torchrl, spec._specs), dim=spec.dim)


def _from_stacked_composite(spec: Any) -> Any:
    return ours.StackedComposite(*map(convert_from_torchrl, spec._specs), dim=spec.dim)


def _simple(source: Any, target: Any) -> tuple[tuple[type, Convert], ...]:
    """Converters of the kinds that both libraries describe by the same attributes."""

    def into(convert: Callable[[Any, Any], Any]) -> Convert:
        return lambda spec: convert(spec, target)

    return (
        (source.Binary, into(_convert_binary)),
        (source.MultiCategorical, into(_convert_multi_categorical)),
        (source.Categorical, into(_convert_categorical)),
        (source.MultiOneHot, into(_convert_multi_one_hot)),
        (source.OneHot, into(_convert_one_hot)),
        (source.Bounded, into(_convert_bounded)),
        (source.Unbounded, into(_convert_unbounded)),
        (source.NonTensor, into(_convert_non_tensor)),
    )


# A subclass comes before its base class.
_TO_TORCHRL: tuple[tuple[type, Convert], ...] = (
    (ours.Stacked, _to_stacked),
    (ours.StackedComposite, _to_stacked_composite),
    (ours.Composite, lambda spec: _convert_composite(spec, rl, convert_to_torchrl)),
    (ours.Choice, lambda spec: _convert_choice(spec, rl, ours.TensorSpec, convert_to_torchrl)),
    *_simple(ours, rl),
)
_FROM_TORCHRL: tuple[tuple[type, Convert], ...] = (
    (rl.Stacked, _from_stacked),
    (rl.StackedComposite, _from_stacked_composite),
    (rl.Composite, lambda spec: _convert_composite(spec, ours, convert_from_torchrl)),
    (rl.Choice, lambda spec: _convert_choice(spec, ours, rl.TensorSpec, convert_from_torchrl)),
    *_simple(rl, ours),
)


class TdxEnv(TorchRLEnvBase):  # type: ignore[misc]
    """A TorchRL env that runs an env of tdx; see :func:`tdx.to_torchrl`.

    Args:
        env: The env of tdx.

    Raises:
        ArgumentError: ``env`` is not an env of tdx.
        SpecError: A spec has no counterpart in TorchRL.

    Example:
        >>> from tdx import GymEnv
        >>> TdxEnv(GymEnv("CartPole-v1")).rollout(5, break_when_any_done=False).batch_size
        torch.Size([5])
    """

    def __init__(self, env: EnvBase) -> None:
        if not isinstance(env, EnvBase):
            raise ArgumentError(
                f"to_torchrl takes an env of tdx, got {type(env).__name__}",
                hint="create one first, such as tdx.GymEnv('Pendulum-v1')",
            )
        super().__init__(device=env.device, batch_size=env.batch_size, allow_done_after_reset=True)
        self._batch_locked = env.batch_locked
        self.env = env
        self._read_specs()
        self.is_closed = False

    def _read_specs(self) -> None:
        input_spec, output_spec = self.env.input_spec.clone(), self.env.output_spec.clone()
        actions = input_spec.unlock_()["full_action_spec"]
        for key, spec in list(actions.items(True, True)):
            actions.set(key, _without_singleton(spec))
        self._squeezed_actions = [
            (key, spec.shape) for key, spec in actions.items(True, True) if spec.shape[-1:] == (1,)
        ]
        self.__dict__["_input_spec"] = convert_to_torchrl(input_spec)
        self.__dict__["_output_spec"] = convert_to_torchrl(output_spec.unlock_())

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        env = self.env
        # Values of an earlier step would take precedence over the result.
        given = tensordict.exclude(*(("next",) if env._steps_some_rows else ("next", "_step")))
        for key, shape in self._squeezed_actions:
            value = given.get(key)
            if value.ndim < len(shape):
                given.set(key, value.reshape(shape))
        return env.step(given).get("next")

    def reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        """Start new episodes; see ``torchrl.envs.EnvBase.reset``.

        Transforms of tdx may read the entries of the rows that are not reset, so a partial reset
        gets all of them.
        """
        kwargs.pop("select_reset_only", None)
        return super().reset(tensordict, **kwargs)

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        env = self.env
        if tensordict is None:
            return env.reset(**kwargs)
        result = env.reset(tensordict.clone(recurse=False), **kwargs)
        declared = {*env.observation_keys, *env.done_keys}
        given = (normalize_key(key) for key in tensordict.keys(True, True))
        return result.exclude(*(key for key in given if key not in declared))

    def _set_seed(self, seed: int | None) -> None:
        self.env.set_seed(seed)

    def set_seed(self, seed: int | None = None, static_seed: bool = False) -> int | None:
        """Seed the env; the next seed counts up as in tdx, see ``tdx.EnvBase.set_seed``."""
        return self.env.set_seed(seed, static_seed=static_seed)

    def to(self, device: torch.device | str | int) -> Self:
        """Move the env of tdx, and with it this env, to a device."""
        self.env.to(device)
        if self.env.device != self.device:
            locked = self.is_spec_locked
            self._read_specs()
            self.__dict__["_device"] = self.env.device
            self.empty_cache()
            self.set_spec_lock_(locked)
        return self

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Close the env of tdx."""
        if not self.is_closed:
            self.env.close()
        super().close(raise_if_closed=raise_if_closed)

    def __del__(self) -> None:
        """Leave the env of tdx open: it belongs to the caller."""

    def __repr__(self) -> str:
        return f"TdxEnv({self.env})"


def _without_singleton(spec: Any) -> Any:
    """Describe a single variable without ``MultiCategorical``, whose draws TorchRL squeezes."""
    if type(spec) is not MultiCategorical or spec.shape[-1] != 1 or not spec.shape.numel():
        return spec
    counts = spec.nvec.unique()
    if counts.numel() != 1:
        return spec
    place: dict[str, Any] = {"shape": spec.shape, "device": spec.device, "dtype": spec.dtype}
    mask = None if spec.mask is None else spec.mask.unsqueeze(-2)
    return Categorical(int(counts), **place, mask=mask)
