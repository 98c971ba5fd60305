"""Running a chain around an env."""

from tdx.engine.stage_specs import StageSpecs, stage_specs
from tdx.engine.traced import StageTrace, StepTrace, TraceHistory, Tracer, ValueVersion
from tdx.engine.transformed_env import TransformedEnv

__all__ = [
    "StageSpecs",
    "StageTrace",
    "StepTrace",
    "TraceHistory",
    "Tracer",
    "TransformedEnv",
    "ValueVersion",
    "stage_specs",
]
