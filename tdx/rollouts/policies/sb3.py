"""Run models of Stable-Baselines3 on envs of tdx, and on stacks of other libraries."""

from __future__ import annotations

import base64
import io
import json
import math
import warnings
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tensordict import TensorDictBase

from tdx.core import TransformedEnv
from tdx.core.chain import chain_stages
from tdx.envs import EnvBase, GymEnv
from tdx.foundation.errors import (
    ArgumentError,
    MissingPackageError,
    TdxError,
    get_first_line,
    install_extra,
    summarize_error,
)
from tdx.foundation.generators import preserved_generators
from tdx.foundation.keys import NestedKey, format_key, normalize_key
from tdx.foundation.text import dtype_name
from tdx.pipeline.values import Value
from tdx.specs import (
    Binary,
    Bounded,
    Categorical,
    Composite,
    MultiCategorical,
    MultiOneHot,
    OneHot,
    TensorSpec,
    Unbounded,
)
from tdx.specs.leaf import domain_text, leaf_spec

if TYPE_CHECKING:
    from gymnasium import spaces
    from stable_baselines3.common.base_class import BaseAlgorithm

    from tdx.stacks.stack import Stack

_INPUT_HINT = "run it on the env that it was trained on; `tdx inspect spec` shows what this one has"


class Sb3Model:
    """A model of a file, which is unpickled: the caller checks that it may be."""

    def __init__(
        self,
        file: Path,
        data: bytes,
        settings: Mapping[str, Value],
        device: torch.device | None = None,
    ) -> None:
        self.file = file
        self.in_keys = settings.get("in_keys")
        self.deterministic = bool(settings.get("deterministic", True))
        # Networks are initialized before their weights are loaded, and a seed in the file is set.
        with preserved_generators(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                self._model, self._is_normalized = _load(file, data, str(device or "cpu"))
            except TdxError:
                raise
            except ImportError as error:
                raise MissingPackageError(
                    f"{file} needs {error.name or get_first_line(error)}, which cannot be imported",
                    hint="install the package that it was trained with",
                ) from error
            except Exception as error:
                raise ArgumentError(
                    f"{file} cannot be loaded: {summarize_error(error)}",
                    hint="load it with the versions of the packages that it was saved with",
                ) from error
            space = self._model.observation_space
            if self._model.predict(space.sample())[1] is not None:
                raise _recurrent_error(file)

    @property
    def observation_spaces(self) -> Mapping[str, spaces.Space[Any]]:
        """Spaces that it observes by name; without a name for a single one."""
        space = self._model.observation_space
        return getattr(space, "spaces", {"": space})

    def act(self, observation: Any) -> np.ndarray[Any, Any]:
        """Return the action for an observation, or those for a batch of observations."""
        action, _ = self._model.predict(observation, deterministic=self.deterministic)
        return action

    def check(
        self,
        observations: Composite,
        keys: Mapping[str, NestedKey],
        action: TensorSpec,
        stages: Sequence[str] | None,
    ) -> None:
        """Compare the spaces that it was trained with with the specs of an env.

        Warns of other bounds, and of observations that no stage normalizes although they were
        normalized in training. ``stages`` is ``None`` if not all of them are known.
        """
        from tdx.stacks.gymnasium.snapshots import space_specs

        lead = len(observations.shape)
        normalizes = stages is None or any("norm" in stage.lower() for stage in stages)
        pairs = [
            (space, observations[keys[name]], keys[name])
            for name, space in self.observation_spaces.items()
        ]
        pairs.append((self._model.action_space, action, "action"))
        for space, spec, key in pairs:
            trained = space_specs(space, "space", None)["space"]
            is_action = spec is action
            known, wanted = _describe(spec, lead), _describe(trained, 0)
            # SB3 moves the channels of images to the front by itself.
            channels_last = None if is_action else _describe_channels_last(trained)
            if known not in (wanted, channels_last):
                verbs = ("gives", "takes") if is_action else ("takes", "gives")
                raise ArgumentError(
                    f"{self.file} {verbs[0]} {wanted}, the env {verbs[1]} {known} in "
                    f"{format_key(key)!r}",
                    hint=_INPUT_HINT,
                )
            if known != wanted or not isinstance(spec, Bounded | Unbounded):
                continue
            if not is_action and (normalizes or self._is_normalized):
                # The bounds in the file are those before VecNormalize.
                continue
            bounds, trained_bounds = (
                domain_text(leaf_spec("observation", key, compared), whole=False)
                for compared in (spec, trained)
            )
            if bounds != trained_bounds:
                warnings.warn(
                    f"{self.file} was trained with {format_key(key)!r} in the range "
                    f"{trained_bounds}, its range in the env is {bounds}",
                    stacklevel=2,
                )
        if self._is_normalized and not normalizes:
            warnings.warn(
                f"{self.file} was trained with VecNormalize, and no stage normalizes the "
                "observations: its actions are those for other values",
                stacklevel=2,
            )


class Sb3Policy:
    """A model as a policy over the TensorDicts of an env of tdx."""

    def __init__(self, model: Sb3Model, env: EnvBase) -> None:
        if len(env.action_keys) != 1:
            raise ArgumentError(
                f"the env takes {len(env.action_keys)} actions per step, {model.file} gives one"
            )
        self._model = model
        self._keys = _find_keys(model, env)
        self.in_keys = list(self._keys.values())
        self.out_keys = list(env.action_keys)
        self._specs = env.full_observation_spec
        self._action = env.full_action_spec[env.action_keys[0]]
        self._lead = tuple(env.batch_size)
        base = env
        while isinstance(base, TransformedEnv):
            base = base.base_env
        # The env of a factory may have wrappers inside.
        is_bare = isinstance(base, GymEnv)
        stages = [type(stage).__name__ for stage in chain_stages(env)] if is_bare else None
        model.check(self._specs, self._keys, self._action, stages)

    def __call__(self, tensordict: TensorDictBase) -> TensorDictBase:
        observations = {}
        for name, key in self._keys.items():
            array = self._specs[key].to_numpy(tensordict.get(key))
            single = array.shape[len(self._lead) :]
            space = self._model.observation_spaces[name]
            if math.prod(single) == math.prod(space.shape or ()) == 1:
                # tdx gives a scalar a dim of size 1.
                single = space.shape or ()
            batch = (math.prod(self._lead),) if self._lead else ()
            observations[name] = array.reshape(*batch, *single)
        action = self._model.act(observations.get("", observations))
        if self._lead:
            action = action.reshape(*self._lead, *action.shape[1:])
        return tensordict.set(self.out_keys[0], self._action.encode(action))


def load_sb3_for_stack(model: Sb3Model, stack: Stack) -> Callable[[object], object]:
    """Return a model as a function of the observations of a stack of another library."""
    specs = stack.specs()[-1]
    observations = specs.output_spec["full_observation_spec"]
    keys: dict[str, NestedKey] = {
        name: ("observation", name) if name else "observation" for name in model.observation_spaces
    }
    for key in keys.values():
        if key not in observations.keys(True):
            listed = ", ".join(map(format_key, observations.keys(True, True)))
            raise ArgumentError(
                f"{model.file} reads {format_key(key)!r}, the env has {listed}", hint=_INPUT_HINT
            )
    action = specs.input_spec["full_action_spec"]["action"]
    model.check(observations, keys, action, [stage.name for stage in stack.stages])
    return model.act


def _recurrent_error(file: Path) -> ArgumentError:
    return ArgumentError(
        f"{file} is a recurrent policy, whose state tdx does not keep between steps",
        hint="keep it in a function of your own: --policy FILE.py:NAME --allow-code",
    )


def _names_recurrent_policy(data: bytes) -> bool:
    """Return True for a policy of RecurrentPPO, by what the pickle of its class would import."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            described = json.loads(archive.read("data"))["policy_class"]
        return b"sb3_contrib.common.recurrent." in base64.b64decode(described[":serialized:"])
    except (KeyError, TypeError, ValueError, zipfile.BadZipFile):
        return False


def _load(file: Path, data: bytes, device: str) -> tuple[BaseAlgorithm, bool]:
    """Return the model of a file, and if it tells of a training with VecNormalize."""
    if not zipfile.is_zipfile(io.BytesIO(data)):
        raise ArgumentError(
            f"{file} is not a model of Stable-Baselines3, which is a .zip file",
            hint="write it with model.save(FILE)",
        )
    # Otherwise a user without sb3-contrib would install it only to read that it is refused.
    if _names_recurrent_policy(data):
        raise _recurrent_error(file)
    try:
        from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
        from stable_baselines3.common.save_util import load_from_zip_file
    except ImportError as error:
        raise MissingPackageError(
            "a policy sb3:FILE needs the package stable-baselines3", hint=install_extra("sb3")
        ) from error
    # These are not needed to act, and were often pickled by another version of Python.
    unneeded = {
        "learning_rate": 0.0,
        "lr_schedule": lambda _: 0.0,
        "clip_range": lambda _: 0.0,
        "exploration_schedule": lambda _: 0.0,
    }
    saved, *_ = load_from_zip_file(io.BytesIO(data), device=device, custom_objects=unneeded)
    if saved is None or "policy_class" not in saved:
        raise ArgumentError(
            f"{file} is not a model of Stable-Baselines3: it names no policy class",
            hint="write it with model.save(FILE)",
        )
    algorithm = _find_algorithm(file, saved["policy_class"])
    # The replay buffer would take up to a million observations.
    small: dict[str, Any] = {"buffer_size": 1, "optimize_memory_usage": False}
    model = algorithm.load(io.BytesIO(data), device=device, custom_objects=unneeded, **small)
    # Off-policy algorithms save observations before normalization without VecNormalize too.
    is_on_policy = issubclass(algorithm, OnPolicyAlgorithm)
    return model, is_on_policy and saved.get("_last_original_obs") is not None


def _find_algorithm(file: Path, policy: type) -> type[BaseAlgorithm]:
    """Return the algorithm whose policies are of this class.

    Several algorithms share a policy, such as PPO and A2C: they differ in how they train it.
    """
    import stable_baselines3
    from stable_baselines3.common.base_class import BaseAlgorithm

    libraries = [stable_baselines3]
    with suppress(ImportError):
        import sb3_contrib

        libraries.append(sb3_contrib)
    members = [getattr(library, name) for library in libraries for name in library.__all__]
    algorithms = [
        kind for kind in members if isinstance(kind, type) and issubclass(kind, BaseAlgorithm)
    ]
    # A policy may extend that of another algorithm: the nearest base decides.
    for base in policy.__mro__:
        for algorithm in algorithms:
            if base in algorithm.policy_aliases.values():
                return algorithm
    raise ArgumentError(
        f"{file} has a policy of the class {policy.__qualname__}, which no algorithm of "
        "stable_baselines3 or sb3_contrib has",
        hint="load it in a function of your own: --policy FILE.py:NAME --allow-code",
    )


def _find_keys(model: Sb3Model, env: EnvBase) -> dict[str, NestedKey]:
    known = [normalize_key(key) for key in env.observation_keys]
    names = list(model.observation_spaces)
    listed = ", ".join(map(format_key, known)) or "no observations"
    if isinstance(model.in_keys, tuple):
        keys = [normalize_key(key) for key in model.in_keys]
        if len(keys) != len(names):
            raise ArgumentError(
                f"{model.file} reads {len(names)} observations, in_keys names {len(keys)}",
                hint=f"the env has {listed}",
            )
    elif names != [""]:
        keys = [nested if (nested := ("observation", name)) in known else name for name in names]
    elif "observation" in known or len(known) != 1:
        keys = ["observation"]
    else:
        keys = known
    for key in keys:
        if key not in known:
            raise ArgumentError(
                f"{model.file} reads {format_key(key)!r}, the env has {listed}",
                hint=f'name what it reads: sb3("{model.file}", in_keys=["{listed.split(",")[0]}"])',
            )
    return dict(zip(names, keys, strict=True))


def _describe(spec: TensorSpec, lead: int) -> str:
    """Describe shape, dtype and categories, as far as a policy depends on them."""
    if isinstance(spec, Binary):
        return f"{math.prod(spec.shape[lead:])} binary numbers"
    if isinstance(spec, Categorical | OneHot):
        return f"one of {spec.n} categories"
    if isinstance(spec, MultiCategorical | MultiOneHot):
        nvec = spec.nvec if isinstance(spec, MultiCategorical) else spec.to_categorical_spec().nvec
        return f"categories {[int(size) for size in np.reshape(nvec, -1)]}"
    if isinstance(spec, Composite) or spec.dtype is None:
        return f"a {type(spec).__name__}"
    return _describe_numbers(spec.dtype, spec.shape[lead:])


def _describe_numbers(dtype: torch.dtype, shape: tuple[int, ...]) -> str:
    kind = "float" if dtype.is_floating_point else dtype_name(dtype)
    return f"{kind} {list(shape) or [1]}"


def _describe_channels_last(spec: TensorSpec) -> str | None:
    """Describe an image ``[C, H, W]`` as ``[H, W, C]``; ``None`` if it is no image."""
    if spec.dtype is not torch.uint8 or len(spec.shape) != 3:
        return None
    return _describe_numbers(spec.dtype, (*spec.shape[1:], spec.shape[0]))
