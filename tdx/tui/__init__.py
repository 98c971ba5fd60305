"""The terminal app: compose a chain, inspect its specs, step it and profile it.

The app shows what the layers below return and holds no logic of its own. Its process never loads
torch: whatever needs torch is answered by a worker process. ``docs/architecture.md`` lists the
modules.
"""

from __future__ import annotations

import gc
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tdx.pipeline.model import Pipeline


def open_app(
    pipeline: Pipeline | None = None, *, allow_code: bool = False, samples: str | None = None
) -> int:
    """Run the app in this terminal until the user quits.

    Args:
        pipeline: Pipeline to start with. ``None``: an empty one.
        allow_code: Allow the pipeline to import Python objects.
        samples: File or folder with the samples of a checkpoint or a data pipeline.

    Returns:
        The exit code of the process.
    """
    # Everything imported before the first screen stays alive: a collection would only cost time.
    gc.disable()
    # A key waits for the next frame, so frames twice as often answer it sooner. Nothing is drawn
    # in a frame without changes.
    os.environ.setdefault("TEXTUAL_FPS", "120")
    # An animation draws up to 20 screens for one key.
    os.environ.setdefault("TEXTUAL_ANIMATIONS", "none")
    from tdx.foundation.settings import state_path
    from tdx.foundation.text import escape_control_characters
    from tdx.pipeline.editing import Draft
    from tdx.pipeline.editing.documents import RecentFiles
    from tdx.pipeline.editing.sessions import SessionStore
    from tdx.tui.app import TdxApp
    from tdx.tui.files.files import Storage
    from tdx.tui.preferences import load_preferences
    from tdx.tui.screens.bars import HintState

    app = TdxApp(
        None if pipeline is None else Draft.of(pipeline),
        preferences=load_preferences(),
        allow_code=allow_code,
        samples=samples,
        storage=Storage(SessionStore(), RecentFiles()),
        hints=HintState(state_path() / "hints.json"),
    )
    try:
        app.run()
    finally:
        if app.crash_report:
            report = escape_control_characters(app.crash_report, keep="\n\t")
            sys.stderr.write(f"{report}\n")
    return app.return_code or 0
