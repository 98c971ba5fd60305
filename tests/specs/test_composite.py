"""``Composite``: nested keys, and the TensorDicts that it creates and checks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from tdx.foundation.errors import KeyNotFoundError, SpecError
from tdx.specs import Binary, Bounded, Categorical, Composite, OneHot, Unbounded


@pytest.fixture
def nested() -> Composite:
    return Composite(
        observation=Unbounded((2, 3)),
        agents=Composite(
            reward=Unbounded((2, 1)), state={"done": Binary(shape=(2, 1))}, shape=(2,)
        ),
        shape=(2,),
    )


def test_forms_of_nested_keys() -> None:
    expected = Composite(a=Composite(b=Unbounded(1)), c=Unbounded(2))
    assert Composite({"a": {"b": Unbounded(1)}, "c": Unbounded(2)}) == expected
    assert Composite({("a", "b"): Unbounded(1), ("c",): Unbounded(2)}) == expected
    assert Composite({"a": Composite(b=Unbounded(1))}, c=Unbounded(2)) == expected
    assert Composite(expected) == expected
    written = Composite()
    written["a", "b"] = Unbounded(1)
    written["c"] = Unbounded(2)
    assert written == expected
    with pytest.raises(SpecError, match="one mapping"):
        Composite({}, {})


def test_reading(nested: Composite) -> None:
    assert nested["agents", "reward"].shape == (2, 1)
    assert nested["agents"]["state", "done"] is nested["agents", "state", "done"]
    assert nested["agents", ("state", "done")] is nested["agents", "state", "done"]
    assert nested.get(("agents", "nothing"), None) is None
    assert nested.get("nothing", 3) == 3
    assert "agents" in nested
    assert ("agents", "state", "done") in nested
    assert ("agents", "nothing") not in nested
    assert ("observation", "x") not in nested
    assert 3 not in nested
    assert len(nested) == 2
    assert nested
    assert not Composite()


def test_missing_key_suggests_similar_keys(nested: Composite) -> None:
    with pytest.raises(KeyNotFoundError, match=r"'agents.rewrad'.*did you mean agents.reward"):
        nested["agents", "rewrad"]
    with pytest.raises(KeyError, match="it has observation"):
        nested.get("zzz")
    with pytest.raises(KeyNotFoundError, match="it is empty"):
        Composite()["a"]
    with pytest.raises(KeyNotFoundError):
        del nested["agents", "zzz"]
    with pytest.raises(KeyNotFoundError):
        nested.pop("zzz")


def test_keys_values_items(nested: Composite) -> None:
    assert list(nested) == list(nested.keys()) == ["observation", "agents"]
    assert list(nested.keys(True, True)) == [
        "observation",
        ("agents", "reward"),
        ("agents", "state", "done"),
    ]
    assert set(nested.keys(include_nested=True)) == {
        "observation",
        "agents",
        ("agents", "reward"),
        ("agents", "state"),
        ("agents", "state", "done"),
    }
    assert list(nested.keys(leaves_only=True)) == ["observation"]
    assert ("agents", "reward") in nested.keys(True)
    for key, spec in nested.items(True, True):
        assert nested[key] is spec
    assert list(nested.values(True, True)) == [spec for _, spec in nested.items(True, True)]
    whole = nested.keys(True, True, is_leaf=lambda kind: issubclass(kind, Composite))
    assert list(whole) == ["agents"]


def test_step_mdp_static_only() -> None:
    fixed = Composite(map=Unbounded(4), step_mdp_static=True)
    spec = Composite(fixed=fixed, x=Unbounded(1))
    assert list(spec.keys(True, step_mdp_static_only=True)) == [("fixed", "map"), "fixed"]
    assert list(spec.keys(step_mdp_static_only=True)) == ["fixed"]


def test_pop_delete_and_setdefault(nested: Composite) -> None:
    reward = nested["agents", "reward"]
    assert nested.pop(("agents", "reward")) is reward
    assert ("agents", "reward") not in nested
    assert nested.pop("zzz", None) is None
    del nested["agents", "state", "done"]
    assert nested["agents", "state"].is_empty()
    assert not nested.is_empty()
    assert nested["agents"].is_empty(recurse=True)
    first = nested.setdefault("new", Unbounded((2, 1)))
    assert nested.setdefault("new", Unbounded((2, 5))) is first


def test_update_merges_nested_composites(nested: Composite) -> None:
    nested.update({"agents": {"reward": Unbounded((2, 9))}, "x": Unbounded((2,))})
    assert nested["agents", "reward"].shape == (2, 9)
    assert ("agents", "state", "done") in nested
    nested.update(Composite(agents=Composite(y=Unbounded((2,)))), z=Unbounded((2, 2)))
    assert nested["agents", "y"].shape == (2,)
    assert "z" in nested
    nested.set("agents", Composite(only=Unbounded((2,)), shape=(2,)))
    assert list(nested["agents"].keys()) == ["only"]


def test_entry_with_another_batch_size_is_rejected_with_its_key(nested: Composite) -> None:
    with pytest.raises(SpecError, match=r"key 'agents.x': its shape \(3,\) must begin with .*\(2"):
        nested["agents", "x"] = Unbounded(3)
    with pytest.raises(SpecError, match=r"key 'new.x.y': its shape"):
        nested["new", "x", "y"] = Unbounded(3)
    assert "new" not in nested
    with pytest.raises(SpecError, match="key 'a'"):
        Composite(a=Unbounded(3), shape=(2,))
    with pytest.raises(SpecError, match=r"key 'observation.x': 'observation' is a leaf"):
        nested["observation", "x"] = Unbounded((2,))
    with pytest.raises(SpecError, match="key 'x': expected a spec, got a int"):
        nested["x"] = 3  # type: ignore[assignment]
    with pytest.raises(SpecError, match=r"key 'x.y.z': its shape"):
        nested["x"] = {"y": {"z": Unbounded(3)}}
    with pytest.raises(SpecError, match=r"key 'x.y': its shape"):
        nested["x"] = Composite(y=Unbounded(3))


def test_nested_composites_get_the_batch_size() -> None:
    inner = Composite(b=Unbounded((2, 3)))
    spec = Composite(a=inner, shape=(2,))
    assert spec["a"].shape == (2,)
    assert inner.shape == ()
    with pytest.raises(SpecError, match=r"key 'a\.b': its shape"):
        Composite(a=Composite(b=Unbounded(3)), shape=(2,))


def test_setting_the_shape(nested: Composite) -> None:
    spec = Composite(a=Unbounded((2, 3)), n=Composite(b=Unbounded((2, 3))))
    spec.shape = (2, 3)
    assert spec.batch_size == spec["n"].shape == (2, 3)
    spec.batch_size = ()
    assert spec.shape == ()
    with pytest.raises(SpecError, match="key 'a': its shape"):
        spec.shape = (3,)
    assert nested.ndim == 1


def test_devices() -> None:
    free = Composite(a=Unbounded(1))
    assert free.device is None
    spec = Composite(a=Unbounded(1), n={"b": Unbounded(1)}, device="cpu")
    assert spec["n"].device == torch.device("cpu")
    assert spec.zero().device == torch.device("cpu")
    with pytest.raises(SpecError, match=r"key 'c': it is on meta.*spec.to\('cpu'\)"):
        spec["c"] = Unbounded(1, device="meta")
    assert Composite(n=free, device="cpu")["n"].device == torch.device("cpu")
    away = spec.to("meta")
    assert away.device == away["n"].device == away["n", "b"].device == torch.device("meta")
    assert away.to("meta") is away
    away.device = "cpu"
    assert away == spec
    away.device = None
    assert away["n"].device is None
    assert spec.clone().clear_device_().device is None
    assert free.cpu().device == torch.device("cpu")
    assert free != free.cpu()


def test_dtypes(nested: Composite) -> None:
    wide = nested.to(torch.float64)
    assert wide["observation"].dtype is torch.float64
    assert wide["agents", "state", "done"].dtype is torch.float64
    assert nested["observation"].dtype is torch.float32


def test_values_are_tensordicts(nested: Composite) -> None:
    for make in (nested.rand, nested.zero, nested.one):
        value = make((4,))
        assert isinstance(value, TensorDict)
        assert value.batch_size == (4, 2)
        assert value["agents"].batch_size == (4, 2)
        assert value["agents", "state", "done"].shape == (4, 2, 1)
    assert Composite().zero().is_empty()
    assert Composite(a=None).rand().is_empty()


def test_membership(nested: Composite) -> None:
    value = nested.rand()
    assert nested.is_in(value)
    assert nested.is_in(value.to_dict())
    assert nested.is_in(value.clone().set("extra", torch.zeros(2)))
    assert not nested.is_in(value.exclude("observation"))
    assert not nested.is_in(torch.zeros(2))
    assert not nested.is_in({"observation": value["observation"], "agents": torch.zeros(2)})
    wrong = value.clone()
    wrong["agents", "state", "done"] = torch.full((2, 1), 3, dtype=torch.int8)
    assert not nested.is_in(wrong)
    assert nested.why_not_in(wrong) == (
        "key 'agents.state.done': a value is outside the categories 0 to 1"
    )
    assert nested.why_not_in(value.exclude("observation")) == "key 'observation' is missing"
    assert nested.why_not_in(value) is None
    with pytest.raises(AssertionError, match=r"key 'agents.state.done'"):
        nested.assert_is_in(wrong)
    assert Composite(n=Composite()).is_in(TensorDict())
    assert Composite(a=None).is_in(TensorDict())


def test_project_writes_to_its_input(nested: Composite) -> None:
    value = nested.rand().set("extra", torch.zeros(2))
    value["agents", "state", "done"] = torch.full((2, 1), 3, dtype=torch.int8)
    projected = nested.project(value)
    assert projected is value
    assert nested.is_in(value)
    assert "extra" in value.keys()
    assert value["agents", "state", "done"].max() == 1
    with pytest.raises(SpecError, match="key 'observation': the entry is missing"):
        nested.project(value.exclude("observation"))
    value = nested.rand()
    value["agents"]["reward"] = torch.zeros(2, 5)
    with pytest.raises(SpecError, match=r"key 'agents.reward': expected a shape ending in"):
        nested.project(value)


def test_type_check_names_the_key(nested: Composite) -> None:
    value = nested.rand()
    nested.type_check(value)
    value["agents", "reward"] = value["agents", "reward"].double()
    with pytest.raises(SpecError, match=r"key 'agents.reward': expected dtype torch.float32"):
        nested.type_check(value)
    nested.type_check(value, "observation")
    nested.type_check(value, ["observation", ("agents", "state", "done")])


def test_encode_and_to_numpy(nested: Composite) -> None:
    data = {
        "observation": np.ones((2, 3)),
        "agents": {"reward": [[1], [2]], "state": {"done": [[True], [False]]}},
    }
    value = nested.encode(data)
    assert nested.is_in(value)
    assert value["agents", "reward"].flatten().tolist() == [1, 2]
    back = nested.to_numpy(value, safe=True)
    np.testing.assert_array_equal(back["observation"], data["observation"])
    assert back["agents"]["state"]["done"].tolist() == [[1], [0]]
    assert list(nested.encode({"observation": np.ones((2, 3))}).keys()) == ["observation"]
    with pytest.raises(KeyNotFoundError, match="no key 'zzz'"):
        nested.encode({"zzz": 1})
    with pytest.raises(
        SpecError, match=r"key 'agents.reward': (Shape mismatch: )?expected a value of shape"
    ):
        nested.encode({"agents": {"reward": [1, 2, 3]}})


def test_in_place_updates(nested: Composite) -> None:
    value = TensorDict(batch_size=(5, 2))
    assert nested.rand_update(value) is value
    assert nested.is_in(value)
    nested.zeros_update(value)
    assert value["observation"].abs().sum() == 0
    nested.ones_update(value)
    assert value["observation"].sum() == 5 * 2 * 3


def test_cardinality_and_enumerate() -> None:
    spec = Composite(a=Categorical(2), n=Composite(b=OneHot(3)))
    assert spec.cardinality() == 6
    rows = spec.enumerate()
    assert rows.batch_size == (6,)
    assert spec.is_in(rows)
    assert len({(int(row["a"]), tuple(row["n", "b"].tolist())) for row in rows}) == 6
    assert Composite().enumerate().batch_size == (1,)
    assert Composite(a=Unbounded(1)).cardinality() == float("inf")
    with pytest.raises(SpecError, match="cannot be enumerated"):
        Composite(a=Unbounded(1)).enumerate()


def test_batch_shape_operations(nested: Composite) -> None:
    wide = nested.expand(5, 2)
    assert wide["agents", "state", "done"].shape == (5, 2, 1)
    assert nested.unsqueeze(-1)["observation"].shape == (2, 1, 3)
    assert nested.unsqueeze(0).squeeze()["agents"].shape == (2,)
    assert nested.squeeze(0) == nested
    assert wide.flatten()["observation"].shape == (10, 3)
    assert wide.reshape(10)["agents", "reward"].shape == (10, 1)
    assert wide.unflatten(0, (5, 1))["agents"].shape == (5, 1, 2)
    assert wide[..., 0]["observation"].shape == (5, 3)
    assert wide[2, 1]["observation"].shape == (3,)
    assert wide[None, ..., None]["observation"].shape == (1, 5, 2, 1, 3)
    assert wide[torch.ones(5, 2, dtype=torch.bool), ...]["observation"].shape == (10, 3)
    assert nested.make_neg_dim(0)["agents", "reward"].shape == (-1, 1)
    for change in (lambda: nested[0, 0], lambda: nested.expand(3), lambda: Composite()[0]):
        with pytest.raises(SpecError):
            change()


def test_clones_are_independent(nested: Composite) -> None:
    copied = nested.clone()
    copied["agents", "x"] = Unbounded((2,))
    copied["observation"] = Unbounded((2,))
    assert ("agents", "x") not in nested
    assert nested["observation"].shape == (2, 3)
    shallow = nested.clone(recurse=False)
    assert shallow["agents"] is nested["agents"]
    del shallow["agents"]
    assert "agents" in nested


def test_select_exclude_and_separates(nested: Composite) -> None:
    assert nested.empty().is_empty()
    assert nested.empty().shape == (2,)
    kept = nested.select("observation", ("agents", "reward"))
    assert list(kept.keys(True, True)) == ["observation", ("agents", "reward")]
    left = nested.exclude(("agents", "reward"), "zzz")
    assert ("agents", "reward") not in left
    assert ("agents", "reward") in nested
    taken: Any = nested.separates("observation", "zzz")
    assert list(taken) == ["observation"]
    assert "observation" not in nested
    assert nested.separates("zzz", default="none") == "none"
    assert nested.replace(device="cpu").device == torch.device("cpu")


def test_names_of_batch_dimensions() -> None:
    spec = Composite(a=Unbounded((2, 3)), shape=(2, 3), names=["time", None])
    assert spec.names == ["time", None]
    assert spec.zero((4,)).names == [None, "time", None]
    assert spec.clone().names == ["time", None]
    assert spec.refine_names(..., "env").names == ["time", "env"]
    assert spec[0].names == ["env"]
    spec.names = None
    assert spec.names == [None, None]


def test_data_cls() -> None:
    class Data:
        def __init__(self, inner: Any) -> None:
            self.inner = inner

        @classmethod
        def from_tensordict(cls, value: Any) -> Data:
            return cls(value)

    made = Composite(a=Unbounded(1), data_cls=Data).zero()
    assert isinstance(made, Data)
    assert made.inner["a"].tolist() == [0]


def test_entries_without_a_spec() -> None:
    spec = Composite(a=None, b=Bounded(0, 1, (1,)))
    assert spec["a"] is None
    assert "a" in spec
    assert spec.clone() == spec
    assert spec.to("cpu")["a"] is None
    assert spec.expand(3)["a"] is None
    spec["a"] = Unbounded(1)
    assert "a" in spec.zero().keys()


def test_keys_contain_every_form_of_a_key(nested: Composite) -> None:
    assert ("observation",) in nested.keys()
    assert ("agents", ("state", ("done",))) in nested.keys(True)
    assert ("agents", "reward") not in nested.keys()
    assert 3 not in nested.keys()
    assert set(nested.keys()) == {"observation", "agents"}
    assert repr(nested.keys()) == "SpecKeys(['observation', 'agents'])"


@pytest.mark.parametrize("key", ["shape", "device", "dtype", "space"])
def test_an_attribute_is_not_an_entry(nested: Composite, key: str) -> None:
    with pytest.raises(AttributeError, match=f"set the attribute: composite.{key} ="):
        nested[key] = 42  # type: ignore[assignment]
    nested[key] = Unbounded((2,))
    assert nested[key].shape == (2,)


def test_batch_size_is_an_alias_of_shape() -> None:
    spec = Composite(a=Unbounded((2, 3)), batch_size=(2,))
    assert spec == Composite(a=Unbounded((2, 3)), shape=(2,))
    assert "batch_size" not in spec
    with pytest.raises(SpecError, match="shape and batch_size"):
        Composite(shape=(2,), batch_size=(2,))


def test_type_check_of_one_value(nested: Composite) -> None:
    nested.type_check(torch.zeros(2, 3), "observation")
    with pytest.raises(SpecError, match=r"key 'agents.reward': expected dtype torch.float32"):
        nested.type_check(torch.zeros(2, 1).double(), ("agents", "reward"))


def test_a_single_spec_of_an_entry_can_be_changed() -> None:
    spec = Composite(pixels=Bounded(0, 255, (3, 4), dtype=torch.uint8))
    copied = spec.clone()
    spec["pixels"].shape = (12,)
    assert spec["pixels"].shape == (12,)
    assert copied["pixels"].shape == (3, 4)


def test_names_follow_the_batch_size() -> None:
    spec = Composite(
        a=Unbounded((4, 1, 3)),
        n=Composite(b=Unbounded((4, 1, 2)), shape=(4, 1, 2)),
        shape=(4, 1),
        names=["env", "time"],
    )
    assert spec["n"].names == ["env", "time", None]
    assert spec.expand(5, 4, 1).names == [None, "env", "time"]
    assert spec.expand(5, 4, 1)["n"].names == [None, "env", "time", None]
    assert spec.squeeze(1).names == ["env"]
    assert spec.squeeze().names == ["env"]
    assert spec.unsqueeze(1).names == ["env", None, "time"]
    assert spec.reshape(2, 2).names == [None, None]
    assert [part.names for part in spec.unbind(0)] == [["time"]] * 4
    assert spec.to(torch.float64).names == spec.to("meta").names == ["env", "time"]
    assert spec.make_neg_dim(0).names == ["env", "time"]
    assert spec.replace(device="cpu").names == ["env", "time"]
    assert spec == spec.clone().refine_names(..., "time")
    assert spec.rand()["n"].names == ["env", "time", None]
    spec["m"] = {"c": Unbounded((4, 1))}
    assert spec["m"].names == ["env", "time"]
    spec.shape = (4,)
    assert spec.names == [None]


def test_invalid_names() -> None:
    spec = Composite(shape=(2, 3), names=["env", None])
    with pytest.raises(ValueError, match="expected 2 names, got 3"):
        spec.names = ["a", "b", "c"]
    with pytest.raises(RuntimeError, match="'env' cannot be refined to 'other'"):
        spec.refine_names("other", "time")
    assert spec.refine_names(..., "time").names == ["env", "time"]
    named = Composite(a=Composite(shape=(2,), names=["x"]), shape=(2,))
    assert named["a"].names == ["x"]
    assert named.clone(recurse=False)["a"].names == ["x"]
