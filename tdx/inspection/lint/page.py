"""The page of the documentation with every rule and error, made of their declarations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tdx.inspection.explanations import Explanation, explanations

_INTRODUCTION = """\
# What `tdx check` looks for

`tdx check` holds a pipeline against its declared arguments, its specs, what a few steps return,
and the rules below. An **error** cannot work, a **warning** is a likely mistake, and an **advice**
makes something better that works. Errors and warnings end with exit code 1; advice does so with
`--strict`. A device that this machine does not have is an error too; where it is the only one, the
exit code is 3. All else is then looked at on the CPU.

| option | what it does |
| --- | --- |
| `--select CODES`, `--ignore CODES` | which rules run; `TDX42` stands for all that begin so |
| `--strict` | advice counts like a warning |
| `--diff` | shows the mended file as a diff, or the mended options of `--env` and `--t` |
| `--fix` | writes the mended file; comments stay, and a file changed meanwhile is left alone |
| `--format sarif` | findings for code hosts and editors, as SARIF 2.1.0 |

`tdx explain CODE` shows one entry of this page in the terminal. `--fix` mends only where there is
just one edit that does it, and advice only with `--strict`.
"""
_ADDING = """\
## Adding a rule

A rule is a function over a `LintContext`, with a code, a title, a severity, prose and two
examples, in any module of `tdx/inspection/lint/rules/`. It is found there; nothing else is edited.
The tests run its examples: the wrong one breaks the rule, the right one does not.

This page is made of the rules: `TDX_UPDATE_GOLDEN=1 python -m pytest tests/inspection/lint`.
"""


def checks_page() -> str:
    """The page as Markdown."""
    told = explanations()
    rules = [each for each in told if each.kind == "rule"]
    errors = [each for each in told if each.kind == "error"]
    parts = [
        _INTRODUCTION,
        "## Rules\n",
        _table(rules),
        *(part for rule in rules for part in _entry(rule)),
        "## Errors\n\nWhat tdx ends with where it cannot go on.\n",
        _table(errors),
        *(part for error in errors for part in _entry(error)),
        _ADDING,
    ]
    return "\n".join(parts)


def _table(told: Sequence[Explanation]) -> str:
    head = ["| code | severity | what is wrong |", "| --- | --- | --- |"]
    rows = [
        f"| [{each.code}](#{_anchor(each)}) | {each.severity} | {each.title} |" for each in told
    ]
    return "\n".join([*head, *rows]) + "\n"


def _heading(each: Explanation) -> str:
    return f"{each.code} {each.name if each.kind == 'error' else each.title}"


def _anchor(each: Explanation) -> str:
    kept = "".join(sign for sign in _heading(each).lower() if sign.isalnum() or sign in " -")
    return kept.replace(" ", "-")


def _entry(each: Explanation) -> Iterator[str]:
    yield f"### {_heading(each)}\n"
    if each.kind == "error":
        yield f"Exit code {each.exit_code}: {each.title}.\n"
    yield from (f"{paragraph}\n" for paragraph in each.paragraphs)
    if each.python is not None:
        yield f"```python\n# my_code.py\n{each.python}\n```\n"
    for title, command in (("Wrong:", each.wrong), ("Right:", each.right)):
        if command is not None:
            yield f"{title}\n\n```sh\n{command}\n```\n"
