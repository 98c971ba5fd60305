"""The linter for chains: rules, what they look at, what they find, and how it is mended."""
