"""JSON Schema of the part of SARIF 2.1.0 that tdx writes."""

from __future__ import annotations

from typing import Any


def _closed(required: list[str], **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "required": required,
        "properties": properties,
        "additionalProperties": False,
    }


def _many(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items, "uniqueItems": True}


_STRING: dict[str, Any] = {"type": "string"}
_INDEX: dict[str, Any] = {"type": "integer", "minimum": -1}
_ONE: dict[str, Any] = {"type": "integer", "minimum": 1}
_MESSAGE = _closed(["text"], text=_STRING, markdown=_STRING)
_LEVEL = {"enum": ["none", "note", "warning", "error"]}
_URI = {"type": "string", "format": "uri-reference", "pattern": r"^(file://)?[\w./%~-]+$"}
_RULE = _closed(
    ["id"],
    id=_STRING,
    name=_STRING,
    shortDescription=_MESSAGE,
    fullDescription=_MESSAGE,
    help=_MESSAGE,
    defaultConfiguration=_closed([], level=_LEVEL),
)
_LOCATION = _closed(
    [],
    physicalLocation=_closed(
        ["artifactLocation"],
        artifactLocation=_closed([], uri=_URI),
        region=_closed([], startLine=_ONE, startColumn=_ONE),
    ),
    logicalLocations=_many(_closed([], name=_STRING, fullyQualifiedName=_STRING, kind=_STRING)),
)
_REGION = _closed([], startLine=_ONE, startColumn=_ONE, endLine=_ONE, endColumn=_ONE)
_REPLACEMENT = _closed(
    ["deletedRegion"], deletedRegion=_REGION, insertedContent=_closed([], text=_STRING)
)
_CHANGE = _closed(
    ["artifactLocation", "replacements"],
    artifactLocation=_closed([], uri=_URI),
    replacements={"type": "array", "items": _REPLACEMENT, "minItems": 1},
)
_FIX = _closed(
    ["artifactChanges"],
    description=_MESSAGE,
    artifactChanges={"type": "array", "items": _CHANGE, "minItems": 1, "uniqueItems": True},
)
_RESULT = _closed(
    ["message"],
    fixes=_many(_FIX),
    ruleId=_STRING,
    ruleIndex=_INDEX,
    level=_LEVEL,
    message=_MESSAGE,
    locations=_many(_LOCATION),
)
SARIF = _closed(
    ["version", "runs"],
    **{"$schema": {"type": "string", "format": "uri"}},
    version={"enum": ["2.1.0"]},
    runs=_many(
        _closed(
            ["tool"],
            tool=_closed(
                ["driver"],
                driver=_closed(["name"], name=_STRING, version=_STRING, rules=_many(_RULE)),
            ),
            columnKind={"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
            results=_many(_RESULT),
        )
    ),
)
"""Part of the published schema that tdx writes, with its names, enums and required keys."""
