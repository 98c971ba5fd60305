"""A pipeline file: load it, edit stages, save it; comments, order and quoting are kept."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

from tdx.foundation.errors import ArgumentError, PipelineError, find_similar_names
from tdx.foundation.files import (
    PIPELINE_SUFFIXES,
    SYSTEM_HINTS,
    report_write_errors,
    write_atomically,
)
from tdx.foundation.untrusted import MAX_PIPELINE_BYTES
from tdx.pipeline.file.stage_lines import (
    StageBlock,
    StageLines,
    insert_disabled_stages,
    remove_disabled_lines,
    shift_disabled,
    split_stages,
)
from tdx.pipeline.file.text_edits import (
    disabled_identity,
    edit_section,
    edit_stage_lines,
    format_stage_lines,
    list_stage_states,
    list_toggled_states,
    pipeline_identity,
    stage_identity,
    toggle_stages,
)
from tdx.pipeline.file.yaml_codec import load_yaml, too_long_error
from tdx.pipeline.file.yaml_format import read_pipeline, write_pipeline
from tdx.pipeline.model import DisabledStage, Pipeline
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
            raise PipelineError(
                f"{name} is not a text file in UTF-8", hint="save it in UTF-8"
            ) from error
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise PipelineError(
                f"cannot read {name}: {reason}", hint=_suggest_read(Path(path), error)
            ) from error
        return cls(text, name)

    @classmethod
    def new(cls, pipeline: Pipeline, name: str = "pipeline") -> PipelineFile:
        """Create the text for a pipeline that has no file."""
        return cls(write_pipeline(pipeline), name)

    def insert(self, index: int, stage: StageConfig) -> None:
        """Insert a stage before the one at ``index``; the length of the chain appends it."""
        stages = list(self.pipeline.transforms)
        self._check(index, len(stages) + 1)
        stages.insert(index, stage)
        block = self._block()
        if block is not None:
            lines = StageLines([], format_stage_lines(stage, block.indent))
            if block.stages:
                block.gaps.insert(min(index, len(block.gaps)), [])
            block.stages.insert(index, lines)
        self._accept(block, stages, shift_disabled(self.pipeline.off, index, 1))

    def remove(self, index: int) -> None:
        """Remove a stage with the comment directly above it."""
        stages = list(self.pipeline.transforms)
        self._check(index, len(stages))
        del stages[index]
        block = self._block() if stages else None
        if block is not None:
            del block.stages[index]
            kept = block.gaps.pop(min(index, len(block.gaps) - 1))
            if index and index - 1 < len(block.gaps):
                block.gaps[index - 1] = kept
        self._accept(block, stages, shift_disabled(self.pipeline.off, index, -1))

    def move(self, index: int, to: int) -> None:
        """Move a stage, with its comments, to the position ``to``."""
        stages = list(self.pipeline.transforms)
        self._check(index, len(stages))
        self._check(to, len(stages))
        stages.insert(to, stages.pop(index))
        block = self._block()
        if block is not None:
            block.stages.insert(to, block.stages.pop(index))
        off = shift_disabled(shift_disabled(self.pipeline.off, index, -1), to, 1)
        self._accept(block, stages, off)

    def replace(self, index: int, stage: StageConfig) -> None:
        """Replace a stage; unchanged arguments keep their formatting."""
        stages = list(self.pipeline.transforms)
        self._check(index, len(stages))
        stages[index] = stage
        block = self._block()
        if block is not None:
            lines = block.stages[index]
            lines.body = edit_stage_lines(lines.body, stage, block.indent)
        self._accept(block, stages, self.pipeline.off)

    def update(self, pipeline: Pipeline) -> None:
        """Change the file to hold this pipeline, with the smallest edits of its text."""
        self._toggle_stages(pipeline)
        self._update_stages(pipeline.transforms)
        for key in ("env", "policy", "rollout"):
            if repr(getattr(self.pipeline, key)) != repr(getattr(pipeline, key)):
                self._set_text(edit_section(self.text, load_yaml(self.text), pipeline, key))
        if pipeline_identity(self.pipeline) != pipeline_identity(pipeline):
            self._set_text(write_pipeline(pipeline))
        self._write_disabled(pipeline.off)

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

    def _update_stages(self, wanted: tuple[StageConfig, ...]) -> None:
        """Reach the wanted stages by edits that keep the comments of each stage."""
        goal = [stage_identity(stage) for stage in wanted]
        for index, stage in enumerate(wanted):
            current = [stage_identity(each) for each in self.pipeline.transforms[index:]]
            while goal[index] in current and current[0] not in goal[index:]:
                self.remove(index)
                del current[0]
            if current and current[0] == goal[index]:
                continue
            is_replaced = bool(current) and current[0] not in goal[index:]
            if goal[index] in current:
                self.move(index + current.index(goal[index]), index)
            elif is_replaced and len(current) >= len(goal) - index:
                self.replace(index, stage)
            else:
                self.insert(index, stage)
        for _ in range(len(goal), len(self.pipeline.transforms)):
            self.remove(len(goal))

    def _check(self, index: int, length: int) -> None:
        if not 0 <= index < length:
            chain = f"the chain has {len(self.pipeline.transforms)} stages"
            raise ArgumentError(f"stage {index} does not exist", hint=chain)

    def _block(self) -> StageBlock | None:
        return split_stages(self.text, load_yaml(self.text))

    def _toggle_stages(self, wanted: Pipeline) -> None:
        """Toggle stages in place, with their comments."""
        text = toggle_stages(self.text, self.pipeline, wanted)
        with suppress(PipelineError):
            found = read_pipeline(text, self.name)
            if list_stage_states(found) == list_toggled_states(self.pipeline, wanted):
                self._set_text(text)

    def _write_disabled(self, off: tuple[DisabledStage, ...]) -> None:
        """Write the disabled stages to their positions unless they are there."""
        if disabled_identity(self.pipeline.off) == disabled_identity(off):
            return
        text = remove_disabled_lines(self.text, load_yaml(self.text))
        document = load_yaml(text)
        written = None
        if "transforms" in document:
            written = insert_disabled_stages(text, document, off)
        if written is None:
            text = edit_section(text, document, self.pipeline, "transforms")
            written = insert_disabled_stages(text, load_yaml(text), off)
        if written is not None:
            self._set_text(written)

    def _accept(
        self, block: StageBlock | None, stages: list[StageConfig], off: tuple[DisabledStage, ...]
    ) -> None:
        """Use the edited text if it holds the wanted stages; otherwise rewrite the whole list."""
        self._accept_stages(block, stages)
        self._write_disabled(off)

    def _accept_stages(self, block: StageBlock | None, stages: list[StageConfig]) -> None:
        wanted = self.pipeline.with_stages(*stages)
        if block is not None:
            text = block.text()
            with suppress(PipelineError):
                if pipeline_identity(read_pipeline(text, self.name)) == pipeline_identity(wanted):
                    self._set_text(text)
                    return
        self._set_text(edit_section(self.text, load_yaml(self.text), wanted, "transforms"))

    def _set_text(self, text: str) -> None:
        self.pipeline = read_pipeline(text, self.name)
        self.text = text


__all__ = ["PipelineFile"]


def _suggest_read(path: Path, error: OSError) -> str:
    """Return the hint for a file that cannot be read; for a missing one, a similar name if any."""
    otherwise = "check the path; - reads standard input"
    if isinstance(error, PermissionError):
        return "check its permissions"
    if not isinstance(error, FileNotFoundError):
        return SYSTEM_HINTS.get(error.errno or 0, otherwise)
    try:
        files = [file.name for file in path.parent.iterdir() if file.suffix in PIPELINE_SUFFIXES]
    except OSError:
        return otherwise
    similar = find_similar_names(path.name, files, cutoff=0.8)
    names = " or ".join(str(path.with_name(name)) for name in similar)
    return f"did you mean {names}?" if similar else otherwise
