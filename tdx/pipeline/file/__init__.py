"""Pipeline files: read, edit and write their YAML so that comments and layout stay."""
