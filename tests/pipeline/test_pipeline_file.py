"""Pipeline files: what is accepted and refused, and that edits keep comments."""

from __future__ import annotations

import errno
import io
import json
import os
import stat
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tdx.foundation.errors import ArgumentError, PipelineError
from tdx.pipeline import (
    EnvConfig,
    Pipeline,
    PipelineFile,
    RolloutConfig,
    StageConfig,
    parse_stage,
    read_pipeline,
)
from tdx.pipeline.arguments import name_arguments
from tdx.pipeline.editing import Draft
from tests.pipeline.strategies import PIPELINES, STAGES, exactly
from tests.programs import examples

TEXT = """\
# a pipeline
version: 1

env:  # where
  id: 'Pendulum-v1'   # quoted
  kwargs: {g: 9.8}

# the chain
transforms:
  # counts
  - StepCounter: {max_steps: 200}  # at the end
  - RewardSum   # bare

  # stacks
  # of frames
  - CatFrames:
      N: 4   # four
      in_keys:
        - 'observation'   # quoted too
      # inside
      dim: -1
  - 'RewardClipping(-1, 1)'

# the end
policy: random  # p
"""


def stage_lines(text: str) -> str:
    return text.partition("transforms:\n")[2].partition("\n# the end")[0]


def test_reading() -> None:
    pipeline = read_pipeline(TEXT, "a.yaml")
    assert pipeline == Pipeline(
        EnvConfig("Pendulum-v1", {"g": 9.8}),
        (
            StageConfig("StepCounter", (), {"max_steps": 200}),
            StageConfig("RewardSum"),
            StageConfig("CatFrames", (), {"N": 4, "in_keys": ("observation",), "dim": -1}),
            StageConfig("RewardClipping", (-1, 1)),
        ),
        policy="random",
    )
    assert [stage.line for stage in pipeline.transforms] == [11, 12, 16, 22]
    assert pipeline.file == "a.yaml"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "",
            "f.yaml:1: this is not a pipeline file (write a map with version, env and transforms)",
        ),
        (
            "- a",
            "f.yaml:1: this is not a pipeline file (write a map with version, env and transforms)",
        ),
        (
            "a: [",
            "f.yaml:1:5: not YAML: expected the node content, but found '<stream end>'"
            " (correct the file here; `tdx init` writes one to compare with)",
        ),
        (
            "version: 1\nenv:\n\tid: 3",
            "f.yaml:3:1: not YAML: found character '\\t' that cannot start any token"
            " (indent with spaces, not tabs)",
        ),
        (
            "version: 1\nenv: *foo",
            "f.yaml:2:6: not YAML: found undefined alias 'foo'"
            " (define it before as &name, or put the value in quotes)",
        ),
        (
            "version: 1\nenv: x\n---\na: 1",
            "f.yaml:3:1: not YAML: expected a single document in the stream,"
            " but found another document (keep one document, without --- between)",
        ),
        (
            "\x00",
            "f.yaml:1:1: not YAML: unacceptable character #x0000:"
            " special characters are not allowed (remove the control character)",
        ),
        ("env: x", "f.yaml: the file has no version (add version: 1)"),
        (
            "version: 2\nenv: x",
            "f.yaml:1:1: version 2 of the file format is unknown"
            " (a newer tdx wrote the file: upgrade tdx)",
        ),
        ("version: one\nenv: x", 'f.yaml:1:1: version must be 1, got "one" (write version: 1)'),
        ("version: 1", "f.yaml:1: the pipeline has no env (add env: with an id)"),
        ("version: 1\nenvs: 3", "f.yaml:2:1: a pipeline file has no key envs (did you mean env?)"),
        ("version: 1\nenv: {idd: 3}", "f.yaml:2:7: env has no key idd (did you mean id?)"),
        ("version: 1\nenv: {}", "f.yaml:2:1: env has no id (add id: with the name of the env)"),
        (
            "version: 1\nenv: 3",
            "f.yaml:2:1: env must be a map with an id (write env: {id: Pendulum-v1})",
        ),
        (
            "version: 1\nenv: {id: x, num_envs: four}",
            'f.yaml:2:14: num_envs must be a whole number of at least 1, got "four"'
            " (write num_envs: 4, or leave it out)",
        ),
        (
            "version: 1\nenv: {id: x, worker_timeout: 0}",
            "f.yaml:2:14: worker_timeout must be a number of seconds above 0 and at most"
            " 10,000,000, got 0"
            " (write worker_timeout: 120, or leave it out)",
        ),
        (
            "version: 1\nenv: {id: x, batching: seriel}",
            "f.yaml:2:14: unknown batching 'seriel' (did you mean serial?)",
        ),
        (
            "version: 1\nenv: x\ntransforms:\n - S: {a: 2020-01-01}",
            "f.yaml:4:8, stage 0: 2020-01-01 is a date, not a value here"
            " (put it in quotes to make it a string)",
        ),
        (
            "version: 1\nenv: x\ntransforms:\n - S: {a: Foo(x)}",
            "f.yaml:4:8, stage 0: cannot read 'Foo(x)': the name x is not a literal"
            ' (put a string in quotes: "x")',
        ),
        (
            "version: 1\nenv: x\ntransforms:\n - A\n - S(",
            "f.yaml:5:4, stage 1: cannot read 'S(': '(' was never closed"
            " (write a stage as Name or Name(argument=value))",
        ),
        (
            "version: 1\nenv: x\ntransforms: [a: 1]",
            "f.yaml:3:14, stage 0: the arguments of a must be a map or a list"
            " (write - a: {argument: 1})",
        ),
        (
            "version: 1\nenv: x\ntransforms: [{a: {}, b: {}}]",
            "f.yaml:3:14, stage 0: a stage is a name, or a map with one name"
            " (write - Name, or - Name: {argument: value})",
        ),
        (
            "version: 1\nenv: x\ntransforms: A",
            'f.yaml:3:1: transforms must be a list of stages, got "A"'
            " (write transforms: [StepCounter, RewardSum], or leave it out)",
        ),
        (
            "version: 1\nenv: x\npolicy: 3",
            "f.yaml:3:1: policy must be the name of one, or mlp: with settings, got 3"
            " (write policy: random, or leave it out)",
        ),
        (
            "version: 1\nenv: x\nrollout: 3",
            "f.yaml:3:1: rollout must be a map, got 3"
            " (write rollout: {max_steps: 1000}, or leave it out)",
        ),
        (
            "version: 1\nenv: x\nrollout: {max_step: 3}",
            "f.yaml:3:11: rollout has no key max_step (did you mean max_steps?)",
        ),
    ],
)
def test_errors(text: str, message: str) -> None:
    with pytest.raises(PipelineError) as caught:
        read_pipeline(text, "f.yaml")
    error = caught.value
    # Messages that are given with their hint are compared with it.
    assert str(error).removesuffix("" if message.endswith(")") else f" ({error.hint})") == message
    assert error.hint


