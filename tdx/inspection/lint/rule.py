"""Declare lint rules and fixes; loads no torch."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from tdx.foundation.keys import NestedKey
from tdx.foundation.serialization import Entries, Entry, Result
from tdx.pipeline.arguments import name_arguments
from tdx.pipeline.draft import Draft
from tdx.pipeline.grammar import format_stage
from tdx.pipeline.model import Pipeline
from tdx.pipeline.values import StageConfig

if TYPE_CHECKING:
    from tdx.inspection.lint.context import DeviceContext, LintContext
    from tdx.inspection.lint.stack_context import Fact, StackContext
    from tdx.pipeline.values import Value

Severity = Literal["error", "warning", "suggestion"]
Subject = Literal["pipeline", "stack", "device"]
EXAMPLE_MODULE = "my_code"
"""Module name of the Python code of an example."""


@dataclass(frozen=True, slots=True)
class Edit(Result):
    """One edit of a fix.

    Args:
        kind: Operation.
        index: Index of the stage; ``insert`` inserts before it.
        to: New index of a stage that is moved.
        stage: Stage that is inserted or replaces another.
    """

    json_entries: ClassVar[Entries] = (
        *("kind", "index", "to"),
        Entry("stage", convert=format_stage),
    )

    kind: Literal["insert", "remove", "move", "replace"]
    index: int
    to: int | None = None
    stage: StageConfig | None = None

    def apply(self, draft: Draft, excluded: Collection[int] = ()) -> Draft:
        """Return a draft after the edit; see :meth:`Fix.apply`."""
        place = draft.place_of(self.index, excluded, or_end=self.kind == "insert")
        if self.kind == "remove":
            return draft.remove(place)
        if self.kind == "move":
            assert self.to is not None
            return draft.move(place, draft.place_of(self.to, excluded))
        assert self.stage is not None
        if self.kind == "insert":
            return draft.insert(place, [self.stage])
        return draft.replace(place, self.stage)


@dataclass(frozen=True, slots=True)
class Fix(Result):
    """Edits that together resolve a finding.

    Args:
        title: What they do, such as ``"move RewardClipping after RewardScaling"``.
        edits: Edits in order; each refers to the chain after the previous ones.
        safe: True if the fix cannot change the values that a working chain returns.
    """

    title: str
    edits: tuple[Edit, ...]
    safe: bool = False

    def apply(self, draft: Draft, excluded: Collection[int] = ()) -> Draft:
        """Return a draft after the edits.

        Args:
            draft: A draft; its disabled stages keep their positions.
            excluded: Numbers of stages that the chain of the finding did not have, since they fail.
        """
        for edit in self.edits:
            draft = edit.apply(draft, excluded)
        return draft

    def applied_to(self, pipeline: Pipeline) -> Pipeline:
        """Return the pipeline with the edits applied."""
        stages = self.apply(Draft.of(pipeline)).stages
        return pipeline.with_stages(*(stage.config for stage in stages if stage.enabled))


def remove_stage(index: int, stage: StageConfig, *, safe: bool = False) -> Fix:
    """Return a fix that removes a stage."""
    return Fix(f"remove {stage.name}", (Edit("remove", index),), safe)


def move_stage(index: int, to: int, stage: StageConfig, other: StageConfig) -> Fix:
    """Return a fix that moves a stage to index ``to``, before or after another one."""
    side = "after" if to > index else "before"
    return Fix(f"move {stage.name} {side} {other.name}", (Edit("move", index, to),))


def insert_stage(index: int, stage: StageConfig) -> Fix:
    """Return a fix that inserts a stage before the one at ``index``."""
    return Fix(f"insert {stage.name}", (Edit("insert", index, stage=stage),))


def change_arguments(index: int, stage: StageConfig, **arguments: Value) -> Fix:
    """Return a fix that changes arguments of a stage; ``None`` removes an argument."""
    full = name_arguments(stage)
    merged = {**full.kwargs, **arguments}
    kwargs = {name: value for name, value in merged.items() if value is not None}
    names = " and ".join(arguments)
    edit = Edit("replace", index, stage=replace(full, kwargs=kwargs))
    return Fix(f"change {names} of {stage.name}", (edit,))


@dataclass(frozen=True, slots=True)
class Violation:
    """One place where a pipeline violates a rule.

    Args:
        message: What is wrong, on one line.
        hint: How to fix it.
        stage: Index of the stage; ``None`` for the env or the policy.
        key: Key that is affected.
        fix: Edit that resolves it, if there is exactly one.
        spec_violation: Kind of the spec violation that it stands for, if one was found in a step.
        related: Index of the other stage, for a violation by two stages.
        location: ``file:line`` of the code that violates it, if the rule knows it.
    """

    message: str
    hint: str
    stage: int | None = None
    key: NestedKey | None = None
    fix: Fix | None = None
    spec_violation: str | None = None
    related: int | None = None
    location: str | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """A lint rule.

    Args:
        code: Stable code.
        title: What is wrong, in a few words.
        severity: ``error`` (cannot work), ``warning`` (a likely mistake) or ``suggestion`` (an
            improvement).
        why: Rationale, as paragraphs of prose.
        wrong: Arguments of ``tdx check`` for a pipeline that violates the rule.
        right: Arguments for the same pipeline after the fix.
        find: Yields every violation in a pipeline.
        python: Source of the module ``my_code`` that the examples import.
        replaces: True if its finding replaces errors of specs or steps at the same stage.
        uses_spec_violations: True if it reports spec violations that were found in steps.
        subject: ``pipeline`` for what a chain of tdx declares, ``stack`` for what the stages of any
            library do in steps, ``device`` for what a chain of tdx does to an accelerator.
        same_as: Rules for pipelines that report the same fault; their findings are kept.
        facts: What a rule for stacks reads of the steps of each stage.
    """

    code: str
    title: str
    severity: Severity
    why: str
    wrong: str
    right: str
    find: RuleFunction | StackRuleFunction | DeviceRuleFunction
    python: str | None = None
    replaces: bool = False
    uses_spec_violations: bool = False
    subject: Subject = "pipeline"
    same_as: tuple[str, ...] = ()
    facts: tuple[type[Fact], ...] = ()

    @property
    def slug(self) -> str:
        """Readable name, derived from the name of the function."""
        return getattr(self.find, "__name__", self.code).replace("_", "-")

    def example(self, which: Literal["wrong", "right"]) -> Pipeline:
        """Return the pipeline of an example."""
        from tdx.pipeline import from_flags

        words = shlex.split(self.wrong if which == "wrong" else self.right)
        words = [word for word in words if word != "--accelerator"]
        return from_flags(["--env", *words])


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
    uses_spec_violations: bool = False,
    subject: Literal["pipeline", "device"] = "pipeline",
) -> Callable[[RuleFunction | DeviceRuleFunction], Rule]:
    """Declare a function as a rule; the arguments are the fields of :class:`Rule`.

    The examples of a rule for devices are without ``--accelerator``.
    """
    option = " --accelerator" if subject == "device" else ""

    def declare(find: RuleFunction | DeviceRuleFunction) -> Rule:
        return Rule(
            *(code, title, severity, why, f"{wrong}{option}", f"{right}{option}", find, python),
            *(replaces, uses_spec_violations, subject),
        )

    return declare


def stack_rule(
    code: str,
    title: str,
    severity: Severity,
    *,
    why: str,
    python: str,
    options: str = "",
    same_as: tuple[str, ...] = (),
    facts: tuple[type[Fact], ...] = (),
) -> Callable[[StackRuleFunction], Rule]:
    """Declare a function as a rule for the steps of a stack of any library.

    ``python`` is a module with the factories ``wrong`` and ``right``, ``options`` are further
    options of both examples, and ``facts`` those that it reads with :meth:`StackContext.fact`,
    apart from those that the context has itself.
    """

    def declare(find: StackRuleFunction) -> Rule:
        wrong, right = (
            f"{EXAMPLE_MODULE}:{which} {options}".strip() for which in ("wrong", "right")
        )
        source = python.lstrip("\n")
        return Rule(
            *(code, title, severity, why, wrong, right, find, source),
            subject="stack",
            same_as=same_as,
            facts=facts,
        )

    return declare


def is_selected(code: str, select: Sequence[str], ignore: Sequence[str]) -> bool:
    """Return True if a code has a prefix in ``select``, which may be empty, not in ``ignore``."""
    return (not select or code.startswith(tuple(select))) and not code.startswith(tuple(ignore))


StackRuleFunction = Callable[["StackContext"], Iterable[Violation]]
DeviceRuleFunction = Callable[["DeviceContext"], Iterable[Violation]]
RuleFunction = Callable[["LintContext"], Iterable[Violation]]
