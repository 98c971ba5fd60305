"""Rollouts on disk: record, resume, open, verify, list and replay dumps."""

from __future__ import annotations

from tdx.rollouts.dump import Dump, open_dump
from tdx.rollouts.estimate import Estimate, estimate
from tdx.rollouts.manifest import Goal, Manifest
from tdx.rollouts.overview import Listed, Overview, list_dumps, look_at
from tdx.rollouts.replaying import replay
from tdx.rollouts.run import DumpRequest, record_dump, resume, roll_out
from tdx.rollouts.streaming import Progress
from tdx.rollouts.verify import Problem, Verification, verify

__all__ = [
    "Dump",
    "DumpRequest",
    "Estimate",
    "Goal",
    "Listed",
    "Manifest",
    "Overview",
    "Problem",
    "Progress",
    "Verification",
    "estimate",
    "list_dumps",
    "look_at",
    "open_dump",
    "record_dump",
    "replay",
    "resume",
    "roll_out",
    "verify",
]
