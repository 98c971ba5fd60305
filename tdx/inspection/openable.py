"""List what tdx can open: envs, checkpoints, datasets, data pipelines, and its own files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from tdx.foundation.plugins import find_plugins, installed_version
from tdx.foundation.serialization import Result
from tdx.stacks.checkpoints.datasets import DATASET_FORMATS
from tdx.stacks.checkpoints.folder import FORMATS
from tdx.stacks.kinds import GROUP, builtin_kinds

Group = Literal["env", "checkpoint", "descriptor", "dataset", "data pipeline", "tdx"]


@dataclass(frozen=True, slots=True)
class Openable(Result):
    """Something that tdx can open.

    Args:
        group: Kind of stack, or ``tdx`` for files and folders that it writes.
        name: What is opened.
        package: Package that it needs, or whose objects it is; ``None`` if it is read as data.
        version: Installed version of the package; ``None`` if it is not installed.
        target: How it is passed to a command.
    """

    group: Group
    name: str
    target: str
    package: str | None = None
    version: str | None = None

    @property
    def available(self) -> bool:
        """False if its package is not installed."""
        return self.package is None or self.version is not None


@dataclass(frozen=True, slots=True)
class OpenableList(Result):
    """What tdx can open and a search matches."""

    search: str
    stack_kinds: tuple[Openable, ...]


_CODE = "FILE.py:FUNCTION --allow-code"
_SAMPLES = f"{_CODE} --samples FILE"
_FOLDER = "FOLDER"
_DESCRIPTORS = (
    ("metadata of an ONNX policy (mjlab)", "FILE.onnx"),
    ("IO descriptors (Isaac Lab)", "FILE.yaml"),
)
_PIPELINES = (
    ("a list of callables, or a function of a sample", None),
    ("a torch.nn.Sequential", "torch"),
    ("a Compose of torchvision", "torchvision"),
    ("a Pipeline of scikit-learn", "scikit-learn"),
    ("a DataProcessorPipeline of LeRobot", "lerobot"),
)
_OWN = (
    ("a pipeline", "FILE.yaml"),
    ("a dump", _FOLDER),
    ("a contract", _FOLDER),
)


def list_openable(search: str = "") -> tuple[Openable, ...]:
    """List what tdx can open; nothing of another library is imported.

    All words of ``search`` must occur in the group, the name or the package.

    Example:
        >>> [entry.name for entry in list_openable("checkpoint lerobot")]
        ['policy_preprocessor.json (LeRobot)']
    """
    words = search.casefold().split()
    return tuple(
        entry
        for entry in _entries()
        if all(
            word in f"{entry.group} {entry.name} {entry.package or ''}".casefold() for word in words
        )
    )


def _entries() -> Iterator[Openable]:
    for kind in builtin_kinds():
        package = kind.bases[0].partition(":")[0].partition(".")[0].replace("_", "-")
        yield Openable("env", kind.title, _CODE, package, installed_version(package))
    for plugin in find_plugins(GROUP):
        package, _, version = plugin.package.rpartition(" ")
        yield Openable("env", f"objects of the plugin {plugin.name}", _CODE, package, version)
    for form in FORMATS:
        yield Openable("checkpoint", form.title, _FOLDER)
    for data in DATASET_FORMATS:
        yield Openable(
            "dataset", data.title, _FOLDER, data.package, installed_version(data.package)
        )
    for name, target in _DESCRIPTORS:
        yield Openable("descriptor", name, target)
    for name, needed in _PIPELINES:
        installed = None if needed is None else installed_version(needed)
        yield Openable("data pipeline", name, _SAMPLES, needed, installed)
    for name, target in _OWN:
        yield Openable("tdx", name, target)
