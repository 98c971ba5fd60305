"""Arguments of a stage: matched to the declaration of its transform, and resolved to objects."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tdx.foundation.errors import (
    ArgumentError,
    ChainError,
    EnvError,
    MissingPackageError,
    TdxError,
    UnknownNameError,
    did_you_mean,
    explain_call_error,
    find_similar_names,
    summarize_error,
)
from tdx.foundation.files import missing_file_error
from tdx.pipeline.catalog import load_catalog, load_plugin_transform
from tdx.pipeline.coercion import MismatchError, coerce, coerce_untyped, parse_or_none
from tdx.pipeline.grammar import format_value, shorten
from tdx.pipeline.transform_info import Parameter, TransformInfo, Type
from tdx.pipeline.values import (
    SPECS,
    TENSOR,
    Call,
    CodeReference,
    Dtype,
    FileArguments,
    StageConfig,
    Value,
    code_not_allowed_error,
    iterate_values,
)

if TYPE_CHECKING:
    from tdx.core.transforms import Transform


@dataclass
class BoundStage:
    """A stage with its arguments matched to the declared parameters."""

    stage: StageConfig
    info: TransformInfo | None  # None: Python code or an unknown name.
    args: list[object] = field(default_factory=list)  # Positional arguments for the constructor.
    kwargs: dict[str, object] = field(default_factory=dict)
    errors: list[TdxError] = field(default_factory=list)

    @property
    def values(self) -> list[object]:
        return [*self.args, *self.kwargs.values()]

    @property
    def given(self) -> dict[str, object]:
        """The arguments by name, those without a name left out."""
        names = [] if self.info is None else [parameter.name for parameter in self.info.positional]
        return {**dict(zip(names, self.args, strict=False)), **self.kwargs}


def bind_stage(stage: StageConfig) -> BoundStage:
    """Match the arguments of a stage to its declaration; problems are listed in ``errors``."""
    if stage.code is not None:
        kwargs = {name: coerce_untyped(value) for name, value in stage.kwargs.items()}
        return BoundStage(stage, None, [coerce_untyped(value) for value in stage.args], kwargs)
    try:
        info = load_catalog()[stage.name]
    except UnknownNameError as error:
        return BoundStage(stage, None, errors=[error])
    bound = BoundStage(stage, info)
    positional, rest = info.positional, info.rest("var_positional")
    for index, value in enumerate(stage.args):
        parameter = positional[index] if index < len(positional) else rest
        if parameter is None:
            takes = f"{len(positional)} positional argument{'' if len(positional) == 1 else 's'}"
            message = f"{info.name} takes {takes}, got {len(stage.args)}"
            bound.errors.append(ArgumentError(message, hint=info.signature))
            break
        bound.args.extend(_coerce_argument(bound, parameter, value))
    by_position = {parameter.name for parameter in positional[: len(stage.args)]}
    rest = info.rest("var_keyword")
    for name, value in stage.kwargs.items():
        parameter = info.parameter(name)
        if parameter is None or parameter.kind in ("var_positional", "var_keyword"):
            parameter = rest
        if parameter is None:
            names = [parameter.name for parameter in info.named]
            has = f"it has {', '.join(names)}" if names else "it has no arguments"
            hint = did_you_mean(name, names, has)
            message = f"{info.name} has no argument {name}"
            bound.errors.append(UnknownNameError(message, hint=hint))
        elif name in by_position:
            message = f"{name} is given twice, by position and by name"
            bound.errors.append(ArgumentError(message, hint="pass it once"))
        else:
            for result in _coerce_argument(bound, parameter, value, name):
                bound.kwargs[name] = result
    for parameter in info.parameters:
        if parameter.required and parameter.name not in by_position | bound.kwargs.keys():
            message = f"{info.name} needs the argument {parameter.name}"
            hint = f"{parameter.name} is {parameter.type.words()}"
            bound.errors.append(ArgumentError(message, hint=hint))
    return bound


def name_arguments(stage: StageConfig) -> StageConfig:
    """Return the stage with its positional arguments named, if the declaration has their names."""
    info = load_catalog().find(stage.name)
    if info is None or len(stage.args) > len(info.positional):
        return stage
    names = [parameter.name for parameter in info.positional]
    positional = dict(zip(names, stage.args, strict=False))
    if positional.keys() & stage.kwargs.keys():
        return stage
    kwargs = FileArguments.like(stage.kwargs, {**positional, **stage.kwargs})
    return replace(stage, args=(), kwargs=kwargs)


def stage_identity(stage: StageConfig) -> str:
    """Return text that is equal for stages that do the same.

    Distinguishes 1 from 1.0, but not positional from named arguments.
    """
    full = name_arguments(stage)
    return repr((full.name, full.args, sorted(full.kwargs.items(), key=lambda item: item[0])))


def find_argument_errors(parameter: Parameter, value: Value) -> list[TdxError]:
    """Return the problems of a value for one argument, regardless of the other arguments."""
    try:
        return list(_find_inner_errors(coerce(parameter.type, value)))
    except MismatchError as mismatch:
        return [_wrong_type_error(parameter.name, parameter, mismatch)]


def _coerce_argument(
    bound: BoundStage, parameter: Parameter, value: Value, name: str = ""
) -> Iterator[object]:
    try:
        result = coerce(parameter.type, value)
    except MismatchError as mismatch:
        bound.errors.append(_wrong_type_error(name or parameter.name, parameter, mismatch))
        return
    bound.errors.extend(_find_inner_errors(result))
    yield result


def _find_inner_errors(value: object) -> Iterator[TdxError]:
    """Yield the problems of transforms inside an argument."""
    for inner in iterate_values(value):
        if isinstance(inner, Call) and is_transform_call(inner):
            yield from _bind_call(inner).errors


def is_transform_call(call: Call) -> bool:
    """True if a call creates a transform, not a spec or a tensor."""
    return call.name not in SPECS and call.name != TENSOR


def _bind_call(call: Call) -> BoundStage:
    return bind_stage(StageConfig(call.name, call.args, call.kwargs))


def find_code_references(value: object) -> Iterator[CodeReference]:
    """Yield every reference to Python code inside a bound argument."""
    for inner in iterate_values(value):
        if isinstance(inner, CodeReference):
            yield inner
        elif isinstance(inner, Call):
            reference = CodeReference.of(inner.name)
            if reference:
                yield reference
            elif is_transform_call(inner):
                yield from find_code_references(_bind_call(inner).values)


def find_inner_stages(value: object) -> Iterator[BoundStage]:
    """Yield every stage inside a bound argument."""
    for inner in iterate_values(value):
        if isinstance(inner, Call) and is_transform_call(inner):
            bound = _bind_call(inner)
            yield bound
            yield from find_inner_stages(bound.values)


def _wrong_type_error(name: str, parameter: Parameter, mismatch: MismatchError) -> TdxError:
    declared = parameter.type
    shown = shorten(format_value(mismatch.value))  # type: ignore[arg-type]
    expected = mismatch.type.words()
    choices = [value for option in declared.options for value in option.values]
    if isinstance(mismatch.value, str) and choices:
        names = [str(choice) for choice in choices]
        hint = did_you_mean(mismatch.value, names, f"one of {', '.join(names)}")
        return UnknownNameError(f"{name} must be {expected}, got {shown}", hint=hint)
    hint = _type_hint(declared, mismatch)
    if mismatch.depth:
        return ArgumentError(f"{name} holds {shown}, expected {expected}", hint=hint)
    return ArgumentError(f"{name} must be {expected}, got {shown}", hint=hint)


def _type_hint(declared: Type, mismatch: MismatchError) -> str:
    value, options = mismatch.value, {option.name for option in mismatch.type.options}
    if isinstance(value, Call) and "spec" in options and find_similar_names(value.name, SPECS):
        return did_you_mean(value.name, SPECS, f"the specs are {', '.join(SPECS)}")
    if isinstance(value, float) and value.is_integer() and "int" in options:
        return f"write {int(value)}"
    is_literal = isinstance(value, str) and isinstance(parse_or_none(value), int | float)
    if is_literal and options & {"int", "float", "bool"}:
        return "write it without quotes"
    if isinstance(value, Dtype | Call) and "str" in options:
        return "put a string in quotes"
    return f"declared as {declared.text}" if declared.text else f"write {declared.words()}"


_LOOKUP_HINT = "`tdx show NAME` prints its arguments"


class ValueResolver:
    """Convert plain values to objects."""

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
        info = bound.info
        assert info is not None
        if info.package:
            factory = load_plugin_transform(info)
        else:
            factory = getattr(import_module(info.module), info.name)
        return _call_constructor(stage.name, factory, args, kwargs)

    def import_object(self, reference: CodeReference) -> Any:
        if not self.allow_code:
            raise code_not_allowed_error(reference)
        try:
            if reference.is_file:
                imported: Any = _import_file(reference)
            else:
                allow_current_folder()
                imported = import_module(reference.module)
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
            if not hasattr(imported, part):
                public = [name for name in dir(imported) if name[0] != "_"]
                near = did_you_mean(part, public, "check the names in the module")
                raise UnknownNameError(f"{reference.module} has no {reference.name}", hint=near)
            imported = getattr(imported, part)
        return imported

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


def allow_current_folder() -> None:
    """Let modules be imported from the current folder, after all others.

    Call it only if the user allows code.
    """
    folder = str(Path.cwd())
    if not {"", folder}.intersection(sys.path):
        sys.path.append(folder)


def _import_file(reference: CodeReference) -> ModuleType:
    """Import a file as a module of the name that it has, as ``python file.py`` finds its folder."""
    path = Path(reference.module)
    if not path.is_file():
        raise missing_file_error(path, f":{reference.name}")
    folder = str(path.parent.resolve())
    if folder not in sys.path:
        sys.path.append(folder)
    # A script in a subfolder may use modules of the project that it is run in.
    allow_current_folder()
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


def _call_constructor(
    name: str, make: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]
) -> Any:
    try:
        return make(*args, **kwargs)
    except TdxError:
        raise
    except ModuleNotFoundError as error:
        message = f"{name} needs the module {error.name}, which is not installed"
        hint = f"install the package that provides {error.name}"
        raise MissingPackageError(message, hint=hint) from error
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            f"{name} does not take these arguments: {explain_call_error(error)}", hint=_LOOKUP_HINT
        ) from error
    except Exception as error:
        raise ChainError(
            f"{name} cannot be created: {summarize_error(error)}", hint=_LOOKUP_HINT
        ) from error
