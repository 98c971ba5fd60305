"""The table of episodes."""

from __future__ import annotations

from collections.abc import Sequence

from tdx.inspection.live.views import EpisodeView
from tdx.tui.live.lines import Line, Lines, cut

_ENDS = {"terminated": "warn", "truncated": "secondary", "done": "warn", "reset": "muted"}


class EpisodeList(Lines):
    """One line for each episode, the newest on top; Enter goes to where it begins."""

    HELP = """## The episodes

The newest is on top. `Enter` or a double click shows its first step; `[` and `]` go from episode to
episode."""

    def __init__(self) -> None:
        super().__init__(id="live-episodes")
        self.border_title = "episodes"
        self.episodes: Sequence[EpisodeView] = ()
        self._batched = False
        self.first = 1

    def show_episodes(self, episodes: Sequence[EpisodeView], *, batched: bool) -> None:
        """Show these from now on."""
        self.episodes, self._batched = tuple(reversed(episodes)), batched
        totals = [each.total for each in episodes if each.steps]
        span = (min(totals), max(totals)) if totals else (0.0, 0.0)
        head = f"{'env ' if batched else ''}{'no':>4}{'steps':>6}{'return':>10}  end"
        lines: list[Line] = [((head, "muted"),)]
        lines += [self._line(each, span) for each in self.episodes]
        self.show(lines)

    def _line(self, each: EpisodeView, span: tuple[float, float]) -> Line:
        low, high = span
        left = self.size.width - 35 - 4 * self._batched
        share = (each.total - low) / (high - low) if high > low else 1.0
        bar = "━" * round(share * left) if left > 3 and each.steps else ""
        return (
            (f"{each.row:>3} " if self._batched else "", "secondary"),
            (f"{each.number:>4}{each.steps:>6}", "plain"),
            (f"{each.total:>10.4g}", "bold"),
            (f"  {cut(each.end or 'goes on', 11):<11}", _ENDS.get(each.end, "good")),
            (bar, "primary"),
        )

    def at(self, line: int) -> EpisodeView | None:
        """The episode on a line."""
        return self.episodes[line - 1] if 0 < line <= len(self.episodes) else None
