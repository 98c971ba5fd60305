"""The Specs tab: specs along the chain, and the lineage of keys."""