def test_a_duplicate_key_is_refused() -> None:
    with pytest.raises(
        PipelineError, match=r'^f.yaml:2:1: not YAML: found duplicate key "version"'
    ):
        read_pipeline("version: 1\nversion: 1", "f.yaml")


def test_aliases_cannot_expand_without_limit() -> None:
    levels = "\n".join(
        f"  b{level}: &b{level} [{f'*b{level - 1}, ' * 10}]" for level in range(1, 9)
    )
    text = f"version: 1\nenv:\n id: x\n kwargs:\n  b0: &b0 [1]\n{levels}\n"
    with pytest.raises(PipelineError, match="too many values"):
        read_pipeline(text, "f.yaml")


def test_a_move_keeps_every_comment() -> None:
    file = PipelineFile(TEXT)
    file.move(2, 0)
    assert (
        stage_lines(file.text)
        == """\
  # stacks
  # of frames
  - CatFrames:
      N: 4   # four
      in_keys:
        - 'observation'   # quoted too
      # inside
      dim: -1
  # counts
  - StepCounter: {max_steps: 200}  # at the end

  - RewardSum   # bare
  - 'RewardClipping(-1, 1)'
"""
    )
    file.move(0, 2)
    assert file.text == TEXT


def test_changing_one_argument_keeps_the_others() -> None:
    file = PipelineFile(TEXT)
    file.replace(2, parse_stage("CatFrames(N=5, in_keys=['observation'], dim=-1)"))
    assert file.text == TEXT.replace("N: 4   # four", "N: 5   # four")


