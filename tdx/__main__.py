"""``python -m tdx`` is ``tdx``."""

from tdx.cli import main

main()
