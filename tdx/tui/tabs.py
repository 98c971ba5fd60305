"""The tabs of the main screen: append an entry to :data:`TABS` to add one.

A tab is a :class:`~tdx.tui.tab_body.TabBody` that is constructed with the workspace. It subscribes
to the workspace's signals when it is mounted, and sends requests with ``workspace.backend``. The
class is imported when the tab is created, so that the first screen does not wait for all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tdx.tui.tab_body import TabBody


@dataclass(frozen=True, slots=True)
class Tab:
    """One tab.

    Args:
        id: Widget id of the tab pane.
        title: Label of the tab.
        load: Imports the class of the tab's content and returns it.
    """

    id: str
    title: str
    load: Callable[[], type[TabBody]]


def _load_stage() -> type[TabBody]:
    from tdx.tui.compose.stage_tab import StageTab

    return StageTab


def _load_specs() -> type[TabBody]:
    from tdx.tui.specs.specs_tab import SpecsTab

    return SpecsTab


def _load_live() -> type[TabBody]:
    from tdx.tui.live.live_tab import LiveTab

    return LiveTab


def _load_profile() -> type[TabBody]:
    from tdx.tui.profile.profile_tab import ProfileTab

    return ProfileTab


def _load_log() -> type[TabBody]:
    from tdx.tui.log.log_tab import LogTab

    return LogTab


TABS = (
    Tab("stage", "Stage", _load_stage),
    Tab("specs", "Specs", _load_specs),
    Tab("live", "Live", _load_live),
    Tab("profile", "Profile", _load_profile),
    Tab("log", "Log", _load_log),
)
