"""Requests of the Contract view."""

from __future__ import annotations

from dataclasses import dataclass

from tdx.pipeline.model import Pipeline
from tdx.tui.backend.messages import Job, Request
from tdx.tui.contract.messages import Comparison

WORKER = "contract"


@dataclass(frozen=True, slots=True)
class CompareContract(Request[Comparison]):
    """Compare with a contract or another target, as an evaluation if statistics must not move."""

    pipeline: Pipeline
    reference: str
    evaluation: bool = False
    allow_code: bool = False
    samples: str | None = None

    def answer(self, job: Job) -> Comparison:
        from tdx.tui.contract.worker import compare_contract

        return compare_contract(
            self.pipeline,
            self.reference,
            evaluation=self.evaluation,
            allow_code=self.allow_code,
            samples=self.samples,
        )


@dataclass(frozen=True, slots=True)
class FreezeContract(Request[str]):
    """Write a contract of the chain; answered with a sentence."""

    pipeline: Pipeline
    path: str
    force: bool = False
    allow_code: bool = False
    samples: str | None = None

    def answer(self, job: Job) -> str:
        from tdx.tui.contract.worker import freeze_contract

        return freeze_contract(
            self.pipeline,
            self.path,
            force=self.force,
            allow_code=self.allow_code,
            samples=self.samples,
        )
