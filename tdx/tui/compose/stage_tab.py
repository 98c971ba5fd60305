"""The Stage tab: a form for the arguments of the selected stage or env."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from textwrap import dedent

from rich.cells import cell_len
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Button, Input, Static
from textual.worker import Worker, WorkerError

from tdx.foundation.errors import TdxError
from tdx.foundation.keys import format_key
from tdx.foundation.text import count_text
from tdx.pipeline.catalog import load_catalog
from tdx.pipeline.editing import DraftStage
from tdx.pipeline.editing.forms import (
    FormField,
    list_env_fields,
    list_stage_fields,
    set_argument,
    set_env_field,
)
from tdx.pipeline.grammar import format_stage
from tdx.pipeline.model import Wrapper
from tdx.pipeline.transform_info import strip_markup
from tdx.tui.chain_status import ENV
from tdx.tui.compose.form_row import FormRow, available_keys
from tdx.tui.line_widgets import ElidedStatic
from tdx.tui.profile.numbers import NUMBER_WIDTH, format_number
from tdx.tui.specs.tree import ColumnWidths, key_label, specs_at
from tdx.tui.tab_body import ProblemPanel, TabBody, holds_focus
from tdx.tui.workspace import Workspace

_CONTINUED = re.compile(r"\n {2,}(?=\S)")
_HELP_HEIGHT, _MIN_ABOUT = 6, 5
_FACTORY_FIELDS = ("kwargs", "seed")
"""Settings of an env that a function of another library creates."""
_WELCOME = """No env is chosen yet.

  [b]e[/b]  choose an env
  [b]p[/b]  start with a sample pipeline
  [b]a[/b]  add transforms from the catalog

[b]?[/b] shows help for the focused pane, [b]Ctrl+P[/b] lists all commands."""


class StageTab(TabBody):
    """Shows and edits the arguments of the selected stage or env."""

    BINDINGS = [Binding("enter", "edit", "edit", id="stage.edit", show=False)]
    HELP = """## Stage

