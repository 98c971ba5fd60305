"""Packages that register envs on import: only the right one is imported, a broken one is named."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import gymnasium
import pytest

from tdx.envs.gym import providers, registry
from tdx.envs.gym.providers import Provider
from tdx.envs.gym.registry import find_env, survey_envs
from tdx.foundation.errors import EnvNotFoundError, MissingPackageError
from tdx.inspection.doctor import _check_envs
from tdx.inspection.envs import find_envs
from tests.programs import exhaustive

REGISTERS = """
import sys, warnings
import gymnasium
print("a banner")
print("a notice", file=sys.stderr)
warnings.warn("a warning")
gymnasium.register({id!r}, entry_point="gymnasium.envs.classic_control.pendulum:PendulumEnv")
"""

Install = Callable[[str, str, str], None]


@pytest.fixture
def install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str, str, str], None]]:
    """Return a function that adds a package with a module, a form of ids, and code."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    known = dict(gymnasium.registry)
    made: list[Provider] = []

    def install(module: str, ids: str, code: str) -> None:
        (tmp_path / f"{module}.py").write_text(code)
        made.append(Provider(module, module.replace("_", "-"), ids))
        for place in (providers, registry):
            monkeypatch.setattr(place, "PROVIDERS", tuple(made))

    yield install
    for provider in made:
        sys.modules.pop(provider.module, None)
    gymnasium.registry.clear()
    gymnasium.registry.update(known)


def test_only_the_package_of_the_id_is_imported(install: Install) -> None:
    install("first_envs", "First-", REGISTERS.format(id="First-v0"))
    install("second_envs", "Second-", REGISTERS.format(id="Second-v0"))
    assert find_env("Second-v0").id == "Second-v0"
    assert "second_envs" in sys.modules
    assert "first_envs" not in sys.modules


def test_id_of_unknown_form_is_found(install: Install) -> None:
    install("second_envs", "Second-", REGISTERS.format(id="Plain-v0"))
    assert find_env("Plain-v0").id == "Plain-v0"


def test_output_of_an_import_is_logged(
    install: Install, capfd: pytest.CaptureFixture[str], log_records: list[logging.LogRecord]
) -> None:
    install("first_envs", "First-", REGISTERS.format(id="First-v0"))
    logger = logging.getLogger("tdx.envs.gym.providers")
    logger.setLevel(logging.INFO)
    try:
        find_env("First-v0")
    finally:
        logger.setLevel(logging.NOTSET)
    assert capfd.readouterr() == ("", "")
    logged = "".join(record.getMessage() for record in log_records)
    assert "a banner" in logged
    assert "a notice" in logged


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("raise ImportError('libGL.so.1 is missing')", "ImportError: libGL.so.1 is missing"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("raise SystemExit(3)", "SystemExit: 3"),
    ],
)
def test_a_broken_package_is_not_an_unknown_id(install: Install, code: str, reason: str) -> None:
    install("broken_envs", "Broken-", code)
    with pytest.raises(MissingPackageError) as caught:
        find_env("Broken-v0")
    assert str(caught.value) == (
        f"env Broken-v0: broken-envs is installed, but cannot be imported: {reason} "
        "(pip install --force-reinstall broken-envs)"
    )


def test_unknown_id_names_the_broken_package(install: Install) -> None:
    install("broken_envs", "Broken-", "1 / 0")
    with pytest.raises(
        EnvNotFoundError, match=r"if broken-envs provides it: pip install --force-re"
    ):
        find_env("nothing of a known form")
    with pytest.raises(EnvNotFoundError, match=r"did you mean Pendulum-v1"):
        find_env("Pendulm-v1")


def test_broken_package_does_not_hide_others(install: Install) -> None:
    install("broken_envs", "Broken-", "1 / 0")
    install("second_envs", "Second-", REGISTERS.format(id="Second-v0"))
    survey = survey_envs()
    assert [broken.provider.package for broken in survey.broken] == ["broken-envs"]
    found = find_envs("Second-v0")
    assert [env.id for env in found.envs] == ["Second-v0"]
    assert found.broken[0].reason == "ZeroDivisionError: division by zero"


def test_the_doctor_reports_a_broken_package(install: Install) -> None:
    install("broken_envs", "Broken-", "1 / 0")
    (found,) = (each for each in _check_envs() if each.name == "broken-envs")
    assert found.status == "warn"
    assert "ZeroDivisionError: division by zero" in found.value
    assert found.hint == "pip install --force-reinstall broken-envs"


@exhaustive
def test_list_envs_warns_of_a_broken_package(tmp_path: Path) -> None:
    (tmp_path / "minigrid.py").write_text("raise ImportError('half of it is missing')")
    code = "import sys; from tdx.cli import main; sys.exit(main())"
    path = [str(tmp_path), *sys.path]
    ran = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:] = {path!r}\n{code}", "list", "envs"],
        env={"XDG_CACHE_HOME": str(tmp_path), "HOME": str(tmp_path), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert ran.returncode == 0, ran.stderr
    assert "Pendulum-v1" in ran.stdout
    assert ran.stderr == (
        "warning: minigrid is installed, but cannot be imported: "
        "ImportError: half of it is missing (pip install --force-reinstall minigrid)\n"
    )
    # The next command tries again: the package may have been repaired.
    assert not list(tmp_path.rglob("envs.json"))
