"""Explain in what way the values of a target differ from those of a reference.

A hypothesis is an edit that predicts the values of the target from those of the reference, or from
what the stage received. It is accepted only if it predicts all of them within the tolerance.
"""

from tdx.compare.edits import Edit, Explanation, Sides
from tdx.compare.explanations.model import reproduces
from tdx.compare.explanations.search import Explainer, explain
from tdx.compare.explanations.stages import predict_stage

__all__ = ["Edit", "Explainer", "Explanation", "Sides", "explain", "predict_stage", "reproduces"]
