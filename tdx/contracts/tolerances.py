"""Tolerances of keys, which a contract or a check has beside those of its stages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tdx.compare.model import Contract, display_key
from tdx.compare.values import TOLERANCE_FIELDS
from tdx.foundation.errors import ArgumentError, did_you_mean

Tolerances = Mapping[str, Mapping[str, float]]
"""Fields of :class:`~tdx.compare.values.Tolerance` by key."""


def with_tolerances(contract: Contract, tolerances: Tolerances | None) -> Contract:
    """Return a contract with tolerances of keys, field by field in place of those that it has.

    Raises:
        ArgumentError: The contract has no such key, or a field is unknown or out of its range.

    Example:
        >>> import gymnasium, tdx
        >>> contract = tdx.freeze(gymnasium.make("Pendulum-v1"))
        >>> with_tolerances(contract, {"observation": {"rows": 0.01}}).tolerances
        {'observation': {'rows': 0.01}}
    """
    if not tolerances:
        return contract
    names = dict.fromkeys(key for _, _, key in contract.values)
    names |= dict.fromkeys(spec.key for stage in contract.stages for spec in stage.specs)
    shown = {display_key(name): name for name in names}
    merged = {key: dict(fields) for key, fields in contract.tolerances.items()}
    for key, given in tolerances.items():
        name = shown.get(key, key)
        if name not in names:
            hint = did_you_mean(key, shown, otherwise=f"the keys are {', '.join(sorted(shown))}")
            raise ArgumentError(f"the contract has no key {key!r}", hint=hint)
        fields = {**merged.get(name, {}), **given}
        _check_fields(key, fields)
        merged[name] = {field: float(value) for field, value in fields.items()}
    return replace(contract, tolerances=merged)


def _check_fields(key: str, fields: Mapping[str, float]) -> None:
    for name, value in fields.items():
        if name not in TOLERANCE_FIELDS:
            listed = ", ".join(TOLERANCE_FIELDS)
            hint = did_you_mean(name, TOLERANCE_FIELDS, otherwise=f"there are {listed}")
            raise ArgumentError(f"unknown tolerance {name!r} of {key!r}", hint=hint)
        is_share = name in ("rows", "quantile")
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 <= float(value) <= (1 if is_share else 1e300):
            limits = "a share from 0 to 1" if is_share else "a number from 0 to 1e300"
            raise ArgumentError(f"the tolerance {name} of {key!r} must be {limits}, got {value!r}")
    if ("quantile" in fields) != ("limit" in fields):
        raise ArgumentError(
            f"the tolerance of {key!r} needs both quantile and limit",
            hint="quantile=0.99,limit=0.1: 99% of the differences are at most 0.1",
        )


def parse_tolerances(options: list[str] | None) -> dict[str, dict[str, float]]:
    """Parse ``KEY:FIELD=NUMBER,FIELD=NUMBER``, as given on a command line.

    Raises:
        ArgumentError: An option has another form.

    Example:
        >>> parse_tolerances(["observation:rows=0.01,atol=0.1"])
        {'observation': {'rows': 0.01, 'atol': 0.1}}
    """
    tolerances: dict[str, dict[str, float]] = {}
    for option in options or ():
        key, _, text = option.rpartition(":")
        try:
            pairs = [part.partition("=") for part in text.split(",")]
            fields = {name.strip(): float(number) for name, _, number in pairs}
            is_repeated = len(fields) < len(pairs)
        except ValueError:
            fields, is_repeated = {}, False
        if is_repeated:
            raise ArgumentError(f"--tolerance {option!r} names a field twice")
        if not key or not fields:
            raise ArgumentError(
                f"--tolerance {option!r} has another form than KEY:FIELD=NUMBER",
                hint=f"'observation:rows=0.01'; the fields are {', '.join(TOLERANCE_FIELDS)}",
            )
        tolerances.setdefault(key, {}).update(fields)
    return tolerances
