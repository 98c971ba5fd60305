"""Requests of the Profile tab."""

from __future__ import annotations

from dataclasses import dataclass

from tdx.tui.backend.messages import Job, Request
from tdx.tui.profile.messages import AdviceResult, Costs, Measurement


@dataclass(frozen=True)
class MeasurePipeline(Measurement, Request[Costs]):
    """Measure a pipeline; pushes ``ProfileProgress`` and partial ``Costs``."""

    def answer(self, job: Job) -> Costs:
        from tdx.tui.profile.worker import measure_pipeline

        return measure_pipeline(self, job)


@dataclass(frozen=True)
class FindAdvice(Measurement, Request[AdviceResult]):
    """Try changes that may make a pipeline faster; pushes ``ProfileProgress``."""

    def answer(self, job: Job) -> AdviceResult:
        from tdx.tui.profile.worker import find_advice

        return find_advice(self, job)
