"""Measure the statistics of a normalizer, and write them as its arguments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tdx.core.transforms.statistics import RunningNorm
from tdx.foundation.errors import ArgumentError
from tdx.foundation.keys import format_key
from tdx.pipeline.arguments import name_arguments
from tdx.pipeline.values import StageConfig
from tdx.stacks.building import build_env
from tdx.transforms.observation.observation_norm import ObservationNorm

if TYPE_CHECKING:
    from tdx.pipeline.model import Pipeline

MAX_NUMBERS = 64
"""Largest number of elements that become an argument; larger observations get one number."""
_DIGITS = 6


def measure_norm(
    pipeline: Pipeline, steps: int, *, allow_code: bool = False
) -> tuple[StageConfig, ...]:
    """Return the last stage of a pipeline with the statistics of random steps.

    ``ObservationNorm`` gets ``loc`` and ``scale``; several in-keys become one stage each. A running
    normalizer such as ``VecNorm`` is replaced by ``ObservationNorm`` with its statistics after
    these steps.

    The steps follow the seed of the pipeline.

    Example:
        >>> from tdx.pipeline import Pipeline
        >>> chain = Pipeline.of("Pendulum-v1", "ObservationNorm")
        >>> (stage,) = measure_norm(chain, 10)
        >>> stage.name, len(stage.kwargs["loc"]), len(stage.kwargs["scale"])
        ('ObservationNorm', 3, 3)
    """
    *before, stage = pipeline.transforms
    seed = pipeline.env.seed or 0
    parts = list(_split_keys(name_arguments(stage)))
    env: Any = build_env(pipeline.with_stages(*before, *parts), allow_code)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            env.set_seed(seed)
            norms = list(env.transform)[-len(parts) :]
            if all(isinstance(norm, ObservationNorm) for norm in norms):
                return tuple(
                    _measure_fixed(norm, part, steps)
                    for norm, part in zip(norms, parts, strict=True)
                )
            if isinstance(norms[-1], RunningNorm):
                env.rollout(steps, break_when_any_done=False)
                return tuple(_fixed_stages(norms[-1]))
    finally:
        env.close()
    raise ArgumentError(
        f"{stage.name} has no statistics to measure", hint="select ObservationNorm or VecNorm"
    )


def _split_keys(stage: StageConfig) -> Iterator[StageConfig]:
    """Yield an ``ObservationNorm`` without statistics for each key; other stages as they are."""
    if stage.name != "ObservationNorm":
        yield stage
        return
    kwargs = {name: value for name, value in stage.kwargs.items() if name not in ("loc", "scale")}
    keys: Any = kwargs.get("in_keys")
    if not isinstance(keys, tuple) or len(keys) < 2:
        yield replace(stage, kwargs=kwargs)
        return
    if kwargs.get("in_keys_inv"):
        raise ArgumentError(
            "an ObservationNorm of several keys and of inputs cannot be measured",
            hint="use one ObservationNorm for each key",
        )
    out_keys: Any = kwargs.get("out_keys") or keys
    for key, out in zip(keys, out_keys, strict=True):
        out_key = {} if out == key else {"out_keys": (out,)}
        rest = {name: value for name, value in kwargs.items() if name != "out_keys"}
        yield replace(stage, kwargs={**rest, "in_keys": (key,), **out_key})


def _measure_fixed(norm: ObservationNorm, stage: StageConfig, steps: int) -> StageConfig:
    parent: Any = norm.parent
    lead = parent.ndim
    shape = parent.full_observation_spec[norm.in_keys[0]].shape
    last = len(shape) + 1 if shape[lead:].numel() > MAX_NUMBERS else lead + 1
    norm.init_stats(steps, reduce_dim=tuple(range(last)), cat_dim=lead)
    kwargs = {"loc": _literal(norm.loc), "scale": _literal(norm.scale), **stage.kwargs}
    return replace(stage, kwargs=kwargs)


def _fixed_stages(norm: RunningNorm) -> Iterator[StageConfig]:
    for in_key, out_key, loc, scale in norm.iter_affine():
        if loc.numel() > MAX_NUMBERS:
            raise ArgumentError(
                f"the statistics of {format_key(in_key)!r} have {loc.numel():,} numbers, which is "
                "too many for arguments",
                hint="keep the running normalizer, or use ObservationNorm, which gets one number",
            )
        kwargs: dict[str, Any] = {"loc": _literal(loc), "scale": _literal(scale)}
        kwargs |= {"in_keys": (in_key,), "standard_normal": True}
        if out_key != in_key:
            kwargs["out_keys"] = (out_key,)
        yield StageConfig("ObservationNorm", kwargs=kwargs)


def _literal(value: Any) -> Any:
    """Return a tensor or a list as numbers with six significant digits."""
    if isinstance(value, Tensor):
        value = value.tolist()
    if isinstance(value, Sequence):
        return tuple(map(_literal, value))
    return float(f"{value:.{_DIGITS}g}")
