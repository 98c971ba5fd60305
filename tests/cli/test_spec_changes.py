"""``tdx inspect spec --changes`` and ``--stages``: no line is repeated."""

from __future__ import annotations

import json

from tests.cli.conftest import WIDTHS, Tdx, assert_fits

CHAIN = ("Pendulum-v1", "-t", "RewardScaling(0.0, 0.1)", "-t", "RewardClipping(-1, 1)")


def test_changes_option_lists_only_changed_keys(tdx: Tdx) -> None:
    lines = tdx("inspect", "spec", *CHAIN, "--changes").out.splitlines()
    assert "0 RewardScaling(0.0, 0.1)  no spec changes" in lines
    after = lines[lines.index("1 RewardClipping(-1, 1)") + 1 :]
    assert [line.split()[:3] for line in after[1:]] == [["reward", "~", "reward"]]
    assert "terminated" not in "".join(lines)


def test_changes_option_in_json_lists_only_changed_keys(tdx: Tdx) -> None:
    document = json.loads(tdx("inspect", "spec", *CHAIN, "--changes", "--format", "json").out)
    assert [[key["key"] for key in stage["keys"]] for stage in document["stages"]] == [
        [],
        ["reward"],
    ]
    assert [key["change"] for key in document["keys"]] == ["changed"]


def test_stages_option_lists_unchanged_keys_once(tdx: Tdx) -> None:
    out = tdx("inspect", "spec", *CHAIN, "--stages").out
    _, _, last = out.partition("after stage 1")
    assert "unchanged: observation, done, terminated, truncated, action\n" in last
    assert last.count("observation") == 1


def test_changes_fit_the_terminal(tdx: Tdx) -> None:
    for columns in WIDTHS:
        assert_fits(tdx("inspect", "spec", *CHAIN, "--changes", columns=columns).out, columns)


def test_stages_and_changes_exclude_each_other(tdx: Tdx) -> None:
    outcome = tdx("inspect", "spec", *CHAIN, "--changes", "--stages")
    assert outcome.code == 2
    assert "cannot be combined" in outcome.err
