"""A chain as an artifact: the same preprocessing in another runtime, with a proof."""
