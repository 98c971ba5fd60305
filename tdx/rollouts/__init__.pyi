from .dump import Dump as Dump
from .dump import open_dump as open_dump
from .estimating import Estimate as Estimate
from .estimating import estimate as estimate
from .formats.exporting import export_dump as export_dump
from .formats.exporting import export_lines as export_lines
from .formats.importing import import_dump as import_dump
from .formats.registry import Format as Format
from .formats.registry import export_formats as export_formats
from .formats.results import Exported as Exported
from .formats.results import Imported as Imported
from .manifest import Goal as Goal
from .manifest import Manifest as Manifest
from .overview import Listed as Listed
from .overview import Overview as Overview
from .overview import list_dumps as list_dumps
from .overview import look_at as look_at
from .replaying import replay as replay
from .run import DumpRequest as DumpRequest
from .run import record_dump as record_dump
from .run import resume as resume
from .run import roll_out as roll_out
from .streaming import Progress as Progress
from .verification import Problem as Problem
from .verification import Verification as Verification
from .verification import verify as verify

__all__: list[str]
