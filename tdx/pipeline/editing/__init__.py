"""A pipeline while it is edited: drafts, undo and redo, forms, search, presets; loads no torch."""

from __future__ import annotations

from tdx.pipeline.editing.draft import Draft, DraftStage
from tdx.pipeline.editing.editor import DraftChange, Editor

__all__ = ["Draft", "DraftChange", "DraftStage", "Editor"]
