"""Running a chain around an env."""

from tdx.engine.stage_specs import StageSpecs, stage_specs
from tdx.engine.transformed_env import TransformedEnv

__all__ = ["StageSpecs", "TransformedEnv", "stage_specs"]
