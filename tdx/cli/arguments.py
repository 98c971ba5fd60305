"""Options as the arguments that give them: the way back from :mod:`tdx.cli.options`."""

from __future__ import annotations

from dataclasses import fields
from enum import Enum
from typing import get_type_hints

from tdx.cli.options import PipelineOptions


def as_arguments(options: PipelineOptions) -> list[str]:
    """The arguments from which a ``tdx`` reads the same options.

    Each is one word, ``--name=value``, so that no value can be taken for an option.

    Example:
        >>> as_arguments(PipelineOptions(env="Pendulum-v1", transforms=["RewardSum"], num_envs=2))
        ['--env=Pendulum-v1', '--t=RewardSum', '--num-envs=2']
    """
    hints = get_type_hints(PipelineOptions, include_extras=True)
    words = []
    for field in fields(options):
        # In an annotation Typer keeps the first name where a default would stand.
        name = hints[field.name].__metadata__[0].default
        value = getattr(options, field.name)
        if value is True:
            words.append(name)
        elif value is not None and value is not False:
            values = value if isinstance(value, list) else [value]
            words += [f"{name}={each.value if isinstance(each, Enum) else each}" for each in values]
    return words