def test_a_replacement_keeps_the_comments() -> None:
    file = PipelineFile(TEXT)
    file.replace(0, parse_stage("InitTracker"))
    assert file.text == TEXT.replace("StepCounter: {max_steps: 200}", "InitTracker")
    file.replace(1, parse_stage("RewardSum(in_keys=['a'])"))
    assert "  - RewardSum: {in_keys: [a]}  # bare\n" in file.text


def test_insert_and_remove() -> None:
    file = PipelineFile(TEXT)
    file.insert(1, parse_stage("InitTracker"))
    assert file.text == TEXT.replace("  - RewardSum ", "  - InitTracker\n  - RewardSum ")
    file.remove(1)
    assert file.text == TEXT
    file.remove(0)
    assert file.text == TEXT.replace(
        "  # counts\n  - StepCounter: {max_steps: 200}  # at the end\n", ""
    )


def test_the_last_stage_can_be_removed_and_added_again() -> None:
    file = PipelineFile(TEXT)
    while file.pipeline.transforms:
        file.remove(0)
    assert "transforms: []\n" in file.text
    file.insert(0, parse_stage("RewardSum"))
    assert "transforms:\n  - RewardSum\n" in file.text
    assert "# the end\npolicy: random  # p\n" in file.text


def test_an_update_edits_only_what_differs() -> None:
    file = PipelineFile(TEXT)
    old = file.pipeline
    env = replace(old.env, num_envs=4)
    file.update(replace(old, env=env, policy=None, rollout=RolloutConfig(max_steps=5)))
    wanted = TEXT.replace("  kwargs: {g: 9.8}\n", "  kwargs: {g: 9.8}\n  num_envs: 4\n")
    wanted = wanted.replace(
        "\n# the end\npolicy: random  # p\n", "rollout:\n  max_steps: 5\n\n# the end\n"
    )
    assert file.text == wanted


@pytest.mark.parametrize(
    "text",
    [
        "version: 1\nenv: x\ntransforms: [A, {B: {a: 1}}, C]\n",
        "version: 1\nenv: x\ntransforms:\n- A\n- B:\n    a: 1\n- C\n",
        "version: 1\nenv: x\ntransforms:\n-   A\n-\n  B: {a: 1}\n- C",
        "transforms:\n      - A\n      - B: {a: 1}\n      - C\nenv: x\nversion: 1\n",
        "{version: 1, env: x, transforms: [A, B: {a: 1}, C]}\n",
    ],
)
def test_every_layout_can_be_edited(text: str) -> None:
    file = PipelineFile(text)
    file.insert(3, StageConfig("D"))
    file.move(3, 0)
    file.replace(2, StageConfig("B", (), {"a": 2}))
    file.remove(1)
    assert file.pipeline.transforms == (
        StageConfig("D"),
        StageConfig("B", (), {"a": 2}),
        StageConfig("C"),
    )
    assert read_pipeline(file.text, "again") == file.pipeline


@settings(max_examples=examples(25))
@given(PIPELINES, st.lists(STAGES, max_size=4).map(tuple), st.integers(0, 9))
def test_any_pipeline_can_be_updated_to_any_other(
    pipeline: Pipeline, stages: tuple[StageConfig, ...], seed: int
) -> None:
    file = PipelineFile.new(pipeline)
    goal = replace(pipeline.with_stages(*stages), env=replace(pipeline.env, seed=seed))
    file.update(goal)
    wanted = goal.with_stages(*map(name_arguments, stages))
    found = [
        name_arguments(replace(stage, line=None, column=None)) for stage in file.pipeline.transforms
    ]
    assert exactly(found) == exactly(list(wanted.transforms))
    assert file.pipeline.env == wanted.env


@pytest.mark.parametrize("index", [-1, 4, 9])
def test_an_index_out_of_range_is_refused(index: int) -> None:
    with pytest.raises(ArgumentError, match=f"stage {index} does not exist"):
        PipelineFile(TEXT).remove(index)


