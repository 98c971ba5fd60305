"""HTML of pipelines, chains, specs, reports, profiles, dumps, stacks and contracts in notebooks.

The blocks are those of the commands.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tdx.cli.html import html_fragment
from tdx.cli.views import (
    Block,
    Cell,
    Code,
    Column,
    Heading,
    Paragraph,
    Table,
    fact,
    stage_list,
)
from tdx.foundation.errors import TdxError
from tdx.foundation.text import count_text

if TYPE_CHECKING:
    from tdx.contracts import Contract
    from tdx.core import Compose, EnvBase
    from tdx.pipeline import Pipeline
    from tdx.rollouts.dump.reading import Dump
    from tdx.specs import TensorSpec
    from tdx.stacks import Stack


def to_html(value: object) -> str | None:
    """Return a value as an HTML fragment, as notebooks show it.

    Supported are pipelines, envs with their chains, :class:`~tdx.Compose`, specs, stacks, spec
    reports, stack reports, profiles, dumps, contracts, comparisons and converted stacks. No env is
    stepped. For what cannot be shown, such as a closed env, its error is shown. The fragment has at
    most 100 kB, and neither a script nor a link to another host.

    Args:
        value: Value to show.

    Returns:
        A ``<div>`` with its style. ``None``: values of this class have no HTML.

    Example:
        >>> from tdx import Pipeline, to_html
        >>> "RewardSum" in to_html(Pipeline.of("Pendulum-v1", "RewardSum"))
        True
    """
    try:
        blocks = _blocks(value)
    except TdxError as error:
        # A closed env, or a dump whose pipeline is invalid.
        blocks = [Heading(type(value).__name__, level=1), _error(error)]
    return None if blocks is None else html_fragment(blocks)


def _blocks(value: object) -> Iterable[Block] | None:
    from tdx.pipeline import Pipeline

    if isinstance(value, Pipeline):
        # Showing a pipeline loads no torch.
        return _pipeline(value)
    from tdx.contracts import Contract
    from tdx.core import Compose, EnvBase
    from tdx.rollouts.dump.reading import Dump
    from tdx.specs import TensorSpec
    from tdx.stacks.stack import is_stack

    match value:
        case TensorSpec():
            return _spec(value)
        case Compose():
            return _chain(value)
        case EnvBase():
            return _stack(value)
        case Dump():
            return _dump(value)
        case Contract():
            return _contract(value)
    return _stack(value) if is_stack(value) else _report(value)


def _report(value: object) -> Iterable[Block] | None:
    """Return the blocks of a result that a command prints."""
    from tdx.cli.views.comparisons import contract_view, diff_view
    from tdx.cli.views.conversion import conversion_blocks
    from tdx.cli.views.profile import profile_view
    from tdx.cli.views.specs import spec_view
    from tdx.contracts import ContractReport
    from tdx.inspection.diff import DiffReport
    from tdx.inspection.spec_report import SpecReport
    from tdx.inspection.stack_import import StackImport
    from tdx.inspection.stack_report import StackReport
    from tdx.profiling.result import Profile

    match value:
        case SpecReport():
            return spec_view(value, [stage.name for stage in value.stages]).blocks()
        case StackReport():
            calls = [stage.call for stage in value.stages]
            return [*spec_view(value.spec, calls).blocks(), *_notes(value.notes)]
        case ContractReport():
            return contract_view(value).blocks()
        case DiffReport():
            return diff_view(value).blocks()
        case StackImport():
            head = Heading(value.pipeline.env.id, "converted", level=1)
            return [head, *conversion_blocks(value)]
        case Profile():
            return profile_view(value).blocks()
    return None


def _pipeline(pipeline: Pipeline) -> list[Block]:
    from tdx.pipeline import format_stage, to_command

    calls = [format_stage(stage) for stage in pipeline.transforms]
    head = Heading(pipeline.env.id, count_text(len(calls), "stage"), level=1)
    return [head, *stage_list(calls), Heading("command"), Code(to_command(pipeline), "sh")]


def _spec(spec: TensorSpec) -> list[Block]:
    from tdx.foundation.keys import format_key
    from tdx.specs import Composite
    from tdx.specs.leaf import SpecText, leaf_spec, shape_text

    facts = f"shape {shape_text(tuple(spec.shape))}  device {spec.device}"
    head = Heading(type(spec).__name__, facts, level=1)
    if isinstance(spec, Composite):
        items = list(spec.items(include_nested=True, leaves_only=True))
        leaves = [leaf_spec("observation", key, leaf) for key, leaf in items]
    else:
        leaves = [leaf_spec("observation", "", spec)]
    text = SpecText(leaves)
    rows = [[Cell(format_key(leaf.key)), Cell(leaf.kind), Cell(text(leaf))] for leaf in leaves]
    if not isinstance(spec, Composite):
        return [head, Table([Column()], [row[2:] for row in rows])]
    return [head, Table([Column("key"), Column("class"), Column("spec")], rows)]


def _chain(chain: Compose) -> list[Block]:

    calls = [" ".join(repr(stage).split()) for stage in chain]
    head = Heading(type(chain).__name__, count_text(len(calls), "stage"), level=1)
    return [head, *stage_list(calls)]


def _stack(value: EnvBase | Stack) -> list[Block]:
    """Return the stages and specs of an env; an env with a mistake in it is shown as well."""
    from tdx.cli.views.specs import spec_view
    from tdx.inspection.spec_report import compare_specs
    from tdx.stacks import open_stack

    stack = open_stack(value)
    calls = stack.calls
    try:
        blocks = list(spec_view(compare_specs(stack), calls).blocks())
    except Exception as error:  # Stages are code of the user.
        return [Heading(stack.name, level=1), *stage_list(calls), Heading("error"), _error(error)]
    return [*blocks, *_notes(stack.notes)]


def _dump(dump: Dump) -> list[Block]:
    """Return what the manifest states: no step is read."""
    from tdx.cli.views.dumps import dump_facts, dump_head
    from tdx.pipeline import format_stage
    from tdx.rollouts.dump.reading import summarize

    data = summarize(str(dump.path), dump.manifest)
    calls = [format_stage(stage) for stage in dump.pipeline.transforms]
    entries = [_entry(spec) for spec in dump.manifest.specs]
    table = Table([Column("part"), Column("key"), Column("spec")], entries)
    return [dump_head(data), *stage_list(calls), dump_facts(data), Heading("entries"), table]


def _entry(spec: Mapping[str, Any]) -> list[Cell]:
    from tdx.foundation.keys import format_key
    from tdx.specs.leaf import shape_text

    text = f"{shape_text(spec['shape'])}  {spec['dtype']}"
    return [Cell(spec["part"], "dim"), Cell(format_key(tuple(spec["key"]))), Cell(text)]


def _contract(contract: Contract) -> list[Block]:

    steps = sum(segment.steps for segment in contract.inputs)
    aside = f"{contract.kind}, seed {contract.seed}, {count_text(steps, 'reference step')}"
    rows = [
        [
            Cell("" if stage.index < 0 else str(stage.index), "dim"),
            Cell(stage.name, "name"),
            Cell(stage.role),
            Cell(", ".join(f"{name}={value}" for name, value in stage.arguments.items())),
            Cell(", ".join(state.name for state in stage.state), "dim"),
            Cell(stage.random or "", "dim"),
        ]
        for stage in contract.stages
    ]
    titles = ("", "stage", "role", "arguments", "state", "random")
    versions = ", ".join(f"{name} {version}" for name, version in contract.libraries.items())
    head = Heading(f"Contract of {contract.env}", aside, level=1)
    table = Table([Column(title) for title in titles], rows)
    return [head, table, fact("libraries", versions), *_notes(contract.notes)]


def _error(error: Exception) -> Paragraph:
    return Paragraph([Cell(f"{type(error).__name__}: {error}", "bad")])


def _notes(notes: Sequence[str]) -> list[Paragraph]:
    return [Paragraph([Cell("note: ", "dim"), Cell(note)]) for note in notes]
