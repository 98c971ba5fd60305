"""``tdx init``."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from tdx.cli.choices import Color
from tdx.cli.completion import complete_env, complete_transform
from tdx.cli.interrupts import foreign_code
from tdx.cli.options import OutputLessOptions, PipelineOptions
from tdx.cli.output.terminal import terminal_text, terminal_width
from tdx.cli.output.view import Block, Cell, Heading, Paragraph
from tdx.cli.streams import unescaped
from tdx.cli.views.specs import comparison, spec_list
from tdx.errors import ArgumentError, TdxError
from tdx.inspection.leaf import INPUT_PARTS, LeafSpec
from tdx.inspection.spec_report import inspect_spec
from tdx.inspection.spec_text import SpecText
from tdx.inspection.suggestion import Suggestion, env_leaves, suggest_stages
from tdx.keys import format_key
from tdx.pipeline import (
    EnvConfig,
    Pipeline,
    StageConfig,
    build_env,
    format_stage,
    parse_stage,
    write_pipeline,
)
from tdx.text import escape_control_characters

if TYPE_CHECKING:
    from tdx.pipeline import Pipeline


_DEFAULT_FILE = "pipeline.yaml"

File = Annotated[str, typer.Argument(metavar="[FILE]", help="Where to; - is stdout.")]
Yes = Annotated[
    bool, typer.Option("--yes", "-y", help="Ask nothing: take the stages that fit the env.")
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite a file that is there.")]


def init(
    pipeline: PipelineOptions,
    shown: OutputLessOptions,
    file: File = _DEFAULT_FILE,
    yes: Yes = False,
    force: Force = False,
) -> None:
    """Write a pipeline file with comments for an env; on a terminal it asks for env and stages.

    Stages given with --t are taken as they are; without them, those that fit the env.

    tdx init pendulum.yaml --env Pendulum-v1 -y
    """
    from tdx.cli.interrupts import foreign_code
    from tdx.cli.output.write import STDOUT, check_free, write_new
    from tdx.inspection.suggestion import env_leaves

    check_free(file, force=force)
    ask = not yes and sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()
    config, reasons = _asked(pipeline, shown) if ask else _given(pipeline)
    with foreign_code():
        leaves = env_leaves(config.env, pipeline.allow_code)
    write_new(file, commented(config, leaves, reasons), force=force)
    if file != STDOUT:
        print(f"wrote {file}; next: tdx check --pipeline {file}", file=sys.stderr)


def _given(options: PipelineOptions) -> tuple[Pipeline, list[str]]:
    """The pipeline of the options, with what fits where no stage is given."""
    from tdx.cli.pipelines import built_env, read_pipeline
    from tdx.inspection.suggestion import suggest_stages

    config = read_pipeline(options)
    with built_env(config, options):
        if config.transforms:
            return config, stage_reasons(config)
        fitting = suggest_stages(config.env, options.allow_code)
    stages = config.with_stages(*(each.stage for each in fitting))
    return stages, [each.reason for each in fitting]


def _asked(options: PipelineOptions, shown: OutputLessOptions) -> tuple[Pipeline, list[str]]:
    from dataclasses import replace

    from tdx.cli.pipelines import read_pipeline

    unknown = options.env is None and options.pipeline is None
    config = read_pipeline(replace(options, env="unnamed") if unknown else options)
    env = replace(config.env, id="") if unknown else config.env
    interview = Interview(
        env, config.transforms, allow_code=options.allow_code, color=shown.color, ask=input
    )
    answered = interview.pipeline()
    config = replace(config, env=answered.env, transforms=answered.transforms)
    return config, stage_reasons(config)


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
                    leaves = env_leaves(self._env, self._allow_code)
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


_STAGE = "  - "


def commented(pipeline: Pipeline, leaves: Sequence[LeafSpec], reasons: Sequence[str]) -> str:
    """The YAML text of a pipeline with comments.

    Args:
        pipeline: the pipeline.
        leaves: the specs of its env without the chain.
        reasons: what each stage is for.
    """
    head = map(escape_control_characters, _head(pipeline, leaves))
    lines: list[str] = [f"# {line}".rstrip() for line in head]
    remaining = iter(reasons)
    in_stages = False
    for line in write_pipeline(pipeline).splitlines():
        in_stages = line.startswith("transforms:") or (in_stages and line.startswith(" "))
        reason = next(remaining, "") if in_stages and line.startswith(_STAGE) else ""
        if reason:
            lines.append(f"  # {reason}")
        lines.append(line)
    return "".join(f"{line}\n" for line in lines)


def _head(pipeline: Pipeline, leaves: Sequence[LeafSpec]) -> Iterator[str]:
    yield f"A pipeline for {pipeline.env.id}: the env, and the stages that its data go through."
    yield "`tdx inspect chain --pipeline FILE` shows what each stage does, and"
    yield "`tdx list transforms` what else there is."
    yield ""
    text = SpecText(leaves, whole=False)
    width = max((len(format_key(leaf.key)) for leaf in leaves), default=0)
    for title, given in (("The env gives", False), ("It takes", True)):
        yield f"{title}:"
        for leaf in leaves:
            if (leaf.part in INPUT_PARTS) == given:
                yield f"  {format_key(leaf.key).ljust(width)}  {text(leaf)}"


def stage_reasons(pipeline: Pipeline) -> list[str]:
    """What each stage of a pipeline does, in the words of its docstring."""
    from tdx.cli.views.catalog import plain
    from tdx.pipeline import catalogue

    infos = (catalogue().find(stage.name) for stage in pipeline.transforms)
    return [plain(info.summary) if info else "" for info in infos]
