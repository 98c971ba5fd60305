"""Open the app on this terminal."""

from __future__ import annotations

import gc

from tdx.pipeline.editing import Draft
from tdx.pipeline.model import Pipeline


def open_app(pipeline: Pipeline | None = None, *, allow_code: bool = False) -> int:
    """Run the app until the user leaves it.

    Args:
        pipeline: the pipeline to begin with; none for an empty one.
        allow_code: whether Python objects that it names may be imported.

    Returns:
        The exit code of the process.
    """
    # What is made on the way to the first screen stays: looking for garbage in it only costs time.
    gc.disable()
    from tdx.pipeline.editing.documents import RecentFiles
    from tdx.pipeline.editing.sessions import SessionStore
    from tdx.settings import state_path
    from tdx.tui.app import TdxApp
    from tdx.tui.files.files import Kept
    from tdx.tui.preferences import load_preferences
    from tdx.tui.screens.hints import HintBook

    draft = None if pipeline is None else Draft.of(pipeline)
    kept = Kept(SessionStore(), RecentFiles())
    hints = HintBook(state_path() / "hints.json")
    app = TdxApp(
        draft, preferences=load_preferences(), allow_code=allow_code, kept=kept, hints=hints
    )
    app.run()
    return app.return_code or 0
