"""Resolve the plain values of a pipeline to torch objects and imported Python objects."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tdx.errors import (
    ArgumentError,
    ChainError,
    CodeNotAllowedError,
    EnvError,
    MissingPackageError,
    TdxError,
    UnknownNameError,
    call_problem,
    did_you_mean,
    one_line,
)
from tdx.pipeline.arguments import bind_stage
from tdx.pipeline.catalog import TransformInfo
from tdx.pipeline.values import SPECS, TENSOR, Call, CodeReference, Dtype, StageConfig

if TYPE_CHECKING:
    from tdx.core.transforms import Transform


_LOOKUP_HINT = "`tdx list transforms` has the arguments of each"


class ValueResolver:
    """Turns plain values into objects.

    Args:
        allow_code: whether references to Python objects may be imported.
    """

    def __init__(self, allow_code: bool) -> None:
        self.allow_code = allow_code

    def value(self, value: object) -> Any:
        """The object for a value, and for every value inside it."""
        if isinstance(value, Dtype):
            import torch

            return getattr(torch, value.name)
        if isinstance(value, CodeReference):
            return self.imported(value)
        if isinstance(value, Call):
            return self._call(value)
        if isinstance(value, list):
            return [self.value(item) for item in value]
        if isinstance(value, tuple):
            return tuple(self.value(item) for item in value)
        if isinstance(value, Mapping):
            return {key: self.value(item) for key, item in value.items()}
        return value

    def transform(self, stage: StageConfig) -> Transform:
        """The transform of a stage.

        Raises:
            TdxError: it cannot be made.
        """
        bound = bind_stage(stage)
        if bound.errors:
            raise bound.errors[0]
        args = [self.value(value) for value in bound.args]
        kwargs = {name: self.value(value) for name, value in bound.kwargs.items()}
        if stage.code is not None:
            made = self.imported(stage.code)
            if not isinstance(made, type) and not stage.args and not stage.kwargs:
                return made
            return _call_constructor(stage.name, made, args, kwargs)
        return _call_constructor(stage.name, _load_transform_class(bound.info), args, kwargs)

    def imported(self, reference: CodeReference) -> Any:
        """The Python object that a reference names.

        Raises:
            CodeNotAllowedError: the user did not allow code.
            MissingPackageError: there is no such module.
            EnvError: the module fails on import.
            UnknownNameError: the module has no such name.
        """
        if not self.allow_code:
            raise code_not_allowed_error(reference)
        try:
            found: Any = import_module(reference.module)
        except ModuleNotFoundError as error:
            hint = "is it installed, or in the folder that you are in?"
            raise MissingPackageError(f"no module {error.name}", hint=hint) from error
        except Exception as error:
            raise EnvError(
                f"importing {reference.module} failed: {one_line(error)}",
                hint=f"python -c 'import {reference.module}' shows where",
            ) from error
        for part in reference.name.split("."):
            if not hasattr(found, part):
                public = [name for name in dir(found) if name[0] != "_"]
                near = did_you_mean(part, public, "look at the names in the module")
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
            return self.transform(StageConfig(call.name, call.args, call.kwargs))
        args = [self.value(value) for value in call.args]
        kwargs = {name: self.value(value) for name, value in call.kwargs.items()}
        return _call_constructor(call.name, make, args, kwargs)


def code_not_allowed_error(reference: CodeReference) -> CodeNotAllowedError:
    """The error for a reference that may not be imported."""
    message = f"{reference} names Python code, which is not imported unless you allow it"
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
            f"{name} does not take these arguments: {call_problem(error)}", hint=_LOOKUP_HINT
        ) from error
    except Exception as error:
        raise ChainError(f"{name} cannot be made: {one_line(error)}", hint=_LOOKUP_HINT) from error
