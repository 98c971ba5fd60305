"""Factories, envs and wrappers that do something unexpected, in each job and command."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

import tdx
from tdx.cli.process import run
from tdx.foundation.errors import EnvError, TdxError
from tdx.pipeline import EnvConfig, Pipeline
from tdx.stacks import open_stack
from tdx.stacks.building import build_stack
from tests.programs import sampled
from tests.stacks import bad_envs, bad_stacks
from tests.stacks.bad_envs import pendulum
from tests.stacks.comparing import attributes, methods

Job = Callable[[Any], Any]


def profile(env: Any) -> Any:
    with tdx.profile(env) as measured:
        env.reset(seed=0)
        env.step(env.action_space.sample())
    return measured.result


JOBS: dict[str, Job] = {
    "inspect": lambda env: tdx.inspect(env, steps=2, seed=0),
    "check": lambda env: tdx.check(env, seed=0, steps=2),
    "profile": profile,
    "trace": lambda env: tdx.trace(env).run(2),
}
COMMANDS: dict[str, list[str]] = {
    "inspect spec": ["inspect", "spec"],
    "inspect chain": ["inspect", "chain"],
    "inspect keys": ["inspect", "keys", "observation"],
    "inspect values": ["inspect", "values", "--steps", "2", "--seed", "0"],
    "check": ["check", "--seed", "0"],
    "profile": ["profile", "--steps", "2", "--repeat", "1", "--warmup", "0"],
}
jobs = pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
commands = pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)


def run_command(command: list[str], factory: str, **arguments: str) -> int:
    text = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
    options = ["--args", text] if arguments else []
    return run([*command, "--env", f"tests.stacks.{factory}", "--allow-code", *options])


UNUSUAL = ("Slotted", "Forwarding", "Raising", "AnyAttribute", "Guarded", "SoftReset")
"""Wrappers that work."""


@jobs
def test_wrappers_are_as_before_after_a_job(job: Job) -> None:
    for name in UNUSUAL:
        env = bad_envs.make(name)
        env.reset(seed=0)
        env.step(env.action_space.sample())
        before = methods(env), attributes(env)
        job(env)
        assert (methods(env), attributes(env)) == before, name
        env.close()


@jobs
def test_objects_are_as_before_after_a_job_that_fails(job: Job) -> None:
    for name in ("Failing", "Shared", "NoReset"):
        env = bad_envs.make(name)
        before = methods(env)
        # Errors of the user's code inside a block of `tdx.profile` stay as they are.
        expected = Exception if job is profile else TdxError
        if job in (JOBS["inspect"], JOBS["check"]):
            with suppress(expected):
                job(env)
        else:
            with pytest.raises(expected):
                job(env)
        assert methods(env) == before
        assert is_free(env)


def is_free(env: Any) -> bool:
    """Return True if another observer can be attached."""
    with open_stack(env).attach(lambda trace: None):
        return True


@jobs
def test_env_that_two_threads_step_is_named(job: Job) -> None:
    report = None
    try:
        report = job(bad_envs.make("Shared"))
    except EnvError as error:
        text = str(error)
    else:
        text = str(report.values.error)
    assert "thread" in text
    assert "stepped" in text
    assert "for each thread" in text or "of each thread" in text


def test_times_of_another_block_are_not_mixed_with_those_of_two_threads() -> None:
    env = pendulum()
    env.reset(seed=0)
    measured = tdx.profile(env)

    def step() -> None:
        env.step(env.action_space.sample())

    def step_in_two_threads() -> None:
        with measured:
            step()
            other = threading.Thread(target=step)
            other.start()
            other.join()

    with pytest.raises(EnvError, match="2 threads stepped Pendulum-v1"):
        step_in_two_threads()
    with measured:
        step()
    (mode,) = measured.result.modes
    assert mode.steps.tolist() == [1]


def test_thread_of_the_user_may_be_another_one() -> None:
    env = pendulum()
    env.reset(seed=0)
    with tdx.profile(env) as measured:
        other = threading.Thread(target=lambda: env.step(env.action_space.sample()))
        other.start()
        other.join()
    assert measured.result.modes[0].steps.tolist() == [1]


@pytest.mark.parametrize("job", [JOBS["inspect"], JOBS["check"], JOBS["trace"]])
def test_closed_env_is_refused(job: Job) -> None:
    with pytest.raises(EnvError, match="is closed") as caught:
        job(bad_envs.make_closed_vector())
    assert "create a new" in str(caught.value.hint)


def test_wrapper_that_swallows_the_first_reset_is_named() -> None:
    with pytest.raises(TdxError, match="ResetNeeded") as caught:
        tdx.trace(bad_envs.make("NoReset")).run(1)
    assert caught.value.hint == "2 NoReset did not pass the reset on to the env: correct it"


@pytest.mark.parametrize("factory", ["make_stepped", "make_ended"])
@jobs
def test_stepped_env_is_reset(factory: str, job: Job) -> None:
    assert job(getattr(bad_envs, factory)()) is not None


@commands
@pytest.mark.parametrize(
    ("factory", "code", "message"),
    [
        ("raises", 3, "raises() raised ValueError: no simulator"),
        ("exits", 3, "called sys.exit(3)"),
        ("returns_nothing", 3, "returns_nothing() returned nothing"),
        ("needs_arguments", 2, "needs_arguments() needs the arguments size, name"),
        ("make_closed_vector", 3, "make_closed_vector() returned a closed env"),
    ],
)
def test_factories_without_an_env(
    command: list[str], factory: str, code: int, message: str, capsys: Any
) -> None:
    assert run_command(command, f"bad_envs:{factory}") == code
    found = capsys.readouterr()
    assert found.out == ""
    (error,) = [line for line in found.err.splitlines() if line.startswith("error: ")]
    assert message in error
    assert "hint: " in found.err


@pytest.mark.parametrize(
    ("factory", "kwargs"),
    [
        ("raises", {}),
        ("returns_nothing", {}),
        ("needs_arguments", {"size": 1}),
        ("pendulum", {"color": "red"}),
        ("make_closed_vector", {}),
    ],
)
def test_a_factory_fails_in_the_same_way_with_and_without_a_chain(
    factory: str, kwargs: dict[str, Any]
) -> None:
    env = EnvConfig(f"tests.stacks.bad_envs:{factory}", kwargs=kwargs)
    errors = []
    for pipeline in (Pipeline.of(env), Pipeline.of(env, "RewardSum")):
        with pytest.raises(TdxError) as caught:
            build_stack(pipeline, allow_code=True)
        errors.append((type(caught.value), caught.value.message, caught.value.hint))
    assert errors[0] == errors[1]


@commands
@sampled(3)
def test_unusual_envs_are_accepted(command: list[str], capsys: Any) -> None:
    for kind in UNUSUAL:
        assert run_command(command, "bad_envs:make", kind=kind) == 0, kind
        assert "bad_envs:make" in capsys.readouterr().out
    for factory in ("bad_envs:make_stepped", "bad_envs:make_ended"):
        assert run_command(command, factory) == 0, factory
        assert factory in capsys.readouterr().out


@pytest.mark.parametrize(
    ("kind", "values", "check"),
    [
        ("Failing", "(Failing): it raised ValueError in a step: out of fuel", 1),
        ("NoReset", "2 NoReset did not pass the reset on", 1),
        ("Shared", "another thread stepped the env", 3),
    ],
)
def test_errors_in_steps_are_reported(kind: str, values: str, check: int, capsys: Any) -> None:
    assert run_command(COMMANDS["inspect values"], "bad_envs:make", kind=kind) in (2, 3)
    assert values in capsys.readouterr().err
    assert run_command(COMMANDS["check"], "bad_envs:make", kind=kind) == check
    capsys.readouterr()
    assert run_command(COMMANDS["profile"], "bad_envs:make", kind=kind) == 3
    assert "error: " in capsys.readouterr().err


@commands
def test_printed_text_goes_to_stderr(command: list[str], capsys: Any) -> None:
    assert run_command([*command, "--format", "json"], "bad_envs:make_printing") == 0
    found = capsys.readouterr()
    assert json.loads(found.out)
    assert "creating" in found.err
    assert "closing" in found.err


@commands
def test_processes_of_the_env_end_with_the_command(command: list[str]) -> None:
    assert run_command(command, "bad_envs:make_simulator") == 0
    (process,) = bad_envs.STARTED
    bad_envs.STARTED.clear()
    assert process.poll() == 0


STACK_JOBS = {name: job for name, job in JOBS.items() if name != "profile"}
UNUSUAL_STAGES = [
    *(("sb3", kind) for kind in ("Slotted", "Forwarding", "Raising")),
    *((library, kind) for library in ("torchrl", "tdx") for kind in ("Slotted", "Forwarding")),
]
LIBRARIES = ("sb3", "torchrl", "tdx")


@pytest.mark.parametrize("job", STACK_JOBS.values(), ids=STACK_JOBS)
@pytest.mark.parametrize(
    "make",
    [
        *(partial(bad_stacks.make, *stage) for stage in UNUSUAL_STAGES),
        *(partial(bad_stacks.make_stepped, library) for library in LIBRARIES),
    ],
    ids=lambda make: " ".join(make.args),
)
def test_unusual_stages_of_other_libraries(make: Callable[[], Any], job: Job) -> None:
    env = make()
    own = set(vars(env))
    assert job(env) is not None
    assert not {"step", "reset", "step_wait", "step_async"} & (set(vars(env)) - own)
    assert is_free(env)
    env.close()


@commands
@sampled(3)
def test_unusual_stages_of_other_libraries_in_commands(command: list[str], capsys: Any) -> None:
    for library, kind in UNUSUAL_STAGES:
        assert run_command(command, "bad_stacks:make", library=library, kind=kind) == 0, kind
        assert "bad_stacks:make" in capsys.readouterr().out
    for library in LIBRARIES:
        assert run_command(command, "bad_stacks:make_stepped", library=library) == 0, library
        assert "bad_stacks:make_stepped" in capsys.readouterr().out


@pytest.mark.parametrize("library", LIBRARIES)
def test_stage_that_fails_in_a_step_is_named_in_each_library(library: str, capsys: Any) -> None:
    env = bad_stacks.make(library, "Failing")
    with pytest.raises(TdxError, match="raised ValueError") as caught:
        tdx.trace(env).run(2)
    assert "Failing" in str(caught.value.where.transform)
    assert is_free(env)
    failing = partial(run_command, factory="bad_stacks:make", library=library, kind="Failing")
    assert failing(COMMANDS["inspect values"]) == 2
    assert "Failing" in capsys.readouterr().err
    assert failing(COMMANDS["check"]) == 1
    assert capsys.readouterr().out.count("TDX202") == 1
    assert failing(COMMANDS["profile"]) == 3
    assert "Failing" in capsys.readouterr().err


@pytest.mark.parametrize("library", ["torchrl", "tdx"])
def test_stage_that_swallows_a_reset_is_named(library: str, capsys: Any) -> None:
    env = {"library": library, "kind": "EmptyReset"}
    assert run_command(COMMANDS["check"], "bad_stacks:make", **env) == 1
    out = capsys.readouterr().out
    assert "EmptyReset" in out
    assert "the spec declares it, but it is missing after a reset" in out


def test_vec_env_wrapper_that_swallows_a_reset_is_named() -> None:
    with pytest.raises(TdxError, match="ResetNeeded") as caught:
        tdx.trace(bad_stacks.make("sb3", "NoReset")).run(1)
    assert caught.value.hint == "3 NoReset did not pass the reset on to the env: correct it"


@pytest.mark.parametrize("library", ["torchrl", "tdx"])
@commands
def test_closed_env_of_another_library(library: str, command: list[str], capsys: Any) -> None:
    assert run_command(command, "bad_stacks:make_closed", library=library) == 3
    assert "closed" in capsys.readouterr().err


@pytest.mark.parametrize("library", LIBRARIES)
def test_env_of_another_library_that_two_threads_step_is_named(library: str) -> None:
    env = bad_stacks.make(library, "Shared")
    with pytest.raises(EnvError, match="another thread stepped the env"):
        tdx.trace(env).run(1)
    assert is_free(env)


@pytest.mark.parametrize("library", ["torchrl", "tdx"])
def test_times_of_an_env_that_two_threads_step_are_refused(library: str, capsys: Any) -> None:
    command = [*COMMANDS["profile"], "--steps", "20"]
    assert run_command(command, "bad_stacks:make", library=library, kind="Shared") == 3
    assert "threads stepped" in capsys.readouterr().err