All arguments of the transform, with defaults in gray. `↑`, `↓` and `Enter` move between them, `→`
accepts a completion, `Esc` returns to the chain. Input is validated as you type; the chain keeps
the last valid value. `F2` in a field for keys lists the available keys."""

    @dataclass
    class Editing(Message):
        """Another field has the focus: which one, and the keys that leave it; empty: no field."""

        text: str

    def __init__(self, workspace: Workspace) -> None:
        super().__init__(workspace)
        self._shown: tuple[object, ...] = ()
        self._shown_title = Content("")
        self._building: Worker[None] | None = None
        # Name of the field that gets the focus after the form is built; empty: the button.
        self._refocus: str | None = None

    def compose(self) -> ComposeResult:
        yield Static("", id="form-title")
        yield ProblemPanel(self.workspace)
        yield VerticalScroll(id="form")
        yield Static("", id="form-about")
        yield ElidedStatic("", id="form-help")

    def on_mount(self) -> None:
        self.workspace.selected.subscribe(self, self.invalidate)
        self.workspace.edited.subscribe(self, self.invalidate)
        self.workspace.inspected.subscribe(self, self.invalidate)

    async def open_form(self) -> None:
        """Focus the first field, after the form of the selected stage is built."""
        self.update()
        while self._building is not None and not self._building.is_finished:
            with suppress(WorkerError):  # superseded by a newer one
                await self._building.wait()
        self.action_edit()

    @property
    def default_focus(self) -> Widget:
        # Not a field: the keys of the other tabs would be typed into it.
        return self.query_one("#form")

    def action_edit(self) -> None:
        """Focus the first field; the button for the env if there are no fields."""
        rows = self.query(FormRow)
        fields = [rows.first().input] if rows else [*self.query("#form Button")]
        if fields:
            self.screen.set_focus(fields[0])

    @on(FormRow.Left)
    def _focus_other_row(self, event: FormRow.Left) -> None:
        event.stop()
        rows = [*self.query(FormRow)]
        at = rows.index(event.row) + event.by if event.row in rows else -1
        if 0 <= at < len(rows):
            self.screen.set_focus(rows[at].input)

    def on_resize(self) -> None:
        self._show_about()

    def on_descendant_focus(self) -> None:
        # A value that is typed later is undone on its own.
        self.workspace.editor.seal()
        self._show_help()

    def on_descendant_blur(self) -> None:
        self._show_help()

    def _show_help(self) -> None:
        """Describe the argument that has the focus."""
        row = self._focused_row
        note = "Enter edits · ↑ ↓ select · Esc returns to the chain" if self.query(FormRow) else ""
        text = Content.styled(note, "dim") if row is None else row.describe()
        help_line = self.query_one("#form-help", Static)
        help_line.update(text)
        help_line.display = bool(text)
        editing = ""
        if row is not None:
            # After Enter, the next field takes the keys.
            has_next = isinstance(row.input, Input) and row is not self.query(FormRow).last()
            editing = f"editing {row.field.name}{' · ⏎ next' if has_next else ''} · esc done"
        self.post_message(self.Editing(editing))

    @property
    def _focused_row(self) -> FormRow | None:
        return next((row for row in self.query(FormRow) if holds_focus(row)), None)

    def _show_about(self) -> None:
        """Describe below the form what the stage changes, if there is room."""
        if not self.query("#form-about"):
            return  # the app exits meanwhile
        form = self.query_one("#form")
        taken = sum(row.virtual_size.height for row in form.children)
        above = self.query_one("#form-title").outer_size.height
        is_roomy = self.size.height - above - taken - _HELP_HEIGHT >= _MIN_ABOUT
        self.set_class(is_roomy, "-roomy")
        if is_roomy:
            about = describe_stage(self.workspace, self.size.width - 2)
            self.query_one("#form-about", Static).update(about)

    def update(self) -> None:
        """Show the selected stage; rebuild the rows only if it is another one."""
        self.query_one(ProblemPanel).update_problems()
        shown, title = self._identity(), self._title()
        if title != self._shown_title:
            self._shown_title = title
            self.query_one("#form-title", Static).update(title)
        if shown == self._shown:
            fields = {field.name: field for field in self._fields()}
            for row in self.query(FormRow):
                field = fields.get(row.field.name)
                if field is not None and row.is_mounted:
                    row.set_field(field, self._keys(field))
            self._show_about()
            return
        self._shown = shown
        self._building = self.run_worker(self._rebuild(), exclusive=True, group="form")

    async def _rebuild(self) -> None:
        form = self.query_one("#form", VerticalScroll)
        if holds_focus(form) and self.screen.focused is not form:
            # Textual would move the focus of a removed row to the tab bar.
            row = self._focused_row
            self._refocus = "" if row is None else row.field.name
            self.screen.set_focus(None)
        rows: list[Static | FormRow | Button] = []
        if self.workspace.place == ENV:
            label = "choose an env" if self.workspace.draft.env is None else "another env"
            rows.append(Button(f"{label} …", id="form-env", compact=True))
        if self.workspace.draft.env is None:
            rows.append(Static(_WELCOME, classes="form-note"))
        stack = self.workspace.stack
        if self.workspace.place == ENV and stack is not None:
            stages = count_text(len(stack.wrappers), "stage")
            notes = [
                f"A policy checkpoint with {stages}; its files are read, not edited."
                if stack.is_data
                else f"A {stack.kind} env with {stages}. Edit its code and press Ctrl+L to "
                "import it again."
            ]
            if self.workspace.takes_samples:
                chosen = self.workspace.samples
                source = "drawn from the specs" if chosen is None else f"from {chosen}"
                if stack.is_data or chosen is not None:
                    notes.append(f"Samples: {source}. Ctrl+P, Choose samples.")
            notes += [f"{note[:1].upper()}{note[1:]}." for note in stack.notes]
            rows.append(Static(Content.styled("\n".join(notes), "dim"), classes="form-note"))
        rows += [FormRow(field, self._keys(field)) for field in self._fields()]
        if not rows and self.workspace.stage is not None:
            rows.append(Static(self._empty_text(self.workspace.stage), classes="form-note"))
        async with self.batch():
            await form.remove_children()
            await form.mount_all(rows)
            form.scroll_home(animate=False)
        if not self.query("#form-help"):
            return  # the app exits meanwhile
        self._show_help()
        self.call_after_refresh(self._show_about)
        refocus, self._refocus = self._refocus, None
        if refocus is None or self.screen.focused is not None:
            return
        same = [row.input for row in self.query(FormRow) if row.field.name == refocus]
        if refocus == "" and self.query("#form-env"):
            self.screen.set_focus(self.query_one("#form-env"))
        elif same:
            self.screen.set_focus(same[0])
        else:
            self.action_edit()

    def _identity(self) -> tuple[object, ...]:
        stage = self.workspace.stage
        if stage is not None:
            return ("stage", stage.number, stage.config.name, self._wrapper)
        env = self.workspace.draft.env
        return (
            self.workspace.place == ENV,
            None if env is None else env.id,
            self.workspace.stack,
            self.workspace.samples,
            self.workspace.is_unread,
        )

    def _fields(self) -> Sequence[FormField]:
        stage, env = self.workspace.stage, self.workspace.draft.env
        if self._wrapper is not None:
            return ()
        if stage is not None:
            return list_stage_fields(stage.config)
        fields = list_env_fields(env) if self.workspace.place == ENV and env is not None else ()
        stack = self.workspace.stack
        takes_all = not self.workspace.is_unread if stack is None else stack.takes_env_settings
        if takes_all:
            return fields
        return tuple(field for field in fields if field.name in _FACTORY_FIELDS)

    @property
    def _wrapper(self) -> Wrapper | None:
        """The selected wrapper. ``None``: a stage that can be edited, the env or the output."""
        stage = self.workspace.stage
        return None if stage is None else stage.wrapper

    def _keys(self, field: FormField) -> tuple[str, ...]:
        stage = self.workspace.stage
        if stage is None or field.kind != "keys":
            return ()
        return available_keys(self.workspace.status, stage, inverse=field.name.endswith("_inv"))

    def _title(self) -> Content:
        stage, env = self.workspace.stage, self.workspace.draft.env
        if stage is None and self.workspace.place == ENV:
            return Content.styled("Welcome to tdx" if env is None else env.id, "bold")
        if stage is None:
            return Content.styled("output", "bold")
        if (wrapper := self._wrapper) is not None:
            count = "" if wrapper.rows is None else f" · in {wrapper.rows} envs"
            # The folder of an installed library is not what tells its wrappers apart.
            file = (wrapper.location or "").rpartition("site-packages/")[2]
            origin = f"\n{file}" if file else ""
            both = "forward and inverse"
            direction = both if wrapper.direction == "both" else wrapper.direction
            details = f"  {direction}{count}{origin}"
            return Content.assemble((wrapper.name, "bold"), (details, "dim"))
        info = load_catalog().find(stage.config.name)
        off = "" if stage.enabled else "  disabled"
        about = f"  {info.category} · {info.time_behavior}" if info is not None else ""
        summary = f"\n{strip_markup(info.summary)}" if info is not None else ""
        name = (stage.config.name, "bold")
        return Content.assemble(name, (off, "$warning"), (about, "dim"), summary)

    def _empty_text(self, stage: DraftStage) -> Content:
        """Return what to show instead of fields."""
        wrapper, stack = self._wrapper, self.workspace.stack
        if wrapper is not None and stack is not None:
            width = max((len(name) for name, _ in wrapper.arguments), default=0)
            lines = [
                Content.assemble((f"{name:<{width}}  ", "bold"), value)
                for name, value in wrapper.arguments
            ]
            lines += [Content(wrapper.summary)] if wrapper.summary else []
            lines = lines or [Content.styled("No known arguments.", "dim")]
            lines += _statistics_lines(wrapper, self.size.width - 3)
            why = Content.styled(f"Read-only: {stack.reason}", "dim")
            return Content("\n").join([*lines, Content(""), why])
        if load_catalog().find(stage.config.name) is None:
            return Content(format_stage(stage.config))
        return Content.styled("No arguments.", "dim")

    @on(FormRow.Edited)
    def _apply_edit(self, event: FormRow.Edited) -> None:
        event.stop()
        row, workspace = event.row, self.workspace
        stage, env, name = workspace.stage, workspace.draft.env, event.row.field.name
        try:
            if stage is not None:
                config = set_argument(stage.config, name, event.text)
                draft = workspace.draft.replace(workspace.place, config)
                label, merge = f"set {name} of {config.name}", f"{stage.number}.{name}"
            elif env is not None:
                draft = workspace.draft.with_env(set_env_field(env, name, event.text))
                label, merge = f"set {name} of the env", f"env.{name}"
            else:
                return
        except TdxError as error:
            row.show_error(f"{error.message} ({error.hint})" if error.hint else error.message)
            return
        row.show_error(None)
        workspace.edit(label, draft, merge=merge)
        field = next((field for field in self._fields() if field.name == name), None)
        if field is not None:
            row.accept(field)

    @on(Button.Pressed, "#form-env")
    async def _choose_env(self, event: Button.Pressed) -> None:
        event.stop()
        await self.run_action("screen.choose_env")


def _statistics_lines(wrapper: Wrapper, width: int) -> Iterator[Content]:
    """Yield a table for each feature that the stage uses, and name the others."""
    columns = (width - 4) // NUMBER_WIDTH
    for table in (table for table in wrapper.statistics if table.is_used):
        titles = "".join(name.rjust(NUMBER_WIDTH) for name in table.names[:columns])
        more = " …" if columns < len(table.names) else ""
        yield Content.styled(f"\n{table.feature}", "bold $foreground")
        yield Content.styled(f"   {titles}{more}", "dim")
        for index, row in enumerate(table.rows):
            numbers = "".join(format_number(each).rjust(NUMBER_WIDTH) for each in row[:columns])
            yield Content.assemble((f"{index:>3}", "dim"), numbers)
        if len(table.rows) < table.size:
            yield Content.styled(f"  … of {table.size}", "dim")
    if others := [table.feature for table in wrapper.statistics if not table.is_used]:
        yield Content.styled(f"\nalso in the file: {', '.join(others)}", "dim")


def describe_stage(workspace: Workspace, width: int) -> Content:
    """Return what the selected stage changes, and the rest of its documentation."""
    specs, stage = specs_at(workspace), workspace.stage
    shown = [change for change in specs.changes if stage is None or change.change != "same"]
    # What is carried to the next step is an input as well.
    outputs = {change.key for change in shown if change.part != "state"}
    shown = [change for change in shown if change.part != "state" or change.key not in outputs]
    names = [format_key(change.key) for change in shown]
    leaves = [leaf for change in shown if (leaf := change.after or change.before) is not None]
    widths = ColumnWidths.of(map(cell_len, names), leaves, width)
    title = "Changes" if stage is not None else "Keys"
    parts = [Content.styled(title, "bold $foreground")] if shown else []
    for name, change in zip(names, shown, strict=True):
        label = key_label(name, change, widths, 0)
        lines, at = [label], label.plain.find("← ")
        if at >= 0 and label.cell_length > width:
            # The previous specs of a changed key get a line of their own.
            head, tail = label.divide([at])
            lines = [head, Content("    ").append(tail)]
        parts += [line.truncate(width, ellipsis=True) for line in lines]
    info = None if stage is None else load_catalog().find(stage.config.name)
    parts += [] if info is None else [Content(""), *_behavior_lines(info.doc)]
    return Content("\n").join(parts)


def _behavior_lines(docstring: str) -> Iterator[Content]:
    """Yield a docstring without its summary and arguments, which are shown above it."""
    _, *blocks = strip_markup(docstring).split("\n\n")
    for block in blocks:
        head, _, rest = block.partition("\n")
        if head == "Args:":
            continue
        is_section = head.endswith(":") and rest.startswith("    ")
        if is_section:
            yield Content.styled(head.removesuffix(":"), "bold $foreground")
        text = dedent(rest) if is_section else " ".join(block.split("\n"))
        yield Content(text if head.startswith("Example") else _CONTINUED.sub(" ", text))
        yield Content("")
