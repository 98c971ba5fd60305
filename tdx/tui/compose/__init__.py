"""Composing a chain: catalog, chain pane and Stage tab."""
