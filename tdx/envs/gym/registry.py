"""Registered env ids: lookup, listing, suggestions and the cache file. Does not import torch."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tdx.envs.gym.providers import (
    PROVIDERS,
    BrokenProvider,
    install_hint,
    load_installed,
    provider_of,
    requirement,
)
from tdx.errors import (
    ArgumentError,
    EnvNotFoundError,
    MissingPackageError,
    Where,
    find_similar_names,
    summarize_error,
)
from tdx.files import write_atomically

if TYPE_CHECKING:
    from gymnasium.envs.registration import EnvSpec


_OTHERWISE = "`tdx list envs` shows every id; for other packages name the module: module:EnvId-v0"


@dataclass(frozen=True, slots=True)
class RegisteredEnv:
    """One env id.

    Args:
        id: what ``GymEnv`` takes.
        package: the package that registers it.
        installed: whether all that it needs to run is installed.
        hint: what to install where it is not.
    """

    id: str
    package: str
    installed: bool
    hint: str | None = None


def find_env(env_id: str) -> EnvSpec:
    """The registered spec of an env id; imports the package that registers it where need be.

    Args:
        env_id: an id, with or without its version, or ``module:id`` for one that ``module``
            registers on import.

    Raises:
        EnvNotFoundError: nothing of that id is registered.
        MissingPackageError: the package that brings it is not installed, or cannot be imported.

    Example:
        >>> find_env("Pendulum").id
        'Pendulum-v1'
    """
    import gymnasium

    module, _, name = env_id.rpartition(":")
    if module:
        _import_registering(module, env_id)
    found = _registered(name)
    if found is not None:
        return found
    broken = _load_provider_of(name, env_id)
    found = _registered(name)
    if found is None and broken is None and provider_of(name) is None:
        # An id of no known form may be registered by any of the packages.
        broken = next(iter(load_installed()), None)
        found = _registered(name)
    if found is None:
        raise _unknown(env_id, name, list(gymnasium.registry.items()), broken)
    return found


def _load_provider_of(name: str, env_id: str) -> BrokenProvider | None:
    """Import the package that brings an id, where that is known from its form or the cache.

    Raises:
        MissingPackageError: It is not installed, or its import fails.
    """
    provider = provider_of(name)
    if provider is None:
        return _load_remembered(name)
    if not provider.installed:
        raise MissingPackageError(
            f"the env needs the package {provider.package}, which is not installed",
            hint=provider.hint,
            where=Where(env=env_id),
        )
    broken = provider.load()
    if broken is not None:
        raise MissingPackageError(
            broken.message, hint=broken.hint, where=Where(env=env_id)
        ) from broken.error
    return None


def _load_remembered(name: str) -> BrokenProvider | None:
    """Import the package that brought the id when the list of envs was cached."""
    for entry in read_entries() or ():
        env_id = entry["id"]
        if env_id == name or env_id.rpartition("-v")[0] == name:
            for provider in PROVIDERS:
                if provider.package == entry["package"] and provider.installed:
                    return provider.load()
    return None


def _unknown(
    env_id: str, name: str, known: list[tuple[str, EnvSpec]], broken: BrokenProvider | None
) -> EnvNotFoundError:
    near = nearest_ids(name, (each for each, spec in known if _missing(each, spec) is None))
    near = near or nearest_ids(name, (each for each, _ in known))
    hint = f"did you mean {' or '.join(near)}?" if near else _OTHERWISE
    if broken is not None and not near:
        return EnvNotFoundError(
            f"no env of this id is registered; {broken.message}",
            hint=f"if {broken.provider.package} brings it: {broken.hint}",
            where=Where(env=env_id),
        )
    namespace, slash, _ = name.rpartition("/")
    message = "no env of this id is registered"
    if slash and not any(each.startswith(f"{namespace}/") for each, _ in known):
        message += f", and no other that begins with {namespace}/"
    return EnvNotFoundError(message, hint=hint, where=Where(env=env_id))


def _registered(name: str) -> EnvSpec | None:
    from gymnasium import error
    from gymnasium.envs.registration import find_highest_version, get_env_id, parse_env_id, registry

    if name in registry:
        return registry[name]
    try:
        namespace, base, version = parse_env_id(name)
    except error.Error:
        return None
    newest = None if version is not None else find_highest_version(namespace, base)
    return None if newest is None else registry[get_env_id(namespace, base, newest)]


def newer_version(env_id: str) -> str | None:
    """The id of an env's newest version, where the one named is older.

    Example:
        >>> newer_version("Pendulum-v1") is None
        True
    """
    from gymnasium import error
    from gymnasium.envs.registration import find_highest_version, get_env_id, parse_env_id

    try:
        namespace, base, version = parse_env_id(env_id.rpartition(":")[2])
    except error.Error:
        return None
    newest = find_highest_version(namespace, base)
    if version is None or newest is None or newest <= version:
        return None
    return get_env_id(namespace, base, newest)


def _import_registering(module: str, env_id: str) -> None:
    try:
        import_module(module)
    except ModuleNotFoundError as error:
        missing = error.name or module
        raise MissingPackageError(
            f"the module {missing} is not installed",
            hint=f"install the package that brings {missing}, or fix the part before the colon",
            where=Where(env=env_id),
        ) from error
    except Exception as error:
        raise MissingPackageError(
            f"the module {module} cannot be imported: {summarize_error(error)}",
            hint=f"fix the module: python -c 'import {module}' shows where it fails",
            where=Where(env=env_id),
        ) from error


def available_envs() -> list[RegisteredEnv]:
    """Every env id of Gymnasium and of the known packages that are installed, sorted.

    Where Gymnasium is not loaded yet the answer comes from a cache file, kept until a package
    is installed, updated or removed; ids that a running process registered itself are always there.

    Example:
        >>> [env.package for env in available_envs() if env.id == "CartPole-v1"]
        ['gymnasium']
    """
    return survey_envs().envs


@dataclass(frozen=True, slots=True)
class EnvSurvey:
    """The env ids, and the packages that may bring more.

    Args:
        envs: The ids, sorted.
        broken: Known packages that are installed and cannot be imported.
    """

    envs: list[RegisteredEnv]
    broken: tuple[BrokenProvider, ...]


def survey_envs() -> EnvSurvey:
    """:func:`available_envs`, with the packages whose envs are missing there.

    While a package is broken nothing is cached: it may be repaired at any time.
    """
    if "gymnasium" in sys.modules:
        return _surveyed()
    kept = read_entries()
    if kept is not None:
        return EnvSurvey([RegisteredEnv(**entry) for entry in kept], ())
    survey = _surveyed()
    if not survey.broken:
        write_entries([asdict(env) for env in survey.envs])
    return survey


def _surveyed() -> EnvSurvey:
    import gymnasium

    broken = load_installed()
    packages = {each.module.partition(".")[0]: each.package for each in PROVIDERS}
    listed = []
    for env_id, spec in gymnasium.registry.items():
        module, hint = _module_of(spec), _missing(env_id, spec)
        package = packages.get(module, module)
        listed.append(RegisteredEnv(env_id, package, hint is None, hint))
    return EnvSurvey(sorted(listed, key=lambda env: env.id), broken)


def _missing(env_id: str, spec: EnvSpec) -> str | None:
    """What to do before an env can be made; none where it can."""
    needed = requirement(spec.entry_point)
    if needed is not None and find_spec(needed[0]) is None:
        return install_hint(needed[1])
    # Gymnasium keeps the ids of envs that it no longer has: making one only raises.
    gone = getattr(spec.entry_point, "__name__", "").startswith("_raise")
    return elsewhere(env_id) if gone else None


def elsewhere(env_id: str) -> str | None:
    """Where an env has gone that is registered and cannot be made; none where nobody knows."""
    newer = newer_version(env_id)
    if newer is not None:
        return f"use {newer}"
    provider = provider_of(env_id)
    return provider.hint if provider is not None and not provider.installed else None


def _module_of(spec: EnvSpec) -> str:
    entry = spec.entry_point or spec.vector_entry_point
    name = entry if isinstance(entry, str) else getattr(entry, "__module__", "")
    return name.partition(":")[0].partition(".")[0]


_SHORTEST = 4


class _Parts(NamedTuple):
    id: str
    namespace: str
    name: str
    version: int


def nearest_ids(env_id: str, known: Iterable[str], most: int = 3) -> list[str]:
    """Ids with the same name in another version or namespace, then those with a similar name.

    Args:
        env_id: what was asked for.
        known: the ids there are.
        most: how many are returned.

    Example:
        >>> nearest_ids("cartpole-v9", ["CartPole-v0", "CartPole-v1", "phys2d/CartPole-v1"])
        ['CartPole-v1', 'CartPole-v0', 'phys2d/CartPole-v1']
        >>> nearest_ids("PongDeterministic-v4", ["ALE/Pong-v5", "Pendulum-v1"])
        ['ALE/Pong-v5']
    """
    wanted = _parts(env_id)
    by_name: dict[str, list[_Parts]] = {}
    for parts in map(_parts, known):
        by_name.setdefault(parts.name, []).append(parts)
    longer = [name for name in by_name if len(name) >= _SHORTEST and wanted.name.startswith(name)]
    names = [*find_similar_names(wanted.name, by_name), *sorted(longer, key=len, reverse=True)]
    found: list[str] = []
    for name in dict.fromkeys(names):
        ids = sorted(by_name[name], key=lambda each: _distance(each, wanted))
        found += [each.id for each in (ids if name == wanted.name else _newest(ids))]
    return found[:most]


def _parts(env_id: str) -> _Parts:
    namespace, _, rest = env_id.rpartition("/")
    name, version = re.fullmatch(r"(.*?)(?:-v(\d+))?", rest, re.DOTALL).groups()  # type: ignore[union-attr]
    return _Parts(env_id, namespace, name.casefold(), int(version or 0))


def _distance(parts: _Parts, wanted: _Parts) -> tuple[bool, str, int]:
    return parts.namespace != wanted.namespace, parts.namespace, -parts.version


def _newest(ids: list[_Parts]) -> list[_Parts]:
    """The first of each namespace."""
    return list({parts.namespace: parts for parts in reversed(ids)}.values())[::-1]


Entry = Mapping[str, Any]
_FIELDS: dict[str, Any] = {
    "id": str,
    "package": str,
    "installed": bool,
    "hint": (str, type(None)),
}


def read_entries() -> list[Entry] | None:
    """The entries kept, none where they are of other packages than those installed now."""
    try:
        stored = json.loads(_file().read_text(encoding="utf-8"))
        if stored["of"] != _fingerprint():
            return None
        entries = list(stored["envs"])
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return entries if all(map(_is_entry, entries)) else None


def write_entries(entries: Sequence[Entry]) -> None:
    """Write the entries to the cache; without effect where it is not writable."""
    path = _file()
    text = json.dumps({"of": _fingerprint(), "envs": entries})
    with suppress(OSError, ArgumentError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text, sync=False)


def _file() -> Path:
    from platformdirs import user_cache_path

    return user_cache_path("tdx") / "envs.json"


def _fingerprint() -> dict[str, Any]:
    """What the list follows from: the interpreter, what is installed, and this code."""
    folders = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    sources = [str(Path(__file__).with_name(name)) for name in ("registry.py", "providers.py")]
    return {
        "python": sys.version,
        "changed": {path: _changed(path) for path in [*folders, *sources]},
    }


def _changed(path: str) -> int | None:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return None


def _is_entry(entry: Any) -> bool:
    return (
        isinstance(entry, dict)
        and entry.keys() == _FIELDS.keys()
        and all(isinstance(entry[name], kind) for name, kind in _FIELDS.items())
    )
