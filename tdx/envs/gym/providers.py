"""Libraries behind Gymnasium envs: packages that register envs when imported, and the backend."""

from __future__ import annotations

import io
import logging
import re
import sys
import warnings
from contextlib import ContextDecorator, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from tdx.foundation.errors import ArgumentError, summarize_error

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Provider:
    """A package that registers envs with Gymnasium when it is imported."""

    module: str
    package: str  # name in the package index
    ids: str  # regular expression that the ids of its envs match at the start
    install: str | None = None  # argument of pip install; the package if not given
    about: str = field(default="", kw_only=True)  # what its envs are, in a few words

    @property
    def installed(self) -> bool:
        """True if the module is found; importing it may still fail."""
        return is_installed(self.module)

    @property
    def hint(self) -> str:
        """How to install the package."""
        return install_hint(self.install or self.package)

    def provides(self, env_id: str) -> bool:
        """Return True if an id has the form of the package's ids."""
        return re.match(self.ids, env_id) is not None

    def load(self) -> BrokenProvider | None:
        """Import the package, which registers its envs; log its output, return why it fails."""
        if self.module in sys.modules:
            return None
        printed = io.StringIO()
        try:
            with redirect_stderr(printed), redirect_stdout(printed), warnings.catch_warnings():
                # A filter that turns warnings into errors is meant for the user's code.
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
    """A package that is installed but cannot be imported."""

    provider: Provider
    error: BaseException

    @property
    def message(self) -> str:
        """Description of the problem, on one line."""
        return f"{self.provider.package} is installed, but cannot be imported: {self.reason}"

    @property
    def reason(self) -> str:
        """Type and first line of the error."""
        return summarize_error(self.error)

    @property
    def hint(self) -> str:
        """How to repair the package."""
        package = self.provider.install or self.provider.package
        return install_hint(package).replace("install", "install --force-reinstall", 1)


PROVIDERS = (
    Provider("ale_py", "ale-py", r"ALE/", about="Atari games, such as Pong"),
    Provider("minigrid", "minigrid", r"(MiniGrid|BabyAI)-", about="grid worlds"),
    Provider("miniworld", "miniworld", r"MiniWorld-", about="rooms in 3D"),
    Provider(
        "highway_env",
        "highway-env",
        r"(highway|merge|roundabout|parking|intersection|racetrack|exit|lane-keeping|two-way|u-turn)-",
        about="driving",
    ),
    Provider(
        "gymnasium_robotics",
        "gymnasium-robotics",
        r"(Fetch|HandManipulate|HandReach|AdroitHand|FrankaKitchen|PointMaze|AntMaze)",
        about="robot arms, hands and mazes",
    ),
    Provider(
        "mo_gymnasium",
        "mo-gymnasium",
        r"(mo-|deep-sea-treasure|minecart|resource-gathering|four-room)",
        about="several rewards",
    ),
    Provider("metaworld", "metaworld", r"Meta-World/", about="tasks of a robot arm"),
    Provider("panda_gym", "panda-gym", r"Panda[A-Z]", about="tasks of a robot arm"),
    Provider("PyFlyt.gym_envs", "PyFlyt", r"PyFlyt/", about="drones"),
    Provider(
        "shimmy", "shimmy", r"(dm_control/|OpenAIGym/)", "shimmy[dm-control]", about="dm_control"
    ),
    Provider("shimmy", "shimmy", r"GymV21Environment-", "shimmy[gym-v21]", about="Gym 0.21"),
    Provider("shimmy", "shimmy", r"GymV26Environment-", "shimmy[gym-v26]", about="Gym 0.26"),
    Provider("flappy_bird_gymnasium", "flappy-bird-gymnasium", r"FlappyBird-", about="Flappy Bird"),
    Provider("sumo_rl", "sumo-rl", r"sumo-rl", about="traffic lights"),
    Provider("bsuite", "bsuite", r"bsuite/", about="small experiments"),
)

REQUIREMENTS = (
    # Prefix of the entry point, module that it needs, package that provides the module.
    ("gymnasium.envs.box2d", "Box2D", "gymnasium[box2d]"),
    ("gymnasium.envs.mujoco", "mujoco", "gymnasium[mujoco]"),
    ("gymnasium.envs.phys2d", "jax", "gymnasium[jax]"),
    ("gymnasium.envs.tabular", "jax", "gymnasium[jax]"),
)


def is_installed(module: str) -> bool:
    """Return True if a module is found; importing it may still fail."""
    name = module.partition(".")[0]
    try:
        return name in sys.modules or find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def install_hint(package: str) -> str:
    """Return the command that installs a package, with extras quoted.

    Example:
        >>> install_hint("gymnasium[mujoco]")
        "pip install 'gymnasium[mujoco]'"
    """
    return f"pip install '{package}'" if "[" in package else f"pip install {package}"


def find_requirement(entry_point: object) -> tuple[str, str] | None:
    """Return the module that an env's class also needs, and the package that provides it."""
    for prefix, module, package in REQUIREMENTS:
        if str(entry_point).startswith(prefix):
            return module, package
    return None


def find_provider(env_id: str) -> Provider | None:
    """Return the known package whose ids have the form of an id; ``None`` if there is none."""
    return next((provider for provider in PROVIDERS if provider.provides(env_id)), None)


def load_installed() -> tuple[BrokenProvider, ...]:
    """Import all known, installed packages, which registers their envs; return the broken ones."""
    by_module = {provider.module: provider for provider in PROVIDERS if provider.installed}
    loaded = [provider.load() for provider in by_module.values()]
    return tuple(broken for broken in loaded if broken is not None)


class set_gym_backend(ContextDecorator):  # noqa: N801
    """Accept Gymnasium as the library of envs; tdx supports no other.

    Args:
        backend: ``gymnasium`` or the module.

    Raises:
        ArgumentError: Another library is chosen.

    Example:
        >>> from tdx import GymEnv
        >>> with set_gym_backend("gymnasium"):
        ...     env = GymEnv("CartPole-v1")
    """

    def __init__(self, backend: str | ModuleType) -> None:
        name = backend.__name__ if isinstance(backend, ModuleType) else backend
        if name != "gymnasium":
            raise ArgumentError(
                f"unknown backend {name!r}", hint="port the env to Gymnasium, or wrap it"
            )

    def set(self) -> None:
        """Use the library from now on."""

    def __enter__(self) -> None:
        self.set()

    def __exit__(self, *exception: object) -> None:
        """Leave the library as it is."""
