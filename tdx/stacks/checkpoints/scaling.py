"""How openpi and GR00T normalize; LeRobot's own normalizers are in :mod:`steps`.

References:
    ``Normalize`` and ``Unnormalize`` in https://github.com/Physical-Intelligence/openpi, and
    ``StateActionTransform`` (N1.5) and ``StateActionProcessor`` (N1.6) in
    https://github.com/NVIDIA/Isaac-GR00T.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from tdx.foundation.array_files import Array
from tdx.foundation.errors import ArgumentError
from tdx.stacks.checkpoints.model import IDENTITY, SampleEntries, Step

STATISTICS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "MEAN_STD": ("mean", "std"),
        "MIN_MAX": ("min", "max"),
        "QUANTILES": ("q01", "q99"),
        "QUANTILE10": ("q10", "q90"),
    }
)
"""The two statistics that each normalization mode reads."""
SIN_COS = "SIN_COS"
"""Mode of a feature that becomes its sines and cosines."""
BINARY = "BINARY"
"""Mode of a feature that becomes 0 or 1, divided at one half."""
UNSCALED = (IDENTITY, SIN_COS, BINARY)
"""Modes that read no statistics."""
_OPENPI_EPS = 1e-6


Rescale = Callable[[Step, str, Array, Array, Array], Array]
"""Scales a value by a step, the mode of its feature, and the two statistics of the mode."""


def pick_statistics(
    step: Step, key: str, mode: str, statistics: Mapping[str, Array]
) -> tuple[Array, Array]:
    """Return the two statistics of a feature that a mode reads."""
    missing = [name for name in STATISTICS[mode] if name not in statistics]
    if missing:
        raise ArgumentError(
            f"{step.name} needs {missing[0]!r} of {key!r} for {mode}",
            hint="compute the statistics of the dataset again",
        )
    low, high = (statistics[name] for name in STATISTICS[mode])
    return low, high


def _over_features(
    rescale: Rescale, encodings: Mapping[str, Callable[[Array], Array]] = MappingProxyType({})
) -> Callable[[Step, SampleEntries], SampleEntries]:
    """Return what a step does to a sample.

    ``encodings`` are by the modes that read no statistics.
    """

    def apply(step: Step, sample: SampleEntries) -> SampleEntries:
        result, statistics = dict(sample), step.statistics
        for key, feature in step.features.items():
            mode, value = step.mode_of(key, feature), sample.get(key)
            if not isinstance(value, np.ndarray):
                continue
            if mode in encodings:
                result[key] = encodings[mode](value)
            elif key in statistics and mode in STATISTICS:
                low, high = pick_statistics(step, key, mode, statistics[key])
                result[key] = rescale(step, mode, value, low, high)
        return result

    return apply


def _openpi_normalize(step: Step, mode: str, value: Array, low: Array, high: Array) -> Array:
    # Statistics may be of vectors that were padded to the size of the model.
    low, high = low[..., : value.shape[-1]], high[..., : value.shape[-1]]
    if mode == "MEAN_STD":
        return (value - low) / (high + _OPENPI_EPS)
    return (value - low) / (high - low + _OPENPI_EPS) * 2.0 - 1.0


def _openpi_unnormalize(step: Step, mode: str, value: Array, low: Array, high: Array) -> Array:
    low, high = low[..., : value.shape[-1]], high[..., : value.shape[-1]]
    known, rest = value[..., : low.shape[-1]], value[..., low.shape[-1] :]
    if mode == "MEAN_STD":
        scaled = known * (high + _OPENPI_EPS) + low
    else:
        scaled = (known + 1.0) / 2.0 * (high - low + _OPENPI_EPS) + low
    return np.concatenate([scaled, rest], -1)


def _groot_normalize(step: Step, mode: str, value: Array, low: Array, high: Array) -> Array:
    """Normalize as GR00T N1.6 does; a feature that was constant in the data becomes zero."""
    if mode == "MEAN_STD":
        mask = high != 0
        normalized = np.zeros_like(value)
        normalized[..., mask] = (value[..., mask] - low[..., mask]) / high[..., mask]
        normalized[..., ~mask] = value[..., ~mask]
        return normalized
    normalized = _to_unit_range(value, low, high, ~np.isclose(high, low))
    return np.clip(normalized, -1.0, 1.0) if step.config.get("clip_outliers", True) else normalized


def _to_unit_range(value: Array, low: Array, high: Array, mask: Array) -> Array:
    """Scale the numbers of a mask to -1 … 1; the others become zero."""
    result = np.zeros_like(value)
    result[..., mask] = (value[..., mask] - low[..., mask]) / (high[..., mask] - low[..., mask])
    result[..., mask] = 2 * result[..., mask] - 1
    return result


def _groot_unnormalize(step: Step, mode: str, value: Array, low: Array, high: Array) -> Array:
    if mode == "MEAN_STD":
        return np.where(high != 0, value * high + low, value)
    return (np.clip(value, -1.0, 1.0) + 1.0) / 2.0 * (high - low) + low


def _groot_n15_normalize(step: Step, mode: str, value: Array, low: Array, high: Array) -> Array:
    """Normalize as GR00T N1.5 does, in the dtype of the value."""
    low, high = low.astype(value.dtype), high.astype(value.dtype)
    if mode == "MEAN_STD":
        mask = high != 0
        normalized = np.zeros_like(value)
        normalized[..., mask] = (value[..., mask] - low[..., mask]) / high[..., mask]
    else:
        mask = high != low
        normalized = _to_unit_range(value, low, high, mask)
    if mode != "MIN_MAX":
        normalized[..., ~mask] = value[..., ~mask]
    return np.clip(normalized, -1, 1) if mode == "QUANTILES" else normalized


def _groot_n15_unnormalize(step: Step, mode: str, value: Array, low: Array, high: Array) -> Array:
    low, high = low.astype(value.dtype), high.astype(value.dtype)
    return value * high + low if mode == "MEAN_STD" else (value + 1) / 2 * (high - low) + low


_SINES = {SIN_COS: lambda value: np.concatenate([np.sin(value), np.cos(value)], -1)}
_FLAGS = {BINARY: lambda value: (value > 0.5).astype(value.dtype)}

SCALINGS: Mapping[str, Callable[[Step, SampleEntries], SampleEntries]] = MappingProxyType(
    {
        "openpi_normalize": _over_features(_openpi_normalize),
        "openpi_unnormalize": _over_features(_openpi_unnormalize),
        "groot_normalize": _over_features(_groot_normalize, _SINES),
        "groot_unnormalize": _over_features(_groot_unnormalize),
        "groot_n15_normalize": _over_features(_groot_n15_normalize, _FLAGS),
        "groot_n15_unnormalize": _over_features(_groot_n15_unnormalize, _FLAGS),
    }
)
"""Normalizers of other libraries, by the names that their readers give them."""
WIDENING = ("openpi_normalize", "openpi_unnormalize", "groot_unnormalize")
"""Those that return the dtype of the statistics, which are float64."""
