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
    """Return the backend of a name, if the packages that it needs are installed."""
    if name not in FORMS:
        hint = did_you_mean(name, FORMS, otherwise=f"one of {', '.join(FORMS)}")
        raise UnknownNameError(f"unknown form {name!r} of an artifact", hint=hint)
    from tdx.artifacts.backends import cpp, numpy, onnx, pt2

    backends = {"pt2": pt2, "onnx": onnx, "cpp": cpp, "numpy": numpy}
    backend: Backend = backends[name].backend
    for package in backend.packages:
        if find_spec(package) is None:
            raise MissingPackageError(
                f"{name} needs {package}, which is not installed", hint=install_extra(name)
            )
    return backend


__all__ = ["Backend", "load_backend"]
