"""Diagnose the installation: packages, devices, envs, terminal, folders and shell."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar, Literal, TextIO

from tdx.foundation.errors import TdxError, install_extra
from tdx.foundation.plugins import (
    GROUPS,
    VARIABLE,
    all_plugins,
    are_plugins_enabled,
    disable_plugin,
    disabled_plugins,
    installed_version,
    load_plugins,
)
from tdx.foundation.safe_path import python_command, safe_path
from tdx.foundation.serialization import Entries, Entry, Result

Status = Literal["ok", "warn", "fail"]
REQUIRED = {
    "torch": "torch",
    "tensordict": "tensordict",
    "torchvision": "torchvision",
    "gymnasium": "gymnasium",
    "numpy": "numpy",
}
OPTIONAL = {"ale_py": "ale-py", "mujoco": "mujoco", "minigrid": "minigrid", "torchrl": "torchrl"}
_EXTRAS = {"ale-py": "atari", "mujoco": "mujoco", "torchrl": "torchrl"}
"""Extras of tdx that install an optional package."""
_PYTHON = (3, 11)
_COLUMNS, _LINES = 80, 24
_COMPLETIONS = {
    "bash": ".bash_completions/tdx.sh",
    "zsh": ".zfunc/_tdx",
    "fish": ".config/fish/completions/tdx.fish",
}
_TIMEOUT = 120.0
_PROBE = """
import importlib, json, sys
request = json.loads(sys.argv[1])
sys.path[:] = request["path"]
def report(**facts):
    print(json.dumps(facts), file=sys.__stdout__, flush=True)
for name in request["modules"]:
    report(begin=name)
    try:
        module = importlib.import_module(name)
        report(version=str(getattr(module, "__version__", "")))
    except BaseException as error:
        report(error=f"{type(error).__name__}: {error}")
if not request["devices"]:
    sys.exit()
try:
    import torch
    cuda = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    mps = bool(torch.backends.mps.is_available())
    report(devices={"cuda": cuda, "mps": mps, "threads": torch.get_num_threads(),
                  "built_for": torch.version.cuda})
except BaseException as error:
    report(devices={"error": f"{type(error).__name__}: {error}"})
