"""The lines on top of the tab: where the session stands, and what is to be said."""

from __future__ import annotations

from textual.content import Content

from tdx.inspection.live.views import EnvCell
from tdx.inspection.overview import Problem
from tdx.keys import format_key
from tdx.tui.live.requests import LiveState

_MEGA = 2**20


def head(state: LiveState, cell: EnvCell | None, max_bytes: int, width: int) -> Content:
    """Where a session stands, as much of it as the width takes."""
    if state.doing == "running":
        sign = Content.assemble(("▶ ", "bold $text-success"), f"{state.speed:.0f}/s")
    elif state.doing == "ended":
        sign = Content.assemble(("■ ", "bold $text-error"), "ended")
    else:
        sign = Content.assemble(("‖ ", "bold $text-accent"), "paused")
    parts = [sign, Content(f"step {state.steps:,}")]
    if state.troubled:
        parts.append(Content.styled(f"✕ {len(state.troubled)}", "bold $text-error"))
    if state.doing != "ended":
        size = f"{_size(state.nbytes)} of {_size(max_bytes)}"
        parts.append(Content.assemble(("held ", "dim"), size))
    if cell is not None:
        parts.append(Content.assemble(("return ", "dim"), f"{cell.total:.4g}"))
    if state.doing != "ended":
        parts.append(Content.assemble(f"{state.last - state.first + 1:,}", (" traces", "dim")))
    if cell is not None:
        parts.append(Content.assemble(("this episode ", "dim"), f"{cell.steps:,} steps"))
    shown = [parts[0]]
    left = width - parts[0].cell_length
    for part in parts[1:]:
        left -= part.cell_length + 3
        if left < 0:
            break
        shown.append(part)
    return Content.styled(" · ", "dim").join(shown)


def problem_note(problem: Problem) -> Content:
    """What is wrong, and what to do about it."""
    stage, name = problem.where.stage, problem.where.transform or problem.where.env
    key = "" if problem.where.key is None else f", {format_key(problem.where.key)}"
    place = "" if name is None else f"{name}: " if stage is None else f"{stage} {name}{key}: "
    origin = f" · {problem.origin}" if problem.origin else ""
    hint = f"\n  → {problem.hint}" if problem.hint else ""
    message = (problem.message, origin, (hint, "dim"))
    return Content.assemble(("✕ ", "bold $error"), (place, "bold"), *message)


def said_note(said: str) -> Content:
    """Why a run stopped, and the like."""
    return Content.assemble(("■ ", "$text-accent"), said)


def _size(nbytes: int) -> str:
    if nbytes < _MEGA:
        return f"{nbytes / 1024:.0f} kB"
    return f"{nbytes / _MEGA:.1f} MB" if nbytes < 100 * _MEGA else f"{nbytes // _MEGA} MB"
