"""Renders blocks as HTML: a self-contained page, or a fragment for a notebook.

Neither has a script or loads anything.
"""

from __future__ import annotations

import base64
import re
import sys
from collections.abc import Iterable, Sequence

from tdx.cli.views import (
    UNLIMITED,
    Block,
    Code,
    Fold,
    Gallery,
    Heading,
    Paragraph,
    Picture,
    Table,
    resolve,
)
from tdx.foundation.text import escape_html

MAX_BYTES = 100_000
"""Largest size of a fragment."""

_MAX_LINES = 40
"""Rows of a table and lines of a list that a fragment shows without unfolding."""
_MAX_TEXT, _MAX_CODE = 400, 8_000
"""Characters of a cell and of a piece of code in a fragment."""
_RESERVED = 2_000
"""Bytes for the closing tags and the note about what is left out."""

_LIGHT = (
    "--ink:#1c2024;--paper:#fff;--panel:#f4f6f8;--dim:#646b73;--rule:#d6dade;--added:#18794e;"
    "--changed:#ad5700;--gone:#c62a2f;--action:#0b68cb;"
    "--env:#cfe3fb;--stage:#fbdcb5;--policy:#cdeed9;--wrapper:#e5d8fa;"
)
_DARK = (
    "--ink:#e6e8eb;--paper:#15181b;--panel:#1e2226;--dim:#979ea6;--rule:#363c42;--added:#4cc38a;"
    "--changed:#ffb224;--gone:#ff6369;--action:#70b8ff;"
    "--env:#1d3b5c;--stage:#5a3d12;--policy:#1d4a31;--wrapper:#3f2f63;"
)
# The theme of the system, then that of JupyterLab, VS Code, Sphinx and Colab, which may differ.
_LIGHT_HOSTS = ":is([data-jp-theme-light=true],.vscode-light,[data-theme=light])"
_DARK_HOSTS = (
    ":is([data-jp-theme-light=false],.vscode-dark,.vscode-high-contrast,[data-theme=dark],"
    "html[theme=dark])"
)
_WORK_COLORS = "".join(
    f".tdx-view .{work} rect{{fill:var(--{work})}}"
    for work in ("env", "stage", "policy", "wrapper")
)
_LINE_COLORS = "".join(
    f".tdx-view svg .line{index}{{stroke:#{color}}}"
    for index, color in enumerate(
        ("0b84d8", "d9730d", "2f9e5b", "c2338a", "7c66dc", "12a594", "b08800", "868e96")
    )
)
_STYLE = f"""
.tdx-view{{{_LIGHT}}}
@media(prefers-color-scheme:dark){{.tdx-view{{{_DARK}}}}}
{_LIGHT_HOSTS} .tdx-view{{{_LIGHT}}}
{_DARK_HOSTS} .tdx-view{{{_DARK}}}
.tdx-view{{color:var(--ink);background:var(--paper);padding:8px 12px;
font:13px/1.5 ui-monospace,Menlo,Consolas,monospace;overflow-x:auto}}
.tdx-view p{{margin:0;white-space:pre-wrap;overflow-wrap:anywhere}}
.tdx-view .title{{font-size:15px;font-weight:bold;margin-bottom:4px}}
.tdx-view .heading{{font-weight:bold;margin-top:12px}}
.tdx-view table{{border-collapse:collapse;margin:6px 0;border:0;font-size:13px}}
.tdx-view th,.tdx-view td{{text-align:left;vertical-align:top;white-space:pre;border:0;
padding:2px 14px 2px 0;background:var(--paper);color:inherit}}
.tdx-view th{{font-weight:normal}}
.tdx-view th.number,.tdx-view td.number{{text-align:right}}
.tdx-view tr+tr td{{border-top:1px solid var(--rule)}}
.tdx-view pre{{margin:4px 0;color:inherit;background:none;overflow-x:auto}}
.tdx-view summary{{cursor:pointer}}
.tdx-view .dim,.tdx-view th,.tdx-view summary{{color:var(--dim);font-weight:normal}}
.tdx-view .name{{font-weight:bold}}
.tdx-view .added,.tdx-view td.added,.tdx-view .good{{color:var(--added)}}
.tdx-view .changed,.tdx-view td.changed{{color:var(--changed)}}
.tdx-view .gone,.tdx-view td.gone,.tdx-view .bad{{color:var(--gone)}}
.tdx-view td.dim{{color:var(--dim)}}
"""
_PICTURE_STYLE = f"""
.tdx-view figure{{display:inline-block;margin:0 24px 8px 0;vertical-align:top;max-width:100%}}
.tdx-view figcaption{{color:var(--dim);font-size:12px}}
.tdx-view img{{display:block;min-height:120px;max-height:220px;max-width:100%;
border:1px solid var(--rule);image-rendering:pixelated}}
.tdx-view svg{{font-size:12px;max-width:100%;height:auto}}
.tdx-view svg text{{fill:var(--ink);white-space:pre}}
.tdx-view svg .box{{fill:var(--panel);stroke:var(--rule)}}
.tdx-view svg .end{{stroke:var(--dim)}}
.tdx-view svg .edge,.tdx-view svg .axis{{stroke:var(--dim)}}
.tdx-view svg :is(.head,.dim,.bar.cut){{fill:var(--dim)}}
.tdx-view svg .added{{fill:var(--added)}}
.tdx-view svg :is(.changed,.bar.truncated){{fill:var(--changed)}}
.tdx-view svg .gone{{fill:var(--gone)}}
.tdx-view svg .name{{font-weight:bold}}
.tdx-view svg .bar{{fill:var(--action)}}
.tdx-view svg .line{{fill:none;stroke-width:1.5}}
.tdx-view .flame rect{{fill:var(--panel);stroke:var(--paper)}}
.tdx-view .flame:hover rect{{stroke:var(--ink)}}
{_WORK_COLORS}{_LINE_COLORS}
"""
_PAGE_STYLE = """
body.tdx-view{margin:0 auto;max-width:84rem;padding:1.5rem;font:15px/1.5 system-ui,sans-serif}
:root:has(.tdx-view){color-scheme:light dark}
.tdx-view :is(pre,table,svg,figcaption,h1){font-family:ui-monospace,Menlo,Consolas,monospace}
.tdx-view h1{margin:0 0 0.4rem;font-size:1.6rem;line-height:1.2;overflow-wrap:anywhere}
.tdx-view h2{margin:2rem 0 0.6rem;border-bottom:1px solid var(--rule)}
.tdx-view h3{margin:1.2rem 0 0.3rem;font-size:1rem}
.tdx-view :is(h2,h3) .dim{font-size:14px}
.tdx-view h2>a{color:inherit;text-decoration:none}
.tdx-view h2>a:hover::after{content:" #";color:var(--dim)}
.tdx-view nav{display:flex;flex-wrap:wrap;gap:0.2rem 1.2rem;margin-bottom:1rem;font-size:14px}
.tdx-view nav a{color:var(--action);text-decoration:none}
.tdx-view pre{background:var(--panel);padding:0.8rem;border-radius:6px;white-space:pre-wrap;
overflow-wrap:anywhere}
.tdx-view .wide{overflow-x:auto}
.tdx-view table:not(.numbers) td{white-space:pre-wrap;overflow-wrap:break-word}
.tdx-view details{margin:0.4rem 0}
@media print{.tdx-view nav{display:none}.tdx-view details>*{display:block}}
"""
_PAGE_HEAD = (
    '<meta charset="utf-8">\n<meta name="viewport" content="width=device-width">\n'
    '<meta http-equiv="Content-Security-Policy" '
    "content=\"default-src 'none'; img-src data:; style-src 'unsafe-inline'\">\n"
    '<link rel="icon" href="data:,">\n'
)


