"""The Stage tab: a form for the arguments of the selected stage or env."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress

from textual import events, on
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.suggester import Suggester
from textual.widget import Widget
from textual.widgets import Button, Input, Select, Static, Switch
from textual.worker import Worker, WorkerError

from tdx.errors import TdxError
from tdx.inspection.leaf import INPUT_PARTS
from tdx.keys import format_key
from tdx.pipeline.catalog import load_catalog, strip_markup
from tdx.pipeline.editing import DraftStage
from tdx.pipeline.editing.forms import (
    FormField,
    list_env_fields,
    list_stage_fields,
    set_argument,
    set_env_field,
)
from tdx.pipeline.editing.stack_draft import StackFacts, Wrapper, WrapperStage
from tdx.pipeline.grammar import format_stage
from tdx.tui.chain_status import ChainStatus
from tdx.tui.tab_body import ProblemPanel, TabBody
from tdx.tui.workspace import ENV, Workspace


def available_keys(
    status: ChainStatus, stage: DraftStage, *, inverse: bool = False
) -> tuple[str, ...]:
    """Return the keys that a stage receives, according to the last inspection.

    Args:
        status: What is known of the chain.
        stage: The stage.
        inverse: Put the keys of the inverse path first: actions and states.
    """
    if status.overview is None:
        return ()
    index = status.numbers.index(stage.number) if stage.number in status.numbers else 0
    leaves = status.overview.before(index)
    ranked = sorted(leaves, key=lambda leaf: (leaf.part in INPUT_PARTS) is not inverse)
    return tuple(dict.fromkeys(format_key(leaf.key) for leaf in ranked))


_LAST_WORD = re.compile(r"""(?:^|[,\[("'])\s*([^,\[\]()"']*)$""")


class WordSuggester(Suggester):
    """Completes a word, or the last word of a list.

    Args:
        words: Known words.
        many: True if the field holds a list.
    """

    def __init__(self, words: tuple[str, ...], many: bool = True) -> None:
        super().__init__(case_sensitive=True, use_cache=False)
        self.words = words
        self.many = many

    async def get_suggestion(self, value: str) -> str | None:
        match = _LAST_WORD.search(value) if self.many else None
        start = 0 if match is None else match.start(1)
        word = value[start:].casefold()
        if not word:
            return None
        found = next((each for each in self.words if each.casefold().startswith(word)), None)
        return None if found is None else value[:start] + found


class FormRow(Widget):
    """Form field for one argument.

    Args:
        field: Description of the argument.
        keys: Keys to suggest.
    """

    class Edited(Message):
        """The text was edited."""

        def __init__(self, row: FormRow, text: str) -> None:
            super().__init__()
            self.row = row
            self.text = text

        @property
        def control(self) -> FormRow:
            """The row."""
            return self.row

    class PickKeys(Message):
        """The dialog for keys should open."""

        def __init__(self, row: FormRow) -> None:
            super().__init__()
            self.row = row

    def __init__(self, field: FormField, keys: tuple[str, ...] = ()) -> None:
        super().__init__(classes="form-row -keys" if field.kind == "keys" else "form-row")
        self.field = field
        self.keys = keys
        self._text = field.text
        self._chain_text = field.text

    def compose(self) -> ComposeResult:
        star = " *" if self.field.required else ""
        title = Content.assemble((self.field.name, "bold"), (star, "bold $accent"))
        yield Static(title, classes="form-name")
        yield self._widget()
        if self.field.kind == "keys":
            yield Button("▾", classes="form-keys", compact=True)
        yield Static(self._help(), classes="form-help")

    @property
    def text(self) -> str:
        """The current text."""
        return self._text

    def set_field(self, field: FormField, keys: tuple[str, ...]) -> None:
        """Show a new value of the argument that did not come from this row.

        Typed text stays: nothing changes while the field has the focus, holds an uncommitted text,
        or holds an invalid text.
        """
        self.field, self.keys = field, keys
        if not self.query(".form-help"):
            return
        box = self.query(Input)
        if box and self.field.kind == "keys":
            box.first().suggester = WordSuggester(keys, self.field.many)
        is_typed = bool(box) and box.first().value != self._text
        if field.text == self._chain_text or self.has_focus_within or is_typed:
            return
        self._chain_text = field.text
        if field.text != self._text:
            self.set_text(field.text)
        self.show_error(None)

    def accept(self, field: FormField) -> None:
        """Remember the value that the chain has taken from this row."""
        self.field, self._chain_text = field, field.text

    def set_text(self, text: str) -> None:
        """Set the text without posting a message."""
        self._text = text
        if self.field.kind == "flag":
            self.query_one(Switch).value = (text or self.field.default) == "True"
        elif self.field.kind == "choice":
            self.query_one(Select).value = text or Select.NULL
        else:
            self.query_one(Input).value = text

    def enter_text(self, text: str) -> None:
        """Set the text as if it was typed."""
        self.set_text(text)
        self.post_message(self.Edited(self, text))

    def show_error(self, text: str | None) -> None:
        """Show an error instead of the help text. ``None``: show the help text."""
        self.set_class(text is not None, "-wrong")
        content = self._help() if text is None else Content.styled(text, "$error")
        for line in self.query(".form-help").results(Static):  # the row may be about to be removed
            line.update(content)

    def _help(self) -> Content:
        help_, type_ = strip_markup(self.field.help), f"  {self.field.type}"
        return Content.assemble(help_, (type_, "dim italic"))

    def _widget(self) -> Input | Select[str] | Switch:
        field = self.field
        if field.kind == "flag":
            return Switch((field.text or field.default) == "True", animate=False)
        if field.kind == "choice":
            return Select(
                [(choice, choice) for choice in field.choices],
                prompt=_placeholder(field),
                value=field.text or Select.NULL,
                compact=True,
            )
        return Input(
            field.text,
            placeholder=_placeholder(field),
            suggester=WordSuggester(
                self.keys if field.kind == "keys" else field.completions,
                field.kind == "keys" and field.many,
            ),
            compact=True,
        )

    @on(Input.Changed)
    def _emit_text(self, event: Input.Changed) -> None:
        event.stop()
        self._emit(event.value)

    @on(Select.Changed)
    def _emit_choice(self, event: Select.Changed) -> None:
        event.stop()
        self._emit("" if event.value is Select.NULL else str(event.value))

    @on(Switch.Changed)
    def _emit_switch(self, event: Switch.Changed) -> None:
        event.stop()
        text = str(event.value)
        if (self._text or self.field.default) != text:
            self._emit("" if text == self.field.default else text)

    @on(Button.Pressed)
    def _request_keys(self, event: Button.Pressed) -> None:
        event.stop()
        self.post_message(self.PickKeys(self))

    def on_key(self, event: events.Key) -> None:
        """Open the dialog for keys with the down key."""
        asked = event.key == "down" and self.field.kind == "keys"
        if asked and self.query_one(Input).has_focus:
            event.stop()
            self.post_message(self.PickKeys(self))

    def _emit(self, text: str) -> None:
        if text != self._text:
            self._text = text
            self.post_message(self.Edited(self, text))


def _placeholder(field: FormField) -> str:
    """Return the placeholder of an empty field."""
    return "required" if field.default is None else field.default


_FACTORY_FIELDS = ("kwargs", "seed")
"""Settings of an env that a function of another library creates."""
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
        self._shown_title = Content("")
        self._building: Worker[None] | None = None
        self._refocus = False

    def compose(self) -> ComposeResult:
        yield Static("", id="form-title")
        yield ProblemPanel(self.workspace)
        yield VerticalScroll(id="form", can_focus=False)

    def on_mount(self) -> None:
        self.workspace.selected.subscribe(self, self.invalidate)
        self.workspace.edited.subscribe(self, self.invalidate)
        self.workspace.inspected.subscribe(self, self.invalidate)

    async def open_form(self) -> None:
        """Focus the first field, after the form of the selected stage is built."""
        self.update()
        await self._wait_until_built()
        self._focus_form()

    async def _wait_until_built(self) -> None:
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
        if title != self._shown_title:
            self._shown_title = title
            self.query_one("#form-title", Static).update(title)
        if shown == self._shown:
            self._update_rows()
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
        if self.workspace.place == ENV and self.workspace.stack is not None:
            rows.append(Static(_describe_stack(self.workspace.stack), classes="form-note"))
        rows += [FormRow(field, self._keys(field)) for field in self._fields()]
        if not rows:
            rows.append(Static(self._empty_text(), classes="form-note"))
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
            return ("stage", stage.number, stage.config.name, self._wrapper)
        env = self.workspace.draft.env
        return (self.workspace.place == ENV, None if env is None else env.id, self.workspace.stack)

    def _fields(self) -> Sequence[FormField]:
        stage, env = self.workspace.stage, self.workspace.draft.env
        if self._wrapper is not None:
            return ()
        if stage is not None:
            return list_stage_fields(stage.config)
        fields = list_env_fields(env) if self.workspace.place == ENV and env is not None else ()
        stack = self.workspace.stack
        if stack is None or stack.takes_env_settings:
            return fields
        return tuple(field for field in fields if field.name in _FACTORY_FIELDS)

    @property
    def _wrapper(self) -> Wrapper | None:
        """The selected wrapper. ``None``: a stage that can be edited, the env or the output."""
        stage = self.workspace.stage
        return stage.wrapper if isinstance(stage, WrapperStage) else None

    def _keys(self, field: FormField) -> tuple[str, ...]:
        stage = self.workspace.stage
        if stage is None or field.kind != "keys":
            return ()
        return available_keys(self.workspace.status, stage, inverse=field.name.endswith("_inv"))

    def _update_rows(self) -> None:
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
        if self._wrapper is not None:
            return _wrapper_title(self._wrapper)
        info = load_catalog().find(stage.config.name)
        off = "" if stage.enabled else "  disabled"
        about = f"  {info.category} · {info.time_behavior}" if info is not None else ""
        summary = f"\n{strip_markup(info.summary)}" if info is not None else ""
        name = (stage.config.name, "bold")
        return Content.assemble(name, (off, "$warning"), (about, "dim"), summary)

    def _empty_text(self) -> Content:
        stage = self.workspace.stage
        if stage is None:
            return Content.styled("Output of the chain: see Specs.", "dim")
        if self._wrapper is not None and self.workspace.stack is not None:
            return _describe_wrapper(self._wrapper, self.workspace.stack.reason)
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
        field = next((each for each in self._fields() if each.name == name), None)
        if field is not None:
            row.accept(field)

    @on(FormRow.PickKeys)
    def _forward_pick_keys(self, event: FormRow.PickKeys) -> None:
        event.stop()
        self.post_message(self.PickKeys(event.row))

    @on(Button.Pressed, "#form-env")
    async def _choose_env(self, event: Button.Pressed) -> None:
        event.stop()
        await self.run_action("screen.choose_env")


def _describe_stack(stack: StackFacts) -> Content:
    """Return what kind of env a factory creates, and what the app does not show of it."""
    count = len(stack.wrappers)
    kind = f"A {stack.kind} env with {count} stage{'' if count == 1 else 's'}."
    code = "Edit its code and press Ctrl+L to import it again."
    lines = [f"{kind} {code}", *(f"{note[:1].upper()}{note[1:]}." for note in stack.notes)]
    return Content.styled("\n".join(lines), "dim")


def _wrapper_title(wrapper: Wrapper) -> Content:
    count = "" if wrapper.rows is None else f" · in {wrapper.rows} envs"
    # The folder of an installed library is not what tells its wrappers apart.
    file = (wrapper.location or "").rpartition("site-packages/")[2]
    origin = f"\n{file}" if file else ""
    return Content.assemble(
        (wrapper.name, "bold"), (f"  {wrapper.direction}{count}{origin}", "dim")
    )


def _describe_wrapper(wrapper: Wrapper, reason: str) -> Content:
    """Return the arguments of a wrapper, and why they cannot be edited."""
    width = max((len(name) for name, _ in wrapper.arguments), default=0)
    lines = [
        Content.assemble((f"{name:<{width}}  ", "bold"), value) for name, value in wrapper.arguments
    ]
    known = lines or [Content.styled("No known arguments.", "dim")]
    return Content("\n").join([*known, Content(""), Content.styled(f"Read-only: {reason}", "dim")])
