"""The tests of this folder need Stable-Baselines3."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("stable_baselines3") else ["*"]