def html_page(blocks: Iterable[Block]) -> str:
    """Return blocks as a complete page, with its sections as links at the top.

    The first heading is the title.
    """
    blocks = list(resolve(blocks, UNLIMITED))
    title = next(block.text for block in blocks if isinstance(block, Heading))
    writer = _Writer(sys.maxsize, is_page=True)
    body = "\n".join(writer.write(blocks))
    links = [f'<a href="#{name}">{text}</a>' for name, text in writer.sections.items()]
    nav = f'<nav aria-label="Contents">{"".join(links)}</nav>\n' if len(links) > 1 else ""
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n{_PAGE_HEAD}'
        f"<title>{escape_html(title)} – tdx</title>\n"
        f"<style>{_STYLE}{_PICTURE_STYLE}{_PAGE_STYLE}</style>\n</head>\n"
        f'<body class="tdx-view">\n{nav}{body}\n</body>\n</html>\n'
    )


def html_fragment(blocks: Iterable[Block]) -> str:
    """Return blocks as a ``<div>`` of at most ``MAX_BYTES``.

    Long lists and tables are folded, and what exceeds the limit is counted instead.
    """
    blocks = list(resolve(blocks, UNLIMITED))
    style = _STYLE + _PICTURE_STYLE if any(isinstance(b, Gallery) for b in blocks) else _STYLE
    writer = _Writer(MAX_BYTES - _RESERVED - len(style), is_page=False)
    body = "".join(writer.write(blocks))
    return f'<div class="tdx-view"><style>{style}</style>{body}</div>'


