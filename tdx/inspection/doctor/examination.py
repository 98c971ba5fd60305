"""Look at versions, devices, env packages, terminal, folders and shell."""

from __future__ import annotations

import platform
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib import metadata

from tdx.inspection.doctor.packages import Imported, Probe, probe
from tdx.inspection.doctor.report import Diagnosis, DoctorReport
from tdx.inspection.doctor.surroundings import files, shell, terminal

REQUIRED = {
    "torch": "torch",
    "tensordict": "tensordict",
    "torchvision": "torchvision",
    "gymnasium": "gymnasium",
    "numpy": "numpy",
}
OPTIONAL = {"ale_py": "ale-py", "mujoco": "mujoco", "minigrid": "minigrid", "torchrl": "torchrl"}
_PYTHON = (3, 11)


def examine(shown: Sequence[Diagnosis] | None = None) -> DoctorReport:
    """Look at the machine; nothing that is broken stops the examination.

    torch and the packages beside it are imported in another process.

    Args:
        shown: what is known of the terminal; stdout is looked at by default.
    """
    shown = list(terminal(sys.stdout)) if shown is None else shown
    told = probe([*REQUIRED, *OPTIONAL])
    diagnoses = [*_versions(told), *_devices(told), *_envs(), *shown, *files(), *shell()]
    return DoctorReport(tuple(diagnoses))


def _versions(told: Probe) -> Iterator[Diagnosis]:
    from tdx import __version__

    enough = sys.version_info >= _PYTHON
    where = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    hint = None if enough else f"tdx needs Python {'.'.join(map(str, _PYTHON))} or newer"
    yield Diagnosis("versions", "python", "ok" if enough else "fail", where, hint)
    yield Diagnosis("versions", "tdx", "ok", __version__)
    bounds = _bounds()
    for module, package in REQUIRED.items():
        yield _required(module, package, told.modules[module], bounds.get(package))
    missing = []
    for module, package in OPTIONAL.items():
        imported = told.modules[module]
        version = _installed(package)
        if version is None:
            missing.append(package)
        elif imported.error is not None:
            hint = f"reinstall it: pip install --force-reinstall {package}"
            yield Diagnosis("versions", package, "warn", _broken(version, imported), hint)
        else:
            yield Diagnosis("versions", package, "ok", version)
    if missing:
        hint = "each is an extra: pip install 'tdx[atari,mujoco,parity]'"
        yield Diagnosis("versions", "not installed", "ok", ", ".join(missing), hint)


def _required(module: str, package: str, imported: Imported, bound: str | None) -> Diagnosis:
    version = _installed(package) or imported.version
    if imported.error is None:
        if bound is not None and not _within(version, bound):
            hint = f"pip install '{package}{bound}'"
            value = f"{version}, tdx needs {bound}"
            return Diagnosis("versions", package, "warn", value, hint)
        return Diagnosis("versions", package, "ok", version)
    if not version:
        hint = f"pip install {package}"
        return Diagnosis("versions", package, "fail", "not installed", hint)
    hint = f"reinstall it: pip install --force-reinstall {package}"
    if "torchvision::nms" in imported.error:
        hint = "torch and torchvision are of different builds: install both from one index"
    return Diagnosis("versions", package, "fail", _broken(version, imported), hint)


def _broken(version: str, imported: Imported) -> str:
    return f"{version} cannot be imported: {imported.error}"


def _installed(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _bounds() -> dict[str, str]:
    """The versions that tdx asks for, where its metadata is there."""
    try:
        from packaging.requirements import Requirement

        needed = [Requirement(line) for line in metadata.requires("tdx") or ()]
    except (ImportError, metadata.PackageNotFoundError):
        return {}
    return {each.name: str(each.specifier) for each in needed if each.marker is None}


def _within(version: str, bound: str) -> bool:
    from packaging.specifiers import SpecifierSet
    from packaging.version import InvalidVersion

    try:
        return SpecifierSet(bound).contains(version, prereleases=True)
    except InvalidVersion:
        return True


def _devices(told: Probe) -> Iterator[Diagnosis]:
    facts = told.devices
    if "error" in facts or not facts:
        reason = facts.get("error", "torch did not say")
        hint = "mend torch first"
        yield Diagnosis("devices", "cpu", "warn", " ".join(str(reason).split()), hint)
        return
    threads = facts["threads"]
    yield Diagnosis("devices", "cpu", "ok", f"{threads} thread{'' if threads == 1 else 's'}")
    for index, name in enumerate(facts["cuda"]):
        yield Diagnosis("devices", f"cuda:{index}", "ok", name)
    if not facts["cuda"]:
        built = facts["built_for"]
        text = f"none; torch is built for CUDA {built}" if built else "none; torch is built for CPU"
        yield Diagnosis("devices", "cuda", "ok", text)
    if facts["mps"]:
        yield Diagnosis("devices", "mps", "ok", "there")


def _envs() -> Iterator[Diagnosis]:
    try:
        from tdx.inspection.env_list import find_envs

        found = find_envs(missing=True)
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        yield Diagnosis("envs", "list", "fail", reason, "mend gymnasium first")
        return
    everything = found.envs
    for broken in found.broken:
        value = f"cannot be imported, its envs are missing: {broken.reason}"
        yield Diagnosis("envs", broken.provider.package, "warn", value, broken.hint)
    counts = Counter(env.package for env in everything if env.installed)
    for package, count in sorted(counts.items()):
        yield Diagnosis("envs", package, "ok", f"{count} env id{'' if count == 1 else 's'}")
    lacking = Counter(env.hint for env in everything if not env.installed and env.hint)
    installs = {hint: count for hint, count in lacking.items() if hint.startswith("pip install")}
    for hint, count in sorted(installs.items()):
        package = hint.removeprefix("pip install ").strip("'")
        value = f"not installed: {count} more env id{'' if count == 1 else 's'}"
        yield Diagnosis("envs", package, "ok", value, hint)