def test_save_writes_the_same_bytes(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_bytes(TEXT.replace("\n", "\r\n").encode())
    path.chmod(0o640)
    file = PipelineFile.load(path)
    file.save()
    assert path.read_bytes() == TEXT.replace("\n", "\r\n").encode()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert os.listdir(tmp_path) == ["p.yaml"]


def test_a_failed_save_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(TEXT)
    file = PipelineFile.load(path)
    file.remove(0)

    def fail(*arguments: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(PipelineError, match="no space left on device"):
        file.save()
    assert path.read_text() == TEXT
    assert os.listdir(tmp_path) == ["p.yaml"]


def test_standard_input_and_output(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(TEXT))
    file = PipelineFile.load("-")
    assert file.pipeline.file == "<stdin>"
    file.save("-")
    assert capsys.readouterr().out == TEXT


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "no such file or directory"),
        (lambda path: path.mkdir(), "is a directory"),
        (lambda path: path.write_bytes(b"\xff\xfe\x00"), "is not a text file in UTF-8"),
        (lambda path: path.write_bytes(b"PK\x03\x04\xff"), "is a zip archive, not a pipeline"),
    ],
)
def test_unreadable_files_are_refused(tmp_path: Path, make: object, message: str) -> None:
    path = tmp_path / "p.yaml"
    assert callable(make)
    make(path)
    with pytest.raises(PipelineError, match=message):
        PipelineFile.load(path)


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (
            {":type:": "<class 'gymnasium.spaces.box.Box'>", "_shape": [4], "dtype": "float32"},
            "Box",
        ),
        ({":type:": "<class 'gymnasium.spaces.discrete.Discrete'>", "n": "2"}, r"Discrete\(2\)"),
        ({":type:": "<class 'gymnasium.spaces.dict.Dict'>"}, "Dict"),
        ({":type:": 3}, None),
        ([], None),
    ],
)
def test_a_model_names_its_spaces_and_the_command_that_opens_it(
    tmp_path: Path, space: object, expected: str | None
) -> None:
    path = tmp_path / "my model.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data", json.dumps({"observation_space": space, "action_space": space}))
        archive.writestr("policy.pth", b"\xff" * 64)
    message = "is a zip archive" if expected is None else f"observations in {expected}"
    with pytest.raises(PipelineError, match=message) as caught:
        PipelineFile.load(path)
    assert f"tdx tui ENV --policy 'sb3:{path}' --allow-code" in str(caught.value.hint)


PIECES = [
    "version: 1\n",
    "env: ",
    "x\n",
    "{id: x}\n",
    "transforms:",
    "\n  - ",
    "A",
    "A(1)",
    ": ",
    "[",
    "]",
]


@settings(max_examples=examples(100))
@given(st.lists(st.sampled_from([*PIECES, "{", "}", "&a ", "*a", "!t ", "- ", "# c", "'", "1"])))
def test_any_text_is_parsed_or_refused(pieces: list[str]) -> None:
    outcome = read_or_error("version: 1\nenv: x\n" + "".join(pieces))
    if isinstance(outcome, PipelineError):
        assert outcome.where.file == "f.yaml"
    else:
        assert outcome.env.id


def read_or_error(text: str) -> Pipeline | PipelineError:
    try:
        return read_pipeline(text, "f.yaml")
    except PipelineError as error:
        return error


OFF = """\
version: 1
env: Pendulum-v1
transforms:
  # off: InitTracker
  # counts
  - StepCounter
  # off: CatFrames(N=4, dim=-1)
  # off: RewardSum

  # off: no stage (
  - RewardClipping: [-1, 1]  # clips
policy: random
"""


def off_of(text: str) -> list[tuple[int, str]]:
    return [(each.before, each.stage.name) for each in read_pipeline(text, "a").off]


def test_a_disabled_stage_is_parsed_from_its_comment() -> None:
    pipeline = read_pipeline(OFF, "a.yaml")
    assert [stage.name for stage in pipeline.transforms] == ["StepCounter", "RewardClipping"]
    assert off_of(OFF) == [(0, "InitTracker"), (1, "CatFrames"), (1, "RewardSum")]
    draft = Draft.of(pipeline)
    assert [stage.enabled for stage in draft.stages] == [False, True, False, False, True]
    file = PipelineFile(OFF)
    file.update(draft.pipeline())
    assert file.text == OFF


