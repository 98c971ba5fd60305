"""Run tests that are coroutines, without the settings of this machine."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from textual._compositor import Compositor
from textual.css.model import RuleSet
from textual.css.stylesheet import Stylesheet

from tdx.foundation.processes import WarmProgram
from tdx.pipeline.catalog import load_catalog
from tdx.tui.backend.process import warm_up
from tests.tui import idle
from tests.tui.snapshots import write_fixed_catalog


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine test in its own event loop."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    idle.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.fixture(autouse=True)
def patient_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the order of keys on machines on which handling one takes seconds."""
    monkeypatch.setattr("tdx.tui.input_queue.INPUT_TIMEOUT", 120.0)


@pytest.fixture(autouse=True)
def wait_without_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait until the app is idle, not until the processor is."""
    for module in ("textual.pilot", "textual.app"):
        monkeypatch.setattr(f"{module}.wait_for_idle", idle.wait_for_idle)


_RULES: dict[object, list[RuleSet]] = {}


@pytest.fixture(autouse=True)
def parse_styles_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Share the parsed style sheets between the apps of all tests."""
    parse = Stylesheet._parse_rules

    def parse_rules(sheet: Stylesheet, css: str, *where: Any, **options: Any) -> list[RuleSet]:
        key = (css, where, *options.items(), *sheet._variables.items())
        if key not in _RULES:
            _RULES[key] = parse(sheet, css, *where, **options)
        return _RULES[key]

    monkeypatch.setattr(Stylesheet, "_parse_rules", parse_rules)


@pytest.fixture(autouse=True)
def draw_when_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw a screen when a test reads it, not each frame: that is a quarter of the CPU time."""
    render = Compositor.render_update

    def render_if_read(
        compositor: Compositor, full: bool = False, *args: Any, **options: Any
    ) -> object:
        if full:
            return render(compositor, full, *args, **options)
        compositor._dirty_regions.clear()
        return None

    monkeypatch.setattr(Compositor, "render_update", render_if_read)


@pytest.fixture(autouse=True)
def own_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Isolate a test from the settings, colors and files of the user."""
    for name in ("NO_COLOR", "TDX_THEME", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TDX_CONFIG", str(tmp_path / "config.toml"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


@pytest.fixture(scope="session")
def warm_program() -> Iterator[WarmProgram | None]:
    """Import torch once for the workers of all tests, which takes seconds."""
    program = warm_up()
    if program is None:
        yield None
        return
    end = program.kill
    program.kill = lambda: None  # type: ignore[method-assign]  # the end of one backend
    yield program
    end()


@pytest.fixture
def shared_warm_program(warm_program: WarmProgram | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork workers from the process of the session; they have its environment and folder."""
    monkeypatch.setattr("tdx.tui.backend.client.warm_up", lambda: warm_program)


@pytest.fixture
def fixed_catalog(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Show a catalog that does not change when a transform is added or documented."""
    monkeypatch.setattr("tdx.pipeline.catalog.CATALOG_FILE", write_fixed_catalog(tmp_path))
    load_catalog.cache_clear()
    yield
    load_catalog.cache_clear()
