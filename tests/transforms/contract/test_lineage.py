"""The lineage that follows from declarations and specs is what happens in a step."""

from __future__ import annotations

import pytest

from tdx.core import StepTrace, Tracer, TransformedEnv
from tdx.inspection.lineage import inspect_keys
from tests.transforms.contract.examples import example_of, made


@pytest.mark.parametrize("which", ["arguments", "nested"])
def test_versions_and_writers_are_those_of_a_step(name: str, which: str) -> None:
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
    assert declared == seen(tracer.step(), inputs(env))


def seen(trace: StepTrace, inputs: set[object]) -> dict[tuple[str, str], str]:
    """Versions that stages wrote; in the inverse direction, those of the env's inputs."""
    return {
        (version.lane, version.name): stage.place
        for stage in trace.stages
        if stage.kind == "stage"
        for key, version in stage.written.items()
        if stage.direction == "forward" or key in inputs
    }


def inputs(env: TransformedEnv) -> set[object]:
    """The keys of what the env inside takes."""
    return {*env.base_env.action_keys}
