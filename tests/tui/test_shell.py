"""The app around the panes: help, palette, jump mode, sizes, keymap and copying."""

from __future__ import annotations

import re
from itertools import groupby
from pathlib import Path

import pytest

from tdx.pipeline import load_catalog
from tdx.tui.preferences import VIM_KEYMAP, Preferences, check_keymap, load_preferences
from tdx.tui.screens.bars import HintState
from tdx.tui.screens.dialogs import JumpScreen, fuzzy_sort
from tdx.tui.screens.main import MainScreen
from tests.programs import exhaustive
from tests.tui.driving import driven
from tests.tui.idle import resize


async def test_help_of_a_small_terminal_is_not_cut() -> None:
    async with driven("RewardSum", size=(60, 20)) as app:
        await app.press("question_mark")
        assert "select a page away" in app.text(".dialog")
        assert "…" not in app.text(".dialog")


@exhaustive
async def test_help_palette_jump_mode_and_dialogs() -> None:
    async with driven("CatFrames(4, dim=-1)") as app:
        # Help lists the keys of the focused widget in two columns, without scrolling.
        await app.press("question_mark")
        assert "its data flow down through the stages" in app.text(".dialog")
        assert "⏎ edit ↑↓ select" in app.text(".dialog")
        await app.open("CatFrames(4, dim=-1)", size=(80, 24))
        await app.press("question_mark")
        assert not app.find("HelpScreen VerticalScroll").allow_vertical_scroll
        await app.open("CatFrames(4, dim=-1)", size=(120, 36))
        # The page of the selected transform follows.
        await app.press("down", "f1")
        assert "Concatenate the last" in app.text(".dialog")
        await app.press("escape", "a", "text:stepc", "f1")
        assert "Write the number of steps since the reset" in app.text(".dialog")

        # Palette has every action and transform.
        await app.open("RewardSum")
        main = app.app.screen
        assert isinstance(main, MainScreen)
        assert not main.query("LiveTab"), "a tab has no widgets before it is opened"
        titles = app.commands()
        assert {"Help", "Add", "Live: run/pause"} <= titles
        assert all(title[0].isupper() for title in titles)
        assert "Chain: remove" not in titles, "nothing to act on"
        await app.press("down", "c")
        titles = app.commands()
        assert "Chain: remove" in titles

        # Env and sample are selected in the palette.
        await app.open("RewardSum")
        await app.press("ctrl+p")
        while not app.app.screen_stack[0].dialogs.envs:  # type: ignore[attr-defined]
            await app.pilot.pause(0.02)
        await app.press("text:env cartpole-v1", "enter")
        assert app.app.workspace.draft.env is not None
        assert app.app.workspace.draft.env.id == "CartPole-v1"
        await app.press("ctrl+p", "text:start with pendulum", "enter")
        assert len(app.stages) == 6
        await app.press("u", "u")
        await app.press("f1", "ctrl+p", "text:add stepc", "enter", "escape")
        assert app.stages == ["RewardSum", "StepCounter"]
        await app.press("u")
        assert app.stages == ["RewardSum"]
        assert not app.app.workspace.editor.is_modified

        # Pipeline is copied in each form.
        await app.open("StepCounter(max_steps=5)")
        for form, text in [
            ("command", "tdx inspect spec Pendulum-v1 -t 'StepCounter(max_steps=5)'"),
            ("yaml", "StepCounter: {max_steps: 5}"),
            ("python", "StepCounter(max_steps=5)"),
        ]:
            await app.press("y", f"text:{form}", "enter")
            assert text in app.app.clipboard
            assert text in app.text(".dialog")
            await app.press("escape")

        # Details of problems are shown.
        await app.open("CatFrames")
        await app.press("down", "f12")
        assert "CatFrames needs the argument" in app.text(".dialog")

        # Check with steps finds violations of values.
        await app.open("RewardSum")
        await app.press("k")
        assert app.app.workspace.status.checked == app.app.workspace.editor.revision

        # Notices replace each other and show their severity.
        await app.open()
        app.app.notify("first")
        app.app.notify("second", title="Not saved", severity="error")
        await app.settle()
        assert [(each.title, each.message) for each in app.app._notifications] == [
            ("✕ Not saved", "second")
        ]
        texts = [each.text for each in app.app.workspace.journal.entries]
        assert texts[-2:] == ["first", "Not saved: second"]

        # Jump mode focuses the widget of a letter.
        await app.open()
        await app.press("a", "ctrl+g")
        screen = app.app.screen
        assert isinstance(screen, JumpScreen)
        letter = next(k for k, widget in screen.targets.items() if widget.id == "catalog")
        await app.press(letter)
        assert app.app.focused is not None
        assert app.app.focused.id == "catalog"


