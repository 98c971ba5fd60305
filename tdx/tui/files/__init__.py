"""Pipeline files: open, save, autosave and restore, changes on disk, dumps."""
