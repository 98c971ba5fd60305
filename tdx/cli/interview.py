"""Ask for an env and its stages, one after the other, and show the specs as they grow."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from tdx.cli.choices import Color
from tdx.cli.completion import complete_env, complete_transform
from tdx.cli.foreign_code import foreign_code
from tdx.cli.output.terminal import terminal_text, terminal_width
from tdx.cli.output.view import Block, Cell, Heading, Paragraph
from tdx.cli.streams import unescaped
from tdx.cli.views.comparison import comparison, spec_list
from tdx.errors import ArgumentError, TdxError
from tdx.inspection.envs import Suggestion, get_env_leaves, suggest_stages
from tdx.inspection.spec_report import inspect_spec
from tdx.pipeline import EnvConfig, Pipeline, StageConfig, build_env, format_stage, parse_stage

Ask = Callable[[str], str]
_HELP = "Name a stage, such as RewardSum or CatFrames(4, dim=-1); - takes the last one back."


class Interview:
    """Builds a pipeline from answers.

    Args:
        env: the env, where it is known already; its id may be empty.
        stages: the stages that are given already.
        allow_code: whether Python objects that are named may be imported.
        color: when to colour.
        ask: shows a question and returns the answer; raises EOFError where there is none.
    """

    def __init__(
        self,
        env: EnvConfig,
        stages: Sequence[StageConfig],
        *,
        allow_code: bool,
        color: Color,
        ask: Ask,
    ) -> None:
        self._env = env
        self._stages = list(stages)
        self._allow_code = allow_code
        self._color = color
        self._ask = ask

    def pipeline(self) -> Pipeline:
        """Ask until the pipeline is complete.

        Raises:
            ArgumentError: the answers end before an env is named.
        """
        self._ask_env()
        if not self._stages:
            self._offer()
        self._ask_stages()
        return Pipeline(self._env, tuple(self._stages))

    def _ask_env(self) -> None:
        while True:
            if not self._env.id:
                self._env = replace(self._env, id=self._answer_env())
            try:
                with foreign_code():
                    leaves = get_env_leaves(self._env, self._allow_code)
            except TdxError as error:
                self._complain(error)
                self._env = replace(self._env, id="")
                continue
            self._show(
                Heading(self._env.id, "what it gives and takes"), spec_list(leaves, _width())
            )
            return

    def _answer_env(self) -> str:
        try:
            with completing(complete_env):
                return self._ask("env: ").strip()
        except EOFError:
            raise ArgumentError("no env is given", hint="add --env ID") from None

    def _offer(self) -> None:
        with foreign_code():
            fitting = suggest_stages(self._env, self._allow_code)
        if not fitting:
            return
        self._show(Heading("what fits"), *map(_suggested, fitting))
        try:
            answer = self._ask("take them? [Y/n] ").strip().casefold()
        except EOFError:
            answer = "n"
        if answer in ("", "y", "yes"):
            self._stages += [each.stage for each in fitting]
            self._show_specs()

    def _ask_stages(self) -> None:
        self._show(Paragraph([Cell(_HELP, "dim")]))
        while True:
            try:
                with completing(complete_transform):
                    answer = self._ask(f"stage {len(self._stages)} (empty to end): ").strip()
            except EOFError:
                return
            if not answer:
                return
            self._take(answer)

    def _take(self, answer: str) -> None:
        """Try a stage; one that does not fit is left out again."""
        kept = list(self._stages)
        try:
            if answer == "-":
                if not self._stages:
                    raise ArgumentError("there is no stage to take back", hint=_HELP)
                self._stages.pop()
            else:
                self._stages.append(parse_stage(answer))
            self._show_specs(last_only=answer != "-")
        except TdxError as error:
            self._stages = kept
            self._complain(error)

    def _show_specs(self, *, last_only: bool = False) -> None:
        pipeline = Pipeline(self._env, tuple(self._stages))
        with foreign_code():
            env = build_env(pipeline, self._allow_code)
            try:
                report = inspect_spec(env, self._env.id)
            finally:
                env.close()
        if last_only:
            changes = [each for each in report.stages[-1].changes if each.change != "same"]
            head = Heading(format_stage(self._stages[-1]))
            nothing = Paragraph([Cell("changes no spec", "dim")])
            shown = comparison(changes, _width(), sides=("before", "after")) if changes else nothing
            self._show(head, shown)
            return
        names = [stage.name for stage in report.stages]
        calls = [
            Paragraph([Cell(f"{index} ", "dim"), Cell(format_stage(stage))], indent=2)
            for index, stage in enumerate(self._stages)
        ]
        self._show(Heading("the chain"), *calls, comparison(report.changes, _width(), names))

    def _complain(self, error: TdxError) -> None:
        place = f"{error.where}: " if str(error.where) else ""
        self._show(Paragraph([Cell("error: ", "bad"), Cell(f"{place}{error.message}")]))
        if error.hint:
            self._show(Paragraph([Cell("hint: ", "dim"), Cell(error.hint)]))

    def _show(self, *blocks: Block) -> None:
        text = terminal_text(blocks, _width(), color=self._color.wanted(sys.stderr))
        stream = unescaped(sys.stderr)
        stream.write(text)
        stream.flush()


def _suggested(suggestion: Suggestion) -> Paragraph:
    reason = Cell(f"  {suggestion.reason}", "dim")
    return Paragraph([Cell(format_stage(suggestion.stage)), reason], indent=2)


def _width() -> int:
    return min(terminal_width(), 100)


@contextlib.contextmanager
def completing(offers: Callable[[str], list[tuple[str, str]]]) -> Iterator[None]:
    """Let TAB complete the answer to a question, where the terminal can do that."""
    try:
        import readline
    except ImportError:
        yield
        return
    before = readline.get_completer(), readline.get_completer_delims()

    def complete(text: str, state: int) -> str | None:
        found = [name for name, _ in offers(text)]
        return found[state] if state < len(found) else None

    readline.set_completer(complete)
    readline.set_completer_delims("")
    readline.parse_and_bind("tab: complete")
    try:
        yield
    finally:
        readline.set_completer(before[0])
        readline.set_completer_delims(before[1])
