"""Run the rules on a pipeline."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tdx.inspection.lint.context import LintContext, LintStage, Place
from tdx.inspection.lint.registry import all_rules
from tdx.inspection.lint.rule import Found, Rule
from tdx.pipeline.catalog import load_catalog

if TYPE_CHECKING:
    from torch import nn

    from tdx.core import TransformedEnv
    from tdx.core.envs.spec_findings import SpecFinding
    from tdx.pipeline import Pipeline


@dataclass(frozen=True, slots=True)
class LintFinding:
    """A rule and one place where it is broken."""

    rule: Rule
    found: Found


def lint(context: LintContext, rules: Iterable[Rule] | None = None) -> list[LintFinding]:
    """Every place where a pipeline breaks a rule, in the order of its stages.

    Args:
        context: the pipeline.
        rules: the rules; all of them by default.

    Example:
        >>> from tdx.pipeline import Pipeline
        >>> pipeline = Pipeline.of("Pendulum-v1", "RewardScaling(0.0, 1.0)")
        >>> [finding.rule.code for finding in lint(lint_context(pipeline))]
        ['TDX491']
    """
    chosen = all_rules() if rules is None else rules
    findings = [LintFinding(rule, found) for rule in chosen for found in rule.find(context)]
    return sorted(findings, key=_place)


def lint_context(
    pipeline: Pipeline,
    env: TransformedEnv | None = None,
    *,
    policy: nn.Module | None = None,
    lies: Sequence[SpecFinding] = (),
) -> LintContext:
    """A pipeline as the rules see it.

    Args:
        pipeline: the pipeline.
        env: its env with the chain, where it could be built; without it the rules see the text.
        policy: its policy, where it could be imported.
        lies: what was seen in steps that the specs do not promise.
    """
    made = [] if env is None else list(env.stages)
    known = env is not None and len(made) == len(pipeline.transforms)
    places = _places(env) if env is not None and known else []
    stages = []
    for index, config in enumerate(pipeline.transforms):
        before, after = (places[at] if at < len(places) else None for at in (index, index + 1))
        info = None if config.code else load_catalog().find(config.name)
        transform = made[index] if known else None
        stages.append(LintStage(index, config, info, transform, before, after))
    return LintContext(pipeline, stages, env, policy, lies)


def _places(env: TransformedEnv) -> list[Place]:
    """The specs before the chain and after each stage, up to the first that has none."""
    from tdx.core import TransformedEnv, stage_specs
    from tdx.core.transforms import Compose

    for length in range(len(env.stages), -1, -1):
        part = env
        if length < len(env.stages):
            stages = (stage.clone() for stage in env.stages[:length])
            part = TransformedEnv(env.base_env, Compose(*stages))
        try:
            specs = stage_specs(part)
        except Exception:
            continue
        return [Place.of(each.input_spec, each.output_spec) for each in specs[-length - 1 :]]
    return []


def _place(finding: LintFinding) -> tuple[int, str]:
    stage = finding.found.stage
    return (1 << 30 if stage is None else stage), finding.rule.code
