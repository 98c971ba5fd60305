"""Pipelines: the catalogue of transforms, the ``--t`` grammar, the file, building and checking.

Importing this package loads neither torch nor a YAML library.
"""

from __future__ import annotations

from tdx.pipeline.formatting import format_stage, format_value
from tdx.pipeline.grammar import parse_kwargs, parse_stage, parse_value
from tdx.pipeline.model import EnvConfig, Pipeline, RolloutConfig, StageConfig
from tdx.pipeline.pipeline_file import PipelineFile
from tdx.pipeline.values import Call, CodeReference, Dtype, Value

__all__ = [
    "Call",
    "CodeReference",
    "Dtype",
    "EnvConfig",
    "Pipeline",
    "PipelineFile",
    "RolloutConfig",
    "StageConfig",
    "Value",
    "format_stage",
    "format_value",
    "parse_kwargs",
    "parse_stage",
    "parse_value",
]