class _Writer:
    """Renders blocks one after the other.

    Args:
        left: Bytes that are left.
        is_page: True for a page, which has headings with anchors and folds only a :class:`Fold`.

    Attributes:
        sections: Title of each section by its anchor.
    """

    def __init__(self, left: int, *, is_page: bool) -> None:
        self._left, self._is_page = left, is_page
        self.sections: dict[str, str] = {}

    def write(self, blocks: Sequence[Block]) -> list[str]:
        """Return the HTML of blocks as long as bytes are left."""
        parts: list[str] = []
        position = 0
        while position < len(blocks):
            end = position + 1
            if isinstance(blocks[position], Paragraph):
                while end < len(blocks) and isinstance(blocks[end], Paragraph):
                    end += 1
            html = self._block(blocks[position:end])
            size = len(html.encode())
            if size > self._left:
                self._left = 0
                return [*parts, '<p class="dim">… the rest is left out</p>']
            parts.append(html)
            self._left -= size
            position = end
        return parts

    def _block(self, blocks: Sequence[Block]) -> str:
        """Return the HTML of one block, or of successive paragraphs."""
        match block := blocks[0]:
            case Table():
                return self._table(block)
            case Paragraph():
                lines = []
                for line in blocks:
                    assert isinstance(line, Paragraph)
                    texts = [(cell.style, self._text(cell.text)) for cell in line.cells]
                    spans = "".join(
                        f'<span class="{style}">{text}</span>' if style and text else text
                        for style, text in texts
                    )
                    lines.append(f'<p style="padding-left:{line.indent}ch">{spans}</p>')
                return self._folded(lines, "line")
            case Heading():
                return self._heading(block)
            case Code():
                return f"<pre>{self._text(block.text, _MAX_CODE)}</pre>"
            case Fold():
                # What is folded counts twice: here, and as a part of this block.
                inner = "".join(self.write(list(resolve(block.blocks, UNLIMITED))))
                self._left += len(inner.encode())
                return f"<details><summary>{self._text(block.summary)}</summary>{inner}</details>"
            case Gallery():
                pictures = "".join(map(self._picture, block.pictures))
                if not pictures:
                    return ""
                heading = "" if block.heading is None else self._heading(block.heading)
                text = f'<p class="dim">{self._text(block.text)}</p>' if block.text else ""
                return f"{heading}{text}<div>{pictures}</div>"
        raise AssertionError("blocks that depend on a width are resolved before")

    def _heading(self, heading: Heading) -> str:
        aside = f'<span class="dim">{self._text(heading.aside)}</span>' if heading.aside else ""
        text = self._text(heading.text)
        if not self._is_page:
            style = "title" if heading.level == 1 else "heading"
            return f'<p class="{style}">{text}{"  " if aside else ""}{aside}</p>'
        if heading.level == 1:
            return f"<h1>{text}</h1><p>{aside}</p>"
        if heading.level == 3:
            return f"<h3>{text} {aside}</h3>"
        name = re.sub(r"\W+", "-", heading.text.casefold()).strip("-")
        name = name if name not in self.sections else f"{name}-{len(self.sections)}"
        self.sections[name] = text
        return f'<h2 id="{name}"><a href="#{name}">{text}</a> {aside}</h2>'

    def _table(self, table: Table) -> str:
        rows = []
        for row in table.rows:
            cells = []
            for cell, column in zip(row, table.columns, strict=True):
                style = " ".join(filter(None, [cell.style, "number" if column.is_number else ""]))
                attribute = f' class="{style}"' if style else ""
                cells.append(f"<td{attribute}>{self._text(cell.text)}</td>")
            rows.append(f"<tr>{''.join(cells)}</tr>")
        number = ' class="number"'
        titles = [
            f"<th{number if column.is_number else ''}>{self._text(column.title)}</th>"
            for column in table.columns
        ]
        has_titles = any(column.title for column in table.columns)
        head = f"<tr>{''.join(titles)}</tr>" if has_titles else ""
        start, end = ('<div class="wide">', "</div>") if self._is_page else ("", "")
        kind = ' class="numbers"' if any(column.is_number for column in table.columns) else ""
        return self._folded(rows, "row", f"{start}<table{kind}>{head}", f"</table>{end}")

    def _folded(self, lines: Sequence[str], noun: str, start: str = "", end: str = "") -> str:
        """Return lines; in a fragment the first ones visible and the others folded."""
        if self._is_page:
            return "".join([start, *lines, end])
        left = self._left - 2 * len((start + end).encode()) - 200
        fitting = 0
        for line in lines:
            left -= len(line.encode())
            if left < 0:
                break
            fitting += 1
        html = start + "".join(lines[: min(_MAX_LINES, fitting)]) + end
        folded = fitting - _MAX_LINES
        if folded > 0:
            rest = "".join(lines[_MAX_LINES:fitting])
            html += f"<details><summary>{_more(folded, noun)}</summary>{start}{rest}{end}</details>"
        if fitting < len(lines):
            html += f'<p class="dim">… {_more(len(lines) - fitting, noun)}, left out</p>'
        return html

    def _picture(self, picture: Picture) -> str:
        caption = self._text(picture.caption)
        if isinstance(picture.source, bytes):
            data = base64.b64encode(picture.source).decode()
            image = f'<img src="data:image/png;base64,{data}" alt="{caption}">'
        else:
            image = picture.source()
        if not image:
            return ""
        below = f"<figcaption>{caption}</figcaption>" if caption else ""
        return f"<figure>{image}{below}</figure>"

    def _text(self, text: str, limit: int = _MAX_TEXT) -> str:
        if len(text) > limit and not self._is_page:
            text = f"{text[: limit - 1]}…"
        return escape_html(text)


def _more(count: int, noun: str) -> str:
    return f"{count:,} more {noun}{'' if count == 1 else 's'}"
