"""The lineage computed from declarations and specs matches the versions of a step."""

from __future__ import annotations

import pytest
from tensordict import TensorDict

from tdx.core import StepTrace, Tracer, TransformedEnv
from tdx.inspection.lineage import inspect_keys
from tests.transforms.contract.examples import example_of, made
from tests.transforms.fixed_rollouts import FixedActions


@pytest.mark.parametrize("which", ["arguments", "nested"])
def test_lineage_matches_the_versions_of_a_step(name: str, which: str) -> None:
    example = example_of(name)
    base = example.rows() if which == "arguments" else example.groups()
    env = TransformedEnv(base, made(name, which))
    declared = {
        (version.lane, version.name): str(version.writer)
        for version in inspect_keys(env).versions
        if version.writer.kind == "stage"
    }
    tracer = Tracer(env)
    tracer.reset()
    action = FixedActions(env)(TensorDict(batch_size=env.batch_size))
    assert declared == seen(tracer.step(action), inputs(env))


def seen(trace: StepTrace, inputs: set[object]) -> dict[tuple[str, str], str]:
    """Return the versions that stages wrote, or, for the inverse, those of the env inputs."""
    return {
        (version.lane, version.name): stage.place
        for stage in trace.stages
        if stage.kind == "stage"
        for key, version in stage.written.items()
        if stage.direction == "forward" or key in inputs
    }


def inputs(env: TransformedEnv) -> set[object]:
    """Return the keys that the inner env reads."""
    return {*env.base_env.action_keys}
