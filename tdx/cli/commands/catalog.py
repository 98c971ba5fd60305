"""``tdx list`` and ``tdx show``: envs, transforms and dumps."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Annotated

import typer

from tdx.cli.completion import DUMP, complete_env, complete_name
from tdx.cli.options import Functions, OutputOptions

Search = Annotated[
    list[str] | None,
    typer.Argument(metavar="[SEARCH]...", help="Words that must all match, ignoring case."),
]
All = Annotated[bool, typer.Option("--all", help="Include envs whose package is not installed.")]
Name = Annotated[
    str,
    typer.Argument(metavar="NAME", autocompletion=complete_name, help="Name of the transform."),
]
Example = Annotated[
    bool,
    typer.Option(
        "--example/--no-example",
        help="Show the specs before and after the transform on an example env; slower.",
    ),
]

MAX_LISTED = 1000
"""Episodes in the JSON of a dump without ``--episodes``."""
EnvId = Annotated[str, typer.Argument(metavar="ID", autocompletion=complete_env, help="Env id.")]
EnvKwargs = Annotated[
    str | None,
    typer.Option("--env-kwargs", metavar="KWARGS", help="Arguments of the env: 'g=9.8'."),
]
Folder = Annotated[str, DUMP]
WatchFile = Annotated[
    str, typer.Argument(metavar="FILE", help="File that `tdx.watch` wrote.", show_default=False)
]
Follow = Annotated[
    bool,
    typer.Option("--follow", help="Show progress until the dump is complete, then show the dump."),
]
AllEpisodes = Annotated[
    bool,
    typer.Option(
        "--episodes", help=f"List the episodes; without it, JSON has the first {MAX_LISTED:,}."
    ),
]
Root = Annotated[str, typer.Argument(metavar="[DIR]", help="Folder; the current one by default.")]


def list_envs(output: OutputOptions, search: Search = None, missing: All = False) -> None:
    """List the envs.

    tdx list envs pong

    tdx list envs mujoco --format csv
    """
    from tdx.cli.output import write_view
    from tdx.cli.runtime import third_party_code
    from tdx.cli.views.catalog import envs_view
    from tdx.foundation.text import escape_control_characters
    from tdx.inspection.envs import EnvList, find_envs

    words = " ".join(search or ())
    with third_party_code():
        result = find_envs(words, missing=missing)
    write_view(envs_view(EnvList(words, result.envs), result.similar), output)
    for broken in result.broken:
        text = escape_control_characters(f"{broken.message} ({broken.hint})")
        print(f"warning: {text}", file=sys.stderr)


def list_transforms(output: OutputOptions, search: Search = None) -> None:
    """List the transforms that -t accepts.

    tdx list transforms reward

    tdx list transforms --format json
    """
    from tdx.cli.output import write_view
    from tdx.cli.views.catalog import transforms_view
    from tdx.pipeline.catalog import load_catalog

    words = " ".join(search or ())
    write_view(transforms_view(load_catalog().search(words), words), output)


def list_kinds(output: OutputOptions, search: Search = None) -> None:
    """List what can be opened: envs, checkpoints, datasets, dumps.

    tdx list kinds

    tdx list kinds checkpoint --format json
    """
    from tdx.cli.output import write_view
    from tdx.cli.views.catalog import openable_view
    from tdx.inspection.openable import OpenableList, list_openable

    words = " ".join(search or ())
    write_view(openable_view(OpenableList(words, list_openable(words))), output)


def show_transform(output: OutputOptions, name: Name, example: Example = True) -> None:
    """Show a transform: documentation, arguments, effect on specs.

    tdx show transform CatFrames

    tdx show CatFrames --format md
    """
    from tdx.cli.output import write_view
    from tdx.cli.views.catalog import transform_view
    from tdx.inspection.transform_example import TransformDocument, find_example
    from tdx.pipeline.catalog import load_catalog

    info = load_catalog()[name]
    shown_example = None
    if example:
        from tdx.cli.runtime import third_party_code

        with third_party_code():
            shown_example = find_example(info)
    write_view(transform_view(TransformDocument(info, shown_example)), output)


def show_env(output: OutputOptions, env: EnvId, env_kwargs: EnvKwargs = None) -> None:
    """Show an env: specs, limits, arguments and versions.

    tdx show env CartPole-v1

    tdx show env Pendulum --env-kwargs g=9.8 --format json
    """
    from tdx.cli.output import write_view
    from tdx.cli.pipelines import parse_env_kwargs
    from tdx.cli.runtime import third_party_code
    from tdx.cli.views.catalog import env_view
    from tdx.inspection.envs import describe_env
    from tdx.pipeline import EnvConfig

    config = EnvConfig(env, kwargs=parse_env_kwargs(env_kwargs))
    with third_party_code():
        details = describe_env(config)
    write_view(env_view(details), output)


def list_dumps(output: OutputOptions, root: Root = ".") -> None:
    """List the dumps in a folder and its subfolders.

    tdx list dumps runs

    tdx list dumps --format csv
    """
    from tdx.cli.output import write_view
    from tdx.cli.views.dumps import list_view
    from tdx.rollouts import list_dumps

    write_view(list_view(list_dumps(root), root), output)


def show_dump(
    output: OutputOptions, dump: Folder, episodes: AllEpisodes = False, follow: Follow = False
) -> None:
    """Show a dump: pipeline, returns, and values of each entry.

    tdx show runs/pendulum

    tdx show dump runs/pendulum --episodes --format json
    """
    from tdx.cli.output import write_view
    from tdx.cli.views.dumps import dump_view
    from tdx.rollouts import look_at, open_dump

    if follow:
        _follow(dump)
    overview = replace(look_at(open_dump(dump)), max_listed=None if episodes else MAX_LISTED)
    write_view(dump_view(overview, with_episodes=episodes), output)


def show_watch(output: OutputOptions, file: WatchFile) -> None:
    """Show what `tdx.watch` recorded: what moved, and each number.

    tdx show watch.jsonl

    tdx show watch runs/watch.jsonl --format csv
    """
    from tdx.cli.output import write_view
    from tdx.cli.views.watch import watch_view
    from tdx.inspection.watch_records import read_watch

    write_view(watch_view(read_watch(file)), output)


def _follow(dump: str) -> None:
    """Show the progress of a dump until it is complete."""
    from tdx.cli.progress import follow_on
    from tdx.rollouts import follow_dump

    with follow_on(sys.stderr) as show:
        for progress in follow_dump(dump):
            show(progress)


COMMANDS: Functions = {
    "list envs": list_envs,
    "list transforms": list_transforms,
    "list dumps": list_dumps,
    "list kinds": list_kinds,
    "show env": show_env,
    "show transform": show_transform,
    "show dump": show_dump,
    "show watch": show_watch,
}
