"""Select and run lint rules."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, cast

from tdx.foundation.errors import UnknownNameError, did_you_mean, summarize_error
from tdx.foundation.plugins import Plugin, disable_plugin, load_plugins, own_modules
from tdx.inspection.checkpoint_codes import DATASET_RULES
from tdx.inspection.lint import rules as rule_modules
from tdx.inspection.lint.context import DeviceContext, KeySpecs, LintContext, LintStage
from tdx.inspection.lint.rule import Rule, Violation, is_selected
from tdx.pipeline.catalog import load_catalog
from tdx.pipeline.policies import parse_policy

if TYPE_CHECKING:
    from torch import nn

    from tdx.core import TransformedEnv
    from tdx.inspection.lint.stack_context import StackContext
    from tdx.pipeline import Pipeline
    from tdx.specs.violations import SpecViolation

_PLUGIN_CODE = re.compile(r"[A-Z]{2,5}\d{3}")


@cache
def all_rules() -> tuple[Rule, ...]:
    """Return every rule, sorted by code: those of the modules in ``rules/``, and of plugins.

    Example:
        >>> [rule.code for rule in all_rules()][:2]
        ['TDX401', 'TDX402']
    """
    # A module may import a rule of another one.
    own = dict.fromkeys(rule for module in own_modules(rule_modules) for rule in _rules_in(module))
    return tuple(sorted((*own, *_plugin_rules()), key=lambda rule: rule.code))


def _rules_in(module: ModuleType) -> list[Rule]:
    return [member for member in vars(module).values() if isinstance(member, Rule)]


@cache
def _plugin_rules() -> Mapping[Rule, Plugin]:
    """Load the rules of plugins: an entry is a rule, a sequence of rules, or a module of rules."""
    owners: dict[Rule, Plugin] = {}

    def load(plugin: Plugin) -> None:
        loaded = plugin.load()
        members: Iterable[object] = loaded if isinstance(loaded, Iterable) else [loaded]
        if isinstance(loaded, ModuleType):
            members = _rules_in(loaded)
        added = [member for member in members if isinstance(member, Rule)]
        if not added:
            raise plugin.error("has no rule: declare one with tdx.inspection.lint.rule")
        taken = {rule.code for rule in owners}
        for rule in added:
            if not _PLUGIN_CODE.fullmatch(rule.code) or rule.code.startswith("TDX"):
                raise plugin.error(
                    f"has the code {rule.code!r}: use two to five capital letters other than TDX, "
                    "and three digits"
                )
            if rule.code in taken:
                raise plugin.error(f"has the code {rule.code} of another rule")
            taken.add(rule.code)
        owners.update(dict.fromkeys(added, plugin))

    load_plugins("tdx.rules", load)
    return owners


def select_rules(select: Sequence[str] = (), ignore: Sequence[str] = ()) -> tuple[Rule, ...]:
    """Select rules by code.

    Codes may be prefixes. Without ``select``, all rules are included.

    Example:
        >>> [rule.code for rule in select_rules(["TDX42"], ignore=["TDX422", "TDX423"])]
        ['TDX421', 'TDX424', 'TDX425']
    """
    wanted, unwanted = _normalize_codes(select), _normalize_codes(ignore)
    return tuple(rule for rule in all_rules() if is_selected(rule.code, wanted, unwanted))


def rules_of(
    pipeline: Pipeline, select: Sequence[str] = (), ignore: Sequence[str] = ()
) -> tuple[Rule, ...]:
    """Select the rules for a pipeline.

    Codes in ``select`` replace those of the file; codes in ``ignore`` are excluded in addition.

    Raises:
        UnknownNameError: A code matches no rule.
    """
    try:
        chosen = select_rules(pipeline.check.select, pipeline.check.ignore)
    except UnknownNameError as error:
        raise error.at(file=pipeline.file) from None
    if not select and not ignore:
        return chosen
    if select:
        chosen = select_rules((), pipeline.check.ignore)
    wanted = set(select_rules(select, ignore))
    return tuple(rule for rule in chosen if rule in wanted)


def _normalize_codes(codes: Sequence[str]) -> tuple[str, ...]:
    normalized = tuple(code.strip().upper() for code in codes)
    # Rules about data apply to dumps, which have a pipeline too.
    known = [*(rule.code for rule in all_rules()), *(rule.code for rule in DATASET_RULES)]
    for code in normalized:
        if not code or not any(name.startswith(code) for name in known):
            hint = did_you_mean(code, known, "list them with: tdx explain")
            raise UnknownNameError(f"unknown rule {code!r}", hint=hint)
    return normalized


@dataclass(frozen=True, slots=True)
class LintFinding:
    """A rule and one violation of it."""

    rule: Rule
    violation: Violation
    transform: str | None = None


def lint(
    context: LintContext | StackContext | DeviceContext, rules: Iterable[Rule] | None = None
) -> list[LintFinding]:
    """Return every violation in a pipeline or a stack, in the order of its stages.

    Rules for other subjects than that of the context do not apply.

    Example:
        >>> from tdx.pipeline import Pipeline
        >>> pipeline = Pipeline.of("Pendulum-v1", "RewardScaling(0.0, 1.0)")
        >>> [finding.rule.code for finding in lint(build_lint_context(pipeline))]
        ['TDX491']
    """
    findings: list[LintFinding] = []
    for rule in all_rules() if rules is None else rules:
        if rule.subject != context.subject:
            continue
        # The subject says which of the contexts the function takes.
        find = cast("Callable[[object], Iterable[Violation]]", rule.find)
        try:
            findings += [LintFinding(rule, violation) for violation in find(context)]
        except Exception as error:
            plugin = None if rule.code.startswith("TDX") else _plugin_rules().get(rule)
            if plugin is None:
                raise
            failure = plugin.error(f"failed ({rule.code}): {summarize_error(error)}")
            disable_plugin(plugin, failure)

    def position(finding: LintFinding) -> tuple[bool, int, str]:
        stage = finding.violation.stage
        return stage is None, stage or 0, finding.rule.code

    return sorted(findings, key=position)


def build_lint_context(
    pipeline: Pipeline,
    env: TransformedEnv | None = None,
    *,
    policy: nn.Module | None = None,
    spec_violations: Sequence[SpecViolation] = (),
) -> LintContext:
    """Prepare a pipeline for the rules, with its env and policy as far as they could be made."""
    transforms = [] if env is None else list(env.stages)
    is_built = env is not None and len(transforms) == len(pipeline.transforms)
    specs = _stage_key_specs(env) if env is not None and is_built else []
    stages = []
    for index, config in enumerate(pipeline.transforms):
        before, after = (specs[at] if at < len(specs) else None for at in (index, index + 1))
        info = None if config.code else load_catalog().find(config.name)
        transform = transforms[index] if is_built else None
        stages.append(LintStage(index, config, info, transform, before, after))
    return LintContext(pipeline, stages, env, policy, spec_violations)


def _stage_key_specs(env: TransformedEnv) -> list[KeySpecs]:
    """Return the specs before the chain and after each stage, up to the first failure.

    The failure is not lost: :func:`~tdx.pipeline.check_specs` computes the same specs of the whole
    chain, and reports the error with its stage.
    """
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
        return [KeySpecs.of(part.input_spec, part.output_spec) for part in specs[-length - 1 :]]
    return []


def import_policy(pipeline: Pipeline, allow_code: bool) -> nn.Module | None:
    """Import the policy of a pipeline if it is Python code.

    Returns:
        The module, or what a function or class returns when called without arguments. ``None`` if
        the pipeline names no code, importing is not allowed, or the object is not a module.
    """
    reference = parse_policy(pipeline.policy).reference if pipeline.policy else None
    if reference is None or not allow_code:
        return None
    from torch import nn

    from tdx.pipeline.arguments import ValueResolver

    policy = ValueResolver(allow_code).import_object(reference)
    if not isinstance(policy, nn.Module) and callable(policy):
        try:
            policy = policy()
        except Exception:
            # A plain function of a TensorDict has no keys to check.
            return None
    return policy if isinstance(policy, nn.Module) else None
