"""``tdx export-chain``."""

from __future__ import annotations

from typing import Annotated

import typer

from tdx.artifacts import FORMS
from tdx.cli.options import Functions, OutputOptions
from tdx.cli.pipelines import TargetOptions

To = Annotated[
    str,
    typer.Option(
        "--to",
        metavar="FORM",
        autocompletion=lambda: list(FORMS),
        help=f"{', '.join(f'{form}: {title}' for form, title in FORMS.items())}.",
    ),
]
Out = Annotated[str, typer.Option("-o", "--out", metavar="FOLDER", help="Folder to write.")]
Split = Annotated[
    bool,
    typer.Option("--split", help="Export the stages before the first that cannot be exported."),
]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing artifact.")]


def export_chain(
    pipeline: TargetOptions,
    output: OutputOptions,
    to: To,
    out: Out,
    split: Split = False,
    force: Force = False,
) -> None:
    """Export a chain as code that runs without tdx.

    The functions reset, step and, if a stage maps actions, act take what the chain keeps between
    calls as inputs, and return it. `python FOLDER/verify.py` runs them on reference vectors.

    tdx export-chain Pendulum-v1 -t StepCounter --to pt2 --out chain

    tdx export-chain pendulum.yaml --to pt2 --out part --split
    """
    from tdx.artifacts.artifact import export_chain, exportable_env
    from tdx.cli.output import write_view
    from tdx.cli.pipelines import open_pipeline, read_pipeline
    from tdx.cli.views.artifacts import artifact_view

    config = read_pipeline(pipeline)
    with (
        open_pipeline(config, pipeline) as stack,
        exportable_env(stack, split=split) as (env, left_out),
    ):
        result = export_chain(env, to, out, split=split, force=force, left_out=left_out)
    write_view(artifact_view(result), output)


COMMANDS: Functions = {"export-chain": export_chain}
