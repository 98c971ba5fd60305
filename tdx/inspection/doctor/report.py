"""What an examination of the machine found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Status = Literal["ok", "warn", "fail"]
Group = Literal["versions", "devices", "envs", "terminal", "files", "shell"]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One thing that was looked at.

    Args:
        group: what it belongs to.
        name: what was looked at.
        status: whether it is fine, a drawback, or stops tdx from working.
        value: what was found, on one line.
        hint: what to do about it.
    """

    group: Group
    name: str
    status: Status
    value: str
    hint: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "group": self.group,
            "name": self.name,
            "status": self.status,
            "value": self.value,
            "hint": self.hint,
        }


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """All that was looked at.

    Args:
        diagnoses: each thing, group after group.
    """

    diagnoses: tuple[Diagnosis, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing stops tdx from working."""
        return self.count("fail") == 0

    def count(self, status: Status) -> int:
        """How many things have this status."""
        return sum(each.status == status for each in self.diagnoses)

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "ok": self.ok,
            "warnings": self.count("warn"),
            "failures": self.count("fail"),
            "checks": [each.to_dict() for each in self.diagnoses],
        }