def test_toggling_a_stage_keeps_comments() -> None:
    file = PipelineFile(OFF)
    file.update(Draft.of(file.pipeline).toggle(2).toggle(0).pipeline())
    assert off_of(file.text) == [(3, "RewardSum")]
    assert "  # counts\n  - StepCounter\n  - CatFrames: {N: 4, dim: -1}\n" in file.text
    assert "# off: no stage (\n" in file.text


NOTED = """\
version: 1
env: Pendulum-v1
transforms:
  # counts
  - StepCounter  # of the env's own steps

  - CatFrames:  # stacks
      N: 4
      # a "#" in a text is none
      dim: -1  # the last
      in_keys: ["a # b"]
  - RewardSum
"""


def test_toggling_a_stage_twice_keeps_its_comment() -> None:
    file = PipelineFile(NOTED)
    draft = Draft.of(file.pipeline)
    file.update(draft.toggle(0).toggle(1).pipeline())
    assert "  # counts\n  # off: StepCounter  # of the env's own steps\n\n" in file.text
    assert 'in_keys=["a # b"])  # stacks; a "#" in a text is none; the last\n' in file.text
    again = PipelineFile(file.text)
    assert [each.stage.name for each in again.pipeline.off] == ["StepCounter", "CatFrames"]
    edited = Draft.of(again.pipeline).remove(2).insert(2, [parse_stage("InitTracker")])
    again.update(edited.toggle(0).pipeline())
    assert "  # counts\n  - StepCounter  # of the env's own steps\n\n  # off: Cat" in again.text
    assert '# stacks; a "#" in a text is none; the last\n' in again.text
    assert again.pipeline.transforms[-1].name == "InitTracker"
    again.update(edited.toggle(0).toggle(1).pipeline())
    assert "  - CatFrames: {" in again.text
    assert '}  # stacks; a "#" in a text is none; the last\n' in again.text


@pytest.mark.parametrize("places", [[0], [1], [0, 1, 2], [2, 0]])
@pytest.mark.parametrize(
    "text",
    [
        "version: 1\nenv: Pendulum-v1\ntransforms: [RewardSum, StepCounter, InitTracker]\n",
        "version: 1\nenv: Pendulum-v1\ntransforms:\n- RewardSum\n\n- StepCounter\n- InitTracker\n",
    ],
)
def test_any_stages_can_be_toggled(text: str, places: list[int]) -> None:
    draft = Draft.of(read_pipeline(text, "a"))
    for place in places:
        draft = draft.toggle(place)
    file = PipelineFile(text)
    file.update(draft.pipeline())
    assert Draft.of(PipelineFile(file.text).pipeline) == draft
    assert Draft.of(PipelineFile.new(draft.pipeline()).pipeline) == draft
    for place in places:
        draft = draft.toggle(place)
    file.update(draft.pipeline())
    assert "# off" not in file.text
    assert Draft.of(PipelineFile(file.text).pipeline) == draft


def test_disabled_stages_keep_their_positions_during_edits() -> None:
    file = PipelineFile(OFF)
    file.remove(0)
    assert off_of(file.text) == [(0, "InitTracker"), (0, "CatFrames"), (0, "RewardSum")]
    file.insert(0, parse_stage("DoubleToFloat"))
    file.move(0, 1)
    assert [stage.name for stage in file.pipeline.transforms] == ["RewardClipping", "DoubleToFloat"]
    assert [name for _, name in off_of(file.text)] == ["InitTracker", "CatFrames", "RewardSum"]


@pytest.mark.parametrize(
    ("number", "hint"),
    [
        (errno.EACCES, "check its permissions"),
        (errno.EIO, "check the disk, and the messages of the system"),
        (errno.ENOENT, "check the path; - reads standard input"),
    ],
)
def test_hint_for_a_file_that_cannot_be_read(
    number: int, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("tdx.pipeline.file.pipeline_file.open", fail, raising=False)
    with pytest.raises(PipelineError) as raised:
        PipelineFile.load(tmp_path / "a.yaml")
    assert raised.value.hint == hint
