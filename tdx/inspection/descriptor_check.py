"""Check a deployment descriptor, alone or against the one of the training."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import prod

from tdx.compare.orders import find_order
from tdx.foundation.errors import CheckError
from tdx.foundation.text import count_text
from tdx.inspection.check_report import CheckReport
from tdx.inspection.checkpoint_check import Mismatch, mismatch, select_findings
from tdx.inspection.checkpoint_codes import CheckpointRule
from tdx.inspection.contract_descriptor import CONTRACT
from tdx.inspection.descriptor_codes import (
    ACTION_SCALE,
    CONTRADICTION,
    CONTROL_STEP,
    GAINS,
    HISTORY,
    JOINT_ORDER,
    JOINTS,
    POSITIONS,
    TERM_ORDER,
    TERM_SCALE,
    TERM_SHAPE,
    TERMS,
)
from tdx.stacks.descriptors import Action, Descriptor, Term
from tdx.stacks.descriptors.model import Numbers

_SHOWN = 6
_MAX_ORDERED = 500
"""Values of which an order is looked for, which takes quadratic time."""


def check_descriptor(
    descriptor: Descriptor, select: Sequence[str] = (), ignore: Sequence[str] = ()
) -> CheckReport:
    """Check whether the lists of a descriptor agree with one another."""
    return _report(descriptor, list(_contradictions(descriptor)), descriptor.notes, select, ignore)


def compare_descriptors(
    reference: Descriptor,
    other: Descriptor,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
) -> CheckReport:
    """Check a descriptor against the one that a policy was trained with.

    What only one of them declares is not compared; a note counts and names it.

    Raises:
        CheckError: Nothing differs, and less than half was compared of what one of them declares
            and the format of the other one can declare too.
    """
    comparison = _DescriptorComparison(reference, other)
    mismatches = [*_contradictions(other), *comparison.mismatches()]
    notes = [*reference.notes, *other.notes]
    if not comparison.is_complete:
        notes.append(comparison.coverage)
    if reference.library != other.library and reference.library != CONTRACT:
        notes.append(
            f"observation terms are not compared: {reference.library} and {other.library} name "
            "them differently"
        )
    report = _report(other, mismatches, notes, select, ignore)
    if not report.findings and not comparison.is_enough:
        raise CheckError(
            f"{other.path} and {reference.path} are not comparable: {comparison.coverage}",
            hint="compare it with a file that declares the same",
        )
    return report


def _report(
    descriptor: Descriptor,
    mismatches: Sequence[Mismatch],
    notes: Sequence[str],
    select: Sequence[str],
    ignore: Sequence[str],
) -> CheckReport:
    findings = select_findings(mismatches, select, ignore, file=descriptor.path)
    counts = (
        (len(descriptor.terms), "observation term"),
        (len(descriptor.actions), "action term"),
        (len(descriptor.robot.joints), "joint"),
    )
    parts = ", ".join(count_text(count, name) for count, name in counts if count)
    path = str(descriptor.path)
    return CheckReport(path, 0, ("lints",), tuple(findings), hidden=tuple(notes), parts=parts)


# ------------------------------------------------------------------------------ one descriptor


def _contradictions(descriptor: Descriptor) -> Iterator[Mismatch]:
    robot = descriptor.robot
    yield from _repeated("the robot", robot.joints)
    yield from _miscounted("default positions", robot.positions, robot.joints)
    for what, gains in (("stiffness", robot.stiffness), ("damping", robot.damping)):
        # Joints without an actuator have no gains.
        if gains is not None and len(gains) > max(len(robot.joints), 1):
            yield from _miscounted(f"values of {what}", gains, robot.joints)
        yield from _not_finite(f"the {what}", gains)
    yield from _not_finite("the default positions", robot.positions)
    for action in descriptor.actions:
        place = f"the action {action.name!r}"
        yield from _repeated(place, action.joints, action.name)
        for what, values in (("scale", action.scale), ("offset", action.offset)):
            yield from _miscounted(f"values of the {what}", values, action.joints, action.name)
            yield from _not_finite(f"the {what} of {place}", values, action.name)
    for term in descriptor.terms:
        place = f"the term {term.name!r}"
        yield from _repeated(place, term.joints, term.name)
        yield from _miscounted("offsets", term.offsets, term.joints, term.name)
        yield from _not_finite(f"the scale of {place}", term.scale, term.name)
        yield from _not_finite(f"the offsets of {place}", term.offsets, term.name)


def _repeated(place: str, joints: tuple[str, ...], key: str | None = None) -> Iterator[Mismatch]:
    if len(set(joints)) < len(joints):
        name = next(name for name in joints if joints.count(name) > 1)
        yield mismatch(CONTRADICTION, f"{place} has the joint {name!r} twice", key=key)


def _miscounted(
    what: str, values: Numbers | None, joints: tuple[str, ...], key: str | None = None
) -> Iterator[Mismatch]:
    if values is not None and joints and len(values) not in (1, len(joints)):
        place = "" if key is None else f"{key!r} has "
        yield mismatch(
            CONTRADICTION, f"{place}{len(values)} {what} for {len(joints)} joints", key=key
        )


def _not_finite(what: str, values: Numbers | None, key: str | None = None) -> Iterator[Mismatch]:
    for index, value in enumerate(values or ()):
        if not math.isfinite(value):
            yield mismatch(CONTRADICTION, f"{what} is {value} at {index}", key=key)
            return


# ----------------------------------------------------------------------------- two descriptors


@dataclass(slots=True)
class _DescriptorComparison:
    """Differences of two descriptors, and how much of them was compared.

    Args:
        compared: Number of declarations that both have.
        one_sided: Declarations of one of them that the other one's format has too.
        foreign: Declarations of one of them that the other one's format does not have.
        absent: Number of declarations that both formats have, and neither descriptor makes.
    """

    reference: Descriptor
    other: Descriptor
    compared: int = 0
    one_sided: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    absent: int = 0

    @property
    def is_complete(self) -> bool:
        return self.compared > 0 and not (self.one_sided or self.foreign or self.absent)

    @property
    def is_enough(self) -> bool:
        # What a format cannot declare is no omission of the file.
        return self.compared > 0 and self.compared >= len(self.one_sided)

    @property
    def coverage(self) -> str:
        total = self.compared + len(self.one_sided)
        parts = [f"compared {self.compared} of {count_text(total, 'declaration')}"]
        for names, reason in (
            (self.one_sided, "only one side has"),
            (self.foreign, "only one of the formats has"),
        ):
            counts = Counter(names).items()
            if counts:
                listed = [name if count == 1 else f"{name} ({count})" for name, count in counts]
                parts.append(f"{reason} {', '.join(listed)}")
        if self.absent:
            verb = "is" if self.absent == 1 else "are"
            parts.append(f"{self.absent} {verb} declared by neither side")
        return "; ".join(parts)

    def mismatches(self) -> Iterator[Mismatch]:
        a, b = self.reference, self.other
        if a.library == b.library:
            one, other = ({term.name: term for term in side.terms} for side in (a, b))
            yield from self._names("observation terms", list(one), list(other))
            for name in [name for name in one if name in other]:
                yield from self._term(one[name], other[name])
            if self._both("actions", "the actions", a.actions or None, b.actions or None):
                moves, others = ({act.name: act for act in side.actions} for side in (a, b))
                yield from self._names("action terms", list(moves), list(others))
                for name in [name for name in moves if name in others]:
                    yield from self._action(moves[name], others[name])
            if self._both("commands", "the commands", a.commands or None, b.commands or None):
                yield from self._names("commands", list(a.commands), list(b.commands))
        else:
            if a.library == CONTRACT:
                yield from self._terms_of_contract()
            # A contract and mjlab know a single action.
            yield from self._action(*(_joined(side.actions) for side in (a, b)))
        yield from self._joints("joints", "the robot", a.robot.joints, b.robot.joints, None)
        joints = a.robot.joints, b.robot.joints
        for rule, part, what, mine, theirs in (
            (POSITIONS, "positions", "the default position", a.robot.positions, b.robot.positions),
            (GAINS, "stiffness", "the stiffness", a.robot.stiffness, b.robot.stiffness),
            (GAINS, "damping", "the damping", a.robot.damping, b.robot.damping),
        ):
            yield from self._numbers(rule, part, what, mine, theirs, joints, None)
        if self._both("step", "the time between two actions", a.step, b.step) and not math.isclose(
            a.step or 0, b.step or 0, rel_tol=1e-4
        ):
            yield mismatch(
                CONTROL_STEP, f"{b.step:g} s pass between two actions instead of {a.step:g} s"
            )

    def _terms_of_contract(self) -> Iterator[Mismatch]:
        """Compare the terms with the keys of a contract, if they have the same names."""
        one, other = ({term.name: term for term in d.terms} for d in (self.reference, self.other))
        shared = [name for name in one if name in other]
        if 2 * len(shared) >= max(len(one), len(other), 1):
            names = list(other)
            if not self.reference.is_ordered:
                self.one_sided.append("the order of the observation terms")
                names.sort(key=lambda name: list(one).index(name) if name in one else len(one))
            yield from self._names("observation terms", list(one), names)
            for name in shared:
                yield from self._term(one[name], other[name])
        else:
            self.one_sided.append("the names of observation terms")
            for term in other.values():
                self._both("term shape", "shapes of terms", None, term.shape)
                self._both("term history", "histories", None, term.history)
        size, expected = self.other.size, self.reference.size
        what = "the size of the observation"
        if self._both("observation size", what, expected, size) and size != expected:
            text = f"the observation has {size} numbers instead of {expected}"
            yield mismatch(TERM_SHAPE, text, "concatenate the terms and frames of the training")

    def _names(self, what: str, one: list[str], other: list[str]) -> Iterator[Mismatch]:
        self.compared += bool(one or other)
        missing = [repr(name) for name in one if name not in other]
        extra = [repr(name) for name in other if name not in one]
        if missing:
            yield mismatch(TERMS, f"{what} are missing: {', '.join(missing)}")
        if extra:
            yield mismatch(TERMS, f"{what} are new: {', '.join(extra)}")
        shared = [name for name in one if name in other]
        order = _order_of(shared, [name for name in other if name in one])
        if order is not None:
            yield mismatch(
                TERM_ORDER,
                f"the {what} are in another order, {order} of {', '.join(shared)}",
                "concatenate them in the order of the training",
            )

    def _term(self, a: Term, b: Term) -> Iterator[Mismatch]:
        name = a.name
        yield from self._shapes("term shape", "shapes of terms", a, b)
        has_both = self._both("term history", "histories", a.history, b.history)
        if has_both and a.history != b.history:
            yield mismatch(
                HISTORY, f"{name!r} has {b.history} frames instead of {a.history}", key=name
            )
        # The layout of a single frame does not matter.
        if (
            max(a.history or 1, b.history or 1) > 1
            and self._both(
                "term flat_history", "layouts of histories", a.flat_history, b.flat_history
            )
            and a.flat_history != b.flat_history
        ):
            layouts = ("a dimension of their own", "one dimension with the term's values")
            yield mismatch(
                HISTORY,
                f"the frames of {name!r} have {layouts[bool(b.flat_history)]} instead of "
                f"{layouts[bool(a.flat_history)]}",
                "flatten the history as in the training: flatten_history_dim",
                key=name,
            )
        yield from self._joints("term joints", f"{name!r}", a.joints, b.joints, name)
        joints = a.joints, b.joints
        for rule, part, what, one, other, names in (
            (TERM_SCALE, "term scale", "scale", a.scale, b.scale, joints),
            (TERM_SCALE, "term clip", "clip", a.clip, b.clip, ((), ())),
            (POSITIONS, "term offsets", "joint offsets", a.offsets, b.offsets, joints),
        ):
            text = f"the {what} of {name!r}"
            yield from self._numbers(rule, part, text, one, other, names, name)

    def _action(self, a: Action, b: Action) -> Iterator[Mismatch]:
        name = b.name
        yield from self._shapes("action shape", "shapes of actions", a, b)
        yield from self._joints("action joints", f"the action {name!r}", a.joints, b.joints, name)
        joints = a.joints, b.joints
        for what, one, other, names in (
            ("scale", a.scale, b.scale, joints),
            ("offset", a.offset, b.offset, joints),
            ("clip", a.clip, b.clip, ((), ())),
        ):
            text = f"the {what} of the action {name!r}"
            yield from self._numbers(ACTION_SCALE, f"action {what}", text, one, other, names, name)

    def _shapes(
        self, part: str, what: str, a: Term | Action, b: Term | Action
    ) -> Iterator[Mismatch]:
        if self._both(part, what, a.shape, b.shape) and a.shape != b.shape:
            text = f"{b.name!r} has shape {list(b.shape or ())} instead of {list(a.shape or ())}"
            yield mismatch(TERM_SHAPE, text, key=b.name)

    def _joints(
        self, part: str, what: str, one: tuple[str, ...], other: tuple[str, ...], key: str | None
    ) -> Iterator[Mismatch]:
        if not self._both(part, f"joints of {what}", one or None, other or None) or one == other:
            return
        missing = [repr(name) for name in one if name not in other]
        extra = [repr(name) for name in other if name not in one]
        if missing or extra:
            parts = [
                f"{text} {', '.join(names[:_SHOWN])}{', …' if len(names) > _SHOWN else ''}"
                for text, names in (("lacks", missing), ("also has", extra))
                if names
            ]
            yield mismatch(JOINTS, f"{what} {' and '.join(parts)}", key=key)
        elif (order := _order_of(list(one), list(other))) is not None:
            yield mismatch(
                JOINT_ORDER,
                f"the joints of {what} are in another order, {order} of {', '.join(one)}",
                "map the joints by their names",
                key=key,
            )

    def _numbers(
        self,
        rule: CheckpointRule,
        part: str,
        what: str,
        one: Numbers | None,
        other: Numbers | None,
        joints: tuple[tuple[str, ...], tuple[str, ...]],
        key: str | None,
    ) -> Iterator[Mismatch]:
        if not self._both(part, what, one, other):
            return
        a, b = one or (), other or ()
        size = max(len(a), len(b))
        a, b = (values * size if len(values) == 1 else values for values in (a, b))
        if len(a) != len(b):
            yield mismatch(rule, f"{what} has {len(b)} values instead of {len(a)}", key=key)
            return
        names: tuple[str, ...] = ()
        if all(len(side) == size == len(set(side)) for side in joints):
            if set(joints[0]) != set(joints[1]):
                return  # the joints differ, which is reported
            names = joints[0]
            b = tuple(b[joints[1].index(name)] for name in names)
        gaps = [self._gap(x, y) for x, y in zip(a, b, strict=True)]
        if not any(gap > 1 for gap in gaps):
            return
        order = None
        if size <= _MAX_ORDERED:
            order = find_order(size, lambda i, j: 2.0 * (self._gap(a[i], b[j]) > 1))
        if order is not None:
            text = ", ".join(map(str, order))
            yield mismatch(rule, f"{what} has its values in another order, {text}", key=key)
            return
        worst = max(range(size), key=gaps.__getitem__)
        place = f" of {names[worst]!r}" if names else f" at {worst}" if size > 1 else ""
        yield mismatch(rule, f"{what}{place} is {b[worst]:g} instead of {a[worst]:g}", key=key)

    def _gap(self, a: float, b: float) -> float:
        """Return how far apart two numbers are, in units of the tolerance."""
        if a == b or (math.isnan(a) and math.isnan(b)):
            return 0
        if not (math.isfinite(a) and math.isfinite(b)):
            return math.inf
        tolerance = max(self.reference.tolerance, self.other.tolerance, 1e-6 * abs(a))
        return abs(a - b) / tolerance

    def _both(self, part: str, what: str, a: object, b: object) -> bool:
        """Return True if both sides declare something; otherwise count why it is not compared."""
        if a is not None and b is not None:
            self.compared += 1
            return True
        is_shared = part in self.reference.vocabulary and part in self.other.vocabulary
        if a is not None or b is not None:
            (self.one_sided if is_shared else self.foreign).append(what)
        else:
            self.absent += is_shared
        return False


def _joined(actions: Sequence[Action]) -> Action:
    """Return the action terms as one, as a contract and mjlab know them."""
    if len(actions) == 1:
        return actions[0]
    sizes = [prod(action.shape) if action.shape else len(action.joints) for action in actions]
    if not sizes or 0 in sizes:
        return Action("action")
    joints = tuple(joint for action in actions for joint in action.joints)

    def joined(values: Sequence[Numbers | None]) -> Numbers | None:
        numbers: list[float] = []
        for size, part in zip(sizes, values, strict=True):
            if part is None or len(part) not in (1, size):
                return None
            numbers += part * size if len(part) == 1 else part
        return tuple(numbers)

    return Action(
        "action",
        (sum(sizes),),
        joined([action.scale for action in actions]),
        joined([action.offset for action in actions]),
        joints=joints if len(joints) == sum(sizes) else (),
    )


def _order_of(one: list[str], other: list[str]) -> str | None:
    if len(one) != len(other):
        return None
    order = find_order(len(one), lambda i, j: 2.0 * (one[i] != other[j]))
    return None if order is None else ", ".join(map(str, order))