@exhaustive
async def test_screenshot_is_written_to_a_new_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with driven("RewardSum") as app:
        for name in ("tdx-pendulum.svg", "tdx-pendulum-2.svg"):
            await app.press("ctrl+p", "text:screenshot", "enter")
            assert app.notices[-1] == str(tmp_path / name)
            picture = (tmp_path / name).read_text()
            assert picture.startswith("<svg")
            assert "RewardSum" in picture
            assert "@font-face" not in picture, "no font of a web server"
        (tmp_path / "gone").mkdir()
        monkeypatch.chdir(tmp_path / "gone")
        (tmp_path / "gone").rmdir()
        await app.press("ctrl+p", "text:screenshot", "enter")
        assert app.notices[-1] == "No such file or directory"


@pytest.mark.parametrize("by_mouse", [False, True])
@exhaustive
async def test_keys_of_a_tab_work_before_it_is_drawn(
    monkeypatch: pytest.MonkeyPatch, by_mouse: bool
) -> None:
    monkeypatch.setattr("tdx.tui.tab_body.DRAW_DELAY", 0.3)
    async with driven() as app:
        tabs = app.find("TabbedContent")
        for key, name, action in (("4", "profile", "measure"), ("3", "live", "steps(1)")):
            if by_mouse:
                assert await app.pilot.click(tabs.get_tab(name))
                await app.settle()
            else:
                await app.press(key)
            assert tabs.active == name
            assert app.find(f"#{name} TabBody").has_focus_within
            assert action in {
                each.binding.action for each in app.app.screen.active_bindings.values()
            }
        await app.press("escape", "2")
        assert tabs.active == "specs"
        assert app.app.focused is app.find("#spec-tree")


@exhaustive
async def test_screen_that_is_large_enough_shows_the_names_of_all_tabs(tmp_path: Path) -> None:
    async with driven(size=(40, 10), hints=HintState(tmp_path / "hints.json")) as app:
        assert not app.app.screen.show_vertical_scrollbar
        assert app.text() == "tdx needs 60×16 characters; this terminal has 40×10"
        for width in (80, 115, 116):
            await resize(app.pilot, width, 24)
            await app.settle()
            for title in ("1 Stage", "2 Specs", "3 Live", "4 Profile", "5 Log"):
                assert title in app.text(), width
        assert "Pendulum-v1" in app.text("#chain")


_CUT = re.compile(r"\S…")


def blank_rows(text: str) -> int:
    """Return the length of the longest run of blank lines."""
    runs = groupby(text.splitlines(), key=lambda line: not line.strip(" │"))
    return max((len(list(lines)) for is_blank, lines in runs if is_blank), default=0)


@exhaustive
async def test_nothing_is_cut_while_a_large_area_is_blank() -> None:
    arguments = "[0.1, 0.2, 0.3], [1.0, 1.5, 2.0], in_keys=['observation'], standard_normal=True"
    async with driven(f"ObservationNorm({arguments})", "RewardClipping(-0.5, 0.5)") as app:
        await app.press("down")
        for size in ((80, 24), (120, 40), (200, 60)):
            await resize(app.pilot, *size)
            for tab in "1245":
                await app.press(tab)
                panes = [app.text(pane, lines=True) for pane in ("#chain", "#tabs")]
                cut = _CUT.findall("\n".join(panes))
                assert not cut or max(map(blank_rows, panes)) <= 8, (size, tab, panes)
        assert "standard_normal=True" in app.text("#chain")


@exhaustive
async def test_names_that_look_like_markup_are_shown_as_they_are() -> None:
    name = "[red]key[/]"
    rename = f"RenameTransform(['observation'], ['{name}'])"
    async with driven(rename, f"CatFrames(2, -1, in_keys=['{name}'])", size=(120, 40)) as app:
        assert name in app.text("#chain")
        await app.press("down", "down")
        for tab in "12":
            await app.press(tab)
            assert name in app.text("#tabs"), tab
        await app.press("escape", "d", "ctrl+p", "text:undo", "enter")
        assert "undone: remove CatFrames" in app.notices
        assert app.stages[1].count(name) == 1


@exhaustive
async def test_tabs_of_a_narrow_screen_are_clicked_by_their_numbers() -> None:
    async with driven("RewardSum", size=(60, 20)) as app:
        assert "1 Stage 2 3 4 5" in app.text("#tabs")
        await app.pilot.click(app.find("#tabs").get_tab("log"))
        await app.settle()
        assert "1 2 3 4 5 Log" in app.text("#tabs")


@exhaustive
async def test_undo_in_the_palette_changes_nothing_if_there_is_nothing_to_undo() -> None:
    async with driven("RewardSum") as app:
        await app.press("ctrl+p", "text:undo", "enter")
        assert "nothing to undo" in app.notices
        assert app.stages == ["RewardSum"]


