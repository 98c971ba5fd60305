"""The terminal app: compose a chain, look at its specs, step it, profile it.

It is a face: it shows what the layers below return and holds no logic of its own. The app process
never loads torch; whatever needs it is asked from a worker process.

=================  ============================================================================
``open.py``        what the ``tdx tui`` command calls
``app.py``         the Textual app: keys, themes, palette, help
``workspace.py``   the state that all parts share, and the signals by which it tells of changes
``backend/``       worker processes: requests, answers, what is pushed on the way, restarts
``screens/``       the main screen and the dialogs
``compose/``       catalogue, chain and form
``specs/``         the tab with specs, lineage and lints
``live/``          the tab in which an env is stepped
``tabs.py``        the tabs there are: add a line to add one
``bindings.py``    every key, with the id that a keymap names
=================  ============================================================================
"""
