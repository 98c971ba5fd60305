"""Editing of pipelines without torch: drafts, undo, forms, documents, sessions."""

from __future__ import annotations

from tdx.pipeline.editing.draft import Draft, DraftChange, DraftStage, Editor

__all__ = ["Draft", "DraftChange", "DraftStage", "Editor"]
