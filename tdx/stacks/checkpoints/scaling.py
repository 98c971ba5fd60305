"""How openpi and GR00T normalize; LeRobot's own normalizers are in :mod:`steps`.

References:
    ``Normalize`` and ``Unnormalize`` in https://github.com/Physical-Intelligence/openpi, and
    ``StateActionTransform`` (N1.5) and ``StateActionProcessor`` (N1.6) in
    https://github.com/NVIDIA/Isaac-GR00T.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
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


def _scaled(step: Step, sample: SampleEntries) -> Iterator[tuple[str, str, Array, Array, Array]]:
    """Yield what a step scales: key, mode, value, and the two statistics of the mode."""
    statistics = step.statistics
    for key, feature in step.features.items():
        mode, value = step.mode_of(key, feature), sample.get(key)
        if key not in statistics or mode not in STATISTICS or not isinstance(value, np.ndarray):
            continue
        missing = [name for name in STATISTICS[mode] if name not in statistics[key]]
        if missing:
            raise ArgumentError(
                f"{step.name} needs {missing[0]!r} of {key!r} for {mode}",
                hint="compute the statistics of the dataset again",
            )
        low, high = (statistics[key][name] for name in STATISTICS[mode])
        yield key, mode, value, low, high


def _openpi_normalize(step: Step, sample: SampleEntries) -> SampleEntries:
    result = dict(sample)
    for key, mode, value, low, high in _scaled(step, sample):
        # Statistics may be of vectors that were padded to the size of the model.
        low, high = low[..., : value.shape[-1]], high[..., : value.shape[-1]]
        if mode == "MEAN_STD":
            result[key] = (value - low) / (high + _OPENPI_EPS)
        else:
            result[key] = (value - low) / (high - low + _OPENPI_EPS) * 2.0 - 1.0
    return result


def _openpi_unnormalize(step: Step, sample: SampleEntries) -> SampleEntries:
    result = dict(sample)
    for key, mode, value, low, high in _scaled(step, sample):
        low, high = low[..., : value.shape[-1]], high[..., : value.shape[-1]]
        known, rest = value[..., : low.shape[-1]], value[..., low.shape[-1] :]
        if mode == "MEAN_STD":
            scaled = known * (high + _OPENPI_EPS) + low
        else:
            scaled = (known + 1.0) / 2.0 * (high - low + _OPENPI_EPS) + low
        result[key] = np.concatenate([scaled, rest], -1)
    return result


def _groot_normalize(step: Step, sample: SampleEntries) -> SampleEntries:
    """Normalize as GR00T N1.6 does; a feature that was constant in the data becomes zero."""
    result = dict(sample)
    for key, feature in step.features.items():
        value = sample.get(key)
        if step.mode_of(key, feature) == SIN_COS and isinstance(value, np.ndarray):
            result[key] = np.concatenate([np.sin(value), np.cos(value)], -1)
    for key, mode, value, low, high in _scaled(step, sample):
        normalized = np.zeros_like(value)
        if mode == "MEAN_STD":
            mask = high != 0
            normalized[..., mask] = (value[..., mask] - low[..., mask]) / high[..., mask]
            normalized[..., ~mask] = value[..., ~mask]
        else:
            mask = ~np.isclose(high, low)
            normalized[..., mask] = (value[..., mask] - low[..., mask]) / (
                high[..., mask] - low[..., mask]
            )
            normalized[..., mask] = 2 * normalized[..., mask] - 1
            if step.config.get("clip_outliers", True):
                normalized = np.clip(normalized, -1.0, 1.0)
        result[key] = normalized
    return result


def _groot_unnormalize(step: Step, sample: SampleEntries) -> SampleEntries:
    result = dict(sample)
    for key, mode, value, low, high in _scaled(step, sample):
        if mode == "MEAN_STD":
            result[key] = np.where(high != 0, value * high + low, value)
        else:
            result[key] = (np.clip(value, -1.0, 1.0) + 1.0) / 2.0 * (high - low) + low
    return result


def _groot_n15_normalize(step: Step, sample: SampleEntries) -> SampleEntries:
    """Normalize as GR00T N1.5 does, in the dtype of the value."""
    result = _binarize(step, sample)
    for key, mode, value, low, high in _scaled(step, sample):
        low, high = low.astype(value.dtype), high.astype(value.dtype)
        normalized = np.zeros_like(value)
        if mode == "MEAN_STD":
            mask = high != 0
            normalized[..., mask] = (value[..., mask] - low[..., mask]) / high[..., mask]
        else:
            mask = high != low
            normalized[..., mask] = (value[..., mask] - low[..., mask]) / (
                high[..., mask] - low[..., mask]
            )
            normalized[..., mask] = 2 * normalized[..., mask] - 1
        if mode != "MIN_MAX":
            normalized[..., ~mask] = value[..., ~mask]
        result[key] = np.clip(normalized, -1, 1) if mode == "QUANTILES" else normalized
    return result


def _binarize(step: Step, sample: SampleEntries) -> dict[str, object]:
    result = dict(sample)
    for key, feature in step.features.items():
        value = sample.get(key)
        if step.mode_of(key, feature) == BINARY and isinstance(value, np.ndarray):
            result[key] = (value > 0.5).astype(value.dtype)
    return result


def _groot_n15_unnormalize(step: Step, sample: SampleEntries) -> SampleEntries:
    result = _binarize(step, sample)
    for key, mode, value, low, high in _scaled(step, sample):
        low, high = low.astype(value.dtype), high.astype(value.dtype)
        is_std = mode == "MEAN_STD"
        result[key] = value * high + low if is_std else (value + 1) / 2 * (high - low) + low
    return result


SCALINGS: Mapping[str, Callable[[Step, SampleEntries], SampleEntries]] = MappingProxyType(
    {
        "openpi_normalize": _openpi_normalize,
        "openpi_unnormalize": _openpi_unnormalize,
        "groot_normalize": _groot_normalize,
        "groot_unnormalize": _groot_unnormalize,
        "groot_n15_normalize": _groot_n15_normalize,
        "groot_n15_unnormalize": _groot_n15_unnormalize,
    }
)
"""Normalizers of other libraries, by the names that their readers give them."""
WIDENING = ("openpi_normalize", "openpi_unnormalize", "groot_unnormalize")
"""Those that return the dtype of the statistics, which are float64."""
