"""What a rule of the linter declares; loads no torch."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tdx.inspection.lint.fix import Fix
from tdx.keys import NestedKey

if TYPE_CHECKING:
    from tdx.inspection.lint.context import LintContext
    from tdx.pipeline import Pipeline

Severity = Literal["error", "warning", "advice"]
EXAMPLE_MODULE = "my_code"
"""The name of the module that the Python of an example stands in."""


@dataclass(frozen=True, slots=True)
class Found:
    """One place where a rule is broken.

    Args:
        message: what is wrong there, on one line.
        hint: what to do about it.
        stage: index of the stage; none where it is the env or the policy.
        key: the entry that it is about.
        fix: the edit that mends it, where there is just one that does.
        lie: the broken promise that it stands for, where one was seen in a step.
    """

    message: str
    hint: str
    stage: int | None = None
    key: NestedKey | None = None
    fix: Fix | None = None
    lie: str | None = None


Finder = Callable[["LintContext"], Iterable[Found]]


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule for chains.

    Args:
        code: its stable code.
        title: what is wrong, in a few words.
        severity: an ``error`` cannot work, a ``warning`` is a likely mistake, and an ``advice``
            makes something better that works.
        why: why that is so, in prose.
        wrong: the options of a pipeline that breaks it.
        right: those of the same pipeline, mended.
        find: yields every place where a pipeline breaks it.
        python: the module ``my_code`` that the examples name, where they need one.
        replaces: whether it says better what the check of specs or steps finds at its stage.
        follows_lies: whether it looks at what was seen in steps.
    """

    code: str
    title: str
    severity: Severity
    why: str
    wrong: str
    right: str
    find: Finder
    python: str | None = None
    replaces: bool = False
    follows_lies: bool = False

    @property
    def slug(self) -> str:
        """Its name for people, made of the name of its function."""
        return getattr(self.find, "__name__", self.code).replace("_", "-")

    @property
    def paragraphs(self) -> list[str]:
        """The prose, one line for each paragraph."""
        return [" ".join(part.split()) for part in self.why.strip().split("\n\n")]

    def example(self, which: Literal["wrong", "right"]) -> Pipeline:
        """The pipeline of one of the two examples."""
        from tdx.pipeline import from_flags

        return from_flags(shlex.split(self.wrong if which == "wrong" else self.right))


def rule(
    code: str,
    title: str,
    severity: Severity,
    *,
    why: str,
    wrong: str,
    right: str,
    python: str | None = None,
    replaces: bool = False,
    follows_lies: bool = False,
) -> Callable[[Finder], Rule]:
    """Make a rule of the function that finds where it is broken; the arguments are its fields."""

    def declare(find: Finder) -> Rule:
        return Rule(code, title, severity, why, wrong, right, find, python, replaces, follows_lies)

    return declare
