"""What tdx says without TorchRL, and with a release that it does not support."""

from __future__ import annotations

import importlib.metadata

import pytest

import tdx
from tdx.stacks.torchrl import from_torchrl_spec, to_torchrl_spec


@pytest.mark.parametrize("found", [None, "0.13.2", "0.140.0"])
def test_missing_and_other_releases(monkeypatch: pytest.MonkeyPatch, found: str | None) -> None:
    def version(name: str) -> str:
        if found is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return found

    monkeypatch.setattr("tdx.stacks.torchrl.version", version)
    calls = (
        lambda: tdx.to_torchrl(tdx.CartPoleEnv()),
        lambda: to_torchrl_spec(tdx.Unbounded()),
        lambda: from_torchrl_spec(None),
    )
    for call in calls:
        with pytest.raises(tdx.MissingPackageError) as caught:
            call()
        expected = "not installed" if found is None else f"TorchRL {found} is not supported"
        assert expected in caught.value.message
        assert caught.value.hint == "install tdx with its extra `torchrl`"
