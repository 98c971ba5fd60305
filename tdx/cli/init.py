"""The work of ``tdx init``: the dialog, the import of a stack, and the commented pipeline file."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from tdx.cli.completion import complete_env, complete_transform
from tdx.cli.options import Color
from tdx.cli.output import terminal_text, terminal_width
from tdx.cli.pipelines import PipelineOptions, given_options
from tdx.cli.runtime import raw_stream, third_party_code
from tdx.cli.views import Block, Cell, Heading, Paragraph, stage_list
from tdx.cli.views.specs import comparison_table, spec_table
from tdx.foundation.errors import ArgumentError, TdxError
from tdx.foundation.keys import format_key
from tdx.foundation.text import escape_control_characters
from tdx.inspection.envs import get_env_leaves, suggest_stages
from tdx.inspection.spec_report import inspect_spec
from tdx.pipeline import (
    EnvConfig,
    Pipeline,
    StageConfig,
    build_checked_env,
    format_stage,
    load_catalog,
    parse_stage,
    write_pipeline,
)
from tdx.pipeline.transform_info import strip_markup
from tdx.specs.leaf import INPUT_PARTS, LeafSpec, SpecText

if TYPE_CHECKING:
    from tdx.inspection.stack_import import StackImport


Ask = Callable[[str], str]
_HELP = "Enter a stage, such as RewardSum or RewardClipping(-1, 1); - removes the last one."
_YAML_ITEM = "  - "


class PipelineDialog:
    """Builds a pipeline from answers and shows the specs after each of them.

    ``ask`` shows a question and returns the answer; it raises EOFError if there is none.
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

    def run(self) -> Pipeline:
        """Ask until the pipeline is complete."""
        self._ask_env()
        if not self._stages:
            self._suggest_stages()
        self._show(Paragraph([Cell(_HELP, "dim")]))
        with suppress(EOFError), tab_completion(complete_transform):
            while answer := self._ask(f"stage {len(self._stages)} (empty to finish): ").strip():
                self._apply(answer)
        return Pipeline(self._env, tuple(self._stages))

    def _ask_env(self) -> None:
        while True:
            if not self._env.id:
                try:
                    with tab_completion(complete_env):
                        name = self._ask("env: ").strip()
                except EOFError:
                    raise ArgumentError(
                        "no env is given", hint="name an env: tdx init ID"
                    ) from None
                self._env = replace(self._env, id=name)
            try:
                with third_party_code():
                    leaves = get_env_leaves(self._env, self._allow_code)
            except TdxError as error:
                self._show_error(error)
                self._env = replace(self._env, id="")
                continue
            self._show(Heading(self._env.id, "specs"), spec_table(leaves))
            return

    def _suggest_stages(self) -> None:
        with third_party_code():
            suggestions = suggest_stages(self._env, self._allow_code)
        if not suggestions:
            return
        lines = [
            Paragraph(
                [Cell(format_stage(suggestion.stage)), Cell(f"  {suggestion.reason}", "dim")], 2
            )
            for suggestion in suggestions
        ]
        self._show(Heading("suggested stages"), *lines)
        try:
            answer = self._ask("use them? [Y/n] ").strip().casefold()
        except EOFError:
            answer = "n"
        if answer in ("", "y", "yes"):
            self._stages += [suggestion.stage for suggestion in suggestions]
            self._show_specs()

    def _apply(self, answer: str) -> None:
        """Add or remove a stage; undo that if the chain cannot be built."""
        previous = list(self._stages)
        try:
            if answer == "-":
                if not self._stages:
                    raise ArgumentError("the chain has no stages", hint=_HELP)
                self._stages.pop()
            else:
                self._stages.append(parse_stage(answer))
            self._show_specs(last_only=answer != "-")
        except TdxError as error:
            self._stages = previous
            self._show_error(error)

    def _show_specs(self, *, last_only: bool = False) -> None:
        pipeline = Pipeline(self._env, tuple(self._stages))
        with third_party_code():
            env = build_checked_env(pipeline, self._allow_code)
            try:
                report = inspect_spec(env, self._env.id)
            finally:
                env.close()
        if last_only:
            changes = [change for change in report.stages[-1].changes if change.change != "same"]
            heading = Heading(format_stage(self._stages[-1]))
            if changes:
                table = comparison_table(changes, sides=("before", "after"))
                self._show(heading, table)
            else:
                self._show(heading, Paragraph([Cell("changes no spec", "dim")]))
            return
        names = [stage.name for stage in report.stages]
        calls = stage_list([format_stage(stage) for stage in self._stages])
        self._show(Heading("chain"), *calls, comparison_table(report.changes, names))

    def _show_error(self, error: TdxError) -> None:
        place = f"{error.where}: " if str(error.where) else ""
        self._show(Paragraph([Cell("error: ", "bad"), Cell(f"{place}{error.message}")]))
        if error.hint:
            self._show(Paragraph([Cell("hint: ", "dim"), Cell(error.hint)]))

    def _show(self, *blocks: Block) -> None:
        width = min(terminal_width(), 100)
        text = terminal_text(blocks, width, color=self._color.is_enabled(sys.stderr))
        stream = raw_stream(sys.stderr)
        stream.write(text)
        stream.flush()


