"""Which package brings which env ids, for ids that exist only once their package is imported."""

from __future__ import annotations

import io
import logging
import re
import sys
import warnings
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec

from tdx.errors import summarize_error

_LOG = logging.getLogger(__name__)


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
        """True if the module is there; its import may still fail."""
        name = self.module.partition(".")[0]
        try:
            return name in sys.modules or find_spec(name) is not None
        except (ImportError, ValueError):
            return False

    @property
    def hint(self) -> str:
        """What to do where it is not installed."""
        return install_hint(self.install or self.package)

    def provides(self, env_id: str) -> bool:
        """Whether an id looks like one of its own."""
        return re.match(self.ids, env_id) is not None

    def load(self) -> BrokenProvider | None:
        """Import it, which registers its envs; what it prints goes to the log.

        Returns:
            Why it cannot be imported; ``None`` if it was.
        """
        if self.module in sys.modules:
            return None
        printed = io.StringIO()
        try:
            with redirect_stderr(printed), redirect_stdout(printed), warnings.catch_warnings():
                # A filter that turns warnings into errors is meant for the user's own code.
                warnings.simplefilter("ignore")
                module = import_module(self.module)
                if self.module == "ale_py":
                    # Otherwise every Atari env prints a banner of two lines.
                    module.ALEInterface.setLoggerMode(module.LoggerMode.Error)
        except (Exception, SystemExit) as error:
            _LOG.info("%s cannot be imported", self.module, exc_info=True)
            return BrokenProvider(self, error)
        finally:
            if printed.getvalue().strip():
                _LOG.info("importing %s printed: %s", self.module, printed.getvalue().strip())
        return None


@dataclass(frozen=True, slots=True)
class BrokenProvider:
    """A package that is installed and cannot be imported.

    Args:
        provider: The package.
        error: What its import raised.
    """

    provider: Provider
    error: BaseException

    @property
    def message(self) -> str:
        """What is wrong with it, on one line."""
        return f"{self.provider.package} is installed, but cannot be imported: {self.reason}"

    @property
    def reason(self) -> str:
        """Type and first line of the error."""
        return summarize_error(self.error)

    @property
    def hint(self) -> str:
        """The next step."""
        package = self.provider.install or self.provider.package
        return install_hint(package).replace("install", "install --force-reinstall", 1)


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


def load_installed() -> tuple[BrokenProvider, ...]:
    """Import every known package that is installed, so that its envs are registered.

    Returns:
        Those that cannot be imported, each once.
    """
    by_module = {provider.module: provider for provider in PROVIDERS if provider.installed}
    loaded = [provider.load() for provider in by_module.values()]
    return tuple(broken for broken in loaded if broken is not None)
