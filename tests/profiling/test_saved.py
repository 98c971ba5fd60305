"""Saving and reading profiles."""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tdx.foundation.errors import ArgumentError
from tdx.profiling.result import Profile
from tdx.profiling.saved import (
    SampleDecoder,
    encode_samples,
    format_profile,
    profile_from_json,
    profile_to_json,
    read_profile,
)
from tests.profiling.sample_profile import mode_profile, on_device, sample_profile


def same(left: Any, right: Any) -> bool:
    """Return True if two results are equal, including their arrays."""
    if isinstance(left, np.ndarray):
        return left.dtype == right.dtype and bool(np.array_equal(left, right))
    if isinstance(left, tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if hasattr(left, "__dataclass_fields__"):
        return all(
            same(getattr(left, field.name), getattr(right, field.name)) for field in fields(left)
        )
    return bool(left == right)


def whole() -> Profile:
    return sample_profile(
        on_device(mode_profile()), mode_profile("planned", error="stopped", many=True)
    )


def test_read_profile_equals_the_saved_one(tmp_path: Path) -> None:
    profile = whole()
    assert same(profile_from_json(profile_to_json(profile)), profile)
    file = tmp_path / "base.json"
    file.write_text(format_profile(profile), encoding="utf-8")
    assert same(read_profile(file), profile)
    assert json.loads(file.read_text()) == profile_to_json(profile)


def test_encoded_samples_are_small_and_exact() -> None:
    numbers = np.array([0, 2**62, -5, 7], np.int64)
    assert SampleDecoder().decode(encode_samples(numbers)).tolist() == numbers.tolist()
    assert SampleDecoder().decode(encode_samples(np.zeros(0, np.int64))).tolist() == []
    assert len(encode_samples(np.arange(10_000, dtype=np.int64) * 1000)) < 200


def test_calls_in_workers_of_an_earlier_profile_are_those_that_a_step_waited_for() -> None:
    document = profile_to_json(sample_profile())
    samples = document["modes"][0]["rows"][0]["samples"]
    times = SampleDecoder().decode(samples["times_ns"])
    samples["wall_ns"] = encode_samples(np.where(np.arange(len(times)) % 2, times // 2, 0))
    row = profile_from_json(document).modes[0].rows[0]
    assert row.times_ns.tolist() == (times[1::2] // 2).tolist()
    assert row.total_ns == sum(times[1::2] // 2)


def test_documents_contain_statistics() -> None:
    (mode,) = profile_to_json(sample_profile())["modes"]
    row = next(row for row in mode["rows"] if row["label"] == "0 RewardSum")
    assert (row["lane"], row["n"], row["per"]) == ("forward", 120, "call")
    assert row["p50"] <= row["p90"] <= row["p99"] <= row["max"]
    assert sum(each["share"] for each in mode["rows"]) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "plan"}, "this document is not a profile"),
        ({"schema_version": 99}, "schema version 99"),
        ({"machine": {}}, "is damaged"),
        ({"modes": [{}]}, "is damaged"),
        ({"modes": 3}, "is damaged"),
        ({"settings": {"steps": "many"}}, "is damaged"),
        ({"machine": {"accelerators": [], "cpu": [1]}}, "is damaged"),
    ],
)
def test_other_documents_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        profile_from_json(profile_to_json(sample_profile()) | change)


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    with pytest.raises(ArgumentError, match=r"broken\.json is not valid JSON"):
        read_profile(broken)
    with pytest.raises(ArgumentError, match="no such file"):
        read_profile(tmp_path / "missing.json")
    document = profile_to_json(sample_profile())
    document["modes"][0]["rows"][0]["samples"]["times_ns"] = "AAAA"
    with pytest.raises(ArgumentError, match="is damaged"):
        profile_from_json(document)


def test_malformed_profiles_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "deep.json"
    file.write_text("[" * 20_000)
    with pytest.raises(ArgumentError, match="nested more than") as refused:
        read_profile(file)
    assert refused.value.hint
    document = profile_to_json(sample_profile())
    samples = document["modes"][0]["rows"][0]["samples"]
    samples["times_ns"] = base64.b64encode(zlib.compress(bytes(10_000))).decode()
    monkeypatch.setattr("tdx.profiling.saved.MAX_SAMPLE_BYTES", 9_000)
    with pytest.raises(ArgumentError, match="of another type"):
        profile_from_json(document)
    monkeypatch.undo()
    document["modes"][0]["rows"][0]["part"]["index"] = "first"
    samples["times_ns"] = samples["starts_ns"]
    with pytest.raises(ArgumentError, match="is damaged"):
        profile_from_json(document)
