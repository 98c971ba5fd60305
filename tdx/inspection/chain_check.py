"""Check a chain of tdx that was built in Python, with the rules that need no pipeline file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tdx.inspection.check_report import CheckReport, check_env
from tdx.pipeline import EnvConfig, Pipeline, StageConfig
from tdx.pipeline.catalog import load_catalog
from tdx.pipeline.values import Dtype, Value

if TYPE_CHECKING:
    from tdx.core.transforms import Transform
    from tdx.envs import EnvBase
    from tdx.inspection.lint.rule import Rule
    from tdx.stacks import Stack, StageInfo


def check_chain(
    stack: Stack,
    env: EnvBase,
    label: str,
    seed: int | None,
    rules: Sequence[Rule],
    *,
    evaluation: bool = False,
) -> CheckReport:
    """Check the specs and steps of an env of tdx, and the lint rules of its stages.

    The arguments of a stage are those that its attributes show. A stage of another class than those
    of the catalog is treated like Python code in a pipeline.

    Args:
        stack: The stack.
        env: Its env; it is reset and stepped.
        label: Name in the report.
        seed: Seed of the env. ``None``: do not seed.
        rules: Lint rules to apply.
        evaluation: The env is used for evaluation: report normalizers that keep learning.

    Raises:
        EnvError: The env raises in a reset or step.
    """
    from tdx.core import TransformedEnv
    from tdx.core.chain import chain_stages
    from tdx.core.transforms import Compose

    configs = [_describe(*pair) for pair in zip(stack.stages, chain_stages(env), strict=True)]
    if not isinstance(env, TransformedEnv):
        env = TransformedEnv(env, Compose())
    # The rules see the outermost chain; those inside are part of the env.
    own = configs[len(configs) - len(env.stages) :]
    pipeline = Pipeline(EnvConfig(label, seed=seed), tuple(own))
    return check_env(env, pipeline, rules, evaluation=evaluation)


def _describe(stage: StageInfo, transform: Transform) -> StageConfig:
    """Return a stage as the pipeline would write it."""
    import tdx.transforms

    known = load_catalog().find(stage.name)
    if known is None or getattr(tdx.transforms, stage.name, None) is not type(transform):
        return StageConfig(f"python:{stage.name}")
    names = {each.name for each in known.parameters}
    if list(transform.in_keys) == list(known.default_in_keys or ()):
        names.discard("in_keys")
    values = {name: _to_value(each) for name, each in stage.arguments.items() if name in names}
    return StageConfig(stage.name, (), {k: v for k, v in values.items() if v is not None})


def _to_value(value: object) -> Value:
    """Return an argument as a value of a pipeline; ``None`` if it has no such form."""
    import torch

    if isinstance(value, torch.dtype):
        return Dtype(str(value).removeprefix("torch."))
    if isinstance(value, torch.device):
        return str(value)
    if isinstance(value, Mapping):
        return {str(name): _to_value(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return tuple(_to_value(each) for each in value)
    return value if isinstance(value, str | int | float | bool) else None
