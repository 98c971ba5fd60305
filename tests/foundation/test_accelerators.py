"""The accelerator of torch, with and without ``torch.accelerator``."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tdx.foundation import accelerators

CALLS = ("synchronize", "current_stream", "memory_stats", "reset_peak_memory_stats")


def fake_module(log: list[str], with_device: bool = True) -> Any:
    """Fake of a module such as ``torch.cuda``, with two devices."""

    def logging(name: str) -> Any:
        def call(*device: torch.device) -> dict[str, Any]:
            assert len(device) == with_device
            log.append(name)
            return {"name": name}

        return call

    calls = {name: logging(name) for name in CALLS}
    return SimpleNamespace(is_available=lambda: True, device_count=lambda: 2, **calls)


@pytest.mark.parametrize("kind", ["cuda", "mps"])
def test_module_of_the_device_replaces_missing_functions(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    log: list[str] = []
    module = fake_module(log, with_device=kind != "mps")
    monkeypatch.delattr(torch, "accelerator", raising=False)
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    for name in CALLS:
        found = getattr(accelerators, name)(torch.device(kind))
        assert found == (
            None if name in ("synchronize", "reset_peak_memory_stats") else {"name": name}
        )
    assert log == [*CALLS]


def test_device_is_found_without_torch_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch, "accelerator", raising=False)
    for name in ("cuda", "xpu", "mps", "mtia"):
        monkeypatch.setattr(getattr(torch, name), "is_available", lambda: False)
    assert accelerators.current_accelerator() is None
    assert accelerators.list_devices() == []
    monkeypatch.setattr(torch.xpu, "is_available", lambda: True)
    monkeypatch.setattr(torch, "get_device_module", lambda device: fake_module([]))
    assert accelerators.current_accelerator() == torch.device("xpu")
    assert accelerators.list_devices() == [torch.device("xpu:0"), torch.device("xpu:1")]


def test_missing_statistics_are_an_attribute_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch, "accelerator", raising=False)
    with pytest.raises(AttributeError):
        accelerators.memory_stats(torch.device("mps"))


def test_installed_torch() -> None:
    device = accelerators.current_accelerator()
    found = accelerators.list_devices()
    assert (device is None) == (found == [])
    assert all(device is not None and each.type == device.type for each in found)