@contextmanager
def tab_completion(complete: Callable[[str], list[tuple[str, str]]]) -> Iterator[None]:
    """Complete answers with TAB, if Python has readline."""
    try:
        import readline
    except ImportError:
        yield
        return
    previous = readline.get_completer(), readline.get_completer_delims()

    def completer(text: str, state: int) -> str | None:
        names = [name for name, _ in complete(text)]
        return names[state] if state < len(names) else None

    readline.set_completer(completer)
    readline.set_completer_delims("")
    readline.parse_and_bind("tab: complete")
    try:
        yield
    finally:
        readline.set_completer(previous[0])
        readline.set_completer_delims(previous[1])


def commented_pipeline(
    pipeline: Pipeline,
    leaves: Sequence[LeafSpec],
    comments: Sequence[str],
    notes: Sequence[str] = (),
) -> str:
    """Return the YAML text of a pipeline with comments.

    There is a comment of any number of lines for each stage; more comments are at the end.
    """
    header = map(escape_control_characters, _header(pipeline, leaves, notes))
    lines: list[str] = [f"# {line}".rstrip() for line in header]
    remaining = iter(comments)
    in_stages = False
    for line in write_pipeline(pipeline).splitlines():
        in_stages = line.startswith("transforms:") or (in_stages and line.startswith(" "))
        if in_stages and line.startswith(_YAML_ITEM):
            lines += _comment_lines(next(remaining, ""))
        lines.append(line)
    for comment in remaining:
        lines += _comment_lines(comment)
    return "".join(f"{line}\n" for line in lines)


def _comment_lines(comment: str) -> list[str]:
    return [f"  # {line}" for line in comment.splitlines()]


def _header(pipeline: Pipeline, leaves: Sequence[LeafSpec], notes: Sequence[str]) -> Iterator[str]:
    yield f"Pipeline for {pipeline.env.id}: an env and a chain of transforms."
    yield from notes
    yield "`tdx inspect chain FILE` shows what each stage does;"
    yield "`tdx list transforms` lists the available stages."
    yield ""
    text = SpecText(leaves, whole=False)
    width = max((len(format_key(leaf.key)) for leaf in leaves), default=0)
    for title, is_input in (("Outputs of the env", False), ("Inputs", True)):
        yield f"{title}:"
        for leaf in leaves:
            if (leaf.part in INPUT_PARTS) == is_input:
                yield f"  {format_key(leaf.key).ljust(width)}  {text(leaf)}"


def stage_comments(pipeline: Pipeline) -> list[str]:
    """Return the summary of each stage of a pipeline, from its docstring."""
    infos = (load_catalog().find(stage.name) for stage in pipeline.transforms)
    return [strip_markup(info.summary) if info else "" for info in infos]


