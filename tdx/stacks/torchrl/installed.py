"""The TorchRL release that tdx supports."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from tdx.errors import MissingPackageError

SUPPORTED = "0.14"
"""Release whose envs, transforms and specs are supported."""
HINT = "pip install 'tdx[torchrl]'"


def require_torchrl() -> None:
    """Check that a supported release of TorchRL is installed, without importing it.

    Raises:
        MissingPackageError: It is missing, or another release is installed.

    Example:
        >>> require_torchrl()
    """
    try:
        found = version("torchrl")
    except PackageNotFoundError as error:
        raise MissingPackageError("TorchRL is not installed", hint=HINT) from error
    if not found.startswith(f"{SUPPORTED}."):
        raise MissingPackageError(
            f"TorchRL {found} is not supported: tdx needs {SUPPORTED}", hint=HINT
        )
