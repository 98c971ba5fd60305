"""Show notebooks with their stored outputs.

They are not executed when the site is built: the tests execute them and compare the outputs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from docutils import nodes
from myst_parser.parsers.sphinx_ import MystParser

FENCE = "`" * 12


def setup(app: Any) -> dict[str, bool]:
    """Register the file type ``.ipynb``."""
    app.add_source_suffix(".ipynb", "notebook")
    app.add_source_parser(NotebookParser)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


class NotebookParser(MystParser):
    """Parses a notebook as the Markdown of its cells and outputs."""

    supported = ("notebook",)

    def parse(self, inputstring: str, document: nodes.document) -> None:
        super().parse(to_markdown(json.loads(inputstring)), document)


def to_markdown(notebook: Mapping[str, Any]) -> str:
    """Return the cells of a notebook as a Markdown page."""
    return "\n\n".join(_parts(notebook)) + "\n"


def _parts(notebook: Mapping[str, Any]) -> Iterator[str]:
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            yield source
            continue
        yield f"{FENCE}python\n{source}\n{FENCE}"
        for output in cell["outputs"]:
            data = output["data"]
            kind, language = ("text/html", "{raw} html")
            if kind not in data:
                kind, language = ("text/plain", "text")
            yield f"{FENCE}{language}\n{''.join(data[kind])}\n{FENCE}"
