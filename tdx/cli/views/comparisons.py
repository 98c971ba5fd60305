"""Views of the comparison of two pipelines, and of a stack with a contract."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tdx.cli.views import (
    NONE,
    Block,
    Cell,
    Code,
    Column,
    Fold,
    Heading,
    Paragraph,
    Style,
    Table,
    View,
    dim,
    fact,
)
from tdx.cli.views.specs import comparison_table
from tdx.compare.report import RECEIVED
from tdx.foundation.text import count_text

if TYPE_CHECKING:
    from tdx.compare.model import StageRecord
    from tdx.compare.report import ExampleRow
    from tdx.contracts import ContractReport, Difference
    from tdx.contracts.contents import ContractContents
    from tdx.contracts.shrinking import Counterexample
    from tdx.inspection.diff import DiffReport, SettingChange, StageChange
    from tdx.inspection.spec_report import KeyChange

_MARKS = {"same": " ", "changed": "~", "moved": "→", "added": "+", "removed": "-"}
_STYLES: dict[str, Style] = {
    "same": "",
    "changed": "changed",
    "moved": "changed",
    "added": "added",
    "removed": "gone",
}
_SECTION_COLUMNS = (
    *("a_index", "b_index", "arguments", "part", "fields", "stages"),
    *("largest", "first_step", "note"),
)
"""Columns that only some sections fill."""
_WORDS = {
    "different": "differs",
    "shape": "different shape",
    "only_a": "only in the first",
    "only_b": "only in the second",
}


def diff_view(report: DiffReport) -> View:
    """Lay out the differences."""

    def blocks() -> list[Block]:
        verdict = "same" if report.same else "different"
        head = Heading(f"{report.a} → {report.b}", verdict, level=1)
        return [
            head,
            *_settings(report.env),
            *_stages(report.stages),
            *_specs("specs of the env", report.env_specs),
            *_specs("specs after the chain", report.chain_specs),
            *_values(report),
            *([Heading("explanation")] if report.differences else []),
            *(
                block
                for difference in report.differences
                for block in difference_blocks(difference)
            ),
            *_follows(report.follows, indent=2),
            *(fact("note", note) for note in report.notes),
        ]

    names = list(_diff_record("", "", ""))
    return View("diff", report, blocks, lambda: _diff_records(report), names=names)


def _settings(changes: Sequence[SettingChange]) -> Iterator[Block]:
    if changes:
        rows = [
            [Cell("~", "changed"), Cell(change.name), Cell(f"{change.a} → {change.b}", "changed")]
            for change in changes
        ]
        yield Heading("env")
        yield Table.of(("", "", ""), rows)


def _stages(stages: Sequence[StageChange]) -> Iterator[Block]:
    if not stages:
        return
    rows = []
    for stage in stages:
        style, call = _STYLES[stage.status], stage.b or stage.a or ""
        indices = [str(index) for index in (stage.a_index, stage.b_index) if index is not None]
        changes = [f"{change.name}: {change.a} → {change.b}" for change in stage.arguments]
        rows.append(
            [
                Cell(_MARKS[stage.status], style),
                Cell(" → ".join(dict.fromkeys(indices)), "dim"),
                Cell(f"{call}  {', '.join(changes)}" if changes else call, style),
            ]
        )
    yield Heading("stages")
    yield Table([Column(), Column(fixed=True), Column()], rows)


def _specs(title: str, changes: Sequence[KeyChange]) -> Iterator[Block]:
    differing = [change for change in changes if change.change != "same"]
    if differing:
        yield Heading(title)
        yield comparison_table(differing, sides=("first", "second"))


def _values(report: DiffReport) -> Iterator[Block]:
    if report.steps is None:
        return
    seed = "" if report.seed is None else f", seed {report.seed}"
    kind = "step" if report.samples is None else f"{report.samples} sample"
    yield Heading("values", f"{count_text(report.steps, kind)}{seed}")
    differing = [value for value in report.values if value.status != "same"]
    if differing:
        first = "first step" if report.samples is None else "first sample"
        titles = ("key", "", "largest difference", first, "")
        rows = [
            [
                Cell(value.key, "name"),
                Cell(_WORDS[value.status], "changed"),
                Cell(NONE if value.largest is None else f"{value.largest:.6g}"),
                Cell(NONE if value.first_step is None else str(value.first_step)),
                Cell(value.note, "dim"),
            ]
            for value in differing
        ]
        yield Table.of(titles, rows)
        # What a step returns is what the next one starts from: one line for both.
        keys: dict[str, list[str]] = {}
        hints: dict[str, str | None] = {}
        for value in differing:
            if value.explanation is not None:
                keys.setdefault(value.explanation.text, []).append(value.key)
                hints[value.explanation.text] = value.explanation.hint
        for text, names in keys.items():
            yield fact(", ".join(names), text)
            if (hint := hints[text]) is not None:
                yield fact("hint", hint, indent=4)
    equal = len(report.values) - len(differing)
    yield dim(f"{equal} key{'' if equal == 1 else 's'} with equal values")


def _diff_records(report: DiffReport) -> Iterator[dict[str, object]]:
    """Yield a record for each difference."""
    for change in report.env:
        yield _diff_record("env", change.name, "changed", change.a, change.b)
    for stage in report.stages:
        if stage.status != "same":
            name = str(stage.b_index if stage.b_index is not None else stage.a_index)
            row = _diff_record("stage", name, stage.status, stage.a, stage.b)
            arguments = [argument.to_dict() for argument in stage.arguments]
            places = {"a_index": stage.a_index, "b_index": stage.b_index}
            yield {**row, **places, "arguments": arguments}
    for section, specs in (("env_spec", report.env_specs), ("chain_spec", report.chain_specs)):
        for key in specs:
            if key.change != "same":
                data = key.to_dict()
                row = _diff_record(section, data["key"], key.change, data["before"], data["after"])
                yield {
                    **row,
                    "part": key.part,
                    "fields": list(key.fields),
                    "stages": data["stages"],
                }
    for value in report.values:
        if value.status != "same":
            data = value.to_dict()
            row = _diff_record("value", value.key, value.status)
            text = "" if value.explanation is None else value.explanation.text
            note = "; ".join(filter(None, (value.note, text)))
            figures = {name: data[name] for name in ("largest", "first_step")}
            yield {**row, **figures, "note": note}
    for difference in report.differences:
        row = _diff_record("difference", difference.place, difference.kind)
        yield {**row, "note": difference.sentence}


def _diff_record(
    section: str, name: str, status: str, a: Any = None, b: Any = None
) -> dict[str, object]:
    row = {"section": section, "name": name, "status": status, "a": a, "b": b}
    return {**row, **dict.fromkeys(_SECTION_COLUMNS)}


_SHOWN = 3
_COLUMNS = (
    *("root", "code", "kind", "stage", "reference_stage", "name", "key", "message", "size", "hint"),
)


def contract_view(report: ContractReport) -> View:
    """Lay out what differs between a contract and a target."""

    def blocks() -> list[Block]:
        steps = count_text(report.steps, "reference step")
        aside = f"{steps}, {count_text(report.stages, 'stage')} in the target"
        shown: list[Block] = [Heading(f"{report.reference} → {report.target}", aside, level=1)]
        text = str(report.coverage)
        if report.verdict == "same":
            parts = ", ".join(report.compare)
            text = f"the target preprocesses as the {report.noun} does ({parts}); {text}"
        elif report.verdict == "not comparable":
            text += ", which is too little for an answer"
        style: Style = "good" if report.verdict == "same" else "bad"
        shown.append(Paragraph([Cell(report.verdict, style), Cell(f": {text}")]))
        for index, difference in enumerate(report.differences):
            shown.append(Heading("first difference" if index == 0 else "further difference"))
            shown += difference_blocks(difference)
        shown += _follows(report.follows)
        if report.training_only:
            # Apart from differences, as the target has no training.
            shown.append(Heading("only in training"))
            shown += [
                Paragraph([Cell(f"{difference.code} ", "dim"), Cell(difference.sentence)])
                for difference in report.training_only
            ]
            if not report.evaluation:
                hint = "an evaluation does well without them: pass --eval to check one"
                shown.append(fact("hint", hint, indent=7))
        shown += [fact("allowed", difference.sentence, indent=0) for difference in report.allowed]
        shown += [fact("excluded", stage, indent=0) for stage in report.excluded]
        shown += [fact("note", note, indent=0) for note in report.notes]
        return shown

    def records() -> Iterator[dict[str, object]]:
        causes = (*report.differences, *report.training_only)
        for is_root, part in ((True, causes), (False, report.follows)):
            yield from ({"root": is_root, **difference.to_dict()} for difference in part)

    return View("contract", report, blocks, records, names=_COLUMNS)


def contract_contents_view(contents: ContractContents) -> View:
    """Lay out what a contract covers."""

    def blocks() -> list[Block]:
        steps = count_text(contents.steps, "reference step")
        rows = [
            [
                Cell(str(stage.index) if stage.index >= 0 else "env", "dim"),
                Cell(stage.name, "name"),
                Cell(", ".join(stage.writes) or NONE),
                Cell(", ".join(stage.state) or NONE),
                Cell(stage.random or "", "dim"),
            ]
            for stage in contents.stages
        ]
        return [
            Heading(contents.path, f"{contents.env}, {steps}, seed {contents.seed}", level=1),
            fact("kind", contents.stack_kind, indent=0),
            fact("compared", ", ".join(contents.compare), indent=0),
            fact(
                "recorded with",
                ", ".join(f"{name} {version}" for name, version in contents.libraries.items()),
                indent=0,
            ),
            Table.of(("", "stage", "writes", "state", "random"), rows),
            *(
                fact(
                    f"tolerance of {key}",
                    ", ".join(f"{name} {value:g}" for name, value in fields.items()),
                    indent=0,
                )
                for key, fields in contents.tolerances.items()
            ),
            *(fact("note", note, indent=0) for note in contents.notes),
        ]

    return View("contract_contents", contents, blocks, lambda: contents.stages)


_MAX_ELEMENTS = 16
"""Elements of a counterexample that are listed."""


def counterexample_blocks(case: Counterexample, size: str, folder: str | None) -> list[Block]:
    """Lay out the smallest contract that shows the first difference, and how to run it.

    ``size`` says what it was reduced to; ``folder`` has it as files, if it was written.
    """
    values = case.values()
    first = case.report.first
    blocks: list[Block] = [Heading("smallest case", size)]
    if first is not None and first.smallest is not None:
        blocks.append(fact("first number", first.smallest.text, indent=0))
        if first.smallest.inputs:
            blocks.append(fact(RECEIVED, first.smallest.inputs, indent=0))
    if "elements" in values:
        elements = values["elements"].tolist()
        sides = [values[name].flatten().tolist() for name in ("expected", "obtained")]
        rows = [
            [Cell(str(at)), *(Cell(f"{side[at]:.6g}") for side in sides)]
            for at in elements[:_MAX_ELEMENTS]
        ]
        titles = ("element", "expected", "obtained")
        blocks.append(Table.of(titles, rows, numbers=titles))
        if len(elements) > _MAX_ELEMENTS:
            more = count_text(len(elements) - _MAX_ELEMENTS, "more element")
            blocks.append(dim(f"{more} of this record differ"))
    if folder is not None:
        blocks.append(Code(shlex.join(["python", f"{folder}/reproduce.py"]), "sh"))
    return blocks


_STATUS_STYLES: Mapping[str, Style] = {"differs": "gone", "follows": "changed"}


def side_by_side_blocks(report: ContractReport) -> list[Block]:
    """Return what differs, then the stages of both sides next to each other."""
    rows = [
        [
            Cell(row.status, _STATUS_STYLES.get(row.status, "dim")),
            Cell(_stage_text(row.a)),
            Cell(_stage_text(row.b)),
            Cell(
                "\n".join(
                    f"{difference.kind} {difference.key or ''}".rstrip()
                    for difference in row.differences
                )
            ),
        ]
        for row in report.rows
    ]
    titles = ("", report.reference, report.target, "difference")
    blocks = list(contract_view(report).blocks())
    if report.follows:
        follows = [
            Paragraph([Cell(f"{difference.kind}: {difference.sentence}")])
            for difference in report.follows
        ]
        blocks.append(Fold(f"{count_text(len(follows), 'difference')} that follow", follows))
    return [*blocks, Heading("stages"), Table.of(titles, rows)]


def _stage_text(stage: StageRecord | None) -> str:
    """Return the name, arguments and specs of a stage, one per line."""
    if stage is None:
        return NONE
    arguments = [f"{name}={value!r:.40}" for name, value in stage.arguments.items()]
    specs = [
        f"{spec.key} {list(spec.shape)} {spec.dtype} {spec.domain}"
        for spec in stage.specs
        if spec.part in ("observation", "action")
    ]
    title = f"{stage.index} {stage.name}" if stage.index >= 0 else stage.name
    return "\n".join([title, *([", ".join(arguments)] if arguments else []), *specs])


def _follows(differences: Sequence[Difference], indent: int = 0) -> Iterator[Block]:
    """Yield one line for all differences that follow from others, with the first stages."""
    if differences:
        stages = list(dict.fromkeys(difference.place for difference in differences))
        names = ", ".join(stages[:_SHOWN])
        more = f" and {len(stages) - _SHOWN} more" if len(stages) > _SHOWN else ""
        text = f"{count_text(len(differences), 'difference')} at {names}{more}"
        yield fact("follows from it", text, indent=indent)


def difference_blocks(difference: Difference) -> Iterator[Block]:
    """Lay out a difference: its sentence, its details, and the rows that differ most."""
    code, _, kind = difference.title.partition(" ")
    title = [Cell(f"{code} ", "bad"), Cell(f"{kind}: ", "dim")]
    yield Paragraph([*title, Cell(difference.sentence, "name")])
    for name, text in difference.details():
        yield fact(name, text, indent=9 if name == RECEIVED else 7)
    if difference.examples:
        yield example_table(difference.examples)


def example_table(examples: Sequence[ExampleRow]) -> Table:
    """Lay out the rows that differ most."""
    titles = ("episode", "step", "env", "feature", "expected", "obtained")
    rows = [
        [
            Cell(str(row.episode)),
            Cell("reset" if row.step is None else str(row.step)),
            Cell(str(row.env)),
            Cell(", ".join(map(str, row.element)) or NONE),
            Cell(f"{row.expected:.6g}"),
            Cell(f"{row.obtained:.6g}", "changed"),
        ]
        for row in examples
    ]
    return Table.of(titles, rows, numbers=titles)
