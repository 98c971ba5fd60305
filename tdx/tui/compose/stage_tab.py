"""The Stage tab: a form for the arguments of the selected stage or env."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from textual import on
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.widgets import Button, Static
from textual.worker import Worker, WorkerError

from tdx.errors import TdxError
from tdx.pipeline.catalog import load_catalog, strip_markup
from tdx.pipeline.editing.forms import (
    FormField,
    list_env_fields,
    list_stage_fields,
    set_argument,
    set_env_field,
)
from tdx.pipeline.grammar import format_stage
from tdx.tui.compose.form_row import FormRow, available_keys
from tdx.tui.compose.problem_panel import ProblemPanel
from tdx.tui.tab_body import TabBody
from tdx.tui.workspace import ENV, Workspace

_WELCOME = """The pipeline is empty.

  [b]e[/b]  choose an env
  [b]p[/b]  start with a sample pipeline
  [b]a[/b]  add transforms from the catalog

[b]F1[/b] shows help for the focused pane, [b]Ctrl+P[/b] lists all commands."""


class StageTab(TabBody):
    """Shows and edits the arguments of the selected stage or env.

    Args:
        workspace: State of the app.
    """

    HELP = """## Stage

All arguments of the transform, with defaults in gray. Input is validated as you type; the chain
keeps the last valid value. `↓` in a field for keys lists the available keys."""

    class PickKeys(Message):
        """The dialog for keys should open for a row."""

        def __init__(self, row: FormRow) -> None:
            super().__init__()
            self.row = row

    def __init__(self, workspace: Workspace) -> None:
        super().__init__(workspace)
        self._shown: tuple[object, ...] = ()
        self._named = Content("")
        self._building: Worker[None] | None = None
        self._refocus = False

    def compose(self) -> ComposeResult:
        yield Static("", id="form-title")
        yield ProblemPanel(self.workspace)
        yield VerticalScroll(id="form", can_focus=False)

    def on_mount(self) -> None:
        self.workspace.selected.subscribe(self, lambda _: self.invalidate())
        self.workspace.edited.subscribe(self, lambda _: self.invalidate())
        self.workspace.inspected.subscribe(self, lambda _: self.invalidate())

    async def open_form(self) -> None:
        """Focus the first field, after the form of the selected stage is built."""
        self.update()
        await self._built()
        self._focus_form()

    async def _built(self) -> None:
        """Wait until the rows are mounted."""
        while self._building is not None and not self._building.is_finished:
            with suppress(WorkerError):  # superseded by a newer one
                await self._building.wait()

    def _focus_form(self) -> None:
        fields = self.query("FormRow Input, FormRow Select, FormRow Switch, #form Button")
        if fields:
            self.screen.set_focus(fields.first())

    def update(self) -> None:
        """Show the selected stage; rebuild the rows only if it is another one."""
        self.query_one(ProblemPanel).update_problems()
        shown, title = self._identity(), self._title()
        if title != self._named:
            self._named = title
            self.query_one("#form-title", Static).update(title)
        if shown == self._shown:
            self._offer()
            return
        self._shown = shown
        self._building = self.run_worker(self._rebuild(), exclusive=True, group="form")

    async def _rebuild(self) -> None:
        form = self.query_one("#form", VerticalScroll)
        if form.has_focus_within:
            # Textual would move the focus of a removed row to the tab bar.
            self.screen.set_focus(None)
            self._refocus = True
        rows: list[Static | FormRow | Button] = []
        if self.workspace.place == ENV:
            label = "choose an env" if self.workspace.draft.env is None else "another env"
            rows.append(Button(f"{label} …", id="form-env", compact=True))
        if self.workspace.draft.env is None:
            rows.append(Static(_WELCOME, classes="form-note"))
        rows += [FormRow(field, self._keys(field)) for field in self._fields()]
        if not rows:
            rows.append(Static(self._nothing(), classes="form-note"))
        async with self.batch():
            await form.remove_children()
            await form.mount_all(rows)
            form.scroll_home(animate=False)
        refocus, self._refocus = self._refocus, False
        if refocus and self.screen.focused is None:
            self._focus_form()

    def _identity(self) -> tuple[object, ...]:
        stage = self.workspace.stage
        if stage is not None:
            return ("stage", stage.number, stage.config.name)
        env = self.workspace.draft.env
        return (self.workspace.place == ENV, None if env is None else env.id)

    def _fields(self) -> Sequence[FormField]:
        stage, env = self.workspace.stage, self.workspace.draft.env
        if stage is not None:
            return list_stage_fields(stage.config)
        return list_env_fields(env) if self.workspace.place == ENV and env is not None else ()

    def _keys(self, field: FormField) -> tuple[str, ...]:
        stage = self.workspace.stage
        if stage is None or field.kind != "keys":
            return ()
        return available_keys(self.workspace.status, stage, inverse=field.name.endswith("_inv"))

    def _offer(self) -> None:
        """Update the rows with the current values and keys."""
        fields = {field.name: field for field in self._fields()}
        for row in self.query(FormRow):
            field = fields.get(row.field.name)
            if field is not None and row.is_mounted:
                row.set_field(field, self._keys(field))

    def _title(self) -> Content:
        stage, env = self.workspace.stage, self.workspace.draft.env
        if stage is None and self.workspace.place == ENV:
            return Content.styled("Welcome to tdx" if env is None else env.id, "bold")
        if stage is None:
            return Content.styled("output", "bold")
        info = load_catalog().find(stage.config.name)
        off = "" if stage.enabled else "  disabled"
        about = f"  {info.category} · {info.time_behaviour}" if info is not None else ""
        summary = f"\n{strip_markup(info.summary)}" if info is not None else ""
        name = (stage.config.name, "bold")
        return Content.assemble(name, (off, "$warning"), (about, "dim"), summary)

    def _nothing(self) -> Content:
        stage = self.workspace.stage
        if stage is None:
            return Content.styled("Output of the chain: see Specs.", "dim")
        if load_catalog().find(stage.config.name) is None:
            return Content(format_stage(stage.config))
        return Content.styled("No arguments.", "dim")

    @on(FormRow.Edited)
    def _edited(self, event: FormRow.Edited) -> None:
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
        field = next((each for each in self._fields() if each.name == name), None)
        if field is not None:
            row.accept(field)

    @on(FormRow.PickKeys)
    def _pick(self, event: FormRow.PickKeys) -> None:
        event.stop()
        self.post_message(self.PickKeys(event.row))

    @on(Button.Pressed, "#form-env")
    async def _choose_env(self, event: Button.Pressed) -> None:
        event.stop()
        await self.run_action("screen.choose_env")
