"""Which rules run: those selected, without those ignored."""

from __future__ import annotations

from collections.abc import Sequence

from tdx.errors import UnknownNameError, did_you_mean
from tdx.inspection.lint.registry import all_rules
from tdx.inspection.lint.rule import Rule


def chosen_rules(select: Sequence[str] = (), ignore: Sequence[str] = ()) -> tuple[Rule, ...]:
    """The rules that run.

    Args:
        select: codes, or beginnings of codes, of the only ones that run; none for all.
        ignore: codes, or beginnings of codes, of those that do not run.

    Raises:
        UnknownNameError: no rule has such a code.

    Example:
        >>> [rule.code for rule in chosen_rules(["TDX42"], ignore=["TDX422", "TDX423"])]
        ['TDX421', 'TDX424', 'TDX425']
    """
    wanted, unwanted = _folded(select), _folded(ignore)
    return tuple(
        rule
        for rule in all_rules()
        if (not wanted or rule.code.startswith(wanted)) and not rule.code.startswith(unwanted)
    )


def _folded(codes: Sequence[str]) -> tuple[str, ...]:
    folded = tuple(code.strip().upper() for code in codes)
    known = [rule.code for rule in all_rules()]
    for code in folded:
        if not code or not any(each.startswith(code) for each in known):
            hint = did_you_mean(code, known, "tdx explain has them all")
            raise UnknownNameError(f"no rule has the code {code!r}", hint=hint)
    return folded
