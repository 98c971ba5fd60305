"""The keys for files, each with the id that a keymap can name."""

from __future__ import annotations

from textual.binding import Binding

FILES = (
    Binding("ctrl+s", "file('save')", "save", id="file.save"),
    Binding("S", "file('save_as')", "save as", id="file.save_as", show=False),
    Binding("ctrl+o", "file('open')", "open", id="file.open", show=False),
    Binding("ctrl+r", "file('recent')", "recent files", id="file.recent", show=False),
    Binding("ctrl+n", "file('new')", "new pipeline", id="file.new", show=False),
    Binding("ctrl+l", "file('reload')", "reload from disk", id="file.reload", show=False),
    Binding("R", "file('restore')", "restore a kept session", id="file.restore", show=False),
    Binding("D", "file('dump')", "dump a rollout", id="file.dump", show=False),
)
