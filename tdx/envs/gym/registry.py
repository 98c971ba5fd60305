"""Registered env ids: lookup, listing, suggestions and the cache file. Does not import torch."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tdx.envs.gym.providers import (
    PROVIDERS,
    BrokenProvider,
    find_provider,
    find_requirement,
    install_hint,
    load_installed,
)
from tdx.foundation.errors import (
    ArgumentError,
    EnvNotFoundError,
    MissingPackageError,
    Where,
    find_similar_names,
    summarize_error,
)
from tdx.foundation.files import write_atomically
from tdx.foundation.serialization import Result

if TYPE_CHECKING:
    from gymnasium.envs.registration import EnvSpec


_LIST_HINT = "`tdx list envs` shows all ids; for other packages use module:EnvId-v0"


@dataclass(frozen=True, slots=True)
class RegisteredEnv(Result):
    """A registered env.

    Args:
        id: Id of the env, as ``GymEnv`` takes it.
        package: Package that registers the env.
        installed: True if all packages that the env needs are installed.
        hint: How to install them. ``None``: they are installed.
        replaced_by: Id of its newest version that is installed. ``None``: it is the newest.
    """

    id: str
    package: str
    installed: bool
    hint: str | None = None
    replaced_by: str | None = None


def find_env(env_id: str) -> EnvSpec:
    """Return the spec of a registered env, importing the package that registers it if needed.

    The id may have no version, or be ``module:id`` to import a module first.

    Example:
        >>> find_env("Pendulum").id
        'Pendulum-v1'
    """
    import gymnasium

    module, _, name = env_id.rpartition(":")
    if module:
        _import_registering(module, env_id)
    spec = _find_registered(name)
    if spec is not None:
        return spec
    broken = _load_provider(name, env_id)
    spec = _find_registered(name)
    if spec is None and broken is None and find_provider(name) is None:
        # Any of the packages may register an id of unknown form.
        broken = next(iter(load_installed()), None)
        spec = _find_registered(name)
    if spec is None:
        raise _not_found_error(env_id, name, list(gymnasium.registry.items()), broken)
    return spec


def _load_provider(name: str, env_id: str) -> BrokenProvider | None:
    """Import the package of an env, if its id has the form of the package's ids."""
    provider = find_provider(name)
    if provider is None:
        return None
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


def _not_found_error(
    env_id: str, name: str, known: list[tuple[str, EnvSpec]], broken: BrokenProvider | None
) -> EnvNotFoundError:
    near = find_similar_ids(
        name,
        (known_id for known_id, spec in known if _install_or_upgrade_hint(known_id, spec) is None),
    )
    near = near or find_similar_ids(name, (known_id for known_id, _ in known))
    hint = f"did you mean {' or '.join(near)}?" if near else _LIST_HINT
    if broken is not None and not near:
        return EnvNotFoundError(
            f"no env of this id is registered; {broken.message}",
            hint=f"if {broken.provider.package} provides it: {broken.hint}",
            where=Where(env=env_id),
        )
    namespace, slash, _ = name.rpartition("/")
    message = "no env of this id is registered"
    if slash and not any(known_id.startswith(f"{namespace}/") for known_id, _ in known):
        message += f", and no other that begins with {namespace}/"
    return EnvNotFoundError(message, hint=hint, where=Where(env=env_id))


