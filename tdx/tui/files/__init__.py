"""Pipeline files: open, save, autosave, changes on disk, dumps and shutdown."""
