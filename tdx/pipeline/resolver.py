"""Resolve the plain values of a pipeline to torch objects and imported Python objects."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tdx.errors import (
    ArgumentError,
    ChainError,
    CodeNotAllowedError,
    EnvError,
    MissingPackageError,
    TdxError,
    UnknownNameError,
    did_you_mean,
    explain_call_error,
    summarize_error,
)
from tdx.pipeline.arguments import bind_stage
from tdx.pipeline.catalog import TransformInfo
from tdx.pipeline.values import SPECS, TENSOR, Call, CodeReference, Dtype, StageConfig

if TYPE_CHECKING:
    from tdx.core.transforms import Transform


_LOOKUP_HINT = "`tdx show NAME` prints its arguments"


class ValueResolver:
    """Convert plain values to objects.

    Args:
        allow_code: Allow importing the Python objects that values refer to.
    """

    def __init__(self, allow_code: bool) -> None:
        self.allow_code = allow_code

    def resolve(self, value: object) -> Any:
        """Return the object for a value, with every inner value resolved."""
        if isinstance(value, Dtype):
            import torch

            return getattr(torch, value.name)
        if isinstance(value, CodeReference):
            return self.import_object(value)
        if isinstance(value, Call):
            return self._call(value)
        if isinstance(value, list):
            return [self.resolve(item) for item in value]
        if isinstance(value, tuple):
            return tuple(self.resolve(item) for item in value)
        if isinstance(value, Mapping):
            return {key: self.resolve(item) for key, item in value.items()}
        return value

    def build_transform(self, stage: StageConfig) -> Transform:
        """Create the transform of a stage.

        Raises:
            TdxError: It cannot be created.
        """
        bound = bind_stage(stage)
        if bound.errors:
            raise bound.errors[0]
        args = [self.resolve(value) for value in bound.args]
        kwargs = {name: self.resolve(value) for name, value in bound.kwargs.items()}
        if stage.code is not None:
            factory = self.import_object(stage.code)
            if not isinstance(factory, type) and not stage.args and not stage.kwargs:
                return factory
            return _call_constructor(stage.name, factory, args, kwargs)
        return _call_constructor(stage.name, _load_transform_class(bound.info), args, kwargs)

    def import_object(self, reference: CodeReference) -> Any:
        """Import the Python object that a reference names.

        Raises:
            CodeNotAllowedError: The user did not allow code.
            MissingPackageError: The module does not exist.
            EnvError: The module fails on import.
            UnknownNameError: The module does not have that name.
        """
        if not self.allow_code:
            raise code_not_allowed_error(reference)
        try:
            found = _import_module(reference)
        except ModuleNotFoundError as error:
            hint = "install it, or run tdx in the folder that contains it"
            raise MissingPackageError(f"no module {error.name}", hint=hint) from error
        except TdxError:
            raise
        except Exception as error:
            command = reference.module if reference.is_file else f"-c 'import {reference.module}'"
            raise EnvError(
                f"importing {reference.module} failed: {summarize_error(error)}",
                hint=f"python {command} shows where",
            ) from error
        for part in reference.name.split("."):
            if not hasattr(found, part):
                public = [name for name in dir(found) if name[0] != "_"]
                near = did_you_mean(part, public, "check the names in the module")
                raise UnknownNameError(f"{reference.module} has no {reference.name}", hint=near)
            found = getattr(found, part)
        return found

    def _call(self, call: Call) -> Any:
        if call.name in SPECS:
            import tdx.specs

            make = getattr(tdx.specs, call.name)
        elif call.name == TENSOR:
            import torch

            make = torch.tensor
        else:
            return self.build_transform(StageConfig(call.name, call.args, call.kwargs))
        args = [self.resolve(value) for value in call.args]
        kwargs = {name: self.resolve(value) for name, value in call.kwargs.items()}
        return _call_constructor(call.name, make, args, kwargs)


def _import_module(reference: CodeReference) -> Any:
    """Import the module of a reference; modules in the current folder are found last."""
    if reference.is_file:
        return _import_file(reference)
    folder = str(Path.cwd())
    if not {"", folder}.intersection(sys.path):
        sys.path.append(folder)
    return import_module(reference.module)


def _import_file(reference: CodeReference) -> ModuleType:
    """Import a file as a module of the name that it has, as ``python file.py`` finds its folder."""
    path = Path(reference.module)
    if not path.is_file():
        raise UnknownNameError(f"no file {path}", hint="check the path before the colon")
    folder = str(path.parent.resolve())
    if folder not in sys.path:
        sys.path.append(folder)
    known = sys.modules.get(path.stem)
    if known is not None and getattr(known, "__file__", None) == str(path.resolve()):
        return known
    # Another module may have this name; workers and pickle find it by the name in sys.modules.
    name = path.stem if known is None else f"{path.stem}_{abs(hash(folder)):x}"
    spec = spec_from_file_location(name, path.resolve())
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def code_not_allowed_error(reference: CodeReference) -> CodeNotAllowedError:
    """Return the error for a reference that may not be imported."""
    message = f"{reference} is Python code, and importing code is not allowed"
    return CodeNotAllowedError(message, hint="add --allow-code if you trust it")


def _load_transform_class(info: TransformInfo | None) -> Any:
    assert info is not None
    return getattr(import_module(info.module), info.name)


def _call_constructor(
    name: str, make: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]
) -> Any:
    try:
        return make(*args, **kwargs)
    except TdxError:
        raise
    except ModuleNotFoundError as error:
        message = f"{name} needs the package {error.name}, which is not installed"
        raise MissingPackageError(message, hint=f"pip install {error.name}") from error
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            f"{name} does not take these arguments: {explain_call_error(error)}", hint=_LOOKUP_HINT
        ) from error
    except Exception as error:
        raise ChainError(
            f"{name} cannot be created: {summarize_error(error)}", hint=_LOOKUP_HINT
        ) from error