"""


@dataclass(frozen=True, slots=True)
class Diagnosis(Result):
    """Result of one check.

    Args:
        group: Group of the check.
        name: What was checked.
        status: ``ok``, ``warn`` (a drawback) or ``fail`` (tdx does not work).
        value: Result, on one line.
        hint: How to fix it.
    """

    group: Group
    name: str
    status: Status
    value: str
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class DoctorReport(Result):
    """Results of all checks."""

    json_entries: ClassVar[Entries] = ("ok", "warnings", "failures", Entry("checks", "diagnoses"))

    diagnoses: tuple[Diagnosis, ...]

    @property
    def ok(self) -> bool:
        """True if there are no failures."""
        return not self.failures

    @property
    def warnings(self) -> int:
        """Number of warnings."""
        return sum(diagnosis.status == "warn" for diagnosis in self.diagnoses)

    @property
    def failures(self) -> int:
        """Number of failures."""
        return sum(diagnosis.status == "fail" for diagnosis in self.diagnoses)


def diagnose(
    shown: Sequence[Diagnosis] | None = None, plugins: Iterable[Diagnosis] = ()
) -> DoctorReport:
    """Check the machine; a failed check does not end the diagnosis.

    torch and related packages are imported in a separate process.

    ``shown`` are the diagnoses of the terminal, by default of stdout.
    """
    shown = list(check_terminal(sys.stdout)) if shown is None else shown
    imports = probe_imports([*REQUIRED, *OPTIONAL])
    diagnoses = [
        *_versions(imports),
        *_devices(imports),
        *_check_envs(),
        *plugins,
        *shown,
        *check_folders(),
        *check_shell(),
    ]
    return DoctorReport(tuple(diagnoses))


def _versions(imports: ImportProbe) -> Iterator[Diagnosis]:
    from tdx import __version__

    is_supported = sys.version_info >= _PYTHON
    where = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    hint = None if is_supported else f"tdx needs Python {'.'.join(map(str, _PYTHON))} or newer"
    yield Diagnosis("versions", "python", "ok" if is_supported else "fail", where, hint)
    yield Diagnosis("versions", "tdx", "ok", __version__)
    bounds = _bounds()
    for module, package in REQUIRED.items():
        yield _check_package(imports, module, package, "fail", bounds.get(package))
    missing = []
    for module, package in OPTIONAL.items():
        if installed_version(package) is None:
            missing.append(package)
        else:
            yield _check_package(imports, module, package, "warn")
    if missing:
        extras = [_EXTRAS[package] for package in missing if package in _EXTRAS]
        hint = install_extra(*extras) if extras else None
        yield Diagnosis("versions", "not installed", "ok", ", ".join(missing), hint)


def _check_package(
    imports: ImportProbe, module: str, package: str, status: Status, bound: str | None = None
) -> Diagnosis:
    """Check the version of a package, and that it can be imported; else it has the status."""
    version = installed_version(package) or imports.versions.get(module)
    error = imports.errors.get(module)
    if error is None:
        if version and bound is not None and not _within(version, bound):
            value, hint = f"{version}, tdx needs {bound}", f"pip install '{package}{bound}'"
            return Diagnosis("versions", package, "warn", value, hint)
        return Diagnosis("versions", package, "ok", version or "")
    if not version:
        return Diagnosis("versions", package, status, "not installed", f"pip install {package}")
    hint = f"reinstall it: pip install --force-reinstall {package}"
    if "torchvision::nms" in error:
        hint = "torch and torchvision do not match: install both from the same index"
    value = f"{version} cannot be imported: {error}"
    return Diagnosis("versions", package, status, value, hint)


def _bounds() -> dict[str, str]:
    """Return the version requirements of tdx, if its metadata is installed."""
    try:
        from packaging.requirements import Requirement

        requirements = [Requirement(line) for line in metadata.requires("tdx") or ()]
    except (ImportError, metadata.PackageNotFoundError):
        return {}
    return {
        requirement.name: str(requirement.specifier)
        for requirement in requirements
        if requirement.marker is None
    }


def _within(version: str, bound: str) -> bool:
    from packaging.specifiers import SpecifierSet
    from packaging.version import InvalidVersion

    try:
        return SpecifierSet(bound).contains(version, prereleases=True)
    except InvalidVersion:
        return True


def _devices(imports: ImportProbe) -> Iterator[Diagnosis]:
    facts = imports.devices
    if "error" in facts or not facts:
        reason = facts.get("error", "torch reported no devices")
        hint = "fix the torch installation first"
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
        yield Diagnosis("devices", "mps", "ok", "available")


def _check_envs() -> Iterator[Diagnosis]:
    try:
        from tdx.inspection.envs import find_envs

        survey = find_envs(missing=True)
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        yield Diagnosis("envs", "list", "fail", reason, "fix the gymnasium installation first")
        return
    envs = survey.envs
    for broken in survey.broken:
        value = f"cannot be imported, its envs are missing: {broken.reason}"
        yield Diagnosis("envs", broken.provider.package, "warn", value, broken.hint)
    counts = Counter(env.package for env in envs if env.installed)
    for package, count in sorted(counts.items()):
        yield Diagnosis("envs", package, "ok", f"{count} env id{'' if count == 1 else 's'}")
    hints = Counter(env.hint for env in envs if not env.installed and env.hint)
    installs = {hint: count for hint, count in hints.items() if hint.startswith("pip install")}
    for hint, count in sorted(installs.items()):
        package = hint.removeprefix("pip install ").strip("'")
        value = f"not installed: {count} more env id{'' if count == 1 else 's'}"
        yield Diagnosis("envs", package, "ok", value, hint)


def check_terminal(stream: TextIO) -> Iterator[Diagnosis]:
    """Check colors, size and encoding of the terminal behind a stream."""
    if not stream.isatty():
        yield Diagnosis(
            "terminal", "output", "ok", "not a terminal: output is not colored or truncated"
        )
    else:
        size = shutil.get_terminal_size()
        is_small = size.columns < _COLUMNS or size.lines < _LINES
        hint = f"use at least {_COLUMNS}×{_LINES} to avoid wrapped tables" if is_small else None
        status: Status = "warn" if is_small else "ok"
        text = f"{size.columns}×{size.lines}"
        yield Diagnosis("terminal", "size", status, text, hint)
        yield _check_colors()
    encoding = (stream.encoding or "unknown").lower()
    is_unicode = encoding.replace("-", "").startswith("utf")
    hint = None if is_unicode else "set LANG=C.UTF-8 or PYTHONUTF8=1; symbols are shown as ASCII"
    yield Diagnosis("terminal", "unicode", "ok" if is_unicode else "warn", encoding, hint)


def _check_colors() -> Diagnosis:
    term = os.environ.get("TERM", "")
    if os.environ.get("NO_COLOR"):
        return Diagnosis("terminal", "colors", "ok", "off: NO_COLOR is set")
    if term in ("", "dumb"):
        hint = "set TERM, for example to xterm-256color"
        return Diagnosis("terminal", "colors", "warn", f"none: TERM is {term!r}", hint)
    if os.environ.get("COLORTERM") in ("truecolor", "24bit"):
        return Diagnosis("terminal", "colors", "ok", "16 million")
    return Diagnosis("terminal", "colors", "ok", "256" if "256" in term else "16")


def check_folders() -> Iterator[Diagnosis]:
    """Check the folders that tdx writes to, and the configuration file."""
    from platformdirs import user_cache_path

    from tdx.foundation.settings import FILE_VARIABLE, config_path, load_settings

    path = config_path()
    yield _folder("config", path.parent, f"{FILE_VARIABLE}=FILE puts it elsewhere")
    yield _folder("cache", user_cache_path("tdx"), "env ids are looked up in each call")
    try:
        settings = load_settings()
    except TdxError as error:
        value = f"{error.where}: {error.message}" if str(error.where) else error.message
        yield Diagnosis("files", "settings", "fail", value, error.hint)
        return
    value = str(path) if settings.exists else f"{path} (missing: using defaults)"
    yield Diagnosis("files", "settings", "ok", value)


def _folder(name: str, path: Path, otherwise: str) -> Diagnosis:
    """Check if a folder is writable or can be created."""
    nearest = path
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    if nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK):
        value = str(path) if nearest == path else f"{path} (created on demand)"
        return Diagnosis("files", name, "ok", value)
    return Diagnosis("files", name, "warn", f"{path} cannot be written to", otherwise)


def check_shell() -> Iterator[Diagnosis]:
    """Check if tdx is on PATH and if completion is installed."""
    executable = shutil.which("tdx")
    if executable is None:
        hint = f"activate the environment, or run `{Path(sys.executable).name} -m tdx`"
        yield Diagnosis("shell", "PATH", "warn", "tdx is not on PATH", hint)
    elif Path(executable).parent.resolve() != Path(sys.executable).parent.resolve():
        hint = f"this process runs {sys.executable}"
        yield Diagnosis("shell", "PATH", "warn", f"another tdx comes first: {executable}", hint)
    else:
        yield Diagnosis("shell", "PATH", "ok", executable)
    name = Path(os.environ.get("SHELL", "")).name
    file = _COMPLETIONS.get(name)
    if file is None:
        yield Diagnosis(
            "shell", "completion", "ok", f"not available for {name or 'an unknown shell'}"
        )
    elif (Path.home() / file).exists():
        yield Diagnosis("shell", "completion", "ok", f"{name}: ~/{file}")
    else:
        hint = "tdx --install-completion"
        yield Diagnosis("shell", "completion", "warn", f"{name}: not installed", hint)


@dataclass(frozen=True, slots=True)
class ImportProbe:
    """Versions, errors and devices that the import process reported; a version may be empty."""

    versions: dict[str, str] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    devices: dict[str, Any] = field(default_factory=dict)


def probe_imports(modules: Sequence[str], *, devices: bool = True) -> ImportProbe:
    """Import modules in a separate process, which a broken package may crash, and list devices."""
    request = json.dumps({"modules": list(modules), "path": sys.path, "devices": devices})
    try:
        # The imported packages may start processes, too.
        with safe_path():
            done = subprocess.run(
                python_command("-W", "ignore", "-c", _PROBE, request),
                capture_output=True,
                text=True,
                timeout=_TIMEOUT,
                check=False,
            )
        output, end = done.stdout, f"the import ended the process with code {done.returncode}"
    except subprocess.TimeoutExpired as error:
        output = error.stdout.decode() if isinstance(error.stdout, bytes) else error.stdout or ""
        end = f"the import took more than {_TIMEOUT:.0f} s"
    except OSError as error:
        output, end = "", f"cannot start a process: {error.strerror}"
    probe, current = ImportProbe(), ""
    for line in output.splitlines():
        try:
            facts = json.loads(line)
        except ValueError:
            # Something that a module printed.
            continue
        current = facts.get("begin", current)
        if "error" in facts:
            probe.errors[current] = " ".join(facts["error"].split())
        elif "version" in facts:
            probe.versions[current] = facts["version"]
        probe.devices.update(facts.get("devices", {}))
    for name in modules:
        if name not in probe.versions and name not in probe.errors:
            was_tried = name == current or not current
            probe.errors[name] = end if was_tried else f"not tried: {end}"
    return probe


Group = Literal["versions", "devices", "envs", "plugins", "terminal", "files", "shell"]


def check_plugins(load_exporters: Callable[[], object] | None = None) -> Iterator[Diagnosis]:
    """Check the plugins of other packages; one whose import ends the process is not loaded.

    ``load_exporters`` loads the exporters of plugins, which else are only imported.
    """
    from tdx.inspection.lint.linter import all_rules
    from tdx.pipeline.catalog import load_catalog, load_plugin_transform
    from tdx.stacks.kinds import plugin_kinds

    if not are_plugins_enabled():
        yield Diagnosis("plugins", "all", "ok", f"disabled by {VARIABLE}=0")
        return
    plugins = all_plugins()
    if not plugins:
        return
    modules = dict.fromkeys(plugin.module for plugin in plugins)
    probe = probe_imports([*modules], devices=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for plugin in plugins:
            reason = probe.errors.get(plugin.module)
            if reason is not None:
                disable_plugin(plugin, plugin.error(f"cannot be imported: {reason}"))
        # Load plugins as their users do, which disables those with faults.
        catalog = load_catalog()
        load_plugins("tdx.transforms", lambda plugin: load_plugin_transform(catalog[plugin.name]))
        all_rules()
        plugin_kinds()
        if load_exporters is not None:
            load_exporters()
    disabled = disabled_plugins()
    for plugin in plugins:
        name, error = f"{GROUPS[plugin.group]} {plugin.name}", disabled.get(plugin)
        if error is None:
            yield Diagnosis("plugins", name, "ok", plugin.package)
        else:
            yield Diagnosis("plugins", name, "warn", f"disabled: {error.message}", error.hint)
