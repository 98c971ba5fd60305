"""HTML of pipelines, chains, specs, reports, profiles, dumps, stacks and contracts in notebooks.

The blocks are those of the commands. A fragment has no script and loads nothing. Its size
is bounded: long lists and tables are folded, and what exceeds the limit is counted instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from tdx.cli.views import Block, Cell, Code, Column, Heading, Paragraph, Table, escape_blocks
from tdx.foundation.errors import TdxError

if TYPE_CHECKING:
    from tdx.contracts import Contract
    from tdx.core import Compose, EnvBase
    from tdx.pipeline import Pipeline
    from tdx.rollouts.dump.reading import Dump
    from tdx.specs import TensorSpec
    from tdx.stacks import Stack

MAX_BYTES = 100_000
"""Largest size of a fragment."""

_MAX_SHOWN = 40
"""Rows of a table and lines of a list that are not folded."""
_MAX_TEXT = 400
_MAX_CODE = 8_000
_RESERVED = 2_000
"""Bytes for the closing tags and the note about what is left out."""

_LIGHT = (
    "--tdx-ink:#1c2024;--tdx-paper:#fff;--tdx-dim:#646b73;--tdx-rule:#d6dade;--tdx-added:#18794e;"
    "--tdx-changed:#ad5700;--tdx-gone:#c62a2f;"
)
_DARK = (
    "--tdx-ink:#e6e8eb;--tdx-paper:#15181b;--tdx-dim:#979ea6;--tdx-rule:#363c42;--tdx-added:#4cc38a;"
    "--tdx-changed:#ffb224;--tdx-gone:#ff6369;"
)
# The theme of the system, then that of JupyterLab, VS Code, Sphinx and Colab, which may differ.
_LIGHT_HOSTS = ":is([data-jp-theme-light=true],.vscode-light,[data-theme=light])"
_DARK_HOSTS = (
    ":is([data-jp-theme-light=false],.vscode-dark,.vscode-high-contrast,[data-theme=dark],"
    "html[theme=dark])"
)
_STYLE = f"""<style>
.tdx-view{{{_LIGHT}}}
@media(prefers-color-scheme:dark){{.tdx-view{{{_DARK}}}}}
{_LIGHT_HOSTS} .tdx-view{{{_LIGHT}}}
{_DARK_HOSTS} .tdx-view{{{_DARK}}}
.tdx-view{{color:var(--tdx-ink);background:var(--tdx-paper);padding:8px 12px;
font:13px/1.5 ui-monospace,Menlo,Consolas,monospace;overflow-x:auto}}
.tdx-view p{{margin:0;white-space:pre-wrap;overflow-wrap:anywhere}}
.tdx-view .title{{font-size:15px;font-weight:bold;margin-bottom:4px}}
.tdx-view .heading{{font-weight:bold;margin-top:12px}}
.tdx-view table{{border-collapse:collapse;margin:6px 0;border:0;font-size:13px}}
.tdx-view th,.tdx-view td{{text-align:left;vertical-align:top;white-space:pre;border:0;
padding:2px 14px 2px 0;background:var(--tdx-paper);color:inherit}}
.tdx-view th{{font-weight:normal}}
.tdx-view tr+tr td{{border-top:1px solid var(--tdx-rule)}}
.tdx-view pre{{margin:4px 0;color:inherit;background:none;overflow-x:auto}}
.tdx-view summary{{cursor:pointer}}
.tdx-view .dim,.tdx-view th,.tdx-view summary{{color:var(--tdx-dim);font-weight:normal}}
.tdx-view .name{{font-weight:bold}}
.tdx-view .added,.tdx-view td.added,.tdx-view .good{{color:var(--tdx-added)}}
.tdx-view .changed,.tdx-view td.changed{{color:var(--tdx-changed)}}
.tdx-view .gone,.tdx-view td.gone,.tdx-view .bad{{color:var(--tdx-gone)}}
.tdx-view td.dim{{color:var(--tdx-dim)}}
</style>"""


def to_html(value: object) -> str | None:
    """Return a value as an HTML fragment, as notebooks show it.

    Supported are pipelines, envs with their chains, :class:`~tdx.Compose`, specs, stacks, spec
    reports, stack reports, profiles, dumps, contracts and reports about contracts. No env is
    stepped. For what cannot be shown, such as a closed env, its error is shown. The fragment has at
    most 100 kB, and neither a script nor a link to another host.

    Args:
        value: Value to show.

    Returns:
        A ``<div>`` with its style. ``None``: values of this class have no HTML.

    Example:
        >>> from tdx import Pipeline, to_html
        >>> "RewardSum" in to_html(Pipeline.of("Pendulum-v1", "RewardSum"))
        True
    """
    try:
        blocks = _blocks(value)
    except TdxError as error:
        # A closed env, or a dump whose pipeline is invalid.
        blocks = [Heading(type(value).__name__, level=1), _error(error)]
    return None if blocks is None else render_blocks(blocks)


# ---------------------------------------------------------------------------- blocks to HTML


def render_blocks(blocks: Sequence[Block]) -> str:
    """Return blocks as a fragment of at most ``MAX_BYTES``; all texts are escaped.

    Args:
        blocks: Blocks with the layout for unlimited width.
    """
    parts = _folded_parts(escape_blocks(blocks), MAX_BYTES - _RESERVED - len(_STYLE))
    return "".join([f'<div class="tdx-view">{_STYLE}', *parts, "</div>"])


def _folded_parts(blocks: Sequence[Block], left: int) -> Iterator[str]:
    """Yield the HTML of blocks as long as bytes are left."""
    position = 0
    while position < len(blocks):
        block = blocks[position]
        count = _count_lines(blocks, position)
        if isinstance(block, Table):
            html = _table(block, left)
        elif isinstance(block, Paragraph):
            lines = [_paragraph(each) for each in blocks[position : position + count]]
            html = _fold(lines, "line", left)
        elif isinstance(block, Heading):
            aside = f'  <span class="dim">{_text(block.aside)}</span>' if block.aside else ""
            style = "title" if block.level == 1 else "heading"
            html = f'<p class="{style}">{_text(block.text)}{aside}</p>'
        else:
            html = f"<pre>{_text(block.text, _MAX_CODE)}</pre>"
        size = len(html.encode())
        if size > left:
            yield '<p class="dim">… the rest is left out</p>'
            return
        yield html
        left -= size
        position += count


def _count_lines(blocks: Sequence[Block], start: int) -> int:
    """Return the number of paragraphs from a position on; 1 for another block."""
    end = start
    while end < len(blocks) and isinstance(blocks[end], Paragraph):
        end += 1
    return max(end - start, 1)


def _paragraph(block: Block) -> str:
    assert isinstance(block, Paragraph)
    text = "".join(_span(cell) for cell in block.cells)
    return f'<p style="padding-left:{block.indent}ch">{text}</p>'


def _span(cell: Cell) -> str:
    text = _text(cell.text)
    return f'<span class="{cell.style}">{text}</span>' if cell.style and text else text


def _table(table: Table, left: int) -> str:
    rows = ["<tr>" + "".join(map(_cell, row)) + "</tr>" for row in table.rows]
    head = ""
    if any(column.title for column in table.columns):
        titles = "".join(f"<th>{_text(column.title)}</th>" for column in table.columns)
        head = f"<tr>{titles}</tr>"
    return _fold(rows, "row", left, f"<table>{head}", "</table>")


def _cell(cell: Cell) -> str:
    style = f' class="{cell.style}"' if cell.style else ""
    return f"<td{style}>{_text(cell.text)}</td>"


def _fold(lines: Sequence[str], noun: str, left: int, start: str = "", end: str = "") -> str:
    """Return lines, the first ones visible and the others folded, within a number of bytes."""
    left -= 2 * len((start + end).encode()) + 200
    fitting = 0
    for line in lines:
        left -= len(line.encode())
        if left < 0:
            break
        fitting += 1
    html = start + "".join(lines[:_MAX_SHOWN][:fitting]) + end
    folded = fitting - _MAX_SHOWN
    if folded > 0:
        rest = "".join(lines[_MAX_SHOWN:fitting])
        html += f"<details><summary>{_more(folded, noun)}</summary>{start}{rest}{end}</details>"
    if fitting < len(lines):
        html += f'<p class="dim">… {_more(len(lines) - fitting, noun)}, left out</p>'
    return html


def _more(count: int, noun: str) -> str:
    return f"{count:,} more {noun}{'' if count == 1 else 's'}"


def _text(text: str, limit: int = _MAX_TEXT) -> str:
    return escape(text if len(text) <= limit else f"{text[: limit - 1]}…")


# ---------------------------------------------------------------------------- values to blocks


def _blocks(value: object) -> Sequence[Block] | None:
    from tdx.pipeline import Pipeline

    if isinstance(value, Pipeline):
        # Showing a pipeline loads no torch.
        return _pipeline(value)
    from tdx.contracts import Contract
    from tdx.core import Compose, EnvBase
    from tdx.rollouts.dump.reading import Dump
    from tdx.specs import TensorSpec
    from tdx.stacks.stack import is_stack

    match value:
        case TensorSpec():
            return _spec(value)
        case Compose():
            return _chain(value)
        case EnvBase():
            return _stack(value)
        case Dump():
            return _dump(value)
        case Contract():
            return _contract(value)
    return _stack(value) if is_stack(value) else _report(value)


def _report(value: object) -> Sequence[Block] | None:
    """Return the blocks of a result that a command prints."""
    from tdx.cli.output import UNLIMITED
    from tdx.cli.views.comparisons import contract_view
    from tdx.cli.views.profile import profile_view
    from tdx.cli.views.specs import spec_view
    from tdx.contracts import ContractReport
    from tdx.inspection.spec_report import SpecReport
    from tdx.inspection.stack_report import StackReport
    from tdx.profiling.result import Profile

    match value:
        case SpecReport():
            return spec_view(value, [stage.name for stage in value.stages]).blocks(UNLIMITED)
        case StackReport():
            calls = [stage.call for stage in value.stages]
            return [*spec_view(value.spec, calls).blocks(UNLIMITED), *_notes(value.notes)]
        case ContractReport():
            return contract_view(value).blocks(UNLIMITED)
        case Profile():
            return profile_view(value).blocks(UNLIMITED)
    return None


def _pipeline(pipeline: Pipeline) -> list[Block]:
    from tdx.cli.views import count_text, stage_list
    from tdx.pipeline import format_stage, to_command

    calls = [format_stage(stage) for stage in pipeline.transforms]
    head = Heading(pipeline.env.id, count_text(len(calls), "stage"), level=1)
    return [head, *stage_list(calls), Heading("command"), Code(to_command(pipeline), "sh")]


def _spec(spec: TensorSpec) -> list[Block]:
    from tdx.foundation.keys import format_key
    from tdx.specs import Composite
    from tdx.specs.leaf import SpecText, leaf_spec, shape_text

    facts = f"shape {shape_text(tuple(spec.shape))}  device {spec.device}"
    head = Heading(type(spec).__name__, facts, level=1)
    if isinstance(spec, Composite):
        items = list(spec.items(include_nested=True, leaves_only=True))
        leaves = [leaf_spec("observation", key, leaf) for key, leaf in items]
    else:
        leaves = [leaf_spec("observation", "", spec)]
    text = SpecText(leaves)
    rows = [[Cell(format_key(leaf.key)), Cell(leaf.kind), Cell(text(leaf))] for leaf in leaves]
    if not isinstance(spec, Composite):
        return [head, Table([Column()], [row[2:] for row in rows])]
    return [head, Table([Column("key"), Column("class"), Column("spec")], rows)]


def _chain(chain: Compose) -> list[Block]:
    from tdx.cli.views import count_text, stage_list

    calls = [" ".join(repr(stage).split()) for stage in chain]
    head = Heading(type(chain).__name__, count_text(len(calls), "stage"), level=1)
    return [head, *stage_list(calls)]


def _stack(value: EnvBase | Stack) -> list[Block]:
    """Return the stages and specs of an env; an env with a mistake in it is shown as well."""
    from tdx.cli.output import UNLIMITED
    from tdx.cli.views import stage_list
    from tdx.cli.views.specs import spec_view
    from tdx.inspection.spec_report import compare_specs
    from tdx.stacks import open_stack

    stack = open_stack(value)
    calls = stack.calls
    try:
        blocks = list(spec_view(compare_specs(stack), calls).blocks(UNLIMITED))
    except Exception as error:  # Stages are code of the user.
        return [Heading(stack.name, level=1), *stage_list(calls), Heading("error"), _error(error)]
    return [*blocks, *_notes(stack.notes)]


def _dump(dump: Dump) -> list[Block]:
    """Return what the manifest states: no step is read."""
    from tdx.cli.views import stage_list
    from tdx.cli.views.dumps import dump_facts, dump_head
    from tdx.pipeline import format_stage
    from tdx.rollouts.dump.reading import summarize

    data = summarize(str(dump.path), dump.manifest)
    calls = [format_stage(stage) for stage in dump.pipeline.transforms]
    entries = [_entry(each) for each in dump.manifest.specs]
    table = Table([Column("part"), Column("key"), Column("spec")], entries)
    return [dump_head(data), *stage_list(calls), dump_facts(data), Heading("entries"), table]


def _entry(spec: Mapping[str, Any]) -> list[Cell]:
    from tdx.foundation.keys import format_key
    from tdx.specs.leaf import shape_text

    text = f"{shape_text(spec['shape'])}  {spec['dtype']}"
    return [Cell(spec["part"], "dim"), Cell(format_key(tuple(spec["key"]))), Cell(text)]


def _contract(contract: Contract) -> list[Block]:
    from tdx.cli.views import count_text, fact

    steps = sum(segment.steps for segment in contract.inputs)
    aside = f"{contract.kind}, seed {contract.seed}, {count_text(steps, 'reference step')}"
    rows = [
        [
            Cell("" if stage.index < 0 else str(stage.index), "dim"),
            Cell(stage.name, "name"),
            Cell(stage.role),
            Cell(", ".join(f"{name}={each}" for name, each in stage.arguments.items())),
            Cell(", ".join(each.name for each in stage.state), "dim"),
            Cell(stage.random or "", "dim"),
        ]
        for stage in contract.stages
    ]
    titles = ("", "stage", "role", "arguments", "state", "random")
    versions = ", ".join(f"{name} {version}" for name, version in contract.libraries.items())
    head = Heading(f"Contract of {contract.env}", aside, level=1)
    table = Table([Column(title) for title in titles], rows)
    return [head, table, fact("libraries", versions), *_notes(contract.notes)]


def _error(error: Exception) -> Paragraph:
    return Paragraph([Cell(f"{type(error).__name__}: {error}", "bad")])


def _notes(notes: Sequence[str]) -> list[Paragraph]:
    return [Paragraph([Cell("note: ", "dim"), Cell(each)]) for each in notes]
