"""Lines of the Contract view: the stages side by side, and what is known of one of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from textual.content import Content

from tdx.compare.report import RECEIVED, ContractReport
from tdx.foundation.text import count_text
from tdx.tui.contract.messages import Comparison, KeyValues, Records, StageComparison, StageText

LEGEND = "≠ differs ↳ follows - + one side · not compared"
FIRST = "▶"
_STYLES = {
    "≠": "bold $error",
    "-": "bold $error",
    "+": "bold $error",
    "↳": "$warning",
    "=": "$success",
    "?": "$secondary",
    "·": "dim",
}
_MIN_NUMBER = 10
_SHOWN = 3
_MAX_SIDE = 16
"""Values of a side whose values are not compared with those of the other one."""
_PREVIEW = 28
"""Columns for the first values of a key."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the list: a stage, or a key after it."""

    stage: StageComparison
    key: KeyValues | None = None  # the key; ``None``: the stage itself
    is_first: bool = False  # true for the first difference

    @property
    def mark(self) -> str:
        """Sign between both sides."""
        if self.key is None:
            if self.stage.status == "not compared":
                return "·"
            if self.stage.a is None or self.stage.b is None:
                return "+" if self.stage.a is None else "-"
            return {"same": "=", "differs": "≠", "follows": "↳"}[self.stage.status]
        if self.stage.is_random:
            return "?"
        if not self.key.differs:
            return "="
        if None in (self.key.left, self.key.right):
            return "+" if self.key.left is None else "-"
        if self.stage.status == "follows":
            return "↳"
        # Chains of different libraries may reach the same values in another way.
        return "·" if self.stage.status == "same" else "≠"

    def render(self, width: int) -> Content:
        """Return the line in a width, with both sides in columns of the same width."""
        column = max((width - 5) // 2, 8)
        mark, is_stage = self.mark, self.key is None
        first = (f"{FIRST} " if self.is_first else "  ", "bold $error")
        side = "bold" if is_stage and mark != "·" else "dim" if mark == "·" else ""
        if self.key is None:
            texts = ["" if side is None else side.title for side in _both(self.stage)]
        else:
            sides = ((self.key.left, self.key.a), (self.key.right, self.key.b))
            texts = [
                "" if spec is None else _key_text(self.key, spec, records, column)
                for spec, records in sides
            ]
        left, right = (
            Content(text).truncate(column, ellipsis=True, pad=True).plain for text in texts
        )
        sign = (f" {mark} ", _STYLES.get(mark, ""))
        return Content.assemble(first, (left, side), sign, (right.rstrip(), side))


def _key_text(key: KeyValues, spec: str, records: Records, column: int) -> str:
    """Return key and spec, with the first values if there is room."""
    text = f"  {key.key}{' ←' if key.is_inverse else ''}  {spec}"
    step = key.first_step
    if step < len(records) and len(text) + _PREVIEW <= column:
        shown = " ".join(_number(value, 3) for value in records[step][:_SHOWN])
        more = " …" if len(records[step]) > _SHOWN else ""
        text = f"{text:<{column - _PREVIEW}}  {shown}{more}"
    return text


def _both(stage: StageComparison) -> tuple[StageText | None, StageText | None]:
    return stage.a, stage.b


def list_lines(comparison: Comparison) -> list[Line]:
    """Return the lines of a comparison: each stage, then its keys."""
    lines: list[Line] = []
    first = comparison.report.first
    is_marked = False
    for stage in comparison.stages:
        is_here = not is_marked and first is not None and first in stage.differences
        is_marked |= is_here
        lines.append(Line(stage, None, is_here))
        lines += [Line(stage, key) for key in stage.keys]
    return lines


def start_line(lines: Sequence[Line]) -> int:
    """Return the line of the first difference: of a key that differs if there is one."""
    first = next((at for at, line in enumerate(lines) if line.is_first), None)
    if first is None:
        return 0
    for at in range(first + 1, len(lines)):
        key = lines[at].key
        if key is None:
            break
        if key.differs:
            return at
    return first


def heading(report: ContractReport) -> str:
    """Return the result in one line."""
    if report.verdict != "different":
        sign = "=" if report.same else "?"
        return f"{sign} {report.verdict}: {report.coverage}"
    causes, follows = len(report.causes), len(report.follows)
    text = f"≠ {count_text(causes, 'difference')}"
    if not follows:
        return text
    them = "it" if causes == 1 else "them"
    return f"{text}, {follows} follow{'s' if follows == 1 else ''} from {them}"


def details(comparison: Comparison, line: Line, step: int, width: int) -> Content:
    """Return what is known of a line, with the values of a reference step."""
    stage, report = line.stage, comparison.report
    parts = list(_difference_parts(comparison, line))
    if line.key is not None:
        parts += _value_lines(line.key, step, width, report.noun)
    if report.follows and any(difference in report.causes for difference in stage.differences):
        what = "the difference" if len(report.causes) == 1 else "the differences"
        parts += [Content(""), Content.styled(f"follows from {what}", "bold")]
        sentences = dict.fromkeys(difference.sentence for difference in report.follows)
        parts += [Content.assemble(("↳ ", "$warning"), sentence) for sentence in sentences]
    if line.key is None:
        sides = [side for side in _both(stage) if side is not None]
        names = dict.fromkeys(name for side in sides for name in side.unlisted)
        if names:
            compared = " and ".join(report.compare)
            text = f"writes {', '.join(names)}, not compared: the {report.noun} compares {compared}"
            parts.append(Content.styled(text, "dim"))
        parts += _stage_lines(stage, width, report.noun)
        if stage.a is not None and stage.a.index < 0:
            notes = [
                *(f"allowed: {difference.sentence}" for difference in report.allowed),
                *(f"excluded: {name}" for name in report.excluded),
                *report.notes,
            ]
            parts += [Content.styled(f"· {note}", "dim") for note in notes]
    return Content("\n").join(parts)


def _difference_parts(comparison: Comparison, line: Line) -> Iterator[Content]:
    """Yield the causes at a stage, else what follows from earlier ones."""
    stage, key, report = line.stage, line.key, comparison.report
    shown = [difference for difference in stage.differences if difference in report.causes]
    if not shown:
        of_key = [
            difference
            for difference in stage.differences
            if key is not None and difference.key == key.key
        ]
        shown = of_key or list(stage.differences)
    if stage.is_random:
        yield Content.styled("? random, and does not follow the seed: not compared", "$secondary")
    elif not shown:
        yield Content(_STATUS_TEXTS[stage.status])
    for difference in shown:
        is_first, is_cause = difference == report.first, difference in report.causes
        sign = FIRST if is_first else "≠" if is_cause else "↳"
        style = "bold $error" if is_cause else "$warning"
        where = "first difference  " if is_first else ""
        yield Content.assemble((f"{sign} {where}{difference.title}", style))
        yield Content(difference.sentence)
        for name, text in difference.details():
            indent = "  " if name == RECEIVED else ""
            yield Content.assemble((f"{indent}{name}: ", "dim"), text)
    if shown and report.first is not None and shown[0] not in report.causes:
        yield Content.styled(f"follows from {report.first.place}", "dim")


_STATUS_TEXTS = {
    "same": "= the same on both sides",
    "not compared": "· not compared: it changes nothing that a policy reads or does, or belongs to "
    "training only",
}


def _value_lines(key: KeyValues, step: int, width: int, noun: str) -> Iterator[Content]:
    """Yield the values of both sides in a reference step; ``≠`` marks differences."""
    if key.reason:
        yield Content("")
        yield Content.styled(key.reason, "$warning")
    if not key.steps:
        return
    step = min(step, len(key.steps) - 1)
    unequal = key.unequal[step] if step < len(key.unequal) else frozenset()
    marks = "".join("≠" if places else "·" for places in key.unequal)
    yield Content("")
    yield Content.assemble(
        (f"{key.steps[step]}", "bold"),
        (f"  {step + 1} of {len(key.steps)}", "dim"),
        (f"  {marks[:step]}", "dim"),
        (marks[step : step + 1], "bold reverse"),
        (marks[step + 1 :], "dim"),
    )
    if key.reason:
        for name, records in ((noun, key.a), ("target", key.b)):
            if step < len(records):
                shown = " ".join(_number(value) for value in records[step][:_MAX_SIDE])
                more = " …" if len(records[step]) > _MAX_SIDE else ""
                yield Content.assemble((f"  {name:10}", "dim"), f"{shown}{more}")
        return
    label = max(map(len, key.labels), default=0)
    column = min(max((width - label - 6) // 3, _MIN_NUMBER), 18)
    names = f"  {'':{label}} {noun:>{column}} {'target':>{column}} {'difference':>{column}}"
    yield Content.styled(names, "dim")
    for at, name in enumerate(key.labels):
        elements = [records[step] if step < len(records) else () for records in (key.a, key.b)]
        a, b = (record[at] if at < len(record) else None for record in elements)
        apart = "" if a is None or b is None or a == b else f"{b - a:+.4g}"
        texts = " ".join(f"{text:>{column}}" for text in (_number(a), _number(b), apart))
        sign = "≠" if at in unequal else " "
        style = "$error" if at in unequal else ""
        yield Content.assemble((f"{sign} ", "bold $error"), (f"{name:{label}} {texts}", style))
    if key.note:
        yield Content.styled(f"  {key.note}", "dim")


def _number(value: float | None, digits: int = 6) -> str:
    return "–" if value is None else f"{value:.{digits}g}"


def _stage_lines(stage: StageComparison, width: int, noun: str) -> Iterator[Content]:
    """Yield arguments, specs and state of both sides."""
    for title in ("arguments", "specs", "state"):
        sides: list[Mapping[str, str]] = [
            {} if side is None else getattr(side, title) for side in _both(stage)
        ]
        names = dict.fromkeys(name for side in sides for name in side)
        if names:
            yield Content("")
            yield Content.styled(title, "bold")
        for name in names:
            one, other = (side.get(name) for side in sides)
            if one == other or stage.a is None or stage.b is None:
                text = one if one is not None else other
                yield Content.assemble("  ", (name, "dim"), f"  {text}")
                continue
            left, right = one or "–", other or "–"
            head = [("≠ ", "bold $error"), (name, "dim")]
            if len(name) + len(left) + len(right) + 8 <= width:
                yield Content.assemble(*head, f"  {left}", ("  →  ", "dim"), right)
            else:
                yield Content.assemble(*head)
                yield Content.assemble((f"    {noun}  ", "dim"), left)
                yield Content.assemble((f"    {'target':{len(noun)}}  ", "dim"), right)