def _find_registered(name: str) -> EnvSpec | None:
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
    """Return the id of an env's newest version; ``None`` if the given id is the newest.

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
            hint=f"install the package that provides {missing}, or run tdx in its folder",
            where=Where(env=env_id),
        ) from error
    except Exception as error:
        raise MissingPackageError(
            f"the module {module} cannot be imported: {summarize_error(error)}",
            hint=f"fix the module: python -c 'import {module}' shows where it fails",
            where=Where(env=env_id),
        ) from error


@dataclass(frozen=True, slots=True)
class EnvSurvey:
    """Registered envs, and packages that could not be imported."""

    envs: tuple[RegisteredEnv, ...]  # sorted by name; of several versions the newest comes first
    broken: tuple[BrokenProvider, ...] = ()
    similar: tuple[str, ...] = ()  # installed envs with a similar id, for a search without a result


def survey_envs() -> EnvSurvey:
    """Return the envs of Gymnasium and of known, installed packages.

    If Gymnasium is not imported yet, the list comes from a cache file, which is valid until a
    package is installed, updated or removed. Envs registered by the running process are included
    otherwise. A list with a broken package, which may be repaired at any time, is not cached.
    """
    if "gymnasium" in sys.modules:
        return _survey()
    cached = read_cache()
    if cached is not None:
        return EnvSurvey(cached)
    survey = _survey()
    if not survey.broken:
        write_cache(survey.envs)
    return survey


def available_envs() -> list[RegisteredEnv]:
    """Return the envs of :func:`survey_envs`.

    Example:
        >>> [env.package for env in available_envs() if env.id == "CartPole-v1"]
        ['gymnasium']
    """
    return list(survey_envs().envs)


def _survey() -> EnvSurvey:
    import gymnasium

    broken = load_installed()
    hints = {
        env_id: _install_or_upgrade_hint(env_id, spec)
        for env_id, spec in gymnasium.registry.items()
    }
    newest: dict[str, _Parts] = {}
    for parts in (_parts(env_id) for env_id, hint in hints.items() if hint is None):
        name = _unversioned(parts.id)
        newest[name] = max(newest.get(name, parts), parts, key=lambda version: version.version)
    listed = []
    for env_id, spec in gymnasium.registry.items():
        hint, latest = hints[env_id], newest.get(_unversioned(env_id))
        replacement = None if latest is None or latest.id == env_id else latest.id
        listed.append(RegisteredEnv(env_id, package_of(spec), hint is None, hint, replacement))
    order = sorted(listed, key=lambda env: (_unversioned(env.id), -_parts(env.id).version))
    return EnvSurvey(tuple(order), broken)


def _unversioned(env_id: str) -> str:
    return re.sub(r"-v\d+$", "", env_id)


def list_versions(env_id: str) -> tuple[str, ...]:
    """Return the registered ids of all versions of an env, newest first.

    Example:
        >>> list_versions("CartPole-v1")
        ('CartPole-v1', 'CartPole-v0')
    """
    import gymnasium

    name = _unversioned(env_id)
    versions = (
        _parts(known_id) for known_id in gymnasium.registry if _unversioned(known_id) == name
    )
    return tuple(version.id for version in sorted(versions, key=lambda parts: -parts.version))


def package_of(spec: EnvSpec) -> str:
    """Return the package that registers an env."""
    entry = spec.entry_point or spec.vector_entry_point
    name = entry if isinstance(entry, str) else getattr(entry, "__module__", "")
    module = name.partition(":")[0].partition(".")[0]
    packages = {provider.module.partition(".")[0]: provider.package for provider in PROVIDERS}
    return packages.get(module, module)


def _install_or_upgrade_hint(env_id: str, spec: EnvSpec) -> str | None:
    """Return what to do before an env can be created; ``None`` if it can be."""
    needed = find_requirement(spec.entry_point)
    if needed is not None and find_spec(needed[0]) is None:
        return install_hint(needed[1])
    # Gymnasium keeps the ids of removed envs, with an entry point that raises.
    gone = getattr(spec.entry_point, "__name__", "").startswith("_raise")
    return find_replacement_hint(env_id) if gone else None


def find_replacement_hint(env_id: str) -> str | None:
    """Return a hint for a registered env that cannot be created; ``None`` if there is none."""
    newer = newer_version(env_id)
    if newer is not None:
        return f"use {newer}"
    provider = find_provider(env_id)
    return provider.hint if provider is not None and not provider.installed else None


_MIN_PREFIX = 4
_CUTOFF = 0.7
"""Similarity of a suggested id: with the usual one, ``nope`` is similar to ``Hopper-v5``."""


class _Parts(NamedTuple):
    id: str
    namespace: str
    name: str
    version: int


def find_similar_ids(env_id: str, known: Iterable[str]) -> list[str]:
    """Find up to 3 ids: the same name in another version or namespace, then similar names.

    Args:
        env_id: The unknown id.
        known: Registered ids.

    Example:
        >>> find_similar_ids("cartpole-v9", ["CartPole-v0", "CartPole-v1", "phys2d/CartPole-v1"])
        ['CartPole-v1', 'CartPole-v0', 'phys2d/CartPole-v1']
        >>> find_similar_ids("PongDeterministic-v4", ["ALE/Pong-v5", "Pendulum-v1"])
        ['ALE/Pong-v5']
    """
    target = _parts(env_id)
    by_name: dict[str, list[_Parts]] = {}
    for parts in map(_parts, known):
        by_name.setdefault(parts.name, []).append(parts)
    longer = [name for name in by_name if len(name) >= _MIN_PREFIX and target.name.startswith(name)]
    names = [
        *find_similar_names(target.name, by_name, cutoff=_CUTOFF),
        *sorted(longer, key=len, reverse=True),
    ]
    ids: list[str] = []
    for name in dict.fromkeys(names):
        newest_first = sorted(
            by_name[name],
            key=lambda parts: (
                parts.namespace != target.namespace,
                parts.namespace,
                -parts.version,
            ),
        )
        same_name = newest_first if name == target.name else _newest(newest_first)
        ids += [parts.id for parts in same_name]
    return ids[:3]


def _parts(env_id: str) -> _Parts:
    namespace, _, rest = env_id.rpartition("/")
    name, version = re.fullmatch(r"(.*?)(?:-v(\d+))?", rest, re.DOTALL).groups()  # type: ignore[union-attr]
    return _Parts(env_id, namespace, name.casefold(), int(version or 0))


def _newest(ids: list[_Parts]) -> list[_Parts]:
    """Return the first id of each namespace."""
    return list({parts.namespace: parts for parts in reversed(ids)}.values())[::-1]


def read_cache() -> tuple[RegisteredEnv, ...] | None:
    """Read the cached envs; ``None`` if they are missing, invalid or outdated."""
    try:
        stored = json.loads(_cache_path().read_text(encoding="utf-8"))
        if stored["of"] != _fingerprint():
            return None
        envs = tuple(RegisteredEnv(**entry) for entry in stored["envs"])
    except (OSError, ValueError, TypeError, KeyError):
        return None
    are_texts = all(isinstance(text, str) for env in envs for text in (env.id, env.package))
    return envs if are_texts else None


def write_cache(envs: Iterable[RegisteredEnv]) -> None:
    """Write envs to the cache, if it is writable."""
    path = _cache_path()
    text = json.dumps({"of": _fingerprint(), "envs": [asdict(env) for env in envs]})
    with suppress(OSError, ArgumentError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text, sync=False)


def _cache_path() -> Path:
    from platformdirs import user_cache_path

    return user_cache_path("tdx") / "envs.json"


def _fingerprint() -> dict[str, object]:
    """Return what the list depends on: interpreter, installed packages and this code."""
    folders = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    sources = [str(Path(__file__).with_name(name)) for name in ("registry.py", "providers.py")]
    changed: dict[str, int | None] = dict.fromkeys([*folders, *sources])
    for path in changed:
        with suppress(OSError):
            changed[path] = os.stat(path).st_mtime_ns
    return {"python": sys.version, "changed": changed}
