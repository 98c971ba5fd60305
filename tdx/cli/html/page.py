"""The report of a pipeline as one HTML page."""

from __future__ import annotations

import base64
from itertools import groupby
from pathlib import Path
from typing import Any

from tdx.cli.html.diagram import chain_diagram
from tdx.cli.html.plots import episode_plot, reward_plot
from tdx.cli.output.terminal import UNLIMITED
from tdx.cli.output.view import Table, View
from tdx.cli.views.chain_view import chain_view
from tdx.cli.views.lineage_view import lineage_view
from tdx.cli.views.spec_view import spec_view
from tdx.inspection.report import ImagePair, PipelineReport
from tdx.text import escape_control_characters

_FOLDER = Path(__file__).parent
_ENDED = {
    "terminated": "terminated",
    "truncated": "truncated",
    "done": "done",
    "cut": "cut off by the end of the rollout",
}


def report_page(report: PipelineReport) -> str:
    """The page, complete in itself: no script, and nothing that is loaded from elsewhere.

    Args:
        report: what the page is about.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template("report.html.j2")
    rollout = report.rollout
    rewards = [
        (key, reward_plot(list(curves)))
        for key, curves in groupby(rollout.plots, key=lambda curve: curve.key)
    ]
    text = page.render(
        report=report,
        style=(_FOLDER / "report.css").read_text(encoding="utf-8"),
        diagram=chain_diagram(report),
        chain=_table(chain_view(report.chain, report.calls)),
        lineage=_table(lineage_view(report.lineage, report.calls)),
        specs=_table(spec_view(report.specs, report.calls)),
        rewards=rewards,
        returns=episode_plot(rollout.episodes),
        pictures=[_picture(each, report) for each in rollout.images],
        ended=_ENDED,
    )
    return escape_control_characters(text, keep="\n\t")


def _table(view: View) -> Table | None:
    """The table of a view, without what stands above it."""
    blocks = view.blocks(UNLIMITED)
    return next((block for block in blocks if isinstance(block, Table)), None)


def _picture(picture: ImagePair, report: PipelineReport) -> dict[str, Any]:
    return {
        "call": f"{picture.stage} {report.calls[picture.stage]}",
        "key": picture.key,
        "before": None if picture.before is None else _data_uri(picture.before),
        "after": _data_uri(picture.after),
        "before_text": picture.before_text,
        "after_text": picture.after_text,
    }


def _data_uri(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"
