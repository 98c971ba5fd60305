"""What the shell offers after TAB; loads neither torch nor, once the ids are known, Gymnasium."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tdx.pipeline.docstrings import strip_markup

if TYPE_CHECKING:
    from tdx.pipeline.catalog import Type

Offer = tuple[str, str]
"""What is put in the place of the word, and what it is."""

_CLOSING = {"(": ")", "[": "]", "{": "}"}


def complete_env(incomplete: str) -> list[Offer]:
    """Env ids; where none begins with the word, those that contain it."""
    from tdx.inspection.env_list import list_envs

    return _matching(incomplete, [(env.id, env.package) for env in list_envs()])


def complete_name(incomplete: str) -> list[Offer]:
    """Names of transforms; where none begins with the word, those that contain it."""
    from tdx.pipeline.catalog import load_catalog

    return _matching(
        incomplete, [(info.name, strip_markup(info.summary)) for info in load_catalog().transforms]
    )


def complete_export(incomplete: str) -> list[Offer]:
    """Formats that dumps are exported to."""
    from tdx.rollouts.formats.registry import export_formats

    return _matching(incomplete, [(each.name, each.title) for each in export_formats()])


def complete_import(incomplete: str) -> list[Offer]:
    """Formats that dumps are made of."""
    from tdx.rollouts.formats.registry import export_formats

    formats = [each for each in export_formats() if each.can_import]
    return _matching(incomplete, [(each.name, each.title) for each in formats])


def complete_codes(incomplete: str) -> list[Offer]:
    """Codes of errors and rules; where none begins with the word, those that contain it."""
    from tdx.inspection.explanations import explanations

    return _matching(incomplete, [(each.code, each.title) for each in explanations()])


def complete_rules(incomplete: str) -> list[Offer]:
    """Codes of rules behind the last comma of a list of them."""
    from tdx.inspection.lint.registry import all_rules

    done, comma, word = incomplete.rpartition(",")
    offers = _matching(word, [(rule.code, rule.title) for rule in all_rules()])
    return [(f"{done}{comma}{code}", title) for code, title in offers]


def complete_transform(incomplete: str) -> list[Offer]:
    """A stage of the chain: names of transforms, then names and values of their arguments.

    Example:
        >>> complete_transform("StepCounter(ma")[0][0]
        'StepCounter(max_steps='
    """
    from tdx.pipeline.catalog import load_catalog

    name, bracket, inside = incomplete.partition("(")
    info = load_catalog().find(name.strip())
    if not bracket or info is None:
        return [] if bracket else complete_name(incomplete)
    arguments = split_arguments(inside)
    if arguments is None:
        return []
    *done, current = arguments
    word = current.lstrip()
    before = incomplete[: len(incomplete) - len(word)]
    argument, equals, value = word.partition("=")
    if equals:
        parameter = info.parameter(argument.strip())
        values = _values(parameter.type) if parameter else ()
        return [(f"{before}{argument}={one}", "") for one in values if one.startswith(value)]
    named = {one.partition("=")[0].strip() for one in done if "=" in one}
    unnamed = sum("=" not in one for one in done)
    found = [
        parameter
        for parameter in info.parameters[unnamed:]
        if parameter.name.startswith(word) and parameter.name not in named
        if parameter.kind in ("positional", "keyword")
    ]
    offers = [(f"{before}{one.name}=", strip_markup(one.help)) for one in found]
    if len(found) == 1 and found[0].default is not None:
        # A shell closes the quotes after the only offer; a second one keeps them open.
        offers.append((f"{before}{found[0].name}={found[0].default}", "the default"))
    return offers


def split_arguments(inside: str) -> list[str] | None:
    """The arguments after an opening bracket, the last one unfinished.

    Returns:
        None where the bracket has been closed, or the text stops inside a value.

    Example:
        >>> split_arguments("4, in_keys=['a', 'b'], pad")
        ['4', " in_keys=['a', 'b']", ' pad']
        >>> split_arguments("4)") is None
        True
    """
    arguments, awaited, quote = [""], [")"], ""
    for sign in inside:
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "\"'":
            quote = sign
        elif sign in _CLOSING:
            awaited.append(_CLOSING[sign])
        elif sign == awaited[-1]:
            awaited.pop()
            if not awaited:
                return None
        elif sign == "," and len(awaited) == 1:
            arguments.append("")
            continue
        arguments[-1] += sign
    in_value = len(awaited) > 1 or (quote and "=" not in arguments[-1])
    return None if in_value else arguments


def _values(kind: Type) -> Iterator[str]:
    """The values of an argument that can be listed."""
    from tdx.pipeline.grammar import format_value

    for option in kind.options:
        if option.name == "literal":
            yield from (format_value(value) for value in option.values)
        elif option.name == "bool":
            yield from ("True", "False")
        elif option.name == "none":
            yield "None"


def _matching(incomplete: str, offers: list[Offer]) -> list[Offer]:
    folded = incomplete.casefold()
    found = [offer for offer in offers if offer[0].casefold().startswith(folded)]
    return found or [offer for offer in offers if folded in offer[0].casefold()]
