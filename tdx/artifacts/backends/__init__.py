"""Forms of an artifact, one module each, found by their names."""

from __future__ import annotations

from importlib import import_module

from tdx.artifacts.backends.interface import Backend
from tdx.foundation.errors import (
    MissingPackageError,
    UnknownNameError,
    did_you_mean,
    install_extra,
)

BACKENDS = ("pt2", "onnx", "cpp", "numpy")


def load_backend(name: str) -> Backend:
    """Return the backend of a name.

    Raises:
        UnknownNameError: The name is unknown.
        MissingPackageError: A package that it needs is not installed.
    """
    if name not in BACKENDS:
        hint = did_you_mean(name, BACKENDS, otherwise=f"one of {', '.join(BACKENDS)}")
        raise UnknownNameError(f"unknown form {name!r} of an artifact", hint=hint)
    backend: Backend = import_module(f"{__name__}.{name}").backend
    for package in backend.packages:
        try:
            import_module(package)
        except ImportError as error:
            raise MissingPackageError(
                f"{name} needs {package}, which is not installed",
                hint=None if backend.extra is None else install_extra(backend.extra),
            ) from error
    return backend


__all__ = ["BACKENDS", "Backend", "load_backend"]
