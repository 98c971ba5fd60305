"""Every rule there is, found in the modules of ``rules/``; loads no torch."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from tdx.inspection.lint import rules
from tdx.inspection.lint.rule import Rule


@cache
def all_rules() -> tuple[Rule, ...]:
    """The rules in the order of their codes.

    Example:
        >>> [rule.code for rule in all_rules()][:2]
        ['TDX411', 'TDX412']
    """
    found: list[Rule] = []
    for module in iter_modules(rules.__path__, f"{rules.__name__}."):
        members = vars(import_module(module.name)).values()
        found += [member for member in members if isinstance(member, Rule)]
    return tuple(sorted(found, key=lambda each: each.code))
