"""Requests of the Contract view."""

from __future__ import annotations

from dataclasses import dataclass

from tdx.pipeline.model import Pipeline
from tdx.tui.backend.messages import Job, Request
from tdx.tui.contract.messages import Comparison

WORKER = "contract"


@dataclass(frozen=True, slots=True)
class CompareContract(Request[Comparison]):
    """Compare the chain with a contract, or with another target.

    Args:
        pipeline: The chain.
        reference: Folder of a contract, pipeline file, function or env.
        evaluation: The chain is used for evaluation: its statistics must not change.
        allow_code: Allow importing Python objects.
        samples: File or folder with the samples of a stack without an env.
    """

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
    """Write a contract of the chain; answered with a sentence.

    Args:
        pipeline: The chain.
        path: Folder to write.
        force: True to replace a contract.
        allow_code: Allow importing Python objects.
        samples: File or folder with the samples of a stack without an env.
    """

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
