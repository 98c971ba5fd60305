"""Editing of pipelines without torch: undo, forms, documents, sessions."""

from __future__ import annotations

from tdx.pipeline.draft import Draft, DraftStage
from tdx.pipeline.editing.editor import DraftChange, Editor

__all__ = ["Draft", "DraftChange", "DraftStage", "Editor"]
