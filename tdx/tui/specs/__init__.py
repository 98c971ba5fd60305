"""The specs along the chain, and the lineage of keys."""
