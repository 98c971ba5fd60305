"""The rows of the chain pane: the env, the stages with their status, problems and the output."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from tdx.pipeline.editing import Draft, DraftStage
from tdx.pipeline.editing.stack_draft import WrapperStage
from tdx.pipeline.grammar import format_arguments
from tdx.tui.chain_status import ChainStatus, ErrorStore
from tdx.tui.workspace import ENV

RowKind = Literal["env", "stage", "problem", "output"]
Badge = Literal["", "failed", "error", "warning", "suggestion", "off", "unknown"]


@dataclass(frozen=True, slots=True)
class ChainRow:
    """A row of the chain list.

    Args:
        kind: What the row shows.
        place: Place in the chain.
        title: Name.
        detail: Text after the name.
        badge: Status of the stage.
    """

    kind: RowKind
    place: int
    title: str
    detail: str = ""
    badge: Badge = ""


def build_chain_rows(draft: Draft, status: ChainStatus, errors: ErrorStore) -> list[ChainRow]:
    """Return the rows for a chain and its status."""
    rows = [*_env_rows(draft, status, errors), *_stage_rows(draft, status, errors)]
    return [*rows, _output_row(draft, status)]


def _env_rows(draft: Draft, status: ChainStatus, errors: ErrorStore) -> Iterator[ChainRow]:
    if draft.env is None:
        yield ChainRow("env", ENV, "no env yet", "press e")
        return
    found = errors.at(None)
    badge: Badge = "failed" if found else _worst_severity(status, None)
    yield ChainRow("env", ENV, draft.env.id, _env_detail(draft), badge)
    for each in found:
        yield ChainRow("problem", ENV, each.problem.message)


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


def _stage_rows(draft: Draft, status: ChainStatus, errors: ErrorStore) -> Iterator[ChainRow]:
    for place, stage in enumerate(draft.stages):
        found = errors.at(stage.number) if stage.enabled else ()
        badge: Badge = "failed" if found else _badge(stage, status)
        yield ChainRow("stage", place, _stage_name(stage), _stage_arguments(stage), badge)
        for each in found:
            yield ChainRow("problem", place, each.problem.message)


def _stage_name(stage: DraftStage) -> str:
    code = stage.config.code
    return stage.config.name if code is None else code.name


def _stage_arguments(stage: DraftStage) -> str:
    if isinstance(stage, WrapperStage):
        return stage.wrapper.text
    return format_arguments(stage.config.args, stage.config.kwargs)


def _badge(stage: DraftStage, status: ChainStatus) -> Badge:
    if not stage.enabled:
        return "off"
    if None in status.problems or stage.number not in status.last_good:
        return "unknown"  # unknown without a working env
    return _worst_severity(status, stage.number)


def _worst_severity(status: ChainStatus, number: int | None) -> Badge:
    severities = {lint.finding.severity for lint in status.lints.get(number, ())}
    ranked: tuple[Badge, ...] = ("error", "warning", "suggestion")
    return next((each for each in ranked if each in severities), "")


def _output_row(draft: Draft, status: ChainStatus) -> ChainRow:
    keys = sum(1 for change in status.overview.changes if change.after) if status.overview else 0
    words = {"inspecting": "inspecting …", "failed": "unknown", "empty": ""}
    return ChainRow("output", len(draft.stages), "output", words.get(status.phase, f"{keys} keys"))
