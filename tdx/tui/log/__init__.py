"""The Log tab and the journal that it shows."""
