"""Specs of tdx as specs of TorchRL, and back, by kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchrl.data import tensor_specs as rl

from tdx import specs as ours
from tdx.foundation.errors import SpecError
from tdx.foundation.keys import NestedKey

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
    choices = [
        choice if not isinstance(choice, kind) else convert(choice) for choice in spec._choices
    ]
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
