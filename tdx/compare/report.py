"""Result of a comparison with a contract."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

from tdx.compare.codes import CODES, DifferenceKind
from tdx.compare.edits import Explanation
from tdx.foundation.errors import ExitCode
from tdx.foundation.serialization import Entries, Result

if TYPE_CHECKING:
    from tdx.compare.model import Lane, StageRecord
    from tdx.compare.values import Tolerance, Values


_KINDS_OF_EDITS: Mapping[str, DifferenceKind] = {
    "permutation": "feature order",
    "channel order": "feature order",
    "axis order": "feature order",
    "flip": "feature order",
    "range": "scale",
    "scale": "scale",
    "feature scale": "scale",
}


def kind_of_edits(explanation: Explanation) -> DifferenceKind | None:
    """Return the kind of a difference of values, as its edits show it; ``None``: they do not."""
    edits = explanation.edits[0], *explanation.alternatives
    kinds = (_KINDS_OF_EDITS.get(edit.kind) for edit in edits)
    return next((kind for kind in kinds if kind is not None), None)


RECEIVED = "the stage received"
"""Name of a detail that belongs to the one before it."""


@dataclass(frozen=True, slots=True)
class ExampleRow(Result):
    """The number of a row that differs most: of one step of one sub-env.

    Args:
        episode: Episode, from 0.
        step: Step of the episode, from 0. ``None``: the reset before it.
        env: Sub-env, from 0. ``None``: there is only one.
        element: Index of the number in the value of the row; empty for a scalar.
        expected: Number of the contract, or of the first target.
        obtained: Number of the target.
    """

    episode: int
    step: int | None
    env: int | None
    element: tuple[int, ...]
    expected: float
    obtained: float

    @property
    def place(self) -> tuple[str, ...]:
        """Step, sub-env and element in words, without what there is one of."""
        step = "the reset" if self.step is None else f"step {self.step}"
        places = [step if self.episode == 0 else f"{step} of episode {self.episode}"]
        if self.env is not None:
            places.append(f"env {self.env}")
        if len(self.element) == 1:
            places.append(f"feature {self.element[0]}")
        elif self.element:
            places.append(f"element {list(self.element)}")
        return tuple(places)

    @property
    def numbers(self) -> str:
        """Both numbers in words, with as many digits as tell them apart."""
        sides = f"{self.expected:.6g}", f"{self.obtained:.6g}"
        if sides[0] == sides[1]:
            sides = f"{self.expected:.17g}", f"{self.obtained:.17g}"
        return f"expected {sides[0]}, obtained {sides[1]}"

    def __str__(self) -> str:
        """Return the row on one line."""
        return f"{', '.join(self.place)}: {self.numbers}"


@dataclass(frozen=True, slots=True)
class SmallestCase(ExampleRow):
    """One number that shows a difference: the first that differs, with its cause.

    Args:
        key: Key of the number.
        received: What the stage received in this step, as text by key.
    """

    json_entries: ClassVar[Entries] = (
        *("key", "episode", "step", "env", "element", "expected", "obtained", "received", "text"),
    )

    key: str = field(kw_only=True)
    received: Mapping[str, str] = field(kw_only=True)

    @property
    def text(self) -> str:
        """The case on one line, such as ``step 3, feature 1 of x: expected 0.5, obtained 2``."""
        places = [*self.place]
        if self.element:
            places[-1] = f"{places[-1]} of {self.key}"
        else:
            places.append(self.key)
        return f"{', '.join(places)}: {self.numbers}"

    @property
    def inputs(self) -> str:
        """What the stage received, on one line; empty if it is not known."""
        return ", ".join(f"{key} {value}" for key, value in self.received.items())


@dataclass(frozen=True, slots=True)
class StateChange(Result):
    """First reset or step after which the state of a stage differs, in the reference inputs.

    Args:
        name: Name of the state, such as ``obs_rms.count``; of a random stage the generator.
        step: The step, from 0. ``None``: the reset before the first one.
        is_reset: True if it is the reset after the step.
        is_random: True if the sides have drawn different random numbers.
        reference: The number of the contract. ``None``: it is not a single number.
        target: That of the target.
    """

    json_entries: ClassVar[Entries] = (
        *("name", "is_random", "step", "is_reset", "reference", "target"),
    )

    name: str
    step: int | None
    is_reset: bool = False
    is_random: bool = False
    reference: float | None = None
    target: float | None = None

    @property
    def text(self) -> str:
        """The name, the step, and both numbers on one line."""
        since = "the first reset" if self.step is None else f"step {self.step}"
        if self.is_reset and self.step is not None:
            since = f"the reset after {since}"
        what = f"the random stream of {self.name}" if self.is_random else f"its state {self.name}"
        text = f"{what} differs from {since} on"
        if self.reference is None or self.target is None:
            return text
        return f"{text}: {self.target:.9g} instead of {self.reference:.9g}"


@dataclass(frozen=True, slots=True)
class Difference(Result):
    """One difference between a reference, such as a contract, and a target.

    Args:
        kind: What differs.
        stage: Index of the stage in the target; ``None`` if the target does not have it. -1 is the
            env inside.
        reference_stage: Index of the stage in the contract; ``None`` if it does not have it.
        name: Class name of the stage.
        key: Key that differs first; ``None`` if no value differs.
        message: The difference in words.
        size: Largest absolute difference of the values of the key; ``None`` if it is not known.
        hint: How to correct it.
        special_code: Code of a special case of the kind. ``None``: there is none.
        step: First step that differs, from 0. ``None``: the reset before it, or unknown.
        explanation: In what way the values of the key differ. ``None``: no edit predicts them, or
            none are compared.
        examples: The rows whose values of the key differ most, the worst first.
        smallest: One number that shows it. ``None``: no number differs, or it follows from another
            difference.
        state: When the state of the stage, or its random stream, differs first. ``None``: it
            agrees, is not recorded, or follows from other stages.
        noun: What the reference is called: a contract, or another target.
    """

    json_entries: ClassVar[Entries] = (
        *("code", "kind", "stage", "reference_stage", "name", "key", "message", "size", "hint"),
        *("explanation", "state", "smallest", "examples"),
    )

    kind: DifferenceKind
    stage: int | None
    reference_stage: int | None
    name: str
    key: str | None
    message: str
    size: float | None = None
    hint: str | None = None
    special_code: str | None = None
    step: int | None = None
    explanation: Explanation | None = None
    examples: tuple[ExampleRow, ...] = ()
    smallest: SmallestCase | None = None
    state: StateChange | None = None
    noun: str = "contract"

    @property
    def code(self) -> str:
        """Stable code of the kind, or of its special case."""
        return self.special_code or CODES[self.kind]

    @property
    def place(self) -> str:
        """Display name of the stage."""
        if self.kind == "setting":
            return "the policy"
        if self.stage is None:
            return f"stage {self.reference_stage} ({self.name}) of the {self.noun}"
        return f"the env ({self.name})" if self.stage < 0 else f"stage {self.stage} ({self.name})"

    @property
    def sentence(self) -> str:
        """Stage, key and difference on one line."""
        key = "" if self.key is None else f", key {self.key!r}"
        return f"{self.place}{key}: {self.message}"

    @property
    def title(self) -> str:
        """Code and kind, such as ``TDX501 extra stage``."""
        is_extra = self.kind == "missing stage" and self.stage is not None
        return f"{self.code} {'extra stage' if is_extra else self.kind}"

    def details(self) -> Iterator[tuple[str, str]]:
        """Yield what is known beside the sentence, each with its name: from the size to the hint.

        The command line, the app and the assertions of :mod:`tdx.testing` show these lines.
        """
        if self.size is not None and "differs by up to" not in self.message:
            yield "size", f"{self.key} differs by up to {self.size:.4g}"
        if self.explanation is not None and not all(
            edit.text in self.message for edit in self.explanation.edits
        ):
            yield "values", self.explanation.text
        if self.smallest is not None:
            yield "smallest case", self.smallest.text
            if self.smallest.inputs:
                yield RECEIVED, self.smallest.inputs
        if self.state is not None and self.state.text not in self.message:
            yield "state", self.state.text
        if self.hint:
            yield "hint", self.hint


@dataclass(frozen=True, slots=True)
class Coverage(Result):
    """How much of a contract was compared.

    Args:
        stages: Stages that change what a policy reads or does, and whose values were compared.
        all_stages: Number of these stages in the contract.
        values: Recorded values that were compared: entries of results, and actions passed on.
        all_values: Number of recorded values in the compared parts.
        other_stages: Stages of the contract that change nothing that a policy reads or does, such
            as monitors; they are not compared.
        training_stages: Stages of a training that the target, an evaluation, does not have.
        noun: What the contract is called, if it is another target.
    """

    json_entries: ClassVar[Entries] = (
        *("stages", "all_stages", "values", "all_values", "other_stages", "training_stages"),
    )

    stages: int
    all_stages: int
    values: int
    all_values: int
    other_stages: int = 0
    training_stages: int = 0
    noun: str = "contract"

    @property
    def is_enough(self) -> bool:
        """True if at least half of the stages and of the values were compared."""
        has_values = 0 < self.all_values <= 2 * self.values
        return has_values and self.all_stages <= 2 * self.stages

    def __str__(self) -> str:
        """Return the coverage as it is printed beside an answer."""
        total = self.all_stages + self.other_stages + self.training_stages
        stages = "stage" if total == 1 else "stages"
        values = "value" if self.all_values == 1 else "values"
        left_out = []
        if self.other_stages:
            change = "changes" if self.other_stages == 1 else "change"
            left_out.append(f"{self.other_stages} {change} nothing that a policy reads or does")
        if self.training_stages:
            left_out.append(f"{self.training_stages} of training only")
        if self.stages < self.all_stages:
            left_out.append(f"{self.all_stages - self.stages} not compared")
        reason = f" ({', '.join(left_out)})" if left_out else ""
        return (
            f"compared {self.stages} of {total} {stages} of the {self.noun}{reason}, "
            f"{self.values:,} of {self.all_values:,} {values}"
        )


RowStatus = Literal["same", "differs", "follows", "not compared"]


@dataclass(frozen=True, slots=True)
class KeyRow:
    """A key that a stage writes, on both sides.

    Args:
        lane: Direction.
        key: Name of the key.
        a: Its values after the stage of the contract. ``None``: it has none.
        b: Its values after the stage of the target. ``None``: it has none.
        tolerance: Largest difference of the stages so far.
    """

    lane: Lane
    key: str
    a: Values | None
    b: Values | None
    tolerance: Tolerance


@dataclass(frozen=True, slots=True)
class StageRow:
    """A stage of both sides, or of one.

    Args:
        a: Stage of the contract. ``None``: it does not have it.
        b: Stage of the target. ``None``: it does not have it.
        status: ``differs`` if a difference has its cause here, ``follows`` if all follow from
            earlier ones, ``not compared`` for stages that change nothing that a policy reads, and
            for those of training only that an evaluation does not have.
        differences: What differs here.
        keys: Keys that are compared after the stage.
    """

    a: StageRecord | None
    b: StageRecord | None
    status: RowStatus
    differences: tuple[Difference, ...]
    keys: tuple[KeyRow, ...]


Verdict = Literal["same", "different", "not comparable"]


@dataclass(frozen=True, slots=True)
class ContractReport(Result):
    """Differences between a contract and a target.

    Args:
        reference: Name of the contract, or of the first target.
        target: Name of the target.
        stages: Number of stages of the target.
        steps: Number of recorded steps.
        coverage: How much was compared.
        differences: Differences with a cause of their own, in the order of the data flow.
        follows: Differences that follow from them.
        allowed: Differences that the tolerances of the contract allow.
        excluded: Stages whose values are not compared, each with the reason.
        notes: What else differs without an effect, and what is not compared.
        training_only: Stages that belong to a training, and that the target does not have.
        evaluation: True if the target is used for evaluation, where they are not missed.
        compare: Parts that were compared, such as ``observation``.
        rows: The env and all stages of both sides, in the order of the data flow.
        noun: What the contract is called, if it is another target.
    """

    json_entries: ClassVar[Entries] = (
        *("reference", "target", "verdict", "same", "compare", "stages", "steps", "coverage"),
        *("differences", "follows", "allowed", "training_only", "excluded", "notes"),
    )

    reference: str
    target: str
    stages: int
    steps: int
    coverage: Coverage
    differences: tuple[Difference, ...]
    follows: tuple[Difference, ...] = ()
    excluded: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    training_only: tuple[Difference, ...] = ()
    evaluation: bool = False
    compare: tuple[str, ...] = ()
    rows: tuple[StageRow, ...] = field(default=(), repr=False)
    allowed: tuple[Difference, ...] = ()
    noun: str = "contract"

    @property
    def verdict(self) -> Verdict:
        """``same`` only if at least half of the contract was compared, and nothing differs."""
        if self.differences or (self.training_only and not self.evaluation):
            return "different"
        return "same" if self.coverage.is_enough else "not comparable"

    @property
    def same(self) -> bool:
        """True if enough was compared, and nothing differs."""
        return self.verdict == "same"

    @property
    def first(self) -> Difference | None:
        """The first difference in the order of the data flow; stages of a training come last."""
        return next(iter(self.causes), None)

    @property
    def causes(self) -> tuple[Difference, ...]:
        """Differences with a cause of their own; an evaluation does not miss those of training."""
        return self.differences if self.evaluation else (*self.differences, *self.training_only)

    @property
    def exit_code(self) -> ExitCode:
        """Exit code of a process that reports it."""
        return ExitCode.OK if self.same else ExitCode.FINDINGS
