"""What the profile tab says in words."""

from __future__ import annotations

from textual.content import Content

from tdx.pipeline.editing.draft import Draft
from tdx.pipeline.editing.editor import describe_changes
from tdx.tui.profile.lines import Shown, mode_of, shown_modes
from tdx.tui.profile.numbers import micros, percent, signed
from tdx.tui.profile.requests import ModeCosts
from tdx.tui.profile.runs import Delta, Run, compared

_MOST_NAMED = 3
_JUDGED = {"quiet": "$text-success", "noisy": "$text-error", "unknown": "$text-warning"}
_TONES = {"slower": "$text-error", "faster": "$text-success", "same": "dim"}


def summary(run: Run, wanted: Shown, other: Run | None, now: Draft, low: bool) -> Content:
    """What a run says: the step, the noise, and what is different.

    Args:
        run: the run that is shown.
        wanted: the mode, or both.
        other: what it is compared with.
        now: the chain as it is now.
        low: whether there is little room.
    """
    mode = mode_of(run, wanted)
    head: list[Content | str | tuple[str, str]] = [(f"#{run.number} {run.change}", "bold")]
    edited = describe_changes(run.draft, now)
    if edited != "nothing":
        head += [("  edited: ", "dim"), (edited, "$text-accent")]
    parts = [Content.assemble(*head)]
    if mode is not None and mode.steps:
        parts += _found(run, mode, wanted, other, low)
    if run.ended is not None:
        parts.append(Content.styled(f"✕ {run.ended}", "$text-error"))
    if mode is not None:
        parts += _waits(mode)
        parts += [Content.styled(note, "$text-warning") for note in mode.notes]
    return Content("\n").join(parts)


def run_text(run: Run, wanted: Shown, other: Run | None) -> str:
    """A run on one line: ``#2 remove CatFrames: 46.5 µs/step, -7.05 µs (-13 %) to #1``."""
    mode = mode_of(run, wanted)
    parts = []
    if mode is not None and mode.steps:
        parts.append(f"{micros(mode.step_us)} µs/step")
        comparison = None if other is None else compared(run, other, mode.mode)
        if comparison is not None and other is not None:
            parts.append(delta_text(comparison.step, other).plain)
    if run.ended is not None:
        parts.append(run.ended)
    return f"#{run.number} {run.change}: {', '.join(part for part in parts if part)}"


def _found(run: Run, mode: ModeCosts, wanted: Shown, other: Run | None, low: bool) -> list[Content]:
    several = len(shown_modes(run, wanted)) > 1
    parts: list[Content | str | tuple[str, str]] = [_step(run, mode, wanted)]
    comparison = None if other is None else compared(run, other, mode.mode)
    if comparison is not None and other is not None and not several:
        parts += ["  ", delta_text(comparison.step, other, low)]
    style = _JUDGED.get(mode.judgement, "dim")
    if low:
        return [Content.assemble(*parts, "  ", (f"±{mode.noise:.0%}", style))]
    rate = f"{mode.mode} · {mode.frames_per_second:,.0f} frames/s · "
    noise = f"±{mode.noise:.1%} {mode.judgement}"
    found = [Content.assemble(*parts), Content.assemble((rate, "dim"), (noise, style))]
    if mode.judgement in ("noisy", "unknown"):
        found.append(Content.styled(mode.noise_text, style))
    return found


def _step(run: Run, mode: ModeCosts, wanted: Shown) -> Content:
    modes = [each for each in shown_modes(run, wanted) if each.steps]
    if len(modes) < 2:
        return Content.styled(f"{micros(mode.step_us)} µs/step", "bold")
    first, parts = modes[0].step_us, []
    for each in modes:
        ratio = each.step_us / first - 1
        saved = f" ({percent(ratio)})" if each is not modes[0] else ""
        tone = "" if not saved else "$text-success" if ratio < 0 else "$text-error"
        parts.append(Content.assemble(f"{each.mode} {micros(each.step_us)}", (saved, tone)))
    return Content.assemble(Content(", ").join(parts), " µs/step")


def _waits(mode: ModeCosts) -> list[Content]:
    """Who makes the host wait for the accelerator; nobody sees that in the times."""
    named = list(dict.fromkeys(row.label for row in mode.rows if row.syncs))
    if not named:
        return []
    more = [f"{len(named) - _MOST_NAMED} more"] if len(named) > _MOST_NAMED else []
    where = ", ".join([*named[:_MOST_NAMED], *more])
    text = f"hidden syncs: the host waits for the GPU in {where}"
    return [Content.styled(text, "$text-warning")]


def delta_text(delta: Delta, other: Run, low: bool = False) -> Content:
    """The difference of a step to another run: ``-12.1 µs (-9 %) to #2``."""
    if not delta.before_us:
        return Content("")
    if delta.kind == "same":
        within = "" if low else ", within the noise"
        return Content.styled(f"≈ as in #{other.number}{within}", "dim")
    share = percent(delta.us / delta.before_us)
    text = f"{signed(delta.us)} µs ({share}) to #{other.number}"
    return Content.styled(text, f"bold {_TONES[delta.kind]}")


def history_line(run: Run, before: Run | None, wanted: Shown, marks: str) -> Content:
    """A run in the list of runs."""
    mode = mode_of(run, wanted)
    step = f"{micros(mode.step_us):>7}" if mode is not None and mode.steps else "      –"
    parts: list[Content | str | tuple[str, str]] = [f"{marks}#{run.number:<3}", (step, "bold"), " "]
    comparison = None
    if before is not None and mode is not None:
        comparison = compared(run, before, mode.mode)
    if comparison is not None and comparison.step.before_us:
        share = percent(comparison.step.us / comparison.step.before_us)
        same = comparison.step.kind == "same"
        parts.append((f"{'≈' if same else share:>6} ", _TONES.get(comparison.step.kind, "")))
    else:
        parts.append(" " * 7)
    parts.append((run.change, "" if run.ended is None else "$text-error"))
    if run.ended is not None:
        parts.append((f"  {run.ended}", "$text-error"))
    return Content.assemble(*parts)


WELCOME = """What does each part of a rollout cost? [b]r[/b] measures the chain in the background.

Edit the chain and measure again: the difference to the run before stands beside each row."""
