"""The lines in which a chain is drawn, as plain data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from tdx.pipeline.editing import Draft, DraftStage
from tdx.pipeline.grammar import format_arguments
from tdx.tui.problems import ErrorStore
from tdx.tui.workspace import ENV, Seen

RowKind = Literal["env", "stage", "problem", "output"]
Badge = Literal["", "failed", "error", "warning", "suggestion", "off", "unknown"]


@dataclass(frozen=True, slots=True)
class Row:
    """One line.

    Args:
        kind: what it shows.
        place: the place that it belongs to.
        title: its name.
        detail: what stands behind the name.
        badge: what its mark says.
    """

    kind: RowKind
    place: int
    title: str
    detail: str = ""
    badge: Badge = ""


def chain_rows(draft: Draft, seen: Seen, errors: ErrorStore) -> list[Row]:
    """The lines for a chain and what is known of it."""
    rows = [*_env_rows(draft, seen, errors), *_stage_rows(draft, seen, errors)]
    return [*rows, _output_row(draft, seen)]


def _env_rows(draft: Draft, seen: Seen, errors: ErrorStore) -> Iterator[Row]:
    if draft.env is None:
        yield Row("env", ENV, "no env yet", "press e")
        return
    found = errors.at(None)
    badge: Badge = "failed" if found else _found(seen, None)
    yield Row("env", ENV, draft.env.id, _env_detail(draft), badge)
    for each in found:
        yield Row("problem", ENV, each.problem.message)


def _env_detail(draft: Draft) -> str:
    env = draft.env
    assert env is not None
    parts = [
        f"×{env.num_envs}" if env.num_envs is not None else "",
        "pixels" if env.from_pixels else "",
        env.device or "",
        f"seed {env.seed}" if env.seed is not None else "",
    ]
    return " ".join(part for part in parts if part)


def _stage_rows(draft: Draft, seen: Seen, errors: ErrorStore) -> Iterator[Row]:
    for place, stage in enumerate(draft.stages):
        found = errors.at(stage.number) if stage.enabled else ()
        badge: Badge = "failed" if found else _badge(stage, seen)
        yield Row("stage", place, _name(stage), _arguments(stage), badge)
        for each in found:
            yield Row("problem", place, each.problem.message)


def _name(stage: DraftStage) -> str:
    code = stage.config.code
    return stage.config.name if code is None else code.name


def _arguments(stage: DraftStage) -> str:
    return format_arguments(stage.config.args, stage.config.kwargs)


def _badge(stage: DraftStage, seen: Seen) -> Badge:
    if not stage.enabled:
        return "off"
    if None in seen.problems or stage.number not in seen.good:
        return "unknown"  # without the env nobody can tell what a stage does
    return _found(seen, stage.number)


def _found(seen: Seen, number: int | None) -> Badge:
    severities = {lint.finding.severity for lint in seen.lints.get(number, ())}
    ranked: tuple[Badge, ...] = ("error", "warning", "suggestion")
    return next((each for each in ranked if each in severities), "")


def _output_row(draft: Draft, seen: Seen) -> Row:
    keys = sum(1 for change in seen.overview.changes if change.after) if seen.overview else 0
    words = {"looking": "looking …", "failed": "unknown", "empty": ""}
    return Row("output", len(draft.stages), "output", words.get(seen.status, f"{keys} keys"))
