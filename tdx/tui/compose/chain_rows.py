"""The lines in which a chain is drawn, as plain data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from tdx.pipeline.editing import Draft, DraftStage
from tdx.pipeline.formatting import format_arguments
from tdx.tui.workspace import ENV, Seen

RowKind = Literal["env", "stage", "problem", "output"]
Badge = Literal["", "failed", "error", "warning", "advice", "off"]


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


def chain_rows(draft: Draft, seen: Seen) -> list[Row]:
    """The lines for a chain and what is known of it."""
    return [*_env_rows(draft, seen), *_stage_rows(draft, seen), _output_row(draft, seen)]


def _env_rows(draft: Draft, seen: Seen) -> Iterator[Row]:
    if draft.env is None:
        yield Row("env", ENV, "no env yet", "press e")
        return
    problem = seen.problems.get(None)
    badge: Badge = "failed" if problem else _found(seen, None)
    yield Row("env", ENV, draft.env.id, _env_detail(draft), badge)
    if problem:
        yield Row("problem", ENV, problem.message)


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


def _stage_rows(draft: Draft, seen: Seen) -> Iterator[Row]:
    for place, stage in enumerate(draft.stages):
        problem = seen.problems.get(stage.number) if stage.enabled else None
        yield Row("stage", place, _name(stage), _arguments(stage), _badge(stage, seen))
        if problem is not None:
            yield Row("problem", place, problem.message)


def _name(stage: DraftStage) -> str:
    code = stage.config.code
    return stage.config.name if code is None else code.name


def _arguments(stage: DraftStage) -> str:
    return format_arguments(stage.config.args, stage.config.kwargs)


def _badge(stage: DraftStage, seen: Seen) -> Badge:
    if not stage.enabled:
        return "off"
    if stage.number in seen.problems:
        return "failed"
    return _found(seen, stage.number)


def _found(seen: Seen, number: int | None) -> Badge:
    severities = {lint.finding.severity for lint in seen.lints.get(number, ())}
    ranked: tuple[Badge, ...] = ("error", "warning", "advice")
    return next((each for each in ranked if each in severities), "")


def _output_row(draft: Draft, seen: Seen) -> Row:
    keys = sum(1 for change in seen.overview.changes if change.after) if seen.overview else 0
    words = {"looking": "looking …", "failed": "unknown", "empty": ""}
    return Row("output", len(draft.stages), "output", words.get(seen.status, f"{keys} keys"))