_SHARED = ("--env-kwargs", "--seed", "--allow-code")
"""Options of a pipeline that ``--from`` uses as well."""


def import_from(source: str, options: PipelineOptions) -> StackImport:
    """Convert the stack that a factory returns."""
    from tdx.cli.pipelines import parse_env_kwargs
    from tdx.inspection.stack_import import import_stack
    from tdx.pipeline import EnvConfig
    from tdx.stacks.building import open_target
    from tdx.stacks.kinds import CHECKPOINT

    for name, _ in given_options(options):
        if name not in _SHARED:
            raise ArgumentError(
                f"--from and {name} cannot be combined",
                hint="the stack defines the env and its stages: edit the written file",
            )
    config = EnvConfig(source, kwargs=parse_env_kwargs(options.env_kwargs))
    if CHECKPOINT.accepts(source):
        raise CHECKPOINT.refusal(source)
    if config.code is None:
        raise ArgumentError(
            f"{source!r} does not name a function",
            hint="write module:function or file.py:function",
        )
    with third_party_code():
        return import_stack(lambda: open_target(config, options.allow_code), seed=options.seed or 0)


def file_notes(imported: StackImport, source: str) -> list[str]:
    """Return the lines at the head of the file: where it comes from, and what was compared."""
    lines = [f"Converted from {source}."]
    for comparison in imported.comparisons:
        lines.append(f"{_sentence(comparison.part)}: {comparison}.")
        if comparison.difference is not None:
            lines += [f"  {name}: {text}" for name, text in comparison.difference.details()]
    if imported.gap:
        lines.append(f"{_sentence(imported.gap)}.")
    lines += _env_lines(imported)
    lines += [
        f"{stage.index} {stage.call}: {stage.comment}"
        for stage in imported.stages
        if stage.missing is None and not stage.stages
    ]
    return [*lines, ""]


def _env_lines(imported: StackImport) -> list[str]:
    missing = imported.missing_env
    if missing is None:
        return []
    return [
        f"The env {imported.pipeline.env.id} is a proposal, which was not compared:",
        f"  reason: {missing.reason}",
        f"  to do: {missing.advice}",
    ]


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"


def conversion_comments(imported: StackImport) -> list[str]:
    """Return a comment on each stage of the pipeline, and one for what follows the last."""
    from tdx.pipeline.file.pipeline_text import format_disabled_stage

    comments: list[str] = []
    pending: list[str] = []
    for stage in imported.stages:
        missing = stage.missing
        if missing is not None:
            lines = (
                f"{stage.index} {stage.call}: not converted",
                f"  reason: {missing.reason}",
                f"  to do: {missing.advice}",
            )
            pending += map(escape_control_characters, lines)
            if missing.suggestion is not None:
                # A disabled stage, which the app can enable.
                disabled = format_disabled_stage(missing.suggestion)
                pending.append(disabled.removeprefix("# "))
        elif stage.stages:
            own = escape_control_characters(f"{stage.index} {stage.call}: {stage.comment}")
            comments += ["\n".join([*pending, own]), *[""] * (len(stage.stages) - 1)]
            pending = []
    return [*comments, "\n".join(pending)]


def summary_lines(imported: StackImport) -> Iterator[str]:
    """Return the lines for the terminal: each stage and its counterpart, and the comparisons."""
    width = max((len(stage.name) for stage in imported.stages), default=0)
    for stage in imported.stages:
        line = f"{stage.index:>2} {stage.name.ljust(width)}  {stage.outcome}"
        yield escape_control_characters(line)
    for comparison in imported.comparisons:
        yield f"{comparison.part}: {comparison}"
        if comparison.difference is not None:
            for name, text in comparison.difference.details():
                yield escape_control_characters(f"  {name}: {text}")
    if imported.gap:
        yield imported.gap
    yield from map(escape_control_characters, _env_lines(imported))
