"""Dialogs for composing a chain: env, sample pipeline, keys, copy and error details."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tdx.foundation.errors import TdxError
from tdx.foundation.keys import format_key
from tdx.pipeline.conversions import to_command, to_python
from tdx.pipeline.draft import Draft
from tdx.pipeline.editing.documents import list_presets
from tdx.pipeline.model import EnvConfig, Pipeline
from tdx.specs.leaf import domain_text, shape_text
from tdx.tui.backend.client import RequestError, SupersededError
from tdx.tui.backend.messages import TRACEBACK_HINT
from tdx.tui.backend.requests import InspectChain, ListEnvs
from tdx.tui.chain_status import NO_PIPELINE
from tdx.tui.compose.form_row import FormRow
from tdx.tui.screens.dialogs import Choice, ChoiceScreen, MultiChoiceScreen, TextScreen, ask

if TYPE_CHECKING:
    from textual.screen import Screen

    from tdx.envs.gym.registry import RegisteredEnv
    from tdx.tui.workspace import Workspace


class ComposeDialogs:
    """Shows dialogs and applies their results."""

    def __init__(self, screen: Screen[None], workspace: Workspace) -> None:
        self._screen = screen
        self._workspace = workspace
        self.envs: tuple[RegisteredEnv, ...] = ()
        self._descriptions: dict[str, str] = {}
        self._task: asyncio.Task[None] | None = None

    def choose_env(self) -> None:
        """Ask for the env; entries appear as soon as the envs are known."""
        dialog = ChoiceScreen(
            "Choose an env",
            _env_choices(self.envs) if self.envs else None,
            allow_custom=True,
            describe=self._describe_env,
        )
        ask(self._screen.app, dialog, self.set_env)
        self.load_envs(lambda: dialog.set_choices(_env_choices(self.envs)))

    def load_envs(self, then: Callable[[], None]) -> None:
        """Request the list of envs unless it is known, and call a function when it arrives."""
        if not self.envs:
            self._task = asyncio.get_running_loop().create_task(self._load_envs(then))

    def set_env(self, name: str) -> None:
        """Use another env; keep the seed and the number of copies."""
        draft = self._workspace.draft
        env = EnvConfig(name) if draft.env is None else replace(draft.env, id=name, kwargs={})
        self._workspace.edit(f"choose {name}", draft.with_env(env))

    def choose_preset(self) -> None:
        """Ask for a sample pipeline."""
        choices = [Choice(preset.name, preset.name, preset.title) for preset in list_presets()]
        dialog = ChoiceScreen("Start with a sample pipeline", choices)
        ask(self._screen.app, dialog, self.load_preset)

    def choose_samples(self) -> None:
        """Ask for the file or folder with the samples; an empty answer draws them."""
        choices = [Choice("", "none", "draw them from the specs of a checkpoint")]
        choices += [
            Choice(path.name, path.name, "in this folder")
            for path in sorted(Path().iterdir())
            if path.suffix in (".npz", ".safetensors") or (path / "meta" / "info.json").exists()
        ]
        dialog = ChoiceScreen("Choose samples: a file, dataset or dump", choices, allow_custom=True)
        ask(self._screen.app, dialog, lambda name: self._workspace.choose_samples(name or None))

    def pick_keys(self, row: FormRow) -> None:
        """Ask for the key or keys of a form field."""
        app, title = self._screen.app, f"{row.field.name}: available keys"
        if row.field.many:
            chosen = [part.strip() for part in row.text.split(",") if part.strip()]
            several = MultiChoiceScreen(title, row.keys, chosen)
            ask(app, several, lambda keys: row.enter_text(", ".join(keys)))
        else:
            choices = [Choice(key, key) for key in row.keys]
            ask(app, ChoiceScreen(title, choices, allow_custom=True), row.enter_text)

    def fix(self) -> None:
        """Apply the first fix for the selected stage."""
        lint = self._workspace.find_fixable()
        if lint is None or lint.finding.fix is None:
            self._screen.notify("no fix available", timeout=2)
            return
        fix = lint.finding.fix
        draft = fix.apply(self._workspace.draft, lint.excluded)
        self._workspace.edit(f"{lint.finding.code}: {fix.title}", draft)
        self._screen.notify(fix.title, timeout=3)

    def copy(self) -> None:
        """Ask for a format, and copy the pipeline to the clipboard."""
        if self._workspace.draft.env is None:
            self._screen.notify(NO_PIPELINE, timeout=2)
            return
        forms = [
            Choice("command", "command line", "tdx inspect spec … -t …"),
            Choice("yaml", "YAML", "a pipeline file"),
        ]
        # The program of a factory is the code of the user.
        if self._workspace.stack is None:
            forms.append(Choice("python", "Python", "from tdx import …"))
        ask(self._screen.app, ChoiceScreen("Copy as", forms), self._copy_as)

    def details(self) -> None:
        """Show all errors with tracebacks, those of the selected stage first."""
        workspace = self._workspace
        here = None if workspace.stage is None else workspace.stage.number
        texts = []
        for error in sorted(workspace.errors.all(), key=lambda error: error.number != here):
            problem = error.problem
            head = f"{problem.code}  {workspace.name_of(error.number)}: {problem.message}"
            details = f"\n{problem.details}" if problem.details else ""
            hint = problem.hint if problem.hint != TRACEBACK_HINT else ""
            parts = (head, problem.origin, hint, details)
            texts.append("\n".join(part for part in parts if part))
        for lint in workspace.list_selected_problems()[1]:
            finding = lint.finding
            texts.append(f"{finding.code}  {finding.message}\n{finding.why or ''}")
        text = "\n\n".join(texts) or "No problems."
        self._screen.app.push_screen(TextScreen("Problems", text))

    async def _describe_env(self, name: str) -> str:
        """Return the spaces of an env, or why it cannot be made."""
        if name not in self._descriptions:
            request = InspectChain(Pipeline(EnvConfig(name)), self._workspace.allow_code)
            try:
                overview = await self._workspace.backend.ask(request, slot="preview")
            except SupersededError:
                return ""
            except RequestError as error:
                return error.problem.message
            problem = overview.env_problem
            spaces = "\n".join(
                f"{leaf.part}  {format_key(leaf.key)}  {shape_text(leaf.shape)} {leaf.dtype}  "
                f"{domain_text(leaf, whole=False, digits=4)}"
                for leaf in overview.base
                if leaf.part in ("observation", "action")
            )
            self._descriptions[name] = spaces if problem is None else f"✕ {problem.message}"
        return self._descriptions[name]

    async def _load_envs(self, then: Callable[[], None]) -> None:
        try:
            self.envs = await self._workspace.backend.ask(ListEnvs())
        except RequestError as error:
            self._screen.notify(error.problem.message, severity="error")
            return
        then()

    def load_preset(self, name: str) -> None:
        """Replace the chain by a sample pipeline."""
        preset = next(preset for preset in list_presets() if preset.name == name)
        from tdx.pipeline.file.pipeline_file import PipelineFile

        try:
            pipeline = PipelineFile.load(preset.path).pipeline
        except TdxError as error:
            self._screen.notify(str(error), severity="error")
            return
        fresh = replace(Draft.of(pipeline), file=None)
        self._workspace.edit(f"start with {preset.name}", fresh, place=-1)

    def _copy_as(self, form: str) -> None:
        pipeline = self._workspace.draft.pipeline()
        if form == "command":
            text = to_command(pipeline)
            if self._workspace.allow_code and pipeline.env.code is not None:
                text = f"{text} --allow-code"
        elif form == "yaml":
            from tdx.pipeline.file.pipeline_text import write_pipeline

            text = write_pipeline(pipeline)
        else:
            text = to_python(pipeline)
        self._screen.app.copy_to_clipboard(text)
        self._screen.app.push_screen(TextScreen("Copied to the clipboard", text))


CURATED_ENVS = (
    *("CartPole-v1", "Pendulum-v1", "Acrobot-v1", "MountainCarContinuous-v0", "LunarLander-v3"),
    *("HalfCheetah-v5", "Hopper-v5", "Ant-v5", "ALE/Pong-v5", "ALE/Breakout-v5"),
)
"""Envs at the top of the list; known before the others are found."""


def _env_choices(envs: tuple[RegisteredEnv, ...]) -> list[Choice]:
    if not envs:
        return [Choice(env, env) for env in CURATED_ENVS]
    by_id = {env.id: env for env in envs}
    curated = [by_id[name] for name in CURATED_ENVS if name in by_id and by_id[name].hint is None]
    others = [env for env in envs if env not in curated]
    choices = []
    for env in (*curated, *others):
        is_old = env.replaced_by is not None
        note = env.hint or (f"{env.package} · old version" if is_old else env.package)
        choices.append(Choice(env.id, env.id, note, is_last=is_old, is_first=env in curated))
    return choices
