"""The entries of a composite, without the composite around them."""

from __future__ import annotations

import pytest
import torch

from tdx.foundation.errors import KeyNotFoundError, SpecError
from tdx.specs import Composite, Unbounded
from tdx.specs.composite_entries import MISSING, CompositeEntries


@pytest.fixture
def entries() -> CompositeEntries:
    entries = CompositeEntries(torch.Size([2]), None, Composite, {})
    entries.set(("group", "a"), Unbounded((2, 1)), ("group", "a"))
    entries.set(("b",), Unbounded((2, 3)), "b")
    return entries


def test_entries_are_found_by_nested_key(entries: CompositeEntries) -> None:
    assert entries.get(("group", "a")).shape == (2, 1)
    assert entries.find(("group", "missing")) is MISSING
    assert list(entries.select(nested=True, leaves_only=True)) == [("group", "a"), "b"]
    with pytest.raises(KeyNotFoundError, match=r"did you mean group\.a"):
        entries.get(("group", "aa"))


def test_updates_merge_nested_composites(entries: CompositeEntries) -> None:
    entries.update({"group": {"c": Unbounded((2, 2))}})
    assert set(entries.get("group").keys()) == {"a", "c"}


def test_a_new_batch_size_must_fit_every_entry(entries: CompositeEntries) -> None:
    with pytest.raises(SpecError, match="does not begin with"):
        entries.set_shape(torch.Size([3]))
    assert entries.shape == (2,)


def test_locked_entries_reject_changes_at_every_level(entries: CompositeEntries) -> None:
    entries.lock()
    for change in (
        lambda: entries.set(("d",), Unbounded((2, 1)), "d"),
        lambda: entries.delete(("group", "a")),
        lambda: entries.get("group").set("d", Unbounded((2, 1))),
    ):
        with pytest.raises(SpecError, match="the Composite is locked"):
            change()
    entries.unlock()
    entries.delete(("group", "a"))
    assert entries.get("group").is_empty()
