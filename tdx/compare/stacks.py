"""Find what differs between two observed stacks, and which difference comes first."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tdx.compare.arguments import MISSING, REWARD_MODES, argument_text, changed_arguments
from tdx.compare.codes import FRAME_SHAPE, FRAME_STACK, DifferenceKind
from tdx.compare.edits import Edit, Explanation
from tdx.compare.examples import example_rows
from tdx.compare.explanations import Explainer
from tdx.compare.golden import (
    extra_sides,
    golden_sides,
    is_applied_twice,
    renamed_key,
)
from tdx.compare.model import OPAQUE, Contract, Lane, StageRecord, display_key
from tdx.compare.replay import Replayed, coverage_of, effect_of
from tdx.compare.report import (
    ContractReport,
    Coverage,
    Difference,
    KeyRow,
    RowStatus,
    SmallestCase,
    StageRow,
    kind_of_edits,
)
from tdx.compare.roles import (
    PASSIVE,
    REWARD_ROLES,
    STACK,
    TRAINING,
    Pair,
    Tags,
    align_all,
    is_compared,
    part_of,
    relevant_stages,
)
from tdx.compare.smallest import find_smallest
from tdx.compare.states import compare_states, state_change, stream_change
from tdx.compare.values import (
    EXACT,
    Change,
    Tolerance,
    compare_values,
    dtype_change,
    shape_change,
)
from tdx.foundation.errors import summarize_error

_LANES: tuple[Lane, Lane] = ("forward", "inverse")
_SAME_ENV = "create the env as in training: same id, arguments and wrappers inside"
_ROUNDING = 1e-6
"""Relative difference of arguments that float32 and float64 round differently."""
_CROSS_LIBRARY = Tolerance(1e-4, 1e-5)


def compare_contracts(
    a: Contract,
    b: Contract,
    names: tuple[str, str],
    replayed: Replayed | None = None,
    *,
    evaluation: bool = False,
    in_rows: Collection[int] = (),
    tags: Tags = frozenset(),
    explainer: Explainer | None = None,
) -> ContractReport:
    """Compare a target with a contract; both have run on the same inputs.

    Without ``replayed``, what the stages of both made of the results of the env inside is compared.
    ``in_rows`` are the stages that each sub-env of the target has, and ``tags`` tell stages apart;
    see :func:`choices_of_pairs`. Comparisons of the same two share an explainer.
    """
    comparison = _Comparison(
        *(a, b, replayed),
        evaluation=evaluation,
        in_rows=in_rows,
        tags=tags,
        explainer=explainer or Explainer(),
    )
    comparison.run()

    def shown(differences: list[Difference]) -> tuple[Difference, ...]:
        return tuple(comparison.displayed(difference) for difference in differences)

    of_training = [cause for cause in comparison.causes if comparison.is_of_training(cause)]
    causes = [
        replace(cause, smallest=comparison.smallest(cause))
        for cause in comparison.causes
        if cause not in of_training
    ]
    report = ContractReport(
        *names,
        stages=len(b.stages) - 1,
        steps=a.steps,
        coverage=comparison.coverage(),
        differences=shown(causes),
        follows=shown(comparison.follows),
        allowed=shown(comparison.allowed),
        excluded=tuple(comparison.excluded()),
        notes=tuple(
            dict.fromkeys(
                (
                    *(*comparison.notes, *comparison.uncompared()),
                    *(*_bookkeeping(a, b), *a.notes, *b.notes),
                )
            )
        ),
        training_only=shown(of_training),
        evaluation=evaluation,
        compare=a.compare,
        noun=a.noun,
    )
    return replace(report, rows=tuple(comparison.rows(report)))


def _bookkeeping(a: Contract, b: Contract) -> Iterator[str]:
    """Yield a note for each stage of one side that adds keys for monitoring only."""
    for side, contract, other in ((a.noun, a, b), ("target", b, a)):
        known = {stage.name if a.kind == b.kind else stage.role for stage in other.stages}
        for stage in contract.stages[1:]:
            keys = [key for _, key in stage.written]
            added = [key for key in keys if part_of(contract, key) in ("observation", "state")]
            is_known = stage.name in known or stage.role in known
            if stage.role == "monitor" and added and not is_known:
                listed = ", ".join(dict.fromkeys(display_key(key) for key in added))
                yield f"only the {side} has {stage.place}, which writes {listed} for monitoring"


@dataclass
class _Comparison:
    a: Contract
    b: Contract
    replayed: Replayed | None = None
    evaluation: bool = False
    in_rows: Collection[int] = ()
    tags: Tags = frozenset()
    explainer: Explainer = field(default_factory=Explainer)
    causes: list[Difference] = field(default_factory=list)
    follows: list[Difference] = field(default_factory=list)
    allowed: list[Difference] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.is_same_kind = self.a.kind == self.b.kind
        self.pairs = align_all(self.a, self.b, self.tags)
        self.lanes = _LANES if "action" in self.a.compare else _LANES[:1]
        self._compared: set[tuple[Lane, int]] = set()
        self._compared_ends: set[Lane] = set()

    def run(self) -> None:
        """Compare the env inside, and then all stages in the order of the data flow."""
        pairs = sorted((pair for pair in self.pairs[1:] if not pair.is_passive), key=_position)
        env_a, env_b = self.a.stage(-1), self.b.stage(-1)
        for key, kind, message in self._spec_changes(env_a, env_b):
            self._add(Difference(kind, -1, -1, env_b.name, key, message, None, _SAME_ENV))
        for a, b in ((pair.a, pair.b) for pair in pairs if self.is_same_kind):
            if a is not None and b is not None and a.name != b.name:
                text = f"{b.place} of the target stands for {a.place} of the {self.a.noun}"
                self.notes.append(text)
        differences = [
            (difference, pair) for pair in pairs for difference in self._compare_pair(pair)
        ]
        ends = [] if self.replayed is not None else list(self._compare_ends())
        if self.replayed is not None or self.is_same_kind or ends:
            # A stage that has moved explains others; a spec may follow from a difference before it.
            for difference, pair in sorted(differences, key=lambda item: item[0].kind != "order"):
                a, b = pair.a, pair.b
                if (
                    difference.kind in ("spec", "dtype")
                    and (a is not None and b is not None)
                    and any(self._explains(cause, "forward", a, b) for cause in self.causes)
                ):
                    self.follows.append(difference)
                else:
                    self._add(difference)
        else:
            # Libraries reach the same values in other ways.
            for difference, _ in differences:
                if difference.kind.startswith("state"):
                    self._add(difference)
                elif difference.kind != "argument":
                    self.notes.append(f"{self.displayed(difference).sentence}; the values agree")
        self._compare_values(pairs)
        if self.replayed is not None:
            self._add_calls_and_failures(self.replayed)
            self._note_env(self.replayed)
        elif not self.causes and not any(
            self._random(side, stage) == "excluded"
            for side in (self.a, self.b)
            for stage in side.stages
        ):
            for difference in ends:
                self._add(difference)
        self._add_states()
        if self.is_same_kind:
            # They explain no value of a step.
            self.causes += self._settings(env_a, env_b)
        self.causes.sort(
            key=lambda cause: (cause.reference_stage or 0) if cause.stage is None else cause.stage
        )

    # Coverage

    def coverage(self) -> Coverage:
        """Return how much of the contract was compared."""
        if self.replayed is not None:
            assert self.a.recording is not None
            lacking = {
                cause.reference_stage
                for cause in self.causes
                if self.evaluation
                and self.is_of_training(cause)
                and cause.reference_stage is not None
            }
            return coverage_of(self.a, self.a.recording, self.replayed, lacking)
        stages = relevant_stages(self.a)
        places = [
            ((lane, stage.index, key), (lane, stage.index) in self._compared)
            for lane in self.lanes
            for stage in stages
            for key in self._written(lane, stage)
        ]
        for lane, end, _ in self._ends():
            keys = self._end_keys(lane, end.index)
            places += [((lane, end.index, key), lane in self._compared_ends) for key in keys]
        values = compared = 0
        for place, has_sides in places:
            recorded, _ = self.a.value_at(*place)
            count = 0 if recorded is None else len(recorded.numbers)
            values += count
            compared += count * has_sides
        indices = {index for _, index in self._compared}
        compared_stages = sum(stage.index in indices for stage in stages)
        others = len(self.a.stages) - 1 - len(stages)
        return Coverage(compared_stages, len(stages), compared, values, others, noun=self.a.noun)

    def excluded(self) -> Iterator[str]:
        """Yield the stages whose values are not compared."""
        for side, contract in ((self.a.noun, self.a), ("target", self.b)):
            for stage in contract.stages:
                if self._random(contract, stage) == "excluded":
                    yield f"{stage.place} of the {side} is random and does not follow the seed"
                elif stage.random == OPAQUE:
                    yield f"{stage.place} of the {side} is not run: what it does is not known"

    def uncompared(self) -> Iterator[str]:
        """Yield a note for each stage that may differ in what is not compared."""
        noun = self.a.noun

        def note(text: str, stage: StageRecord) -> str:
            hint = "; rewards are compared with --compare reward"
            has_option = noun == "contract" and _changes_rewards(stage)
            return f"not compared: {text}{hint if has_option else ''}"

        has_other_rewards = False
        for pair in self.pairs[1:]:
            a, b = pair.a, pair.b
            if a is not None and b is not None:
                texts: list[str] = []
                if pair.is_passive and a.name == b.name:
                    texts = [
                        _argument_change(name, one, other, noun)[0]
                        for name, one, other in self._changed_arguments(a, b)
                    ]
                    states = compare_states(a, b, evaluation=False, noun=noun)
                    texts += [state.message for state in states]
                found = (*self.causes, *self.allowed, *self.follows)
                is_named = bool(texts) or any(each.stage == b.index for each in found)
                for text in texts:
                    yield note(f"{b.place}: {text}", a)
                    has_other_rewards |= _changes_rewards(a)
                # Without recorded calls, a reward goes through all stages.
                is_known = is_named or (has_other_rewards and self.replayed is None)
                for difference in () if is_known else self._reward_differences(a, b):
                    yield note(self.displayed(difference).sentence, a)
                    has_other_rewards = True
                if not is_named and self._has_idle_function(a, b):
                    yield (
                        f"{b.place} changed nothing in the recorded steps; what its function does "
                        "to other values is not known"
                    )
            elif pair.is_passive and (stage := a or b) is not None and not self.evaluation:
                text = f"only the {noun if b is None else 'target'} has {stage.place}"
                if stage.role == "limit" or stage.arguments.get("max_steps") is not None:
                    yield note(f"{text}, which limits the steps of an episode", stage)
                elif _changes_rewards(stage):
                    yield note(text, stage)
                    has_other_rewards = True

    def _reward_differences(self, a: StageRecord, b: StageRecord) -> Iterator[Difference]:
        """Yield the differences of rewards that are recorded, but not compared."""
        is_random = "excluded" in (self._random(self.a, a), self._random(self.b, b))
        if not self.is_same_kind or is_random or "reward" in self.a.compare:
            return
        if self.replayed is not None:
            keys = self.replayed.keys("forward", b.index)
        else:
            written = dict.fromkeys((*a.written, *b.written))
            keys = [key for lane, key in written if lane == "forward"]
        for key in keys:
            if part_of(self.a, key) == "reward":
                change = self._change_at("forward", key, a, b, a.tolerance)
                if change is not None and not change.is_allowed:
                    difference = self._from_change(change, "forward", b, a, key)
                    yield self._explained(difference, change, "forward", a, b)

    def _has_idle_function(self, a: StageRecord, b: StageRecord) -> bool:
        """Return True if both call a function, of which no recorded step shows what it does."""
        if not all(
            any(str(value).endswith("()") for value in side.arguments.values()) for side in (a, b)
        ):
            return False
        if self.replayed is not None and self.a.recording is not None:
            return effect_of(self.a.recording, a.index).changed == 0
        for lane, key in a.written:
            inside = a.index - 1 if lane == "forward" else a.index + 1
            received, made = (self.a.value_at(lane, i, key)[0] for i in (inside, a.index))
            if received is None or made is None or compare_values(received, made, EXACT):
                return False
        return self.is_same_kind

    def _random(self, contract: Contract, stage: StageRecord) -> str | None:
        """Return whether a stage repeats itself in the kind of replay that is compared."""
        return stage.random if self.replayed else contract.golden_random.get(stage.index)

    # Differences

    def is_of_training(self, difference: Difference) -> bool:
        """Return True for a stage of a training that the target does well without."""
        if difference.kind != "missing stage" or difference.reference_stage is None:
            return False
        return self.a.stage(difference.reference_stage).role in TRAINING

    def smallest(self, difference: Difference) -> SmallestCase | None:
        """Return one number that shows a difference."""
        index = difference.reference_stage
        tolerance = EXACT if index is None else self.a.stage(index).tolerance
        if not self.is_same_kind:
            tolerance = tolerance.widened(_CROSS_LIBRARY)
        return find_smallest(difference, (self.a, self.b), self.lanes, self.replayed, tolerance)

    def displayed(self, difference: Difference) -> Difference:
        """Return a difference with its code, and with its key as users write it."""
        coded = replace(self.with_code(difference), noun=self.a.noun)
        if coded.key is None or (difference.stage is None and difference.reference_stage is None):
            return coded
        return replace(coded, key=display_key(coded.key))

    def _add(self, difference: Difference) -> None:
        known = {
            (cause.stage, cause.reference_stage, cause.kind, cause.key) for cause in self.causes
        }
        place = (difference.stage, difference.reference_stage, difference.kind, difference.key)
        if place not in known:
            self.causes.append(difference)

    def with_code(self, difference: Difference) -> Difference:
        """Return a difference with the code of its special case: stacks and shapes of images."""
        index = difference.stage
        if index is None or difference.key is None:
            return difference
        stage = self.b.stage(index)
        if difference.kind in ("argument", "feature order", "value") and stage.role == STACK:
            return replace(difference, special_code=FRAME_STACK)
        spec = stage.spec(difference.key)
        is_image = spec is not None and len(spec.shape) >= 2 and spec.part == "observation"
        if difference.kind == "spec" and is_image and "shape" in difference.message:
            return replace(difference, special_code=FRAME_SHAPE)
        return difference

    # Env and ends

    def _compare_ends(self) -> Iterator[Difference]:
        """Compare what the policy reads, and what the env gets."""
        for lane, a, b in self._ends():
            for key in self._end_keys(lane, a.index):
                change = self._change_at(lane, key, a, b, EXACT)
                if change is not None and not change.is_allowed:
                    difference = self._from_change(change, lane, b, a, key)
                    yield self._explained(difference, change, lane, a, b)
                elif change is not None and not self.is_same_kind:
                    self.allowed.append(self._from_change(change, lane, b, a, key))

    def _ends(self) -> tuple[tuple[Lane, StageRecord, StageRecord], ...]:
        ends = self.a.stage(self.a.last), self.b.stage(self.b.last)
        return ("forward", *ends), ("inverse", self.a.stage(-1), self.b.stage(-1))

    def _end_keys(self, lane: str, at: int) -> list[str]:
        if lane == "inverse":
            keys = {key for at, _, key in self.a.values if at == "inverse"}
            return sorted(keys) if "action" in self.a.compare else []
        specs = self.a.stage(at).specs
        ignored = passive_keys(self.a) | passive_keys(self.b)
        return [
            spec.key
            for spec in specs
            if spec.part in self.a.compare and spec.part != "action" and spec.key not in ignored
        ]

    # Stages

    def _compare_pair(self, pair: Pair) -> Iterator[Difference]:
        a, b = pair.a, pair.b
        if b is None:
            assert a is not None
            yield self._missing(a)
        elif a is None:
            key, text = _first_key(b), "only the target has such a stage"
            hint = f"remove {b.name}, unless the {self.a.noun} should have it too"
            size = self._end_size(key)
            found = self._extra_explanation(b, key)
            if found is not None:
                text += f"; {found.text}"
            yield Difference(
                *("missing stage", b.index, None, b.name, key, text, size, hint), explanation=found
            )
        else:
            if pair.status == "moved":
                yield self._moved(a, b)
            noun = self.a.noun
            if a.name == b.name:
                yield from self._arguments(a, b)
            # Whether each sub-env of the contract has the stage.
            forms = {} if self.a.recording is None else self.a.recording.forms
            form = forms.get(a.index)
            is_in_rows = form is not None and not form.is_batch and forms[max(forms)].is_batch
            in_rows = is_in_rows, b.index in self.in_rows
            yield from compare_states(a, b, evaluation=self.evaluation, in_rows=in_rows, noun=noun)
            if self.is_same_kind and pair.status == "paired":
                for key, kind, message in self._spec_changes(a, b):
                    yield Difference(kind, b.index, a.index, b.name, key, message)

    def _missing(self, a: StageRecord) -> Difference:
        key = _first_key(a)
        learned = any(tensor.changes for tensor in a.state)
        what = "learned statistics" if learned else a.role
        text = "the target has no such stage"
        # A stage without a known role has its name for a role.
        text += f" ({what})" if what != a.name else ""
        inside = self.a.stage(a.index - 1)
        place = "directly around the env"
        if a.index:
            place = f"after {inside.place} of the {self.a.noun}"
        hint = f"add {a.name} to the target, {place}"
        size = self._end_size(key)
        if self.a.recording is not None and self.replayed is not None:
            effect = effect_of(self.a.recording, a.index)
            text += f"; it changed {effect.changed:,} of {effect.calls:,} recorded calls"
            key = key or effect.key
            if effect.shapes is not None:
                before, after = effect.shapes
                text += f" and the shape of the {effect.key} from {before} to {after}"
            is_of_key = key == effect.key or (key and part_of(self.a, key) == effect.key)
            size = effect.size if is_of_key else None
        return Difference("missing stage", None, a.index, a.name, key, text, size, hint)

    def _moved(self, a: StageRecord, b: StageRecord) -> Difference:
        noun = self.a.noun
        others = [stage.name for stage in self.b.stages[1:] if stage.role not in PASSIVE]
        ours = [stage.name for stage in self.a.stages[1:] if stage.role not in PASSIVE]
        text = f"the order is {', '.join(others)} instead of {', '.join(ours)}"
        if max(others.count(b.name), ours.count(b.name)) > 1:
            # Their names do not tell them apart.
            text = f"the order is another one: it does what stage {a.index} of the {noun} does"
        key = _first_key(a) or _first_key(b)
        hint = f"build the chain in the order of the {noun}"
        return Difference("order", b.index, a.index, b.name, key, text, self._end_size(key), hint)

    def _changed_arguments(
        self, a: StageRecord, b: StageRecord
    ) -> Iterator[tuple[str, object, object]]:
        """Yield the arguments that differ: name and both values."""
        has_rewards = "reward" in self.a.compare and not self.evaluation
        for name, one, other in changed_arguments(a.arguments, b.arguments, rtol=_ROUNDING):
            # Versions of a library differ in the arguments that they have.
            is_on_both = one is not MISSING and other is not MISSING
            if is_on_both and (has_rewards or name not in REWARD_MODES):
                yield name, one, other

    def _arguments(self, a: StageRecord, b: StageRecord) -> Iterator[Difference]:
        for name, one, other in self._changed_arguments(a, b):
            key = _first_key(b) or _first_key(a)
            text, hint = _argument_change(name, one, other, self.a.noun)
            hint = f"{hint} to {b.name}"
            lanes = () if key is None else _LANES
            changes = (self._change_at(lane, key or "", a, b, a.tolerance) for lane in lanes)
            differing = (c for c in changes if c is not None and not c.is_allowed)
            change = next(differing, None)
            if change is None and self._has_same_values(a, b):
                text += "; no difference of values is observed"
            kind: DifferenceKind = "argument"
            if change is not None and change.kind == "dtype":
                kind = change.kind
                text = f"{change.text}, for {text}"
            size = None if change is None else change.size
            if change is None and self.replayed is not None:
                key = None
            yield Difference(kind, b.index, a.index, b.name, key, text, size, hint)

    def _has_same_values(self, a: StageRecord, b: StageRecord) -> bool:
        """Return True if values are compared after two stages, and none differs."""
        places = [(lane, key) for lane in self.lanes for key in self._compared_keys(lane, a, b)]
        changes = [self._change_at(lane, key, a, b, a.tolerance) for lane, key in places]
        return bool(places) and all(change is None or change.is_allowed for change in changes)

    def _settings(self, a: StageRecord, b: StageRecord) -> Iterator[Difference]:
        """Compare the settings that both sides declare, which are those of the env inside."""
        for name, one, other in self._changed_arguments(a, b):
            text, _ = _argument_change(name, one, other, self.a.noun)
            hint = f"set {name} to {argument_text(one)}, as in the {self.a.noun}"
            yield Difference("setting", -1, -1, b.name, None, text, None, hint)

    # Specs

    def _spec_changes(
        self, a: StageRecord, b: StageRecord
    ) -> Iterator[tuple[str, DifferenceKind, str]]:
        """Yield what differs between the specs after two stages: key, kind and message."""
        ignored = passive_keys(self.a) | passive_keys(self.b)
        ours, theirs = (
            {
                spec.key: spec
                for spec in stage.specs
                if spec.part in self.a.compare and spec.key not in ignored
            }
            for stage in (a, b)
        )
        for key, one in ours.items():
            other = theirs.get(key)
            if other is None:
                known = ", ".join(map(display_key, theirs))
                yield key, "spec", f"the target has no such key; it has {known}"
            elif one.part == "action" and not self.is_same_kind:
                continue
            elif one.shape != other.shape:
                yield key, "spec", shape_change(one.shape, other.shape).text
            elif one.dtype != other.dtype and (
                self.is_same_kind
                or one.dtype.startswith("float") != other.dtype.startswith("float")
            ):
                yield key, "dtype", dtype_change(one.dtype, other.dtype).text
            elif one.domain != other.domain and self.is_same_kind:
                yield key, "spec", f"the bounds are {other.domain} instead of {one.domain}"
        if self.is_same_kind:
            for key in theirs.keys() - ours.keys():
                yield key, "spec", f"the {self.a.noun} has no such key"
            names, expected = (
                [key for key, spec in side.items() if spec.part == "observation"]
                for side in (theirs, ours)
            )
            if ours.keys() == theirs.keys() and names != expected:
                text = f"the keys are in the order {', '.join(map(display_key, names))}"
                yield names[0], "feature order", text

    # Values

    def _compare_values(self, pairs: list[Pair]) -> None:
        """Compare the values after each pair of stages: forward outwards, inverse inwards."""
        if self.replayed is not None:
            paired = sorted(self.replayed.run.pairs.items())
            sides = [(self.a.stage(i), self.b.stage(j)) for j, i in paired if j >= 0]
        else:
            sides = [(p.a, p.b) for p in pairs if p.a is not None and p.b is not None]
        for lane in self.lanes:
            is_open = False
            for a, b in sides if lane == "forward" else reversed(sides):
                is_random = "excluded" in (self._random(self.a, a), self._random(self.b, b))
                # Without recorded calls, a stage gets what the stages before it made.
                is_open = is_random or (is_open and self.replayed is None)
                if is_open:
                    continue
                self._compared.add((lane, a.index))
                for key in self._compared_keys(lane, a, b):
                    change = self._change_at(lane, key, a, b, a.tolerance)
                    if change is None or not (self.is_same_kind or self.causes):
                        continue
                    difference = self._from_change(change, lane, b, a, key)
                    if change.is_allowed:
                        self.allowed.append(difference)
                        continue
                    # A stage that got its recorded inputs follows from no other.
                    is_declared = change.kind in ("dtype", "spec")
                    is_declared = is_declared and self._is_declared_otherwise(a, b, key)
                    causes: list[Difference] = []
                    if self.replayed is None or is_declared:
                        causes = [
                            cause for cause in self.causes if self._explains(cause, lane, a, b)
                        ]
                    explained = self._explained(difference, change, lane, a, b)
                    is_own = any(cause.stage == b.index for cause in self.causes)
                    if all(cause.stage == b.index for cause in causes):
                        difference = explained
                    elif self.replayed is not None and is_own:
                        # It got its recorded inputs, so that other causes do not matter.
                        difference = explained
                    elif self._is_fault_of_its_own(explained, change):
                        difference, causes = explained, []
                    self._add_own(difference, causes)
            if not is_open:
                self._compared_ends.add(lane)

    def _add_calls_and_failures(self, replayed: Replayed) -> None:
        """Add the stages that made another number of inner calls, and those that failed."""
        excluded = () if self.a.recording is None else self.a.recording.unrepeatable
        for index, (theirs, own, count) in sorted(replayed.run.call_counts.items()):
            recorded = replayed.run.pairs.get(index)
            # A stage that failed has not made its last calls.
            is_compared = index >= 0 and index not in replayed.run.failures
            if is_compared and recorded is not None and recorded not in excluded:
                text = f"it makes {own} instead of {theirs} inner calls"
                text += f", in {count} calls" if count > 1 else ""
                name = self.b.stage(index).name
                self._add_own(Difference("inner calls", index, recorded, name, None, text), ())
        for index, error in sorted(replayed.run.failures.items()):
            b = self.b.stage(index)
            text = f"it fails with the inputs of the {self.a.noun}: {summarize_error(error)}"
            paired = replayed.run.pairs.get(index)
            failure = Difference("spec", index, paired, b.name, _first_key(b), text)
            is_caused = any(
                cause.stage <= index
                if cause.stage is not None
                else paired is not None and (cause.reference_stage or 0) <= paired
                for cause in self.causes
            )
            (self.follows if is_caused else self.causes).append(failure)

    def _add_states(self) -> None:
        """Add since when the state of a stage, or its random stream, differs.

        A stage whose state follows from what it received is left out, and one whose state differs
        from the start.
        """
        stream = stream_change(self.a, self.b)
        for pair in self.pairs[1:]:
            a, b = pair.a, pair.b
            if a is None or b is None or pair.is_passive or a.name != b.name:
                continue
            excluded = [
                self._random(side, stage) == "excluded"
                for side, last in ((self.a, a), (self.b, b))
                for stage in side.stages[: last.index + 2]
            ]
            is_caused = any(
                self._explains(cause, "forward", a, b)
                for cause in self.causes
                if cause.stage != b.index
            )
            change = state_change(self.a, self.b, (a, b))
            if change is None or is_caused or any(excluded):
                continue
            own = next((cause for cause in self.causes if cause.stage == b.index), None)
            learned = {record.name for record in a.state if record.changes}
            if own is not None:
                if not own.kind.startswith("state"):
                    self.causes[self.causes.index(own)] = replace(own, state=change)
            elif change.name in learned and self.is_same_kind:
                origin = "training" if self.a.noun == "contract" else self.a.noun
                hint = f"update the statistics of {b.name} as in the {origin}"
                self._add(
                    Difference(
                        *("value", b.index, a.index, b.name, change.name, change.text),
                        hint=hint,
                        step=change.step,
                        state=change,
                    )
                )
        for place, cause in enumerate(self.causes):
            random = (
                self._random(side, side.stage(index)) == "seeded"
                for side, index in ((self.a, cause.reference_stage), (self.b, cause.stage))
                if index is not None
            )
            is_noise = cause.explanation is not None and cause.explanation.kind == "noise"
            if stream is not None and cause.state is None and (is_noise or any(random)):
                self.causes[place] = replace(cause, state=stream)

    def _is_declared_otherwise(self, a: StageRecord, b: StageRecord, key: str) -> bool:
        """Return True if a stage writes the spec that a difference before it has made its own.

        A vector env copies its results into a buffer of the declared dtype, for example.
        """
        one, other = a.spec(key), b.spec(key)
        if one is None or other is None or (one.dtype, one.shape) == (other.dtype, other.shape):
            return False
        causes = [cause for cause in self.causes if cause.stage != b.index]
        return any(self._explains(cause, "forward", a, b) for cause in causes)

    def _note_env(self, replayed: Replayed) -> None:
        assert self.a.recording is not None
        difference = replayed.env_difference()
        if difference is not None and self.a.recording.env_repeats:
            if any(self._is_unexplained(cause) for cause in self.causes):
                text = (
                    f"it does not repeat its recorded results ({difference}); a stage that reads "
                    "its state can differ because of it"
                )
                name = self.b.stage(-1).name
                self._add(Difference("value", -1, -1, name, None, text, None, _SAME_ENV))
            else:
                self.notes.append(
                    f"the env inside does not repeat its recorded results ({difference}); the "
                    "stages got the recorded ones"
                )
        if replayed.run.shared_rows < self.a.recording.rows:
            self.notes.append(
                f"the {self.a.noun} has {self.a.recording.rows} recorded sub-envs, the target "
                f"{replayed.run.shared_rows}: the others are not compared"
            )

    def _is_unexplained(self, cause: Difference) -> bool:
        """Return True if a stage of the same class with the same arguments has other values."""
        if cause.kind in ("missing stage", "order", "argument", "inner calls"):
            return False
        if cause.stage is None or cause.stage < 0 or cause.reference_stage is None:
            return False
        names = {self.a.stage(cause.reference_stage).name, self.b.stage(cause.stage).name}
        has_state = any(cause.key == tensor.name for tensor in self.b.stage(cause.stage).state)
        return len(names) == 1 and not has_state and not cause.kind.startswith("state")

    def _add_own(self, difference: Difference, causes: Sequence[Difference]) -> None:
        """Add a difference of a stage, which may have another one or follow from causes."""
        own = next((cause for cause in self.causes if cause.stage == difference.stage), None)
        if own is None:
            (self.follows if causes else self.causes).append(difference)
            return
        own_place = self.causes.index(own)
        if difference.kind == "inner calls" and own.kind == "value" and own.explanation is None:
            # Other calls explain the values that they return.
            self.causes[own_place] = replace(
                difference, key=own.key, size=own.size, examples=own.examples
            )
            self.follows.append(own)
            return
        found = difference.explanation
        is_explained = own.explanation is None and found is not None
        if own.explanation is not None and found is not None and not own.explanation.values:
            # The state alone says what it is; the values confirm it.
            others = (*own.explanation.alternatives, *found.edits)
            found = replace(found, edits=own.explanation.edits, alternatives=others)
            own, is_explained = replace(own, explanation=None), True
        if is_explained and own.kind == "argument" and difference.kind == "feature order":
            text = f"{difference.message}, for {own.message}"
            own = replace(own, kind=difference.kind, message=text)
        self.causes[own_place] = replace(
            own,
            size=own.size or difference.size,
            key=own.key or difference.key,
            hint=own.hint or difference.hint,
            explanation=own.explanation or found,
            examples=own.examples or difference.examples,
        )
        if own.kind != difference.kind and not is_explained:
            self.follows.append(difference)

    def _explains(self, cause: Difference, lane: Lane, a: StageRecord, b: StageRecord) -> bool:
        """Return True if a difference at a stage can follow from a cause."""
        if cause.kind == "order" and cause.stage is not None and cause.reference_stage is not None:
            return b.index >= min(cause.stage, cause.reference_stage)
        if lane == "forward":
            if cause.stage is not None:
                return cause.stage <= b.index
            return cause.reference_stage is not None and cause.reference_stage <= a.index
        if cause.stage is not None:
            return cause.stage >= b.index
        return cause.reference_stage is not None and cause.reference_stage >= a.index

    def _written(self, lane: Lane, stage: StageRecord) -> list[str]:
        """Return the compared keys that a stage writes."""
        return [key for at, key in stage.written if at == lane and is_compared(self.a, lane, key)]

    def _compared_keys(self, lane: Lane, a: StageRecord, b: StageRecord) -> list[str]:
        """Return the compared keys that one of two paired stages writes."""
        if self.replayed is None:
            return list(dict.fromkeys((*self._written(lane, a), *self._written(lane, b))))
        keys = self.replayed.keys(lane, b.index)
        return [key for key in keys if is_compared(self.a, lane, key)]

    def _change_at(
        self, lane: Lane, key: str, a: StageRecord, b: StageRecord, tolerance: Tolerance
    ) -> Change | None:
        """Compare what both sides have for a key after two stages."""
        tolerance = self._tolerance_at(lane, key, a, tolerance)
        if self.replayed is not None:
            return self.replayed.change((lane, b.index, key), tolerance)
        one, _ = self.a.value_at(lane, a.index, key)
        other, _ = self.b.value_at(lane, b.index, key)
        if one is None:
            return None
        if other is None:
            return Change("spec", "the target does not write it")
        return compare_values(one, other, tolerance, exact_dtype=self.is_same_kind)

    def _tolerance_at(
        self, lane: Lane, key: str, a: StageRecord, tolerance: Tolerance
    ) -> Tolerance:
        if self.replayed is None:
            # The values went through all stages so far.
            tolerance = tolerance.widened(self.a.value_at(lane, a.index, key)[1])
            if not self.is_same_kind:
                tolerance = tolerance.widened(_CROSS_LIBRARY)
        return self.a.tolerance(key, tolerance)

    def _end_size(self, key: str | None) -> float | None:
        """Return how much a key differs at the end, if the values flow that far."""
        if key is None or self.replayed is not None:
            return None
        changes = (self._change_at(lane, key, a, b, EXACT) for lane, a, b in self._ends())
        return next((change.size for change in changes if change is not None), None)

    def _from_change(
        self, change: Change, lane: Lane, b: StageRecord, a: StageRecord, key: str
    ) -> Difference:
        kind: DifferenceKind = "spec"
        if change.kind != "missing" and change.kind != "extra":
            kind = change.kind
        parts = [change.text, change.allowance] if change.allowance else [change.text]
        text = "; ".join(reversed(parts) if change.is_allowed else parts)
        difference = Difference(kind, b.index, a.index, b.name, key, text, change.size)
        # Values that differ in their dtype only have no size.
        if kind == "spec" or change.size is None:
            return difference
        tolerance = self._tolerance_at(lane, key, a, a.tolerance)
        if self.replayed is not None:
            examples = self.replayed.example_rows((lane, b.index, key), tolerance)
            return replace(difference, examples=examples)
        one, other = (
            side.value_at(lane, stage.index, key)[0] for side, stage in ((self.a, a), (self.b, b))
        )
        assert one is not None
        assert other is not None
        sizes = (min(pair) for pair in zip(one.numbers.shape, other.numbers.shape, strict=True))
        places = self.a.row_places(lane, next(sizes), next(sizes))
        return replace(difference, examples=example_rows(one, other, tolerance, places))

    # Explanations

    def _explained(
        self, difference: Difference, change: Change, lane: Lane, a: StageRecord, b: StageRecord
    ) -> Difference:
        """Return a difference with the edit that predicts the values of the target."""
        key = difference.key
        assert key is not None
        tolerance = a.tolerance if self.is_same_kind else a.tolerance.widened(_CROSS_LIBRARY)
        tolerance = self.a.tolerance(key, tolerance)
        if self.replayed is not None:
            sides = self.replayed.explanation_sides((lane, b.index, key), tolerance)
        else:
            keys = self._written(lane, a)
            sides = golden_sides((self.a, self.b), lane, key, (a, b), tolerance, keys)
        # A dtype alone needs no explanation.
        found = None
        if sides is not None and not (change.kind == "dtype" and change.size is None):
            found = self.explainer.explain(sides)
        if found is None:
            return difference
        kind = difference.kind
        if kind in ("value", "dtype"):
            kind = kind_of_edits(found) or kind
        text = found.text
        if change.kind == "spec":
            text = f"{change.text}: {text}"
        elif change.kind == "dtype" and kind != "feature order":
            text = f"{change.text}, and {text}"
        if change.calls:
            text += f", in {change.calls} calls"
        if change.allowance:
            text += f"; {change.allowance}"
        return replace(
            difference,
            kind=kind,
            message=text,
            hint=difference.hint or found.hint,
            explanation=found,
        )

    def _extra_explanation(self, b: StageRecord, key: str | None) -> Explanation | None:
        """Return what a stage that only the target has does to the values that it receives."""
        for other in self.b.stages[1:]:
            names = (b.name, other.name)
            is_equal = b.arguments == other.arguments and b.state == other.state
            is_equal &= other.index != b.index and len(set(names)) == 1
            if is_equal and is_applied_twice(self.b, b, other):
                hint = f"remove one of the two {b.name}"
                return Explanation((Edit("twice", "it is applied twice", hint=hint),))
        for lane in self.lanes:
            if self.replayed is not None:
                places = [place for place in self.replayed.extra if place[:2] == (lane, b.index)]
                keys = [key for _, _, key in places if is_compared(self.a, lane, key)]
            else:
                keys = self._written(lane, b)
            for name in sorted(keys, key=lambda name: name != key):
                if self.replayed is not None:
                    sides = self.replayed.extra_sides((lane, b.index, name))
                else:
                    sides = extra_sides(self.b, lane, name, b)
                found = None if sides is None else self.explainer.explain(sides)
                if found is not None:
                    return found
            if self.replayed is None and (renamed := renamed_key(self.b, lane, b)) is not None:
                return renamed
        return None

    def _is_fault_of_its_own(self, explained: Difference, change: Change) -> bool:
        """Return True if a stage differs also for what it received from differing stages."""
        found = explained.explanation
        if found is None or len(found.edits) > 1 or found.kind == "noise":
            return False
        # Recorded inputs leave only the dtype that a stage declares, and its rounding.
        return self.replayed is None or (change.kind == "dtype" and found.kind != "rounding")

    # Both sides

    def rows(self, report: ContractReport) -> Iterator[StageRow]:
        """Yield the env and all stages of both sides, with what differs at each of them."""
        # An evaluation does not miss the stages of a training.
        lacking = [
            self.a.stage(difference.reference_stage or 0) for difference in report.training_only
        ]
        for pair in self.pairs:
            a, b = pair.a, pair.b
            if pair.is_passive:
                yield StageRow(a, b, "not compared", (), ())
                continue
            differences = tuple(
                difference
                for difference in (*report.causes, *report.follows)
                if (b is not None and difference.stage == b.index)
                or (b is None and a is not None and difference.reference_stage == a.index)
            )
            status: RowStatus = "same"
            if differences:
                is_cause = any(difference in report.causes for difference in differences)
                status = "differs" if is_cause else "follows"
            elif b is None and a in lacking:
                status = "not compared"
            yield StageRow(a, b, status, differences, tuple(self._key_rows(a, b)))

    def _key_rows(self, a: StageRecord | None, b: StageRecord | None) -> Iterator[KeyRow]:
        writes = {written for side in (a, b) if side is not None for written in side.written}
        for lane, key in sorted(writes):
            if not is_compared(self.a, lane, key):
                continue
            one, tolerance = (None, EXACT)
            if a is not None:
                one, tolerance = self.a.value_at(lane, a.index, key)
                tolerance = self.a.tolerance(key, tolerance.widened(a.tolerance))
            other = None if b is None else self.b.value_at(lane, b.index, key)[0]
            if self.replayed is not None and b is not None:
                one, other = self.replayed.sides((lane, b.index, key))
            # Large values are not sent to the app.
            one = None if one is None else replace(one, whole=None)
            other = None if other is None else replace(other, whole=None)
            yield KeyRow(lane, key, one, other, tolerance)


def rows_of_failure(a: Contract, differences: Sequence[Difference]) -> Iterator[StageRow]:
    """Yield the stages of a contract whose target failed, so that it has no values."""
    for stage in a.stages:
        places = (None, -1) if stage.index < 0 else (stage.index,)
        here = tuple(
            difference for difference in differences if difference.reference_stage in places
        )
        keys = tuple(
            KeyRow(lane, key, values, None, stage.tolerance)
            for (lane, index, key), values in a.values.items()
            if index == stage.index
        )
        yield StageRow(stage, None, "differs" if here else "not compared", here, keys)


def _position(pair: Pair) -> tuple[int, int]:
    # A stage that the target lacks comes before the one at its place.
    if pair.b is not None:
        return pair.b.index, 1
    assert pair.a is not None
    return pair.a.index, 0


def _first_key(stage: StageRecord) -> str | None:
    """Return the key that a stage changes: an observation or an action before a reward."""
    names = [key for _, key in stage.written]
    rest = [name for name in names if name.rpartition(".")[2] != "reward"]
    # Statistics that have counted nothing may change nothing.
    declared = [spec.key for spec in stage.specs if spec.part == "observation" and stage.state]
    return next(iter((*rest, *names, *declared)), None)


def passive_keys(contract: Contract) -> set[str]:
    """Return the keys that counters and monitors write, which a policy does not read."""
    keys: set[str] = set()
    for stage in contract.stages[1:]:
        if stage.role in PASSIVE:
            before = {spec.key for spec in contract.stage(stage.index - 1).specs}
            keys |= {spec.key for spec in stage.specs if spec.key not in before}
    return keys


def _changes_rewards(stage: StageRecord) -> bool:
    return stage.role in REWARD_ROLES or any(
        key.rpartition(".")[2] == "reward" for _, key in stage.written
    )


def _argument_change(name: str, one: object, other: object, noun: str) -> tuple[str, str]:
    """Return how an argument differs from that of the reference, and the start of a hint."""
    expected, actual = argument_text(one), argument_text(other)
    hint = f"pass {name}={expected}"
    if isinstance(one, Mapping):
        hint = f"pass the {name} of the {noun}"
    if expected == actual:
        return f"{name} has other values than in the {noun}", hint
    return f"{name} is {actual} instead of {expected}", hint
