"""The specs tab: changes, both lanes, lineage and movement along the chain."""

from __future__ import annotations

from tdx.tui.specs.tree import ColumnWidths, key_label, specs_at
from tests.programs import exhaustive
from tests.tui.driving import driven

CHAIN = ("RewardScaling(0.0, 0.1)", "RewardSum", 'CatFrames(4, dim=-1, in_keys=["observation"])')


@exhaustive
async def test_specs_follow_the_selected_stage() -> None:
    async with driven(*CHAIN) as app:
        # Specs follow the selected stage.
        await app.press("2")
        titles = []
        for _ in range(5):
            titles.append(app.text("#spec-title"))
            await app.press("right_square_bracket")
        assert titles == [
            "env",
            "after 0 RewardScaling",
            "after 1 RewardSum",
            "after 2 CatFrames",
            "output, compared with the env",
        ]

        # Brackets select the previous and next stage.
        await app.open(*CHAIN)
        await app.press("2")
        app.find("#spec-tree").focus()
        await app.press("right_square_bracket", "right_square_bracket", "left_square_bracket")
        assert app.place == 0

        # Inverse lane shows the entries that the env receives.
        await app.open("ActionScaling")
        await app.press("down", "2")
        shown = app.text("#spec-tree")
        assert shown.index("↓ forward") < shown.index("↑ inverse") < shown.index("~ action")

        # Nested keys are below their groups.
        rename = 'RenameTransform(["observation"], [("agents", "observation")])'
        await app.open(rename)
        await app.press("down", "2")
        lines = app.text("#spec-tree", lines=True).splitlines()
        at = next(n for n, line in enumerate(lines) if line.strip() == "▾ agents")
        assert lines[at + 1].lstrip().startswith("+ observation")
        assert lines[at + 1].index("+") > lines[at].index("▾")

        # Changes show a sign and the previous spec.
        await app.open(*CHAIN, size=(160, 40))
        await app.press("down", "down", "2")
        assert "+ episode_reward [1] float32 any" in app.text("#spec-tree")
        await app.press("right_square_bracket")
        assert "~ observation [12] float32" in app.text("#spec-tree")
        assert "← [3]" in app.text("#spec-tree")

        # Lineage counts disabled stages.
        await app.open(*CHAIN)
        await app.press("down", "space", "end", "2")
        app.find("#spec-tree").focus()
        assert "by 2 CatFrames" in app.text("#lineage")

        # Lineage of the key under the cursor.
        await app.open(*CHAIN)
        await app.press("end", "2")
        app.find("#spec-tree").focus()
        await app.press("down", "down", "down")
        shown = app.text("#lineage")
        assert "lineage of reward" in shown
        assert "reward@1 by 0 RewardScaling from reward@0 → 1 RewardSum, output" in shown

        # On a narrow screen, the names come before domains of which nothing could be read.
        await app.open("RewardSum", size=(60, 20))
        await app.press("down", "2")
        assert "  observation     [3] float32" in app.text("#spec-tree", lines=True)

        # Key shows only changes.
        await app.open(*CHAIN, size=(120, 36))
        await app.press("down", "down", "2")
        assert "truncated" in app.text("#spec-tree")
        app.find("#spec-tree").focus()
        await app.press("o")
        assert "truncated" not in app.text("#spec-tree")
        assert "only changes" in app.text("#spec-title")


@exhaustive
async def test_each_kind_of_change_has_its_color() -> None:
    rename = 'RenameTransform(["observation"], ["state"])'
    async with driven(rename, "RewardClipping(-1.0, 1.0)") as app:
        await app.press("down")
        renamed = specs_at(app.app.workspace)
        await app.press("down")
        clipped = specs_at(app.app.workspace)
    found = {}
    for specs in (renamed, clipped):
        widths = ColumnWidths.of([20], specs.leaves())
        for change in specs.changes:
            label = key_label(str(change.key), change, widths, 0)
            found[change.change] = {str(span.style) for span in label.spans}
    assert any("$success" in style for style in found["added"])
    assert any("$error" in style and "strike" in style for style in found["gone"])
    assert any("$warning" in style for style in found["changed"])
    assert found["same"] == {"$foreground", "dim", "bold"}


@exhaustive
async def test_tree_is_folded_and_searched() -> None:
    async with driven(*CHAIN) as app:
        # Groups are folded by key and by mouse.
        await app.press("down", "down", "2")
        tree = app.find("#spec-tree")
        tree.focus()
        await app.press("left", "enter")
        shown = app.text("#spec-tree", lines=True)
        assert "▸ observation  2 keys +1" in shown
        assert "float32" in shown
        await app.press("left", "left")
        assert "▸ ↓ forward 6 keys +1" in app.text("#spec-tree")
        assert app.text("#spec-tree").count("episode_reward") == 1
        await app.press("right", "right", "right", "right")
        assert "observation [3]" in app.text("#spec-tree")
        await app.pilot.click(tree, offset=(3, 0))
        await app.settle()
        assert "▸ ↓ forward" in app.text("#spec-tree")
        await app.press("minus")
        assert "▸ action 1 key" in app.text("#spec-tree")
        await app.press("plus")
        assert "action [1]" in app.text("#spec-tree")

        # Search visits each match and unfolds groups.
        await app.open(*CHAIN)
        await app.press("end", "2")
        app.find("#spec-tree").focus()
        await app.press("minus", "slash", "text:rew")
        assert "1 of 3 matches" in app.text("SearchBar")
        await app.press("enter", "n")
        assert "2 of 3 matches" in app.text("SearchBar")
        assert "lineage of reward" in app.text("MainScreen")
        await app.press("n", "N", "N")
        assert "lineage of episode_reward" in app.text("MainScreen")
        await app.press("slash", "text:x")
        assert "no matches" in app.text("SearchBar")
        await app.press("escape")
        assert app.app.focused is app.find("#spec-tree")
        assert "matches" not in app.text("SearchBar")
        await app.press("escape", "slash")
        assert app.app.focused is app.find("#catalog-search")

        # Whole chain lists every stage and unfolds.
        await app.open(*CHAIN, size=(140, 50))
        await app.press("down", "down", "2")
        app.find("#spec-tree").focus()
        await app.press("w")
        shown = app.text("#spec-tree")
        assert "▸ after 0 RewardScaling 6 keys" in shown
        assert "▾ after 1 RewardSum 8 keys +2" in shown
        assert "▸ output, compared with the env" in shown
        await app.press("plus", "o")
        shown = app.text("#spec-tree")
        assert shown.count("+ episode_reward") == 4
        assert "~ observation [12]" in shown
        await app.press("minus")
        assert "episode_reward" not in app.text("#spec-tree")
