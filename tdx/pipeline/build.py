"""Make the env of a pipeline with its chain, or say all that is wrong with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tdx.errors import TdxError
from tdx.pipeline.env_making import make_env
from tdx.pipeline.model import Pipeline
from tdx.pipeline.realise import Realiser
from tdx.pipeline.validation import check_arguments, check_specs, located

if TYPE_CHECKING:
    from tdx.core import TransformedEnv
    from tdx.core.transforms import Compose


def build_env(pipeline: Pipeline, allow_code: bool = False) -> TransformedEnv:
    """The env of a pipeline with its chain; checked against the specs, never stepped.

    Args:
        pipeline: the pipeline.
        allow_code: whether Python objects that it names, ``module:name``, may be imported.

    Raises:
        TdxError: the first thing that is wrong with it, with stage, key and line in the file.

    Example:
        >>> from tdx.pipeline import Pipeline, build_env
        >>> env = build_env(Pipeline.of("Pendulum-v1", "StepCounter(max_steps=200)"))
        >>> "step_count" in env.observation_spec.keys()
        True
    """
    for error in check_arguments(pipeline, allow_code):
        raise error
    env = assemble(pipeline, allow_code)
    errors = check_specs(env, pipeline)
    if errors:
        env.close()
        raise errors[0]
    return env


def validate(pipeline: Pipeline, allow_code: bool = False) -> list[TdxError]:
    """Everything that is wrong with a pipeline, found without a step.

    What is wrong with its text comes first; only where nothing is, the env is made and the specs
    after each stage are looked at.

    Args:
        pipeline: the pipeline.
        allow_code: whether Python objects that it names may be imported.
    """
    errors = check_arguments(pipeline, allow_code)
    if errors:
        return errors
    try:
        env = assemble(pipeline, allow_code)
    except TdxError as error:
        return [error]
    try:
        return check_specs(env, pipeline)
    finally:
        env.close()


def assemble(pipeline: Pipeline, allow_code: bool = False) -> TransformedEnv:
    """The env with its chain, put together and not looked at."""
    from tdx.core import TransformedEnv
    from tdx.core.transforms import Compose

    try:
        base = make_env(pipeline.env, allow_code)
    except TdxError as error:
        raise error.at(file=pipeline.file) from error.__cause__
    chain = Compose()
    try:
        for index in range(len(pipeline.transforms)):
            _append(chain, pipeline, index, Realiser(allow_code))
        return TransformedEnv(base, chain)
    except BaseException:
        base.close()
        raise


def _append(chain: Compose, pipeline: Pipeline, index: int, realiser: Realiser) -> None:
    try:
        chain.append(realiser.transform(pipeline.transforms[index]))
    except TdxError as error:
        raise located(error, pipeline, index) from error.__cause__
