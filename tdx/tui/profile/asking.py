"""What the worker is asked, from what is set in the tab."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tdx.tui.profile.lines import Shown, modes_for
from tdx.tui.profile.requests import Advise, Extra, Measure

if TYPE_CHECKING:
    from tdx.tui.workspace import Workspace


@dataclass(frozen=True, slots=True)
class Settings:
    """How long is measured.

    Args:
        steps: of each repeat.
        repeats: how often.
    """

    steps: int
    repeats: int

    @property
    def warmup(self) -> int:
        """Steps before the first one that counts."""
        return min(100, max(1, self.steps // 10))


def measure_request(
    workspace: Workspace, settings: Settings, wanted: Shown, extras: Collection[Extra]
) -> Measure:
    """Measure the chain as it is now."""
    return Measure(
        workspace.draft.pipeline(),
        modes_for(wanted),
        steps=settings.steps,
        repeats=settings.repeats,
        warmup=settings.warmup,
        extras=frozenset(extras),
        allow_code=workspace.allow_code,
    )


def advise_request(workspace: Workspace, settings: Settings, wanted: Shown) -> Advise:
    """Try what may make the chain cheaper in the mode that rollouts run in, or the one wanted."""
    modes = modes_for(wanted)
    return Advise(
        workspace.draft.pipeline(),
        "planned" if "planned" in modes else modes[0],
        steps=settings.steps,
        repeats=settings.repeats,
        warmup=settings.warmup,
        allow_code=workspace.allow_code,
    )
