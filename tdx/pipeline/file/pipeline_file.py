"""A pipeline file: load it, edit stages, save it; comments, order and quoting are kept."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from difflib import SequenceMatcher
from itertools import takewhile
from pathlib import Path

from tdx.foundation.errors import PipelineError, explain_os_error
from tdx.foundation.files import (
    PIPELINE_SUFFIXES,
    SYSTEM_HINTS,
    report_write_errors,
    suggest_file,
    write_atomically,
)
from tdx.foundation.untrusted import MAX_PIPELINE_BYTES
from tdx.pipeline.arguments import stage_identity
from tdx.pipeline.draft import Draft
from tdx.pipeline.file.pipeline_text import (
    ChainLines,
    StageLines,
    edit_section,
    insert_disabled_stages,
    read_pipeline,
    remove_disabled_stages,
    write_pipeline,
)
from tdx.pipeline.file.yaml_codec import too_long_error
from tdx.pipeline.model import Pipeline
from tdx.pipeline.policies import describe_model, model_hint
from tdx.pipeline.values import StageConfig

STDIN = "-"


class PipelineFile:
    r"""Text of a pipeline file, and the pipeline in it.

    Args:
        text: YAML.
        name: Name in error messages; for a file its path.

    Raises:
        PipelineError: The text is not a pipeline.

    Example:
        >>> from tdx.pipeline import PipelineFile, parse_stage
        >>> file = PipelineFile("version: 1\nenv: Pendulum-v1  # swing up\n")
        >>> file.insert(0, parse_stage("StepCounter(max_steps=200)"))
        >>> print(file.text)
        version: 1
        env: Pendulum-v1  # swing up
        transforms:
          - StepCounter: {max_steps: 200}
        <BLANKLINE>
    """

    def __init__(self, text: str, name: str = "pipeline") -> None:
        self.name = name
        self.newline = "\r\n" if "\r\n" in text else "\n"
        self.text = text.removeprefix("\ufeff").replace("\r\n", "\n")
        self.pipeline = read_pipeline(self.text, name)

    @classmethod
    def load(cls, path: str | Path) -> PipelineFile:
        """Load the file at ``path``, or standard input for ``-``.

        Raises:
            PipelineError: It cannot be read, or is not a pipeline.
        """
        name = str(path)
        if name == STDIN:
            name = "<stdin>"
            if sys.stdin is None:
                raise PipelineError("standard input is closed", hint="name a file instead of -")
        try:
            # The file may be endless: read no more than a pipeline can have.
            if name == "<stdin>":
                text = sys.stdin.read(MAX_PIPELINE_BYTES + 1)
            else:
                with open(path, "rb") as stream:
                    data = stream.read(MAX_PIPELINE_BYTES + 1)
                if len(data) > MAX_PIPELINE_BYTES:
                    raise too_long_error().at(file=name)
                text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            if data.startswith(b"PK\3\4"):
                spaces = describe_model(name)
                what = "zip archive" if spaces is None else "model of Stable-Baselines3"
                detail = "" if spaces is None else f": it has {spaces}, and names no env"
                raise PipelineError(
                    f"{name} is a {what}, not a pipeline{detail}", hint=model_hint(name)
                ) from error
            raise PipelineError(
                f"{name} is not a text file in UTF-8", hint="save it in UTF-8"
            ) from error
        except OSError as error:
            hint = SYSTEM_HINTS.get(error.errno or 0, "check the path; - reads standard input")
            if isinstance(error, PermissionError):
                hint = "check its permissions"
            elif isinstance(error, FileNotFoundError):
                hint = suggest_file(path, PIPELINE_SUFFIXES) or hint
            raise PipelineError(
                f"cannot read {name}: {explain_os_error(error)}", hint=hint
            ) from error
        return cls(text, name)

    @classmethod
    def new(cls, pipeline: Pipeline, name: str = "pipeline") -> PipelineFile:
        """Create the text for a pipeline that has no file."""
        return cls(write_pipeline(pipeline), name)

    @property
    def draft(self) -> Draft:
        """The pipeline as a draft, to edit it and :meth:`write` it."""
        return Draft.of(self.pipeline)

    def insert(self, index: int, stage: StageConfig) -> None:
        """Insert a stage before the one at ``index``; the length of the chain appends it."""
        draft = self.draft
        self.write(draft.insert(draft.place_of(index, or_end=True), [stage]))

    def remove(self, index: int) -> None:
        """Remove a stage with the comment directly above it."""
        draft = self.draft
        self.write(draft.remove(draft.place_of(index)))

    def move(self, index: int, to: int) -> None:
        """Move a stage, with its comments, to the position ``to``."""
        draft = self.draft
        self.write(draft.move(draft.place_of(index), draft.place_of(to)))

    def replace(self, index: int, stage: StageConfig) -> None:
        """Replace a stage; unchanged arguments keep their formatting."""
        draft = self.draft
        self.write(draft.replace(draft.place_of(index), stage))

    def write(self, draft: Draft) -> None:
        """Change the text to hold an edited draft, with the smallest edits.

        Args:
            draft: Result of edits of :attr:`draft`: a number stands for the same stage, which keeps
                its comments.
        """
        pipeline = draft.pipeline()
        self._write_stages(draft, pipeline)
        for key in ("env", "policy", "rollout"):
            if repr(getattr(self.pipeline, key)) != repr(getattr(pipeline, key)):
                self._set_text(edit_section(self.text, pipeline, key))
        if _identity(self.pipeline) != _identity(pipeline):
            # Such as a document in flow style, which has no lines for disabled stages.
            self._set_text(write_pipeline(replace(pipeline, check=self.pipeline.check)))

    def update(self, pipeline: Pipeline) -> None:
        """Change the text to hold this pipeline, with the smallest edits."""
        old, new = self.draft, Draft.of(pipeline)
        numbers = _match_stages(
            [stage.config for stage in old.stages], [stage.config for stage in new.stages]
        )
        first = len(old.stages)
        stages = tuple(
            replace(stage, number=first + place if number is None else number)
            for place, (stage, number) in enumerate(zip(new.stages, numbers, strict=True))
        )
        self.write(replace(new, stages=stages))

    def save(self, path: str | Path | None = None) -> None:
        """Write the file atomically; ``-`` writes to standard output.

        Args:
            path: Target. ``None``: the file it was loaded from.

        Raises:
            ArgumentError: The target is a symbolic link or not a regular file.
            PipelineError: It cannot be written.
        """
        target = self.name if path is None else str(path)
        text = self.text.replace("\n", self.newline)
        if target in (STDIN, "<stdin>"):
            sys.stdout.write(text)
            return
        with report_write_errors(target, "save it under another name", kind=PipelineError):
            write_atomically(target, text)

    def _write_stages(self, draft: Draft, pipeline: Pipeline) -> None:
        old, wanted = self.draft, _stage_states(pipeline)
        if _stage_states(self.pipeline) == wanted:
            return
        chain = ChainLines.split(self.text)
        if chain is not None:
            stages = []
            for stage in draft.stages:
                if stage.number >= len(old.stages):
                    lines = StageLines.new(stage.config, stage.enabled, chain.indent)
                else:
                    lines, before = chain.stages[stage.number], old.stages[stage.number]
                    is_same = stage_identity(stage.config) == stage_identity(before.config)
                    if not is_same or stage.enabled != before.enabled:
                        lines.change(stage.config, stage.enabled, chain.indent)
                stages.append(lines)
            chain.arrange(stages)
            text = chain.text()
            with suppress(PipelineError):
                if _stage_states(read_pipeline(text, self.name)) == wanted:
                    self._set_text(text)
                    return
        # A layout without a line for each stage: write the list anew.
        text = edit_section(remove_disabled_stages(self.text), pipeline, "transforms")
        self._set_text(insert_disabled_stages(text, pipeline))

    def _set_text(self, text: str) -> None:
        self.pipeline = read_pipeline(text, self.name)
        self.text = text


StageState = tuple[str, bool]
"""Identity of a stage, and whether it is enabled."""


def _stage_states(pipeline: Pipeline) -> list[StageState]:
    stages = Draft.of(pipeline).stages
    return [(stage_identity(stage.config), stage.enabled) for stage in stages]


def _identity(pipeline: Pipeline) -> str:
    """Return text that is equal for pipelines that do the same and have equal disabled stages."""
    return repr((pipeline.env, _stage_states(pipeline), pipeline.policy, pipeline.rollout))


def _match_stages(old: Sequence[StageConfig], new: Sequence[StageConfig]) -> list[int | None]:
    """Return for each new stage the index of the old one that it is, or that it replaces."""
    before, after = [*map(stage_identity, old)], [*map(stage_identity, new)]
    matches: list[int | None] = [None] * len(new)
    for block in SequenceMatcher(None, before, after, autojunk=False).get_matching_blocks():
        matches[block.b : block.b + block.size] = range(block.a, block.a + block.size)
    left = [index for index in range(len(old)) if index not in matches]
    for place, identity in enumerate(after):
        moved = next((index for index in left if before[index] == identity), None)
        if matches[place] is None and moved is not None:
            matches[place] = moved
            left.remove(moved)
    # What is left between the same two stages replaces each other: by name, else in order.
    place = 0
    while place < len(new):
        end = place
        while end < len(new) and matches[end] is None:
            end += 1
        previous = matches[place - 1] if place else None
        start = 0 if previous is None else previous + 1
        candidates = list(takewhile(left.__contains__, range(start, len(old))))
        for at in range(place, end):
            same_name = next((n for n in candidates if old[n].name == new[at].name), None)
            if same_name is not None:
                matches[at] = same_name
                candidates.remove(same_name)
        rest = [at for at in range(place, end) if matches[at] is None]
        if len(rest) == len(candidates):
            for at, candidate in zip(rest, candidates, strict=True):
                matches[at] = candidate
        place = max(end, place + 1)
    return matches
