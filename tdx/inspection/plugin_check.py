"""Diagnose the plugins of other packages."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

from tdx.foundation.plugins import (
    GROUPS,
    VARIABLE,
    all_plugins,
    are_plugins_enabled,
    disable_plugin,
    disabled_plugins,
    load_plugins,
)
from tdx.inspection.doctor import Diagnosis, probe_imports
from tdx.inspection.lint.linter import all_rules
from tdx.pipeline.catalog import load_catalog, load_plugin_transform
from tdx.stacks.kinds import plugin_kinds


def check_plugins(load_exporters: Callable[[], object] | None = None) -> Iterator[Diagnosis]:
    """Check the plugins of other packages; one whose import ends the process is not loaded.

    ``load_exporters`` loads the exporters of plugins, which else are only imported.
    """
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
