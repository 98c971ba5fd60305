"""The keys that are there at a place of the chain."""

from __future__ import annotations

from tdx.inspection.leaf import INPUT_PARTS
from tdx.keys import format_key
from tdx.pipeline.editing import DraftStage
from tdx.tui.workspace import Seen


def keys_before(seen: Seen, stage: DraftStage, *, inverse: bool = False) -> tuple[str, ...]:
    """The keys that a stage is given, as far as the last look tells.

    Args:
        seen: what is known of the chain.
        stage: the stage.
        inverse: whether the keys on the way in are meant: actions and states.
    """
    if seen.overview is None:
        return ()
    index = seen.numbers.index(stage.number) if stage.number in seen.numbers else 0
    leaves = seen.overview.before(index)
    ranked = sorted(leaves, key=lambda leaf: (leaf.part in INPUT_PARTS) is not inverse)
    return tuple(dict.fromkeys(format_key(leaf.key) for leaf in ranked))
