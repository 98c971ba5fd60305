"""Lint rules: their examples, further violations, and chains without findings."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tdx.foundation.errors import MissingPackageError, TdxError
from tdx.foundation.text import unwrap_paragraphs
from tdx.inspection.check_report import check_pipeline, fix_pipeline
from tdx.inspection.explanations import all_explanations
from tdx.inspection.lint.linter import (
    LintFinding,
    all_rules,
    build_lint_context,
    import_policy,
    lint,
)
from tdx.inspection.lint.rule import EXAMPLE_MODULE, Rule
from tdx.inspection.stack_check import check
from tdx.pipeline import EnvConfig, Pipeline, PipelineFile, check_arguments
from tdx.pipeline.build import assemble_env
from tdx.stacks.building import open_target
from tests.programs import exhaustive, sampled

PAGE = Path(__file__).parents[3] / "docs" / "contributing.md"
SAMPLES = sorted((Path(__file__).parents[3] / "sample_pipelines").glob("*.yaml"))
KNOWN_SUGGESTIONS = {"pendulum.yaml": ["TDX422"]}
PIXELS = EnvConfig("CartPole-v1", from_pixels=True)
PENDULUM = EnvConfig("Pendulum-v1")
CARTPOLE = EnvConfig("CartPole-v1")
STACK = 'CatFrames(4, dim=-1, in_keys=["observation"])'
NORM = 'ObservationNorm(0.0, 0.5, in_keys=["observation"])'
PERMUTE_BACK = 'PermuteTransform([-2, -1, -3], in_keys=["pixels"])'
PERMUTE = 'PermuteTransform([-1, -3, -2], in_keys=["pixels"])'


@pytest.fixture
def write_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[Rule], None]]:
    """Write the module that the examples of a rule import."""

    def write(rule: Rule) -> None:
        sys.modules.pop(EXAMPLE_MODULE, None)
        (tmp_path / f"{EXAMPLE_MODULE}.py").write_text(rule.python or "")
        monkeypatch.syspath_prepend(str(tmp_path))

    yield write
    sys.modules.pop(EXAMPLE_MODULE, None)


def run_lint(pipeline: Pipeline, *, steps: bool = False) -> list[LintFinding]:
    """Return the findings; rules see only the text if the env cannot be built."""
    from tdx.core.spec_check import find_spec_violations

    assert not check_arguments(pipeline, allow_code=True)
    policy = import_policy(pipeline, allow_code=True)
    try:
        env = assemble_env(pipeline, allow_code=True)
    except MissingPackageError as error:
        pytest.skip(str(error))
    except TdxError:
        return lint(build_lint_context(pipeline, policy=policy))
    violations = find_spec_violations(env) if steps else []
    try:
        return lint(build_lint_context(pipeline, env, policy=policy, spec_violations=violations))
    finally:
        env.close()


def codes(pipeline: Pipeline) -> list[str]:
    return [finding.rule.code for finding in run_lint(pipeline)]


PIPELINE_RULES = [rule for rule in all_rules() if rule.subject == "pipeline"]
STACK_RULES = [rule for rule in all_rules() if rule.subject == "stack"]
DEVICE_RULES = [rule for rule in all_rules() if rule.subject == "device"]


@pytest.mark.parametrize("rule", DEVICE_RULES, ids=lambda rule: rule.code)
@exhaustive
def test_examples_of_a_rule_about_accelerators(
    rule: Rule,
    write_module: Callable[[Rule], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_module(rule)
    monkeypatch.chdir(tmp_path)
    right, wrong = (
        check_pipeline(rule.example(which), allow_code=True, accelerator=True).findings
        for which in ("right", "wrong")
    )
    assert right == ()
    assert [(each.code, each.where.stage) for each in wrong] == [(rule.code, 0)]
    if rule.python is not None and rule.code != "TDX703":
        # The line of the code, since no file of a pipeline has one.
        assert wrong[0].where.file == f"{EXAMPLE_MODULE}.py"
        assert wrong[0].where.line is not None


@exhaustive
def test_check_for_finite_values_is_removed_by_an_unsafe_fix_only() -> None:
    pipeline = Pipeline.of("tdx/Pendulum", "FiniteTensorDictCheck", "RewardSum")
    without = Pipeline.of("tdx/Pendulum", "RewardSum")
    fix = partial(fix_pipeline, pipeline, accelerator=True)
    assert fix(strict=True).pipeline == without
    assert fix(strict=True, unsafe=False).pipeline == pipeline
    # The wait is what the stage is for, so that its removal is a suggestion.
    assert fix().pipeline == pipeline
    # Without the simulated device, nothing is known of its waits.
    assert fix_pipeline(pipeline).pipeline == pipeline


@pytest.mark.parametrize("rule", STACK_RULES, ids=lambda rule: rule.code)
@sampled(5)
def test_examples_of_a_stack_rule(rule: Rule, write_module: Callable[[Rule], None]) -> None:
    write_module(rule)
    found = {}
    for which in ("wrong", "right"):
        stack = open_target(EnvConfig(f"{EXAMPLE_MODULE}:{which}"), allow_code=True)
        evaluation = "--eval" in rule.wrong
        found[which] = check(stack, seed=0, evaluation=evaluation).findings
        stack.close()
    assert found["right"] == ()
    assert [(each.code, each.severity) for each in found["wrong"]] == [(rule.code, rule.severity)]
    assert all("\n" not in each.message for each in found["wrong"])


@pytest.mark.parametrize("rule", PIPELINE_RULES, ids=lambda rule: rule.code)
def test_examples_of_a_rule(rule: Rule, write_module: Callable[[Rule], None]) -> None:
    write_module(rule)
    right = run_lint(rule.example("right"), steps=rule.uses_spec_violations)
    assert [finding.rule.code for finding in right if finding.rule.severity != "suggestion"] == []
    assert rule.code not in [finding.rule.code for finding in right]
    wrong = run_lint(rule.example("wrong"), steps=rule.uses_spec_violations)
    assert [finding.rule.code for finding in wrong] == [rule.code]
    for finding in wrong:
        assert "\n" not in finding.violation.message
        if finding.violation.fix is not None:
            assert codes(finding.violation.fix.applied_to(rule.example("wrong"))) == []


@exhaustive
def test_rule_of_the_page_about_contributing_reads_a_fact_of_its_own(
    write_module: Callable[[Rule], None],
) -> None:
    page = PAGE.read_text(encoding="utf-8")
    source = page[page.index('"""TDX400') : page.index("```", page.index('"""TDX400'))]
    module: dict[str, Any] = {"__name__": "repeats"}
    exec(compile(source, str(PAGE), "exec"), module)
    rule = module["frozen_observation"]
    assert rule.code not in {each.code for each in all_rules()}
    write_module(rule)
    found = {}
    for which in ("wrong", "right"):
        stack = open_target(EnvConfig(f"{EXAMPLE_MODULE}:{which}"), allow_code=True)
        found[which] = check(stack, seed=0, rules=[rule, *STACK_RULES]).findings
        stack.close()
    assert [(finding.code, finding.where.stage) for finding in found["wrong"]] == [("TDX400", 3)]
    assert found["right"] == ()


def test_a_rule_must_name_the_facts_that_it_reads(write_module: Callable[[Rule], None]) -> None:
    rule = next(rule for rule in STACK_RULES if rule.code == "TDX405")
    write_module(rule)
    stack = open_target(EnvConfig(f"{EXAMPLE_MODULE}:wrong"), allow_code=True)
    with pytest.raises(LookupError, match="RewardPairs"):
        check(stack, seed=0, rules=[replace(rule, facts=())])
    stack.close()


def test_rules_are_complete_and_unique() -> None:
    rules = all_rules()
    assert len({rule.code for rule in rules}) == len(rules) > 0
    assert len({rule.slug for rule in rules}) == len(rules)
    assert len({each.code for each in all_explanations()}) == len(all_explanations())
    for rule in rules:
        assert rule.code.startswith("TDX7" if rule.subject == "device" else "TDX4")
        assert rule.title
        assert all(len(paragraph) > 20 for paragraph in unwrap_paragraphs(rule.why))


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.name)
def test_sample_pipelines_have_no_findings(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(path.parent))
    pipeline = PipelineFile.load(path).pipeline
    assert codes(pipeline) == KNOWN_SUGGESTIONS.get(path.name, [])


@pytest.mark.parametrize(
    ("env", "stages", "expected"),
    [
        (PENDULUM, ["CatFrames(4, dim=-3)", "StepCounter(max_steps=5)"], "TDX413"),
        (
            PENDULUM,
            ['ObservationNorm(0.0, 2.0, in_keys=["episode_reward"])', "RewardSum"],
            "TDX413",
        ),
        (PENDULUM, ['ExcludeTransform("observation")', NORM], "TDX414"),
        (PENDULUM, ['SelectTransform("observation", keep_rewards=False)'], "TDX417"),
        (PENDULUM, ['SelectTransform("observation", "done", keep_dones=False)'], "TDX418"),
        (PENDULUM, ["RewardSum", 'ExcludeTransform("reward", "truncated")'], "TDX417"),
        (PENDULUM, ["VecNorm", "RewardSum"], "TDX422"),
        (
            PIXELS,
            [PERMUTE, "DTypeCastTransform(torch.uint8, torch.float32)", "Resize(64)"],
            "TDX431",
        ),
        (PIXELS, ["CatFrames(4, dim=-1)", "ToTensorImage", "GrayScale"], "TDX441"),
        (PIXELS, ["CatFrames(4, dim=-3)"], "TDX435"),
        (PENDULUM, [NORM, NORM], "TDX445"),
        (EnvConfig("Pendulum-v1", {"max_episode_steps": -1}), ["StepCounter"], "TDX451"),
        (EnvConfig("Pendulum-v1", {"max_episode_steps": 9}), ["StepCounter(10)"], "TDX452"),
        (PENDULUM, ["StepCounter", "StepCounter(max_steps=5)"], "TDX453"),
        (PENDULUM, ["DTypeCastTransform(torch.float32, torch.float64)"], "TDX461"),
        (PENDULUM, ['DeviceCastTransform("cpu")'], "TDX463"),
        (CARTPOLE, ["ActionDiscretizer(5)"], "TDX472"),
        (CARTPOLE, ["RewardClipping"], "TDX491"),
        (PENDULUM, ["FrameSkipTransform"], "TDX491"),
        (PENDULUM, ['SqueezeTransform(-1, in_keys=["observation"])'], "TDX491"),
        (PIXELS, ["ToTensorImage", "Resize(400, 600)"], "TDX491"),
        (
            PENDULUM,
            ['RenameTransform(["observation"], ["a"])', 'RenameTransform(["a"], ["observation"])'],
            "TDX492",
        ),
        (PIXELS, [PERMUTE, PERMUTE_BACK], "TDX492"),
        (PENDULUM, ["RewardSum", "RewardSum"], "TDX493"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_other_violations_of_a_rule(env: EnvConfig, stages: list[str], expected: str) -> None:
    assert expected in codes(Pipeline.of(env, *stages))


@pytest.mark.parametrize(
    ("env", "stages"),
    [
        (PENDULUM, ["StepCounter"]),
        (PENDULUM, ["RewardSum", "RewardClipping(-1, 1)"]),
        (PENDULUM, ["RewardScaling(0.5, 2.0)", "BinarizeReward"]),
        (PENDULUM, ['CatFrames(4, dim=-1, in_keys=["observation"], out_keys=["stack"])', NORM]),
        (PENDULUM, ['CatFrames(4, dim=-1, in_keys=["observation"], as_inverse=True)', NORM]),
        (PENDULUM, [STACK, 'VecNorm(in_keys=["observation"])']),
        (PENDULUM, ['ExcludeTransform("observation")']),
        (PENDULUM, ["StepCounter", 'ExcludeTransform("step_count")']),
        (PENDULUM, ["InitTracker", 'InitTracker("begins")']),
        (PENDULUM, ["ActionScaling", "ActionDiscretizer(5)", "StepCounter(max_steps=200)"]),
        (PENDULUM, ["FrameSkipTransform(4)", STACK, "StepCounter(max_steps=1000)"]),
        (PENDULUM, ['TensorDictPrimer({"goal": Unbounded(shape=(3,))})']),
        (PENDULUM, ['DTypeCastTransform(torch.float32, torch.float64, in_keys=["reward"])']),
        (PIXELS, ["ToTensorImage", "GrayScale", "Resize(64)", "CatFrames(4, dim=-3)"]),
        (PIXELS, ["ToTensorImage", PERMUTE_BACK, "ToTensorImage(from_int=False)"]),
        (EnvConfig("CartPole-v1", num_envs=3), [STACK, "RewardSum", "InitTracker"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_chains_without_findings(env: EnvConfig, stages: list[str]) -> None:
    assert codes(Pipeline.of(env, *stages)) == []
