"""``GymWrapper``: an existing Gymnasium env as a tdx env."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Self

import gymnasium
import torch
from gymnasium import spaces
from tensordict import TensorDictBase

from tdx.core.chain import declares
from tdx.core.envs import EnvBase
from tdx.core.envs.capabilities import StepFields
from tdx.core.transforms.validation import check_integer
from tdx.envs.gym.collector import GymRows
from tdx.envs.gym.conversion import Conversion, create_conversion, is_image, root_spec
from tdx.envs.gym.infos import InfoReader, default_info_dict_reader
from tdx.envs.gym.interface import AnyEnv, AnyVectorEnv, Info, ResetResult, StepResult
from tdx.envs.gym.numeric_spaces import CodecOptions
from tdx.envs.gym.registry import available_envs
from tdx.envs.gym.single_env import PendingSeed, SingleEnv
from tdx.envs.gym.vector import VectorEnvRows, autoreset_mode_of, mode_name
from tdx.envs.gym.wrappers import FrameSkip, RenderedPixels
from tdx.foundation.errors import ArgumentError, SpecError, Where
from tdx.foundation.keys import NestedKey, normalize_key
from tdx.specs.arguments import Value

_PROBE_STEPS = 3
_OWN_GENERATORS = frozenset({"ale_py", "gymnasium", "minigrid"})
"""Libraries whose envs and wrappers never draw from torch's global generator."""


class _AvailableEnvs:
    """Descriptor that lists the env ids on the class and on instances."""

    def __get__(self, instance: object, owner: type | None = None) -> list[str]:
        return [env.id for env in available_envs()]


