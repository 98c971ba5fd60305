"""Arguments in a file that name other files, modules or addresses."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tdx.cli.process import run
from tdx.foundation.errors import CodeNotAllowedError
from tdx.pipeline import Pipeline, build_checked_env, check_arguments, read_pipeline, write_pipeline
from tdx.pipeline.editing.forms import set_argument, set_env_field
from tdx.pipeline.model import EnvConfig
from tdx.pipeline.values import StageConfig

REFERENCES = (
    *("/etc/passwd", "~/secret", "secret/file", "..", ".netrc", "ant.xml", "C:\\secret"),
    *("this.Zen", "package.module:name", "module:name", "https://example.org", "localhost:8080"),
)
ORDINARY = (
    *("rgb_array", "human", "4x4", "v5", "v1.2", "0.5", "-1e-3", "1.0.0", "Discrete", "cuda:0"),
    *("", "Open the door. Then stop.", "MiniGrid-Empty-v0", "C++", "a=b"),
)


def of_file(env: Mapping[str, Any] | None = None, *stages: StageConfig) -> Pipeline:
    """Return a pipeline as it is read from a file."""
    config = EnvConfig("Pendulum-v1", kwargs=env or {})
    return read_pipeline(write_pipeline(Pipeline(config, stages)), "p.yaml")


def messages(pipeline: Pipeline, allow_code: bool = False) -> list[str]:
    errors = check_arguments(pipeline, allow_code)
    assert all(isinstance(error, CodeNotAllowedError) and error.hint for error in errors)
    return [error.message for error in errors]


@pytest.mark.parametrize("text", REFERENCES)
@pytest.mark.parametrize("nest", [lambda x: x, lambda x: (1, x), lambda x: {"a": {"b": (x,)}}])
def test_references_in_a_file_need_permission(text: str, nest: Any) -> None:
    pipeline = of_file({"g": 9.8, "option": nest(text)})
    (message,) = messages(pipeline)
    assert "env.kwargs option" in message
    assert repr(text) in message
    assert messages(pipeline, allow_code=True) == []
    with pytest.raises(CodeNotAllowedError):
        build_checked_env(pipeline)


def test_keys_of_a_file_may_be_references() -> None:
    assert len(messages(of_file({"option": {"this.Zen": 1}}))) == 1


@pytest.mark.parametrize("name", ["xml_file", "path", "MAP_DIR", "config_url", "module", "files"])
def test_name_of_an_argument_tells_that_it_is_a_reference(name: str) -> None:
    assert len(messages(of_file({name: "ant"}))) == 1
    assert len(messages(of_file({"option": {name: ("ant",)}}))) == 1


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_texts_need_no_permission(text: str) -> None:
    assert messages(of_file({"render_mode": text, "profile": {"a": (text,)}})) == []


def test_user_may_name_files() -> None:
    typed = Pipeline(EnvConfig("Pendulum-v1", kwargs={"xml_file": "/etc/passwd"}))
    assert messages(typed) == []


def test_edited_settings_of_a_file_keep_their_origin() -> None:
    pipeline = of_file({"xml_file": "/etc/passwd"}, StageConfig("R3MTransform", ("resnet18", True)))
    env = set_env_field(set_env_field(pipeline.env, "seed", "3"), "num_envs", "2")
    assert len(messages(replace(pipeline.with_stages(), env=env))) == 1
    changed = replace(pipeline, env=set_env_field(env, "kwargs", "xml_file='/etc/passwd'"))
    assert messages(changed.with_stages()) == []
    stage = StageConfig("R3MTransform", (), {"model_name": "resnet18", "download": True})
    (stage,) = of_file({}, stage).transforms
    assert len(messages(Pipeline.of("Pendulum-v1", set_argument(stage, "size", "64")))) == 1


def r3m(**arguments: Any) -> StageConfig:
    return StageConfig("R3MTransform", (), {"model_name": "resnet18", **arguments})


@pytest.mark.parametrize("path", ["/tmp", "..", "a/../../b", "~", "~root/x", "link", "link/x"])
@pytest.mark.parametrize("nested", [False, True])
def test_paths_of_stages_are_confined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, nested: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    os.symlink("/etc", "link")
    stage = r3m(download_path=path)
    if nested:
        text = f"Compose(R3MTransform('resnet18', download_path={path!r}))"
        (stage,) = Pipeline.of("Pendulum-v1", text).transforms
    pipeline = of_file({}, stage)
    (message,) = messages(pipeline)
    assert message == f"download_path is {path!r}, which is outside the current folder"
    assert messages(pipeline, allow_code=True) == []
    assert messages(Pipeline.of("Pendulum-v1", stage)) == []


def test_paths_below_the_current_folder_are_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert messages(of_file({}, r3m(download_path="weights/r3m.pt"))) == []


@pytest.mark.parametrize("download", [True, "IMAGENET1K_V1"])
def test_download_needs_permission(download: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = of_file({}, r3m(download=download))
    (message,) = messages(pipeline)
    assert "downloads are not allowed" in message
    assert messages(pipeline, allow_code=True) == []
    assert messages(of_file({}, r3m(download=False))) == []


def test_option_allows_downloads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    def refuse(url: str, **kwargs: Any) -> None:
        asked.append(url)
        raise OSError("no network")

    monkeypatch.setattr("urllib.request.urlopen", refuse)
    monkeypatch.chdir(tmp_path)
    env = EnvConfig("Pendulum-v1", from_pixels=True)
    pipeline = Pipeline(env, (r3m(download=True, download_path="weights"),))
    (tmp_path / "p.yaml").write_text(write_pipeline(pipeline))
    assert run(["check", "p.yaml"]) == 1
    assert "add --allow-download" in capsys.readouterr().out
    assert not (tmp_path / "weights").exists()
    assert asked == []
    run(["check", "p.yaml", "--allow-download"])
    assert "cannot download" in capsys.readouterr().err
    assert len(asked) > 0
    assert "TDX_ALLOW_DOWNLOAD" not in os.environ
