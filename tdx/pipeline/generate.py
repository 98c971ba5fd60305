"""Generate the files derived from the transforms: ``python -m tdx.pipeline.generate``.

These are the catalog, the JSON Schema, and the blocks of ``tdx/__init__.pyi`` and
``tdx/transforms/__init__.pyi`` that name every transform. ``--check`` writes nothing; the exit code
says whether the files are up to date.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

from tdx.foundation.untrusted import MAX_ENVS, MAX_SECONDS, MAX_STAGES
from tdx.pipeline.catalog import CATALOG_FILE, format_catalog, load_catalog
from tdx.pipeline.declarations import read_declarations
from tdx.pipeline.model import BATCHINGS, VERSION
from tdx.pipeline.policies import ACTIVATIONS, OUTPUT_ACTIVATIONS
from tdx.pipeline.transform_info import COMPOSE, Parameter, TransformInfo, Type
from tdx.pipeline.values import DTYPES, SPECS

SCHEMA_FILE = Path(__file__).with_name("schema.json")
DIALECT = "https://json-schema.org/draft/2020-12/schema"
SCHEMA_ID = f"urn:tdx:schema:pipeline:{VERSION}"
"""Editors and validators that know several schemas find this one by its id."""

Schema: TypeAlias = dict[str, Any]
_REFERENCE = r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$"
_KEY_SCHEMA = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "string"}, "minItems": 1},
    ]
}
_LEAF_SCHEMAS: dict[str, Schema] = {
    "none": {"type": "null"},
    "bool": {"type": "boolean"},
    "int": {"type": "integer"},
    "float": {"type": "number"},
    "str": {"type": "string"},
    "key": {"$ref": "#/$defs/key"},
    "keys": {"$ref": "#/$defs/keys"},
    "dtype": {"$ref": "#/$defs/dtype"},
    "device": {"type": "string", "pattern": r"^[a-z]+(:\d+)?$"},
    "tensor": {"$ref": "#/$defs/tensor"},
    "spec": {"$ref": "#/$defs/spec"},
    "transform": {"$ref": "#/$defs/stage"},
    "callable": {"$ref": "#/$defs/reference"},
}


def build_schema(transforms: list[TransformInfo]) -> Schema:
    """Build the schema (draft 2020-12) of a pipeline file that can name these transforms."""
    return {
        "$schema": DIALECT,
        "$id": SCHEMA_ID,
        "title": "tdx pipeline",
        "description": "An env and a chain of transforms, as `tdx --pipeline FILE` reads it.",
        "type": "object",
        "properties": {
            "version": {"const": VERSION, "description": "Version of this file format."},
            "env": {"anyOf": [{"$ref": "#/$defs/env"}, {"type": "string"}]},
            "transforms": {
                "type": ["array", "null"],
                "items": {"$ref": "#/$defs/stage"},
                "maxItems": MAX_STAGES,
                "description": "The stages of the chain, in order.",
            },
            "policy": _policy_schema(),
            "rollout": {"$ref": "#/$defs/rollout"},
            "check": {"$ref": "#/$defs/check"},
        },
        "required": ["version", "env"],
        "additionalProperties": False,
        "$defs": _build_definitions([*transforms, COMPOSE]),
    }


def _policy_schema() -> Schema:
    keys = [{"$ref": "#/$defs/keys"}, {"type": "null"}]
    mlp = _closed_object(
        {
            "weights": _described("A .safetensors file.", type="string", minLength=1),
            "activation": _described("Between the layers.", enum=[*ACTIVATIONS, None]),
            "output": _described(
                "clamp to the bounds of the action, squash to them with tanh, or argmax.",
                enum=[*OUTPUT_ACTIVATIONS, None],
            ),
            "in_keys": _described("Observations it reads.", anyOf=keys),
        },
        ["weights"],
    )
    options = [
        {"enum": ["random", "zero", None]},
        {
            "type": "string",
            "pattern": r"^(sequence|mlp|module|sb3|lerobot):.|^\s*(mlp|sb3|lerobot)\(",
        },
        {"$ref": "#/$defs/reference"},
        _closed_object({"mlp": mlp}, ["mlp"]),
    ]
    return _described(
        "random, zero, sequence:FILE, mlp:FILE; module:FILE, sb3:FILE, lerobot:FOLDER and "
        "module:name of Python code need --allow-code. Files are in the folder of this file.",
        anyOf=options,
    )


def format_schema(transforms: list[TransformInfo]) -> str:
    """Return the text of the schema file."""
    return json.dumps(build_schema(transforms), indent=1, ensure_ascii=False) + "\n"


def read_schema() -> str:
    """Return the schema of pipeline files with all transforms, those of plugins too."""
    transforms = load_catalog().transforms
    if any(info.package for info in transforms):
        return format_schema([*transforms])
    return SCHEMA_FILE.read_text(encoding="utf-8")


def _build_definitions(transforms: list[TransformInfo]) -> Schema:
    dtypes = [*(f"torch.{name}" for name in DTYPES), *DTYPES]
    return {
        "env": _env_schema(),
        "rollout": _rollout_schema(),
        "check": _check_schema(),
        "stage": _stage_schema(transforms),
        "key": _described("A key; a list of strings is a nested one.", **_KEY_SCHEMA),
        "keys": _described(
            "Keys; a string alone is a list of one.",
            anyOf=[{"type": "array", "items": {"$ref": "#/$defs/key"}}, {"type": "string"}],
        ),
        "dtype": _described("A torch dtype.", enum=dtypes),
        "spec": _described(
            "A spec written as a call, such as Unbounded(shape=(3,)).",
            type="string",
            pattern=rf"^({'|'.join(SPECS)})(\(.*\))?$",
        ),
        "tensor": _described(
            "A tensor: a number, or lists of numbers.",
            anyOf=[
                {"type": ["number", "boolean"]},
                {"type": "array", "items": {"$ref": "#/$defs/tensor"}},
                {"type": "string", "pattern": r"^(torch\.)?tensor\(.*\)$"},
            ],
        ),
        "reference": _described(
            "A Python object, module:name; imported only with --allow-code.",
            type="string",
            pattern=_REFERENCE,
        ),
        **{info.name: _arguments_schema(info) for info in transforms},
    }


def _described(text: str, **schema: object) -> Schema:
    return {**schema, "description": text} if text else schema


def _env_schema() -> Schema:
    properties = {
        "id": _described("Id of Gymnasium, native env, or module:factory.", type="string"),
        "kwargs": _described("What the env is made with.", type=["object", "null"]),
        "from_pixels": _described("Add rendered frames.", type="boolean", default=False),
        "pixels_only": _described(
            "With from_pixels, leave every other observation out.", type="boolean", default=True
        ),
        "num_envs": _described(
            "How many envs; without it, one and no batch dimension.",
            type=["integer", "null"],
            minimum=1,
            maximum=MAX_ENVS,
        ),
        "batching": _described("What batches them.", enum=[*BATCHINGS], default=BATCHINGS[0]),
        "device": _described("Where the TensorDicts live.", type=["string", "null"]),
        "seed": _described("Seed of the env.", type=["integer", "null"], minimum=0),
        "worker_timeout": _described(
            "Seconds without an answer after which processes count as hung.",
            type=["number", "null"],
            exclusiveMinimum=0,
            maximum=MAX_SECONDS,
        ),
    }
    return _closed_object(properties, ["id"])


def _rollout_schema() -> Schema:
    switch = ["boolean", "null"]
    properties = {
        "max_steps": _described(
            "Steps that a rollout takes at most.", type=["integer", "null"], minimum=1
        ),
        "break_when_any_done": _described("Stop at the first done.", type=switch),
        "auto_reset": _described("Reset before the first step.", type=switch),
    }
    return {**_closed_object(properties, []), "type": ["object", "null"]}


def _check_schema() -> Schema:
    codes = {"type": ["array", "string", "null"], "items": {"type": "string", "pattern": "^[A-Z]"}}
    properties = {
        "select": _described("Rules that tdx check applies; all by default.", **codes),
        "ignore": _described("Rules that tdx check skips.", **codes),
    }
    return {**_closed_object(properties, []), "type": ["object", "null"]}


def _closed_object(properties: Schema, required: list[str]) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        **({"required": required} if required else {}),
        "additionalProperties": False,
    }


def _stage_schema(transforms: list[TransformInfo]) -> Schema:
    names = [info.name for info in transforms]
    as_map = {
        "type": "object",
        "properties": {
            info.name: _described(info.summary, **{"$ref": f"#/$defs/{info.name}"})
            for info in transforms
        },
        "patternProperties": {_REFERENCE: {"type": ["object", "array", "null"]}},
        "additionalProperties": False,
        "minProperties": 1,
        "maxProperties": 1,
    }
    as_text = {"type": "string", "pattern": rf"^({'|'.join(names)}|[A-Za-z_][\w.]*:[\w.]+)\(.*\)$"}
    bare = {"enum": [info.name for info in transforms if not _required_names(info)]}
    return {"anyOf": [bare, as_map, as_text, {"$ref": "#/$defs/reference"}]}


def _required_names(info: TransformInfo) -> list[str]:
    return [parameter.name for parameter in info.parameters if parameter.required]


def _arguments_schema(info: TransformInfo) -> Schema:
    by_name = _closed_object(
        {parameter.name: _argument_schema(parameter) for parameter in info.named},
        _required_names(info),
    )
    if (others := info.rest("var_keyword")) is not None:
        by_name["additionalProperties"] = _argument_schema(others)
    rest = info.rest("var_positional")
    prefix = [_argument_schema(parameter) for parameter in info.positional]
    by_position = {
        "type": "array",
        **({"prefixItems": prefix} if prefix else {}),
        "items": _argument_schema(rest) if rest else False,
        "minItems": sum(parameter.required for parameter in info.positional),
    }
    options = [by_name, by_position]
    if not _required_names(info):
        options.append({"type": "null"})
    return _described(info.summary, anyOf=options)


def _argument_schema(parameter: Parameter) -> Schema:
    described = _described(parameter.help, **_type_schema(parameter.type))
    try:
        value = ast.literal_eval(parameter.default or "")
        return {**described, "default": json.loads(json.dumps(value, allow_nan=False))}
    except (ValueError, SyntaxError, TypeError):
        # JSON has no such value, or the default is no literal.
        return described


def _type_schema(declared: Type) -> Schema:
    if declared.name == "union":
        return {"anyOf": [_type_schema(option) for option in declared.items]}
    if declared.name == "literal":
        return {"enum": list(declared.values)}
    if declared.name == "sequence":
        return {"type": "array", "items": _type_schema(declared.items[0])}
    if declared.name == "dict":
        return {"type": "object", "additionalProperties": _type_schema(declared.items[0])}
    return dict(_LEAF_SCHEMAS.get(declared.name, {}))


PACKAGE = Path(__file__).parent.parent
STUB_FILES = {
    "tdx": PACKAGE / "__init__.pyi",
    "tdx.transforms": PACKAGE / "transforms/__init__.pyi",
}
STUB_START = "# transforms: generated"
STUB_END = "# transforms: end"


def update_stub(stub: str, transforms: list[TransformInfo], package: str = "tdx") -> str:
    """Replace the block between the two markers of a stub; without markers it stays unchanged."""
    if STUB_START not in stub or STUB_END not in stub:
        return stub
    before, _, rest = stub.partition(STUB_START)
    after = rest.partition(STUB_END)[2]
    lines = [
        f"from {module.removeprefix(package)} import {name} as {name}"
        for module, name in sorted((info.module, info.name) for info in transforms)
    ]
    return "\n".join([before + STUB_START, *lines, STUB_END]) + after


def render_files() -> Iterator[tuple[Path, str]]:
    """Yield every generated file with its up-to-date text."""
    transforms = read_declarations(PACKAGE)
    yield CATALOG_FILE, format_catalog(transforms)
    yield SCHEMA_FILE, format_schema(transforms)
    for package, stub in STUB_FILES.items():
        if stub.exists():
            yield stub, update_stub(stub.read_text(encoding="utf-8"), transforms, package)


def main(arguments: list[str]) -> int:
    """Write the files; with ``--check``, print stale files."""
    outdated = [
        (path, text)
        for path, text in render_files()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    if "--check" in arguments:
        for path, _ in outdated:
            print(f"{path.relative_to(PACKAGE.parent)} is out of date", file=sys.stderr)
        return 1 if outdated else 0
    for path, text in outdated:
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path.relative_to(PACKAGE.parent)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