class GymWrapper(EnvBase):
    """A Gymnasium env or vector env with TensorDicts.

    Keys: observations are at ``observation`` (an image at ``pixels``, entries of a dict space at
    their own keys), the action at ``action``, and ``reward``, ``done``, ``terminated`` and
    ``truncated`` have shape ``[*B, 1]``. Elements of a tuple space are stacked if possible,
    else they are at ``"0"``, ``"1"`` and so on. Discrete values count from 0, whatever the space's
    ``start``. Values of other spaces (Text, Sequence, Graph, OneOf and custom spaces) are kept as
    non-tensor entries.

    Attributes that the wrapper does not have are looked up in the Gymnasium env.

    Args:
        env: A ``gymnasium.Env`` or ``gymnasium.vector.VectorEnv``.
        categorical_action_encoding: True to encode discrete values, of actions and observations,
            as indices, False as one-hot vectors.
        from_pixels: True to add the rendered frame at ``pixels``, uint8 ``[H, W, C]``. Has no
            effect for an env that observes images.
        pixels_only: True to leave out the env's own observation with ``from_pixels``.
        frame_skip: Number of times that each action is applied, with rewards summed.
        device: Device of the results; the CPU by default. The env itself runs on the CPU.
        seed: Seed, as for :meth:`set_seed`.

    Raises:
        ArgumentError: ``env`` is not an env, or does not support an option.
        SpecError: An observation entry has the key of an action or result.

    Example:
        >>> import gymnasium
        >>> env = GymWrapper(gymnasium.make("CartPole-v1"))
        >>> env.spec.max_episode_steps
        500
        >>> env.rand_step(env.reset())["next", "reward"]
        tensor([1.])
    """

    _is_verified = True

    writes_all_outputs: ClassVar[bool] = True

    available_envs = _AvailableEnvs()
    """Ids of the envs of Gymnasium and of known, installed packages."""

    from_pixels: bool
    """True if observations contain the rendered frame."""

    pixels_only: bool
    """True if rendered frames replace the observation of the env."""

    frame_skip: int | None
    """Number of times that each action is applied. ``None``: as the env does."""

    def __init__(
        self,
        env: AnyEnv | AnyVectorEnv,
        categorical_action_encoding: bool = False,
        *,
        from_pixels: bool = False,
        pixels_only: bool = True,
        frame_skip: int | None = None,
        device: torch.device | str | int | None = None,
        seed: int | None = None,
    ) -> None:
        check_frame_skip(frame_skip)
        if isinstance(env, gymnasium.vector.VectorEnv):
            if from_pixels or frame_skip is not None:
                raise ArgumentError(
                    "from_pixels and frame_skip need a single env, got a vector env",
                    hint="use GymEnv(env_id, num_envs=...), which wraps each env",
                )
        elif isinstance(env, gymnasium.Env):
            env = wrap_env(
                env, from_pixels=from_pixels, pixels_only=pixels_only, frame_skip=frame_skip
            )
        else:
            hint = "create it by gymnasium.make(id)"
            raise ArgumentError(
                f"GymWrapper needs a Gymnasium env, got {type(env).__name__}",
                hint=f"use GymEnv({env!r})" if isinstance(env, str) else hint,
            )
        self._initialize(env, _name_of(env), categorical_action_encoding, device, seed)
        self.from_pixels, self.pixels_only, self.frame_skip = from_pixels, pixels_only, frame_skip

    @property
    def display_name(self) -> str:
        return self._name

    def _initialize(
        self,
        env: AnyEnv | AnyVectorEnv,
        name: str,
        categorical: bool,
        device: torch.device | str | int | None,
        seed: int | None,
    ) -> None:
        rows = env.num_envs if isinstance(env, gymnasium.vector.VectorEnv) else None
        super().__init__(device=device, batch_size=() if rows is None else (rows,))
        self._env = env
        self._name = name
        self._codec_options = CodecOptions(rows, bool(categorical), remap_state=True)
        self._seed = PendingSeed(seed)
        self.info_dict_reader: list[InfoReader] = []
        conversion = self._conversion = self._create_conversion()
        self.full_observation_spec = root_spec(conversion.observation)
        self.full_action_spec = root_spec(conversion.action)
        if conversion.reward is not None:
            self.full_reward_spec = conversion.reward.spec
        self._stepper = self._create_stepper()

    def _create_conversion(self) -> Conversion:
        created = create_conversion(
            self._env, self._name, self._codec_options, self.batch_size, self.env_specs.main_device
        )
        return replace(created, readers=tuple(self.info_dict_reader))

    def _create_stepper(self) -> SingleEnv | VectorEnvRows:
        if isinstance(self._env, gymnasium.vector.VectorEnv):
            return VectorEnvRows(self._env, self._seed, self._conversion)
        return SingleEnv(self._env, self._seed, self._conversion)

    def _update_conversion(self) -> None:
        readers = tuple(self.info_dict_reader)
        self._conversion = replace(
            self._conversion, readers=readers, device=self.env_specs.main_device
        )
        self._stepper.use(self._conversion)
        # A chain around this env may have cached the previous step function.
        self.env_specs.invalidate()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "_step" in cls.__dict__:
            # The two shortcuts around _step would skip the subclass's own.
            setattr(cls, "completed_step", EnvBase.completed_step)  # noqa: B010
            setattr(cls, "step_fields", None)  # noqa: B010
        if {"_step", "_reset", "completed_step", "completed_reset", "step", "reset"} & set(
            cls.__dict__
        ):
            setattr(cls, "step_reads", None)  # noqa: B010
            setattr(cls, "raw_rows", None)  # noqa: B010

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self._stepper.step(tensordict)

    @property
    def step_fields(self) -> StepFields | None:
        return self._stepper.step_fields

    @property
    def step_reads(self) -> tuple[NestedKey, ...] | None:
        return ()

    @property
    def raw_rows(self) -> GymRows | None:
        if isinstance(self._stepper, VectorEnvRows):
            return self._stepper.raw_rows(self._codec_options)
        raw = self._stepper.raw
        return None if raw is None else GymRows((raw,), torch.Size())

    @property
    def gym_steppers(self) -> tuple[SingleEnv | VectorEnvRows]:
        return (self._stepper,)

    def shares_torch_rng(self) -> bool | None:
        verified = declares(type(self), "_is_verified")
        return False if verified and has_own_generator(self._env) else None

    def completed_step(
        self, tensordict: TensorDictBase, given_next: TensorDictBase | None = None
    ) -> TensorDictBase:
        # Nothing to complete: it writes all outputs.
        return self._stepper.step(tensordict)

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        return self._stepper.reset(tensordict, **kwargs)

    def _set_seed(self, seed: int | None) -> None:
        # Gymnasium seeds in reset; an additional reset would consume the first episode.
        self._seed.value = seed

    @property
    def autoreset_mode(self) -> str:
        """When rows reset by themselves: ``"disabled"``, ``"next_step"`` or ``"same_step"``.

        Vector envs of ``GymEnv`` are ``"disabled"``: rows are reset only by tdx. An existing
        vector env keeps its mode, which tdx hides: ``next`` has the terminal observation, and an
        ended row does not change until it is reset.
        """
        if isinstance(self._env, gymnasium.vector.VectorEnv):
            return mode_name(autoreset_mode_of(self._env))
        return "disabled"

    def set_info_dict_reader(
        self, info_dict_reader: InfoReader | None = None, ignore_private: bool = True
    ) -> Self:
        """Copy entries of ``info`` to the TensorDict in each reset and step.

        A :class:`~tdx.envs.gym.default_info_dict_reader` without specs infers them from a reset
        and a few random steps, so the env must be reset afterwards.

        Args:
            info_dict_reader: Called with the info and the result. ``None``: reads all entries.
            ignore_private: True to leave out names with a leading underscore by default.

        Returns:
            The env.
        """
        reader = info_dict_reader or default_info_dict_reader(ignore_private=ignore_private)
        if isinstance(reader, default_info_dict_reader) and reader.info_spec is None:
            reader.learn(self._probe(), self.batch_size)
        added = getattr(reader, "info_spec", None)
        if added is not None:
            whole = self.observation_spec.clone()
            whole.unlock_()
            for key, leaf in added.items(True, True):
                if normalize_key(key) in self.observation_keys:
                    raise SpecError(
                        f"the info entry {key!r} has the same key as an observation",
                        hint="select other keys: default_info_dict_reader(keys=[...])",
                        where=Where(env=self._name),
                    )
                whole[key] = leaf.to(self.device)
            self.observation_spec = whole
        self.info_dict_reader.append(reader)
        self._update_conversion()
        return self

    def auto_register_info_dict(
        self, ignore_private: bool = True, *, info_dict_reader: InfoReader | None = None
    ) -> Self:
        """Copy all entries of ``info``; see :meth:`set_info_dict_reader`.

        Args:
            ignore_private: True to leave out names with a leading underscore.
            info_dict_reader: Reader to use instead of the default one.

        Returns:
            The env.
        """
        return self.set_info_dict_reader(info_dict_reader, ignore_private)

    def _probe(self) -> list[Info]:
        with torch.random.fork_rng(devices=[]):
            actions = [self.rand_action() for _ in range(_PROBE_STEPS)]
        act = self._conversion.action_decoder()
        try:
            return self._stepper.probe([act(tensordict) for tensordict in actions])
        except Exception as error:
            raise self._conversion.failure(None, "a trial step", error) from error

    def read_action(self, tensordict: TensorDictBase) -> Any:
        """Convert the action in a TensorDict ``[*B]`` for the Gymnasium env."""
        return self._conversion.action_decoder()(tensordict)

    def read_obs(self, observation: object) -> dict[str, Value]:
        """Convert an observation of the Gymnasium env to entries of a TensorDict, on the CPU."""
        return self._conversion.observation.encode(observation)

    def raw_reset(self, **kwargs: Any) -> ResetResult:
        """Reset the Gymnasium env with the pending seed, without conversion.

        Raises:
            EnvError: The env raised an error.
        """
        seed = kwargs.pop("seed", self._seed.take())
        try:
            return self._env.reset(seed=seed, **kwargs)
        except Exception as error:
            raise self._conversion.failure(None, "reset", error) from error

    def raw_step(self, action: object) -> StepResult:
        """Step the Gymnasium env with one of its actions, without conversion.

        Raises:
            EnvError: The env raised an error.
        """
        try:
            return self._env.step(action)
        except Exception as error:
            raise self._conversion.failure(None, "step", error) from error

    def _move(self, device: torch.device) -> None:
        super()._move(device)
        self._update_conversion()

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Close the Gymnasium env. Closing it again has no effect."""
        if not self.is_closed:
            super().close()
            self._env.close()

    def __del__(self) -> None:
        # At interpreter shutdown, parts of the env may be gone already.
        try:
            self.close()
        except Exception:
            return

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("_") or "_env" not in self.__dict__:
                raise
        return getattr(self.__dict__["_env"], name)

    def __getstate__(self) -> dict[str, object]:
        state = self.__dict__.copy()
        for compiled in ("_stepper", "_conversion"):
            state.pop(compiled, None)
        return state

    def __setstate__(self, state: dict[str, object]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._conversion = self._create_conversion()
        self._stepper = self._create_stepper()

    def __repr__(self) -> str:
        mode = self.autoreset_mode
        shown = "" if mode == "disabled" else f", autoreset_mode={mode}"
        return (
            f"{type(self).__name__}(env={self._name}, batch_size={self.batch_size}, "
            f"device={self.device}{shown})"
        )


def _name_of(env: AnyEnv | AnyVectorEnv) -> str:
    spec = getattr(env, "spec", None)
    return str(spec.id) if spec is not None else type(env.unwrapped).__name__


def wrap_env(
    env: AnyEnv, *, from_pixels: bool, pixels_only: bool, frame_skip: int | None
) -> AnyEnv:
    """Wrap an env to skip frames and add pixels.

    An env whose observation is an image, or has ``pixels``, is not rendered.
    """
    if frame_skip is not None:
        env = FrameSkip(env, frame_skip)
    space = env.observation_space
    has_pixels = is_image(space) or (isinstance(space, spaces.Dict) and "pixels" in space.spaces)
    return RenderedPixels(env, pixels_only) if from_pixels and not has_pixels else env


def check_frame_skip(frame_skip: int | None) -> None:
    """Check the number of frames to skip."""
    if frame_skip is not None:
        hint = "use 1 to apply each action once, or leave it out for the env's default"
        check_integer(frame_skip, "frame_skip", 1, hint)


def has_own_generator(env: object) -> bool:
    """Return True if a Gymnasium env and all wrappers around it draw from their own generators.

    A wrapper of tdx declares it (``uses_own_generator``). The classes of other libraries cannot,
    so the libraries are listed here.
    """
    kind: type = type(env)
    if kind.__module__.partition(".")[0] not in _OWN_GENERATORS and not declares(
        kind, "uses_own_generator"
    ):
        return False
    parts = getattr(env, "envs", None)
    if parts is not None:
        return all(has_own_generator(part) for part in parts)
    inner = env.__dict__.get("env")
    return inner is None or has_own_generator(inner)
