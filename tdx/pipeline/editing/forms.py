"""Forms for the arguments of a stage and the settings of an env."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, Literal

from tdx.foundation.errors import ArgumentError, PipelineError, TdxError
from tdx.pipeline.arguments import find_argument_errors, name_arguments
from tdx.pipeline.catalog import load_catalog
from tdx.pipeline.coercion import MismatchError, coerce
from tdx.pipeline.grammar import (
    format_argument,
    format_value,
    parse_kwargs,
    parse_value,
    split_outside_brackets,
)
from tdx.pipeline.model import BATCHINGS, EnvConfig
from tdx.pipeline.transform_info import Parameter, Type, make_union
from tdx.pipeline.values import DTYPES, SPECS, FileArguments, StageConfig, Value

FieldKind = Literal["text", "flag", "choice", "keys"]
_UNQUOTED_TYPES = (
    "str",
    "key",
    "keys",
    "device",
    "callable",
    "transform",
    "spec",
    "dtype",
    "literal",
)
"""Types whose values can be typed without quotes."""


@dataclass(frozen=True, slots=True)
class FormField:
    """One field of a form."""

    name: str
    kind: FieldKind
    type: str  # Accepted type as a phrase, without values that cannot be typed.
    help: str
    text: str  # Current value; empty if not set.
    default: str | None  # None: required.
    choices: tuple[str, ...] = ()
    completions: tuple[str, ...] = ()  # Of a longer text than a choice.
    many: bool = True  # Whether several keys are accepted.
    short_type: str = ""  # The type in a word or two.

    @property
    def required(self) -> bool:
        return self.default is None


def list_stage_fields(stage: StageConfig) -> tuple[FormField, ...]:
    """List the fields of a stage from the declaration of its transform; empty for Python code.

    Optional arguments whose values cannot be typed have no field.
    """
    info = load_catalog().find(stage.name)
    if info is None:
        return ()
    given = name_arguments(stage).kwargs
    shown = [
        parameter
        for parameter in info.named
        if _typed_options(parameter.type) or parameter.default is None or parameter.name in given
    ]
    return tuple(_make_field(parameter, given) for parameter in shown)


def fill_arguments(stage: StageConfig, text: str) -> StageConfig:
    """Set arguments of a stage from words: values in order, or ``name=value``.

    Values need no quotes, and no spaces inside unless in brackets or quotes.

    Example:
        >>> fill_arguments(StageConfig("CatFrames"), "4 -3 in_keys=pixels").kwargs
        {'N': 4, 'dim': -3, 'in_keys': ('pixels',)}
    """
    info = load_catalog()[stage.name]
    asked = [parameter.name for parameter in info.named]
    for word in split_words(text):
        named = _NAMED.match(word)
        given = name_arguments(stage).kwargs
        free = (name for name in asked if name not in given)
        name = named["name"] if named else next(free, None)
        if name is None:
            raise ArgumentError(
                f"{stage.name} takes no further argument {word}",
                hint=f"the signature is {info.signature}",
            )
        stage = set_argument(stage, name, word[named.end() :] if named else word)
    return stage


_NAMED = re.compile(r"(?P<name>[A-Za-z_]\w*)=")


def split_words(text: str) -> list[str]:
    """Split typed arguments at spaces outside quotes and brackets; commas after a word are dropped.

    Example:
        >>> split_words("4, dim=-1 [a, b] 'x y'")
        ['4', 'dim=-1', '[a, b]', "'x y'"]
    """
    parts = split_outside_brackets(text, str.isspace)
    return [word for part in parts if (word := part.rstrip(","))]


def set_argument(stage: StageConfig, name: str, text: str) -> StageConfig:
    """Set an argument of a stage from typed text; empty text removes it.

    Example:
        >>> set_argument(StageConfig("CatFrames"), "in_keys", "pixels, depth").kwargs
        {'in_keys': ('pixels', 'depth')}
    """
    parameter = load_catalog()[stage.name].parameter(name)
    full = name_arguments(stage)
    if not text.strip():
        rest = {key: value for key, value in full.kwargs.items() if key != name}
        return replace(full, kwargs=FileArguments.like(full.kwargs, rest))
    if parameter is None:
        raise ArgumentError(
            f"{stage.name} has no argument {name}",
            hint=f"the signature is {load_catalog()[stage.name].signature}",
        )
    try:
        value = parse_argument(parameter.type, text)
    except PipelineError:
        message = f"{name} must be {parameter.type.words()}, got {text}"
        raise ArgumentError(message, hint="write strings in quotes and lists in brackets") from None
    for error in find_argument_errors(parameter, value):
        raise error
    order = [parameter.name for parameter in load_catalog()[stage.name].parameters]
    given = {**full.kwargs, name: value}
    ranked = sorted(given, key=lambda key: order.index(key) if key in order else len(order))
    kwargs = FileArguments.like(full.kwargs, {key: given[key] for key in ranked})
    return replace(full, kwargs=kwargs)


def parse_argument(declared: Type, text: str) -> Value:
    """Parse typed text; quotes and brackets may be omitted where that is unambiguous."""
    text = text.strip()
    names = {option.name for option in declared.options}
    # Keys in brackets without quotes: [pixels, agents.pixels].
    is_plain_list = re.fullmatch(r"\[[\w\s.,]*\]", text) is not None and text.strip("[] ") != ""
    if "keys" in names and (is_plain_list or text[:1] not in "[(\"'") and text != "None":
        return tuple(_parse_key(part) for part in text.strip("[]").split(",") if part.strip())
    if "key" in names and re.fullmatch(r"\w+(\.\w+)+", text):
        return _parse_key(text)
    try:
        value = parse_value(text)
    except PipelineError:
        if text[:1] not in "[({" and (names & set(_UNQUOTED_TYPES) or "any" in names):
            return text
        raise
    if _is_valid(declared, value) or not names & set(_UNQUOTED_TYPES):
        return value
    return text if _is_valid(declared, text) else value


def list_env_fields(env: EnvConfig) -> tuple[FormField, ...]:
    """List the fields of an env, without its id."""
    shown = []
    for field in fields(EnvConfig):
        if field.name == "id":
            continue
        value = getattr(env, field.name)
        if field.name == "kwargs":
            text = ", ".join(f"{key}={format_value(item)}" for key, item in value.items())
        else:
            text = "" if value == field.default or value is None else str(value)
        kind: FieldKind = "choice" if field.name == "batching" else "text"
        type_phrase, short_type, help = _ENV_FIELDS[field.name]
        shown.append(
            FormField(
                field.name,
                "flag" if field.name in ("from_pixels", "pixels_only") else kind,
                type_phrase,
                help,
                text,
                "" if field.default in (None, MISSING) else str(field.default),
                BATCHINGS if field.name == "batching" else (),
                short_type=short_type,
            )
        )
    return tuple(shown)


def set_env_field(env: EnvConfig, name: str, text: str) -> EnvConfig:
    """Set a setting of an env from typed text; empty text resets it."""
    from tdx.pipeline.conversions import from_flags, to_flags
    from tdx.pipeline.model import Pipeline

    text = text.strip()
    if name == "kwargs":
        return replace(env, kwargs=parse_kwargs(text) if text else {})
    default: Any = next(field.default for field in fields(EnvConfig) if field.name == name)
    plain = replace(env, **{name: default})
    if not text:
        return plain
    flag = f"--{name.replace('_', '-')}"
    if isinstance(default, bool):
        if text not in ("True", "False"):
            raise ArgumentError(
                f"{name} must be True or False, got {text}", hint="write True or False"
            )
        given: Any = text == "True"
        return replace(env, **{name: given})
    changed = from_flags([*to_flags(Pipeline(plain)), flag, text]).env
    # The other settings keep their origin.
    return replace(changed, kwargs=env.kwargs)


def _make_field(parameter: Parameter, given: Mapping[str, Value]) -> FormField:
    options = parameter.type.options
    names = {option.name for option in options}
    text = _format_value(parameter.type, given[parameter.name]) if parameter.name in given else ""
    choices: tuple[str, ...] = ()
    kind: FieldKind = "text"
    if names == {"bool"}:
        kind = "flag"
    elif "keys" in names or "key" in names:
        kind = "keys"
    elif names <= {"literal", "none", "bool"}:
        kind = "choice"
        values = {"bool": (True, False), "none": (None,)}
        choices = tuple(
            _format_value(parameter.type, value)
            for option in options
            for value in values.get(option.name, option.values)
        )
    default = _format_default(parameter)
    typed = [option for option in options if _is_typed(option)]
    short_types = dict.fromkeys(map(_short_option, _typed_options(parameter.type)))
    return FormField(
        parameter.name,
        kind,
        (make_union(typed) if typed else parameter.type).words(),
        parameter.help,
        text,
        default,
        choices,
        () if choices or kind != "text" else tuple(_iterate_completions(parameter, default)),
        "keys" in names,
        # In a word or two; ? marks an optional one.
        f"{' | '.join(short_types) or 'code'}{'?' if 'none' in names else ''}",
    )


def _typed_options(declared: Type) -> list[Type]:
    """Return the options of a type that can be typed, without None."""
    return [option for option in declared.options if option.name != "none" and _is_typed(option)]


def _is_typed(declared: Type) -> bool:
    return declared.name != "other" and all(map(_is_typed, declared.items))


_SHORT_TYPES = {
    **{"any": "value", "bool": "on/off", "int": "int", "float": "float", "str": "text"},
    **{"tensor": "tensor", "callable": "module:name", "dict": "dict", "spec": "spec"},
}


def _short_option(option: Type) -> str:
    if option.name == "literal":
        return "choice"
    if option.name == "sequence":
        return f"[{_short_option(option.items[0])}]"
    return _SHORT_TYPES.get(option.name, option.name)


def _format_default(parameter: Parameter) -> str | None:
    """Return the default as a user would type it; source text if it is not a literal."""
    if parameter.default is None:
        return None
    try:
        return _format_value(parameter.type, parse_value(parameter.default))
    except PipelineError:
        return parameter.default


def _iterate_completions(parameter: Parameter, default: str | None) -> Iterator[str]:
    """Yield completions that the declaration suggests."""
    if default:
        yield default
    for option in parameter.type.options:
        if option.name == "literal":
            yield from (_format_value(parameter.type, value) for value in option.values)
        elif option.name == "spec":
            yield from (f"{name}(" for name in SPECS)
        elif option.name == "dtype":
            yield from (f"torch.{name}" for name in DTYPES)
        elif option.name == "transform":
            yield from (info.name for info in load_catalog().transforms)
        else:
            yield from _COMPLETIONS.get(option.name, ())


_COMPLETIONS = {"bool": ("True", "False"), "none": ("None",), "device": ("cpu", "cuda", "cuda:0")}


def _format_value(declared: Type, value: Value) -> str:
    """Format a value for a form, without quotes and brackets where they can be omitted."""
    if isinstance(value, str) and value and _parse_or_none(declared, value) == value:
        return value
    if isinstance(value, tuple) and value:
        for plain in (_format_key(value), ", ".join(map(_format_key, value))):
            if plain and _parse_or_none(declared, plain) == value:
                return plain
    return format_argument(value)


def _format_key(value: Value) -> str:
    """Format a key with dots; empty if the value is not a key."""
    if isinstance(value, str):
        return value
    if isinstance(value, tuple) and all(isinstance(part, str) for part in value):
        return ".".join(map(str, value))
    return ""


def _parse_or_none(declared: Type, text: str) -> Value:
    try:
        return parse_argument(declared, text)
    except TdxError:
        return None


def _parse_key(text: str) -> Value:
    parts = tuple(part.strip() for part in text.strip().split("."))
    return parts if len(parts) > 1 else parts[0]


def _is_valid(declared: Type, value: Value) -> bool:
    try:
        coerce(declared, value)
    except MismatchError:
        return False
    return True


_ENV_FIELDS = {
    "kwargs": ("name=value, name=value", "name=value", "what the env is made with"),
    "from_pixels": ("True or False", "on/off", "add rendered frames under pixels"),
    "pixels_only": (
        "True or False",
        "on/off",
        "with from_pixels, leave every other observation out",
    ),
    "num_envs": (
        "a whole number",
        "int",
        "how many envs run at once; empty for one without a batch dimension",
    ),
    "batching": (
        "one of vector, serial, parallel",
        "choice",
        "vector: the env's own batch; serial: a loop; parallel: worker processes",
    ),
    "device": (
        "a device such as cuda:0",
        "device",
        "where the tensors live; empty for the CPU",
    ),
    "seed": ("a whole number", "int", "the seed that the env gets when it is built"),
    "worker_timeout": (
        "seconds",
        "seconds",
        "with parallel: how long to wait for a process that does not answer",
    ),
}
"""Accepted type, the same in a word or two, and description of each field of an env."""
