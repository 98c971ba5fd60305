"""Which package brings which env ids, for ids that exist only once their package is imported."""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec


@dataclass(frozen=True, slots=True)
class Provider:
    """A package that registers envs with Gymnasium when it is imported.

    Args:
        module: what to import.
        package: its name in the package index.
        ids: what its env ids begin with, as a regular expression.
        install: what to give to ``pip install``, where that is not ``package``.
    """

    module: str
    package: str
    ids: str
    install: str | None = None

    @property
    def installed(self) -> bool:
        """Whether the module can be imported."""
        return find_spec(self.module.partition(".")[0]) is not None

    @property
    def hint(self) -> str:
        """What to do where it is not installed."""
        return install_hint(self.install or self.package)

    def provides(self, env_id: str) -> bool:
        """Whether an id looks like one of its own."""
        return re.match(self.ids, env_id) is not None

    def load(self) -> None:
        """Import it, which registers its envs."""
        already = self.module in sys.modules
        module = import_module(self.module)
        if self.module == "ale_py" and not already:
            # Otherwise every Atari env prints a banner of two lines.
            module.ALEInterface.setLoggerMode(module.LoggerMode.Error)


PROVIDERS = (
    Provider("ale_py", "ale-py", r"ALE/"),
    Provider("minigrid", "minigrid", r"(MiniGrid|BabyAI)-"),
    Provider("miniworld", "miniworld", r"MiniWorld-"),
    Provider(
        "highway_env",
        "highway-env",
        r"(highway|merge|roundabout|parking|intersection|racetrack|exit|lane-keeping|two-way|u-turn)-",
    ),
    Provider(
        "gymnasium_robotics",
        "gymnasium-robotics",
        r"(Fetch|HandManipulate|HandReach|AdroitHand|FrankaKitchen|PointMaze|AntMaze)",
    ),
    Provider(
        "mo_gymnasium",
        "mo-gymnasium",
        r"(mo-|deep-sea-treasure|minecart|resource-gathering|four-room)",
    ),
    Provider("metaworld", "metaworld", r"Meta-World/"),
    Provider("panda_gym", "panda-gym", r"Panda[A-Z]"),
    Provider("PyFlyt.gym_envs", "PyFlyt", r"PyFlyt/"),
    Provider("shimmy", "shimmy", r"(dm_control/|OpenAIGym/)", "shimmy[dm-control]"),
    Provider("shimmy", "shimmy", r"GymV21Environment-", "shimmy[gym-v21]"),
    Provider("shimmy", "shimmy", r"GymV26Environment-", "shimmy[gym-v26]"),
    Provider("flappy_bird_gymnasium", "flappy-bird-gymnasium", r"FlappyBird-"),
    Provider("sumo_rl", "sumo-rl", r"sumo-rl"),
    Provider("bsuite", "bsuite", r"bsuite/"),
)

REQUIREMENTS = (
    # Where the env's class lives, the module that it needs, what installs it.
    ("gymnasium.envs.box2d", "Box2D", "gymnasium[box2d]"),
    ("gymnasium.envs.mujoco", "mujoco", "gymnasium[mujoco]"),
    ("gymnasium.envs.phys2d", "jax", "gymnasium[jax]"),
    ("gymnasium.envs.tabular", "jax", "gymnasium[jax]"),
)


def install_hint(package: str) -> str:
    """How to install a package, extras in quotes.

    Example:
        >>> install_hint("gymnasium[mujoco]")
        "pip install 'gymnasium[mujoco]'"
    """
    return f"pip install '{package}'" if "[" in package else f"pip install {package}"


def requirement(entry_point: object) -> tuple[str, str] | None:
    """The module that an env's class needs beside its own package, and what installs it."""
    for prefix, module, package in REQUIREMENTS:
        if str(entry_point).startswith(prefix):
            return module, package
    return None


def provider_of(env_id: str) -> Provider | None:
    """The package that ids of this form come from, where that is known."""
    return next((each for each in PROVIDERS if each.provides(env_id)), None)


def load_installed() -> None:
    """Import every known package that is installed, so that its envs are registered."""
    for provider in PROVIDERS:
        if provider.installed:
            # One broken package must not hide the envs of the others.
            with suppress(Exception):
                provider.load()
