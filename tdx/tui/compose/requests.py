"""What the composing part of the app asks a worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tdx.inspection.check_report import Finding
from tdx.inspection.overview import ChainOverview
from tdx.pipeline.model import Pipeline
from tdx.tui.backend.messages import Request


@dataclass(frozen=True, slots=True)
class Look(Request[ChainOverview]):
    """What does each stage do?"""

    handler: ClassVar[str] = "tdx.tui.compose.answers:look"
    pipeline: Pipeline
    allow_code: bool = False


@dataclass(frozen=True, slots=True)
class Check(Request[tuple[Finding, ...]]):
    """What does ``tdx check`` find?"""

    handler: ClassVar[str] = "tdx.tui.compose.answers:check"
    pipeline: Pipeline
    allow_code: bool = False
    steps: bool = False


@dataclass(frozen=True, slots=True)
class EnvChoice:
    """An env that can be chosen.

    Args:
        id: its id.
        package: where it comes from.
        hint: what to install first; none where it is there.
    """

    id: str
    package: str
    hint: str | None


@dataclass(frozen=True, slots=True)
class ListEnvs(Request[tuple[EnvChoice, ...]]):
    """Which envs are there?"""

    handler: ClassVar[str] = "tdx.tui.compose.answers:envs"
