"""JSON documents of the command line, and their JSON Schema."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tdx.cli.runtime import SCHEMA_VERSION
from tdx.foundation.errors import ErrorEntries, UnknownNameError, did_you_mean

DOCUMENTS: Mapping[str, str] = {
    "spec": "tdx inspect spec",
    "descriptor": "tdx inspect spec of a deployment descriptor",
    "chain": "tdx inspect chain",
    "keys": "tdx inspect keys",
    "values": "tdx inspect values",
    "dataset": "tdx inspect values of a dataset",
    "state": "tdx inspect state",
    "plan": "tdx inspect plan",
    "check": "tdx check",
    "checks": "tdx check of several targets",
    "explanation": "tdx explain CODE",
    "codes": "tdx explain",
    "contract": "tdx contract check, and tdx contract diff",
    "contract_contents": "tdx contract show",
    "diff": "tdx diff",
    "profile": "tdx profile",
    "profile_comparison": "tdx profile compare",
    "profile_sweep": "tdx profile sweep",
    "profile_estimate": "tdx profile --dry-run",
    "profile_calibration": "tdx profile --calibrate",
    "profile_devices": "tdx profile --device simulated",
    "profile_trace": "tdx profile --trace",
    "rollout": "tdx rollout, and tdx replay",
    "sharded_rollout": "tdx rollout --shards",
    "rollout_estimate": "tdx rollout --dry-run",
    "dump": "tdx show dump",
    "dumps": "tdx list dumps",
    "watch": "tdx show watch",
    "verification": "tdx verify",
    "repair": "tdx verify --repair",
    "export": "tdx export",
    "import": "tdx import",
    "artifact": "tdx export-chain",
    "artifact_check": "tdx check of an artifact",
    "envs": "tdx list envs",
    "env": "tdx show env",
    "stack_kinds": "tdx list kinds",
    "transforms": "tdx list transforms",
    "transform": "tdx show transform",
    "init": "tdx init",
    "config": "tdx config show",
    "setting": "tdx config get",
    "doctor": "tdx doctor",
    "kinds": "tdx schema --output",
    "error": "every command that fails, on stderr",
}
"""Command that prints each kind of document."""


@dataclass(frozen=True, slots=True)
class Document:
    """Declaration of one kind of document.

    Args:
        content: Result or typed dict whose entries the document contains. ``None``: no such.
        has_calls: True if its ``stages`` are completed by :meth:`tdx.cli.views.View.data`.
    """

    content: Any = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    optional: Mapping[str, Any] = field(default_factory=dict)
    has_calls: bool = False


class ReportedError(ErrorEntries):
    """JSON entries of an error that ended a command."""

    exit_code: int


def _declare_documents() -> Mapping[str, Document]:
    from tdx.artifacts.artifact import Artifact
    from tdx.artifacts.check import ArtifactCheck
    from tdx.cli.views.catalog import TransformDocument, TransformRow
    from tdx.cli.views.check import CodeRow, FixEntries
    from tdx.cli.views.setup import DocumentKind
    from tdx.compare.report import ContractReport
    from tdx.contracts.contents import ContractContents
    from tdx.envs.gym.registry import RegisteredEnv
    from tdx.foundation.settings import Settings, SettingValue
    from tdx.inspection.chain import ChainReport
    from tdx.inspection.check_report import CheckReport, CheckSummary
    from tdx.inspection.dataset_check import DatasetFacts
    from tdx.inspection.diff import DiffReport
    from tdx.inspection.doctor import DoctorReport
    from tdx.inspection.envs import EnvDetails
    from tdx.inspection.explanations import CodeExplanation
    from tdx.inspection.lineage import Lineage
    from tdx.inspection.openable import Openable
    from tdx.inspection.plan_report import PlanReport
    from tdx.inspection.spec_report import SpecReport
    from tdx.inspection.stack_import import StackImport
    from tdx.inspection.transform_example import TransformExample
    from tdx.inspection.values_report import StateReport, ValuesReport
    from tdx.inspection.watch_records import WatchReport
    from tdx.profiling.compare import Calibration, ProfileComparison
    from tdx.profiling.interleaved import MarginalCosts
    from tdx.profiling.passes.trace_file import TraceSummary
    from tdx.profiling.run import Estimate as ModeEstimate
    from tdx.profiling.saved import ProfileReport
    from tdx.profiling.suggestions import Suggestions
    from tdx.profiling.sweep import CostGrowth, SweepAxis, SweepCell
    from tdx.rollouts.dump.reading import DumpSummary, Listed, Overview
    from tdx.rollouts.dump.verification import Repair, Verification
    from tdx.rollouts.formats.conversion import Imported
    from tdx.rollouts.formats.interface import Exported
    from tdx.rollouts.recording.request import Estimate
    from tdx.rollouts.recording.sharded_rollout import ShardFailure
    from tdx.stacks.descriptors import Descriptor
    from tdx.stacks.device_calls import DeviceCalls

    extras = {
        "marginal": list[MarginalCosts],
        "advice": list[Suggestions],
        "comparison": ProfileComparison,
    }
    sweep = {
        "subject": str,
        "axes": list[SweepAxis],
        "interrupted": bool,
        "cells": list[SweepCell],
        "growth": list[CostGrowth],
    }
    written = {
        "path": str,
        "env": str,
        "stages": list[str],
        "conversion": StackImport | None,
    }
    failures = {"failures": list[ShardFailure], "committed": int, "recorded": int}
    estimate = {"subject": str, "seconds": float, "modes": list[ModeEstimate]}
    return {
        "spec": Document(SpecReport, has_calls=True),
        "descriptor": Document(Descriptor),
        "chain": Document(ChainReport, has_calls=True),
        "keys": Document(Lineage, has_calls=True),
        "values": Document(ValuesReport, has_calls=True),
        "dataset": Document(DatasetFacts),
        "state": Document(StateReport, has_calls=True),
        "plan": Document(PlanReport, has_calls=True),
        "check": Document(CheckReport, optional={"fixed": FixEntries}),
        "checks": Document(CheckSummary),
        "explanation": Document(CodeExplanation),
        "codes": Document(extra={"codes": list[CodeRow]}),
        "contract": Document(ContractReport),
        "contract_contents": Document(ContractContents),
        "diff": Document(DiffReport),
        "profile": Document(ProfileReport, optional=extras),
        "profile_comparison": Document(ProfileComparison),
        "profile_sweep": Document(extra=sweep),
        "profile_estimate": Document(extra=estimate),
        "profile_calibration": Document(Calibration),
        "profile_devices": Document(DeviceCalls),
        "profile_trace": Document(TraceSummary),
        "rollout": Document(DumpSummary),
        "sharded_rollout": Document(DumpSummary, extra=failures),
        "rollout_estimate": Document(Estimate),
        "dump": Document(Overview, has_calls=True),
        "dumps": Document(extra={"folder": str, "dumps": list[Listed]}),
        "watch": Document(WatchReport),
        "verification": Document(Verification),
        "repair": Document(Repair, extra={"path": str}),
        "export": Document(Exported),
        "import": Document(Imported),
        "artifact": Document(Artifact),
        "artifact_check": Document(ArtifactCheck),
        "envs": Document(extra={"search": str, "envs": list[RegisteredEnv]}),
        "env": Document(EnvDetails),
        "stack_kinds": Document(extra={"search": str, "stack_kinds": list[Openable]}),
        "transforms": Document(extra={"search": str, "transforms": list[TransformRow]}),
        "transform": Document(TransformDocument, extra={"example": TransformExample | None}),
        "init": Document(extra=written),
        "config": Document(Settings),
        "setting": Document(SettingValue),
        "doctor": Document(DoctorReport),
        "kinds": Document(extra={"kinds": list[DocumentKind]}),
        "error": Document(extra={"error": ReportedError}),
    }


def document_schema(kind: str) -> dict[str, Any]:
    """Return the JSON Schema of a kind of document."""
    from tdx.cli.schemas import SchemaBuilder, closed_object
    from tdx.cli.views import StageCall
    from tdx.pipeline.generate import DIALECT

    if kind not in DOCUMENTS:
        hint = did_you_mean(kind, DOCUMENTS, "`tdx schema --output list` lists the kinds")
        raise UnknownNameError(f"unknown kind of document {kind!r}", hint=hint)
    document, builder = _declare_documents()[kind], SchemaBuilder()
    content = closed_object({}, [])
    if document.content is not None:
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
        "title": f"Output of {DOCUMENTS[kind]}",
        **closed_object(properties, list(dict.fromkeys(required))),
        "$defs": builder.definitions,
    }
