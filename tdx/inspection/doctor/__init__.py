"""Whether this machine has all that tdx needs."""

from __future__ import annotations

from tdx.inspection.doctor.examination import examine
from tdx.inspection.doctor.report import Diagnosis, DoctorReport, Group, Status

__all__ = ["Diagnosis", "DoctorReport", "Group", "Status", "examine"]
