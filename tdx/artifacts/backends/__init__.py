"""Forms of an artifact, one module each."""

from __future__ import annotations

from importlib.util import find_spec

from tdx.artifacts import FORMS
from tdx.artifacts.backends.interface import Backend
from tdx.foundation.errors import (
    MissingPackageError,
    UnknownNameError,
    did_you_mean,
    install_extra,
)


def load_backend(name: str) -> Backend:
    """Return the backend of a name.

    Raises:
        UnknownNameError: The name is unknown.
        MissingPackageError: A package that it needs is not installed.
    """
    backend: Backend
    match name:
        case "pt2":
            from tdx.artifacts.backends.pt2 import backend
        case "onnx":
            from tdx.artifacts.backends.onnx import backend
        case "numpy":
            from tdx.artifacts.backends.numpy import backend
        case "cpp":
            from tdx.artifacts.backends.cpp import backend
        case _:
            hint = did_you_mean(name, FORMS, otherwise=f"one of {', '.join(FORMS)}")
            raise UnknownNameError(f"unknown form {name!r} of an artifact", hint=hint)
    for package in backend.packages:
        if find_spec(package) is None:
            raise MissingPackageError(
                f"{name} needs {package}, which is not installed", hint=install_extra(name)
            )
    return backend


__all__ = ["Backend", "load_backend"]
