"""Locked composites do not change until the outermost one is unlocked."""

from __future__ import annotations

import copy
import gc
import pickle

import pytest

from tdx.foundation.errors import SpecError
from tdx.specs import Composite, Unbounded
from tests.programs import exhaustive
from tests.specs import kinds


@pytest.fixture
def spec() -> Composite:
    return Composite(a=Unbounded(1), n=Composite(b=Unbounded(1), m=Composite(c=Unbounded(1))))


def test_writes_to_a_locked_composite_are_rejected(spec: Composite) -> None:
    assert not spec.is_locked
    assert spec.lock_() is spec
    assert spec.is_locked
    assert spec.locked
    writes = [
        lambda: spec.set("x", Unbounded(1)),
        lambda: spec.__setitem__(("n", "x"), Unbounded(1)),
        lambda: spec["n"].set("x", Unbounded(1)),
        lambda: spec["n", "m"].set("x", Unbounded(1)),
        lambda: spec.__delitem__("a"),
        lambda: spec.__delitem__(("n", "b")),
        lambda: spec.pop("a"),
        lambda: spec.pop("zzz", None),
        lambda: spec.update({"a": Unbounded(2)}),
        lambda: spec["n"].update({"b": Unbounded(2)}),
        lambda: spec.separates("a"),
        lambda: setattr(spec, "shape", ()),
        lambda: setattr(spec, "device", "cpu"),
    ]
    before = spec.clone()
    for write in writes:
        with pytest.raises(SpecError, match=r"locked \(change a clone\(\), or call unlock_"):
            write()
    assert spec == before


def test_locked_composites_can_be_read_and_copied(spec: Composite) -> None:
    spec.lock_()
    assert spec.is_in(spec.rand())
    for copied in (
        spec.clone(),
        spec.to("cpu"),
        spec.expand(2),
        spec.unsqueeze(0),
        spec.empty(),
        spec.select("n"),
        spec.exclude("a"),
    ):
        assert not copied.is_locked
        copied["x"] = Unbounded((*copied.shape, 1), device=copied.device)
    copied = spec.clone()
    copied["n", "m", "x"] = Unbounded(1)
    assert ("n", "m", "x") not in spec


def test_only_the_outermost_composite_can_be_unlocked(spec: Composite) -> None:
    spec.lock_()
    for inner in (spec["n"], spec["n", "m"]):
        with pytest.raises(SpecError, match=r"nested in a locked one.*unlock the outermost"):
            inner.unlock_()
    assert spec.unlock_() is spec
    spec["n", "m", "x"] = Unbounded(1)
    assert not spec["n"].is_locked


def test_nested_composite_can_be_locked_alone(spec: Composite) -> None:
    spec["n"].lock_()
    spec["x"] = Unbounded(1)
    with pytest.raises(SpecError, match="locked"):
        spec["n", "x"] = Unbounded(1)
    spec["n"].unlock_()
    spec.lock_(recurse=False)
    spec["n"]["x"] = Unbounded(1)
    spec.is_locked = False
    spec["y"] = Unbounded(1)
    spec.is_locked = True
    with pytest.raises(SpecError, match="locked"):
        spec["z"] = Unbounded(1)


def test_composite_shared_by_two_locked_composites() -> None:
    inner = Composite(b=Unbounded(1))
    one, other = Composite(n=inner), Composite(n=inner)
    one.lock_()
    other.lock_()
    with pytest.raises(SpecError, match="nested in a locked one"):
        one.unlock_()
    other_unlocked = one.clone()
    assert not other_unlocked["n"].is_locked


@exhaustive
def test_deleted_parent_releases_its_lock() -> None:
    inner = Composite(b=Unbounded(1))
    outer = Composite(n=inner).lock_()
    assert inner.is_locked
    del outer
    gc.collect()
    inner.unlock_()
    inner["x"] = Unbounded(1)
    assert "x" in inner


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda spec: pickle.loads(pickle.dumps(spec))])
def test_locks_survive_copy_and_pickle(spec: Composite, copied: object) -> None:
    assert callable(copied)
    found = copied(spec.lock_())
    assert found == spec
    assert found.is_locked
    with pytest.raises(SpecError, match="nested in a locked one"):
        found["n", "m"].unlock_()
    found.unlock_()
    found["n", "m", "x"] = Unbounded(1)


def test_locked_stacks() -> None:
    stacked = kinds.stack(Composite(a=Unbounded(1)), Composite(a=Unbounded(2)))
    outer = Composite(n=stacked).lock_()
    with pytest.raises(SpecError, match="locked"):
        stacked["b"] = Unbounded((2, 1))
    with pytest.raises(SpecError, match="nested in a locked one"):
        stacked.unlock_()
    outer.unlock_()
    stacked["b"] = Unbounded((2, 1))
    assert "b" in stacked
    stacked.is_locked = True
    assert stacked.is_locked
    stacked.is_locked = False
    assert not stacked.is_locked


def test_a_rejected_unlock_changes_nothing() -> None:
    inner = Composite(b=Unbounded(1))
    one, other = Composite(n=inner).lock_(), Composite(n=inner).lock_()
    with pytest.raises(RuntimeError, match="nested in a locked one"):
        one.unlock_()
    assert one.is_locked
    assert inner.is_locked
    one.unlock_(recurse=False)
    assert not one.is_locked
    assert inner.is_locked
    other.unlock_()
    assert not inner.is_locked


def test_a_composite_may_occur_twice_in_the_one_that_is_unlocked() -> None:
    inner = Composite(b=Unbounded(1))
    outer = Composite(n=Composite(x=inner), m=Composite(x=inner)).lock_()
    outer.unlock_()
    assert not inner.is_locked
