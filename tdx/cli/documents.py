"""Declarations of the JSON documents of the command line, and their JSON Schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypedDict

from tdx.cli.runtime import SCHEMA_VERSION
from tdx.foundation.errors import ErrorEntries, UnknownNameError, did_you_mean


@dataclass(frozen=True, slots=True)
class Document:
    """Declaration of one kind of document.

    Args:
        content: Result or typed dict whose entries the document contains.
        extra: Types of its other entries, by name.
        optional: Types of entries that it may contain, by name.
        has_calls: True if its ``stages`` are completed by :func:`~tdx.cli.views.add_calls`.
    """

    content: Any
    extra: Mapping[str, Any] = field(default_factory=dict)
    optional: Mapping[str, Any] = field(default_factory=dict)
    has_calls: bool = False


class ReportedError(ErrorEntries):
    """JSON entries of an error that ended a command."""

    exit_code: int


class ErrorDocument(TypedDict):
    """JSON entries of the document about an error."""

    error: ReportedError


def _spec() -> Document:
    from tdx.inspection.spec_report import SpecReport

    return Document(SpecReport, has_calls=True)


def _chain() -> Document:
    from tdx.inspection.chain_report import ChainReport

    return Document(ChainReport, has_calls=True)


def _keys() -> Document:
    from tdx.inspection.lineage import Lineage

    return Document(Lineage, has_calls=True)


def _values() -> Document:
    from tdx.inspection.values_report import ValuesReport

    return Document(ValuesReport, has_calls=True)


def _state() -> Document:
    from tdx.inspection.values_report import StateReport

    return Document(StateReport, has_calls=True)


def _plan() -> Document:
    from tdx.inspection.plan_report import PlanReport

    return Document(PlanReport, has_calls=True)


def _check() -> Document:
    from tdx.cli.views.check import FixEntries
    from tdx.inspection.check_report import CheckReport

    return Document(CheckReport, optional={"fixed": FixEntries})


def _explanation() -> Document:
    from tdx.inspection.explanations import Explanation

    return Document(Explanation)


def _codes() -> Document:
    from tdx.cli.views.check import CodesEntries

    return Document(CodesEntries)


def _contract() -> Document:
    from tdx.compare.report import ContractReport

    return Document(ContractReport)


def _diff() -> Document:
    from tdx.inspection.diff import DiffReport

    return Document(DiffReport)


def _profile() -> Document:
    from tdx.cli.views.profile_entries import MeasuredEntries

    return Document(MeasuredEntries)


def _profile_comparison() -> Document:
    from tdx.cli.views.profile_entries import ComparisonEntries

    return Document(ComparisonEntries)


def _profile_sweep() -> Document:
    from tdx.cli.views.profile_entries import SweepEntries

    return Document(SweepEntries)


def _profile_estimate() -> Document:
    from tdx.cli.views.profile_entries import EstimateEntries

    return Document(EstimateEntries)


def _profile_calibration() -> Document:
    from tdx.profiling.calibration import Calibration

    return Document(Calibration, extra={"limit": str})


def _rollout() -> Document:
    from tdx.rollouts.dump.reading import DumpSummary

    return Document(DumpSummary)


def _sharded_rollout() -> Document:
    from tdx.rollouts.dump.reading import DumpSummary
    from tdx.rollouts.recording.sharded_rollout import ShardFailure

    failures = {"failures": list[ShardFailure], "committed": int, "recorded": int}
    return Document(DumpSummary, extra=failures)


def _rollout_estimate() -> Document:
    from tdx.rollouts.recording.request import Estimate

    return Document(Estimate)


def _dump() -> Document:
    from tdx.rollouts.dump.reading import Overview

    return Document(Overview, has_calls=True)


def _watch() -> Document:
    from tdx.inspection.watch_records import WatchReport

    return Document(WatchReport)


def _dumps() -> Document:
    from tdx.cli.views.dumps import DumpsEntries

    return Document(DumpsEntries)


def _verification() -> Document:
    from tdx.rollouts.dump.verification import Verification

    return Document(Verification)


def _repair() -> Document:
    from tdx.rollouts.dump.verification import Repair

    return Document(Repair, extra={"path": str})


def _export() -> Document:
    from tdx.rollouts.formats.interface import Exported

    return Document(Exported)


def _import() -> Document:
    from tdx.rollouts.formats.conversion import Imported

    return Document(Imported)


def _envs() -> Document:
    from tdx.cli.views.catalog import EnvsEntries

    return Document(EnvsEntries)


def _env() -> Document:
    from tdx.inspection.envs import EnvDetails

    return Document(EnvDetails)


def _transforms() -> Document:
    from tdx.cli.views.catalog import TransformsEntries

    return Document(TransformsEntries)


def _transform() -> Document:
    from tdx.cli.views.catalog import TransformEntries
    from tdx.inspection.transform_example import TransformExample

    return Document(TransformEntries, extra={"example": TransformExample | None})


def _config() -> Document:
    from tdx.foundation.settings import Settings

    return Document(Settings)


def _setting() -> Document:
    from tdx.foundation.settings import SettingValue

    return Document(SettingValue)


def _doctor() -> Document:
    from tdx.inspection.doctor import DoctorReport

    return Document(DoctorReport)


def _kinds() -> Document:
    from tdx.cli.views.setup import KindsEntries

    return Document(KindsEntries)


def _error() -> Document:
    return Document(ErrorDocument)


DOCUMENTS: Mapping[str, tuple[str, Callable[[], Document]]] = {
    "spec": ("tdx inspect spec", _spec),
    "chain": ("tdx inspect chain", _chain),
    "keys": ("tdx inspect keys", _keys),
    "values": ("tdx inspect values", _values),
    "state": ("tdx inspect state", _state),
    "plan": ("tdx inspect plan", _plan),
    "check": ("tdx check", _check),
    "explanation": ("tdx explain CODE", _explanation),
    "codes": ("tdx explain", _codes),
    "contract": ("tdx check --against, and tdx diff of stacks", _contract),
    "diff": ("tdx diff", _diff),
    "profile": ("tdx profile", _profile),
    "profile_comparison": ("tdx profile compare", _profile_comparison),
    "profile_sweep": ("tdx profile sweep", _profile_sweep),
    "profile_estimate": ("tdx profile --dry-run", _profile_estimate),
    "profile_calibration": ("tdx profile --calibrate", _profile_calibration),
    "rollout": ("tdx rollout, and tdx replay", _rollout),
    "sharded_rollout": ("tdx rollout --shards", _sharded_rollout),
    "rollout_estimate": ("tdx rollout --dry-run", _rollout_estimate),
    "dump": ("tdx show dump", _dump),
    "dumps": ("tdx list dumps", _dumps),
    "watch": ("tdx show watch", _watch),
    "verification": ("tdx verify", _verification),
    "repair": ("tdx verify --repair", _repair),
    "export": ("tdx export", _export),
    "import": ("tdx import", _import),
    "envs": ("tdx list envs", _envs),
    "env": ("tdx show env", _env),
    "transforms": ("tdx list transforms", _transforms),
    "transform": ("tdx show transform", _transform),
    "config": ("tdx config show", _config),
    "setting": ("tdx config get", _setting),
    "doctor": ("tdx doctor", _doctor),
    "kinds": ("tdx schema --output", _kinds),
    "error": ("every command that fails, on stderr", _error),
}
"""Command that prints each kind of document, and its declaration."""


def document_schema(kind: str) -> dict[str, Any]:
    """Return the JSON Schema of a kind of document.

    Args:
        kind: Value of its entry ``kind``.

    Raises:
        UnknownNameError: The kind is unknown.
    """
    from tdx.cli.schemas import DIALECT, SchemaBuilder, closed_object
    from tdx.cli.views import StageCall

    if kind not in DOCUMENTS:
        hint = did_you_mean(kind, DOCUMENTS, "`tdx schema --output list` lists the kinds")
        raise UnknownNameError(f"unknown kind of document {kind!r}", hint=hint)
    command, declare = DOCUMENTS[kind]
    document, builder = declare(), SchemaBuilder()
    content = builder.object_schema(document.content)
    head = {"schema_version": {"const": SCHEMA_VERSION}, "kind": {"const": kind}}
    properties = {**head, **content["properties"], **head}
    for name, hint in {**document.extra, **document.optional}.items():
        properties[name] = builder.schema_of(hint)
    required = [*head, *content["required"], *document.extra]
    if document.has_calls:
        calls = builder.object_schema(StageCall)
        stages = builder.add_entries(properties.get("stages"), calls)
        properties["stages"] = {"type": "array", "items": stages}
        required.append("stages")
    return {
        "$schema": DIALECT,
        "title": f"Output of {command}",
        **closed_object(properties, list(dict.fromkeys(required))),
        "$defs": builder.definitions,
    }
