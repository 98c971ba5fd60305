"""JSON documents of the command line, and their JSON Schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

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


_WITH_CALLS = frozenset({"spec", "chain", "keys", "values", "state", "plan", "dump"})
"""Kinds whose ``stages`` are completed by :meth:`tdx.cli.views.View.data`."""


class ReportedError(ErrorEntries):
    """JSON entries of an error that ended a command."""

    exit_code: int


class ErrorDocument(TypedDict):
    """JSON entries of what a command that fails prints."""

    error: ReportedError


def _list_contents() -> Mapping[str, type]:
    """Return the result, or typed dict, whose entries each kind of document contains."""
    from tdx.artifacts.artifact import Artifact
    from tdx.artifacts.check import ArtifactCheck
    from tdx.cli.views.catalog import TransformList
    from tdx.cli.views.check import CheckedPipeline, CodeList
    from tdx.cli.views.conversion import WrittenPipeline
    from tdx.cli.views.dumps import DumpList, ShardedSummary
    from tdx.cli.views.profile import ProfileDocument
    from tdx.cli.views.profile_sweep import EstimateDocument, SweepDocument
    from tdx.cli.views.setup import KindList
    from tdx.compare.report import ContractReport
    from tdx.contracts.contents import ContractContents
    from tdx.foundation.settings import Settings, SettingValue
    from tdx.inspection.chain import ChainReport
    from tdx.inspection.check_report import CheckSummary
    from tdx.inspection.dataset_check import DatasetFacts
    from tdx.inspection.diff import DiffReport
    from tdx.inspection.doctor import DoctorReport
    from tdx.inspection.envs import EnvDetails, EnvList
    from tdx.inspection.explanations import CodeExplanation
    from tdx.inspection.lineage import Lineage
    from tdx.inspection.openable import OpenableList
    from tdx.inspection.plan_report import PlanReport
    from tdx.inspection.spec_report import SpecReport
    from tdx.inspection.transform_example import TransformDocument
    from tdx.inspection.values_report import StateReport, ValuesReport
    from tdx.inspection.watch_records import WatchReport
    from tdx.profiling.compare import Calibration, ProfileComparison
    from tdx.profiling.passes.trace_file import TraceSummary
    from tdx.rollouts.dump.reading import DumpSummary, Overview
    from tdx.rollouts.dump.verification import Repair, Verification
    from tdx.rollouts.formats.conversion import Imported
    from tdx.rollouts.formats.interface import Exported
    from tdx.rollouts.recording.request import Estimate
    from tdx.stacks.descriptors import Descriptor
    from tdx.stacks.device_calls import DeviceCalls

    return {
        "spec": SpecReport,
        "descriptor": Descriptor,
        "chain": ChainReport,
        "keys": Lineage,
        "values": ValuesReport,
        "dataset": DatasetFacts,
        "state": StateReport,
        "plan": PlanReport,
        "check": CheckedPipeline,
        "checks": CheckSummary,
        "explanation": CodeExplanation,
        "codes": CodeList,
        "contract": ContractReport,
        "contract_contents": ContractContents,
        "diff": DiffReport,
        "profile": ProfileDocument,
        "profile_comparison": ProfileComparison,
        "profile_sweep": SweepDocument,
        "profile_estimate": EstimateDocument,
        "profile_calibration": Calibration,
        "profile_devices": DeviceCalls,
        "profile_trace": TraceSummary,
        "rollout": DumpSummary,
        "sharded_rollout": ShardedSummary,
        "rollout_estimate": Estimate,
        "dump": Overview,
        "dumps": DumpList,
        "watch": WatchReport,
        "verification": Verification,
        "repair": Repair,
        "export": Exported,
        "import": Imported,
        "artifact": Artifact,
        "artifact_check": ArtifactCheck,
        "envs": EnvList,
        "env": EnvDetails,
        "stack_kinds": OpenableList,
        "transforms": TransformList,
        "transform": TransformDocument,
        "init": WrittenPipeline,
        "config": Settings,
        "setting": SettingValue,
        "doctor": DoctorReport,
        "kinds": KindList,
        "error": ErrorDocument,
    }


def document_schema(kind: str) -> dict[str, Any]:
    """Return the JSON Schema of a kind of document."""
    from tdx.cli.schemas import SchemaBuilder, closed_object
    from tdx.cli.views import StageCall
    from tdx.pipeline.generate import DIALECT

    if kind not in DOCUMENTS:
        hint = did_you_mean(kind, DOCUMENTS, "`tdx schema --output list` lists the kinds")
        raise UnknownNameError(f"unknown kind of document {kind!r}", hint=hint)
    builder = SchemaBuilder()
    content = builder.object_schema(_list_contents()[kind])
    head = {"schema_version": {"const": SCHEMA_VERSION}, "kind": {"const": kind}}
    properties = {**head, **content["properties"], **head}
    required = [*head, *content["required"]]
    if kind in _WITH_CALLS:
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
