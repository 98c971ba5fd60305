"""Key bindings of the app, the main screen, the chain, the catalog and pipeline files.

Every binding has an id that a keymap can name. A tab keeps its own bindings in its folder.
"""

from __future__ import annotations

from textual.binding import Binding

_MOVE = Binding.Group("move", compact=True)
_HISTORY = Binding.Group("undo/redo", compact=True)

APP = (
    Binding("ctrl+q", "quit", "quit", id="app.quit", show=False, priority=True),
    Binding("ctrl+p", "command_palette", "commands", id="app.palette", priority=True),
    Binding("f1", "help", "help", id="app.help"),
)
SCREEN = (
    Binding("a", "catalog", "add", id="screen.catalog"),
    Binding("e", "choose_env", "env", id="screen.env"),
    Binding("p", "presets", "presets", id="screen.presets", show=False),
    Binding("u,ctrl+z", "undo", "undo", id="screen.undo", group=_HISTORY),
    Binding("U,ctrl+y", "redo", "redo", id="screen.redo", group=_HISTORY),
    Binding("slash", "search", "search", id="screen.search", key_display="/", show=False),
    Binding("g,ctrl+g", "jump", "jump", id="screen.jump", show=False),
    Binding("z", "expand", "expand", id="screen.expand", show=False),
    Binding("less_than_sign", "resize(-4)", "narrower", id="screen.narrower", show=False),
    Binding("greater_than_sign", "resize(4)", "wider", id="screen.wider", show=False),
    Binding("t", "theme", "theme", id="screen.theme", show=False),
    Binding("y", "copy", "copy", id="screen.copy", show=False),
    Binding("k", "check", "check with steps", id="screen.check", show=False),
    Binding("h", "hints", "first steps", id="screen.hints", show=False),
    Binding("ctrl+k", "cancel", "cancel", id="screen.cancel", show=False),
    Binding("escape", "home", "chain", id="screen.home", show=False),
    Binding("f12", "details", "details", id="screen.details", show=False),
    *(
        Binding(str(n), f"tab({n})", f"tab {n}", id=f"screen.tab{n}", show=False)
        for n in range(1, 10)
    ),
)
CHAIN = (
    Binding("up", "step(-1)", "up", id="chain.up", show=False),
    Binding("down", "step(1)", "down", id="chain.down", show=False),
    Binding("home", "first", "first", id="chain.first", show=False),
    Binding("end", "last", "last", id="chain.last", show=False),
    Binding("enter", "edit", "edit", id="chain.edit"),
    Binding("space", "switch", "on/off", id="chain.switch"),
    Binding("d,delete", "remove", "remove", id="chain.remove"),
    Binding("c", "duplicate", "duplicate", id="chain.duplicate", show=False),
    Binding("shift+up,K", "move(-1)", "move up", True, "⇧↑", id="chain.move_up", group=_MOVE),
    Binding("shift+down,J", "move(1)", "move down", True, "⇧↓", id="chain.move_down", group=_MOVE),
    Binding("x", "fix", "fix", id="chain.fix"),
)
CATALOG = (
    Binding("enter", "add", "add", id="catalog.add"),
    Binding("escape", "leave", "back", id="catalog.leave"),
)


FILES = (
    Binding("ctrl+s", "file('save')", "save", id="file.save"),
    Binding("S", "file('save_as')", "save as", id="file.save_as", show=False),
    Binding("ctrl+o", "file('open')", "open", id="file.open", show=False),
    Binding("ctrl+r", "file('recent')", "recent files", id="file.recent", show=False),
    Binding("ctrl+n", "file('new')", "new pipeline", id="file.new", show=False),
    Binding("ctrl+l", "file('reload')", "reload from disk", id="file.reload", show=False),
    Binding("R", "file('restore')", "restore a session", id="file.restore", show=False),
    Binding("D", "file('dump')", "dump a rollout", id="file.dump", show=False),
)
