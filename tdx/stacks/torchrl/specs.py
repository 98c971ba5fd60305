"""Specs of tdx as specs of TorchRL, and back, by kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchrl.data import tensor_specs as rl

from tdx import specs as ours
from tdx.foundation.errors import SpecError
from tdx.specs.composite import prefix_error_key


def convert_to_torchrl(spec: object) -> object:
    """Convert a spec of tdx; see :func:`tdx.stacks.torchrl.to_torchrl_spec`."""
    return _convert(spec, ours, rl, convert_to_torchrl)


def convert_from_torchrl(spec: object) -> Any:
    """Convert a spec of TorchRL; see :func:`tdx.stacks.torchrl.from_torchrl_spec`."""
    return _convert(spec, rl, ours, convert_from_torchrl)


def _convert(spec: Any, source: Any, target: Any, convert: Callable[[Any], Any]) -> Any:
    """Return the spec of the same kind and attributes in another library."""
    if not isinstance(spec, source.TensorSpec):
        library = "tdx" if source is ours else "TorchRL"
        raise SpecError(f"{type(spec).__name__} is not a spec of {library} that can be converted")
    # A subclass comes before its base class.
    for name in ("Stacked", "StackedComposite"):
        if isinstance(spec, getattr(source, name)):
            members = map(convert, spec.unbind(spec.stack_dim))
            return getattr(target, name)(*members, dim=spec.stack_dim)
    if isinstance(spec, source.Composite):
        return _convert_composite(spec, target, convert)
    if isinstance(spec, source.Choice):
        choices = [
            convert(choice) if isinstance(choice, source.TensorSpec) else choice
            for choice in spec._choices
        ]
        return target.Choice(choices)
    place = {"shape": spec.shape, "device": spec.device, "dtype": spec.dtype}
    if isinstance(spec, source.Binary):
        converted = target.Binary(**place)
        if spec.mask is not None:
            converted.update_mask(spec.mask)
        return converted
    if isinstance(spec, source.MultiCategorical):
        nvec = spec.nvec.cpu()
        if not nvec.numel() and nvec._base is not None:
            nvec = nvec._base  # an expanded nvec without elements has lost its numbers
        rows = nvec.reshape(-1, nvec.shape[-1])
        if rows.numel() and bool((rows == rows[0]).all()):
            nvec = rows[0].clone()  # the same for all leading dims, so that a mask can be split
        return target.MultiCategorical(
            nvec, **place, mask=spec.mask, remove_singleton=spec.remove_singleton
        )
    if isinstance(spec, source.Categorical):
        if spec.space.n >= 0:
            return target.Categorical(spec.space.n, **place, mask=spec.mask)
        converted = target.Categorical(-1, **place)
        if spec._provisional_n is not None:
            converted.set_provisional_n(spec._provisional_n)
        return converted
    if isinstance(spec, source.MultiOneHot):
        return target.MultiOneHot([int(n) for n in spec.nvec], **place, mask=spec.mask)
    if isinstance(spec, source.OneHot):
        return target.OneHot(spec.space.n, **place, use_register=spec.use_register, mask=spec.mask)
    if isinstance(spec, source.Bounded):
        low, high = spec.space.low.clone(), spec.space.high.clone()
        return target.Bounded(low, high, **place, domain=spec.domain)
    if isinstance(spec, source.Unbounded):
        if spec.dtype.is_complex:
            raise SpecError(
                f"TorchRL has no spec of {spec.dtype}", hint="split it: torch.view_as_real(value)"
            )
        return target.Unbounded(**place, domain=spec.domain)
    if isinstance(spec, source.NonTensor):
        sizes = {"batched": True} if spec.batched else {"feature_dims": spec.feature_dims}
        return target.NonTensor(**place, example_data=spec.example_data, **sizes)
    raise SpecError(f"{type(spec).__name__} is a spec of a kind that cannot be converted")


def _convert_composite(spec: Any, target: Any, convert: Callable[[Any], Any]) -> Any:
    names = spec.names if spec.ndim else None
    converted = target.Composite(
        {},
        shape=spec.shape,
        device=spec.device,
        data_cls=spec.data_cls,
        step_mdp_static=spec.step_mdp_static,
    )
    for key, entry in spec.items():
        try:
            converted[key] = None if entry is None else convert(entry)
        except SpecError as error:
            raise prefix_error_key(key, error) from None
    if names is not None and any(name is not None for name in names):
        converted.names = names
    if spec.is_locked:
        converted.lock_(recurse=True)
    return converted