@exhaustive
async def test_panes_are_expanded_and_resized_by_key() -> None:
    async with driven(size=(120, 30)) as app:
        # Pane is expanded and resized by key.
        width = app.find("#chain-pane").size.width
        await app.press("greater_than_sign")
        assert app.find("#chain-pane").size.width == width + 4
        await app.press("less_than_sign", "less_than_sign")
        assert app.find("#chain-pane").size.width == width - 4
        await app.press("z")
        assert app.find("#chain-pane").size.width > 100
        assert not app.find("#tabs-pane").display
        await app.press("z")
        assert app.find("#tabs-pane").display

        # Widened pane leaves room for the others.
        await app.open(size=(200, 24))
        await app.send(*">" * 30)
        await app.press("a")
        app.app.screen.set_focus(app.find("#catalog"))
        await app.send(*">" * 30)
        await app.settle()
        for width in (200, 120, 60):
            await resize(app.pilot, width, 24)
            if width == 60:
                await app.press("escape")
            await app.settle()
            assert app.find("#chain-pane").region.right <= width
            assert app.find("#tabs-pane").size.width > width // 10
            assert app.find("#tabs-pane").region.right <= width
        await app.press("a")  # on a narrow screen, the catalog replaces the tabs
        panes = (app.find("#chain-pane"), app.find("#catalog-pane"))
        assert all(pane.size.width >= 18 and pane.region.right <= 60 for pane in panes)


@exhaustive
async def test_invalid_settings_are_reported_and_ignored() -> None:
    keymap = {
        "chain.swich": "x",
        "chain.remove": "ctr+b",
        "chain.duplicate": "x",
        "screen.undoo": "b",
    }
    wrong = Preferences("no-such-theme", keymap, ("broken",))
    async with driven("RewardSum", preferences=wrong) as app:
        assert app.notices == [
            "broken\n"
            "keymap: unknown command 'chain.swich' (did you mean chain.switch?); "
            "unknown key 'ctr+b' for chain.remove; "
            "unknown command 'screen.undoo' (did you mean screen.undo?); "
            "'x' for chain.duplicate is the key of chain.fix\n"
            "unknown theme 'no-such-theme'; using tdx-dark",
        ]
        await app.press("down", "d")
        assert app.stages == []


@exhaustive
async def test_keymap_of_the_docs_works_without_notices(tmp_path: Path) -> None:
    docs = (Path(__file__).parents[2] / "docs" / "tui.md").read_text()
    (example,) = re.findall(r"```toml\n([^`]*\[keymap\][^`]*)```", docs)
    (tmp_path / "config.toml").write_text(example)
    async with driven("RewardSum", preferences=load_preferences()) as app:
        await app.press("down", "backspace")
        assert app.stages == []
        await app.press("ctrl+u", "3", "1", "a", "escape", "f1", "escape")
        assert app.stages == ["RewardSum"]
        warned = [each.message for each in app.app._notifications if each.severity == "warning"]
        assert not warned


@exhaustive
async def test_keymap_of_the_user_applies() -> None:
    async with driven("RewardSum", preferences=Preferences(keymap={"chain.remove": "b"})) as app:
        await app.press("down", "d")
        assert app.stages == ["RewardSum"]
        await app.press("b")
        assert app.stages == []


@exhaustive
async def test_vim_keys_move_edit_and_leave_text_fields_alone() -> None:
    preferences = Preferences(has_vim_keys=True)
    async with driven("RewardSum", "StepCounter", preferences=preferences) as app:
        assert check_keymap(VIM_KEYMAP, app.app.binding_groups())[1] is None
        assert "dd remove" in app.text("#keys")
        await app.press("j", "j")
        assert app.place == 1
        await app.press("k", "d")
        assert app.stages == ["RewardSum", "StepCounter"], "one d removes nothing"
        await app.press("d")
        assert app.stages == ["StepCounter"]
        await app.press("u", "ctrl+r")
        assert app.stages == ["StepCounter"]
        await app.press("G")
        assert app.place == 1
        await app.press("g")
        assert app.place == -1
        await app.press("d", "j", "d")
        assert app.stages == ["StepCounter"], "another key ends the command"
        await app.press("escape", "a", "j", "d", "d")
        assert app.find("#catalog-search").value == "jdd"


@pytest.mark.parametrize(
    ("text", "keymap", "notices"),
    [
        ('theme = "tdx-light"\n[keymap]\n"chain.remove" = "b"\n', {"chain.remove": "b"}, 0),
        ("keymap = 3\n", {}, 1),
        ('keys = "vim"\n', {}, 0),
        ('keys = "emacs"\n', {}, 1),
        ('[keymap]\n"chain.remove" = 3\n', {}, 1),
        ("theme = \n", {}, 1),
        ("no_such = 1\n", {}, 1),
    ],
)
def test_settings_are_read_from_the_file(
    tmp_path: Path, text: str, keymap: dict[str, str], notices: int
) -> None:
    (tmp_path / "config.toml").write_text(text)
    read = load_preferences()
    assert read.keymap == keymap
    assert read.has_vim_keys is ("vim" in text)
    assert len(read.notices) == notices


@pytest.mark.parametrize(
    ("query", "first"),
    [("cf", "CatFrames"), ("stepc", "StepCounter"), ("onorm", "ObservationNorm")],
)
def test_search_finds_by_initials_words_and_parts(query: str, first: str) -> None:
    assert fuzzy_sort(query, load_catalog().names, str)[0][0] == first


def test_search_without_a_query_keeps_the_order() -> None:
    names = load_catalog().names
    assert fuzzy_sort("zzz", names, str) == []
    assert [name for name, _ in fuzzy_sort("", names, str)] == names
