"""Arguments with which the contract suite tests each transform.

A new transform is tested as soon as it has an entry here.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

import tdx.transforms
from tdx.specs import Unbounded
from tdx.transforms import Compose, Transform
from tests.transforms.envs import (
    CATEGORIES,
    Adding,
    CountedGroupsEnv,
    CountedRowsEnv,
    GroupsEnv,
    MaskedGroupsEnv,
    MaskedRowsEnv,
    MatrixGroupsEnv,
    MatrixRowsEnv,
    OneHotGroupsEnv,
    OneHotRowsEnv,
    RowsEnv,
    SteppedGroupsEnv,
    SteppedRowsEnv,
    cubed,
    cubing_observation,
    cubing_precise,
    cubing_solo_reward,
    high,
    moved,
    pushed,
    same_size,
    solo_high,
    solo_moved,
    solo_pushed,
    solo_still,
    still,
)

Arguments = dict[str, Any]


@dataclass(frozen=True)
class Example:
    """Arguments and envs with which the contract suite tests a transform.

    Args:
        arguments: Arguments for ``RowsEnv``.
        nested: Arguments for ``GroupsEnv``, whose keys are all nested.
        out: Arguments for ``RowsEnv`` that write to further keys. ``None``: the transform writes
            nothing in the forward direction.
        no_twin: Why the oracle has no transform of this name. ``None``: it has one.
        rows: Env for ``arguments`` and ``out``; ``RowsEnv`` or a subclass.
        groups: Env for ``nested``; ``GroupsEnv`` or a subclass.
        offline: True if it maps stored data only, and refuses an env.
        lasting: True if its state is shared by all rows and outlasts episodes, so that a second
            rollout differs from the first, and a single row from one among others.
        refuses_stored: Part of the error if it is applied to a stored rollout of 8 steps. ``None``:
            it maps one.
        stored_differs: Why it maps a stored rollout of the bare env to other entries than its
            steps. ``None``: it maps it to the same ones.
        maps_next: True if it maps entries under ``next`` of a stored rollout without naming them.

    The key ``"*"`` in arguments contains the positional ones.
    """

    arguments: Arguments = field(default_factory=dict)
    nested: Arguments = field(default_factory=dict)
    out: Arguments | None = None
    no_twin: str | None = None
    rows: type[RowsEnv] = RowsEnv
    groups: type[GroupsEnv] = GroupsEnv
    offline: bool = False
    lasting: bool = False
    refuses_stored: str | None = None
    stored_differs: str | None = None
    maps_next: bool = False


SOLO, PAIR = ("solo", "observation"), ("pair", "observation")


REWARDS = [("solo", "reward"), ("pair", "reward")]
PIXELS = [("solo", "pixels"), ("pair", "pixels")]
IMAGES = [("solo", "image"), ("pair", "image")]

EXAMPLES: dict[str, Example] = {
    "ActionChunkTransform": Example(
        arguments={"chunk_size": 3},
        nested={"chunk_size": 2, "action_key": ("pair", "action")},
        stored_differs="writes chunks of stored actions; in steps the later ones are unknown",
    ),
    "ActionDiscretizer": Example(
        arguments={"num_intervals": 5},
        nested={"num_intervals": [3, 4], "action_key": ("pair", "action"), "sampling": "low"},
        stored_differs="stored actions stay: their bins are not known",
    ),
    "ActionMask": Example(
        arguments={},
        nested={"action_key": ("pair", "action"), "mask_key": ("pair", "action_mask")},
        rows=MaskedRowsEnv,
        groups=MaskedGroupsEnv,
    ),
    "ActionScaling": Example(
        arguments={},
        nested={"in_keys_inv": [("pair", "action")]},
        stored_differs="stored actions are mapped; in steps the policy gives others",
    ),
    "BatchSizeTransform": Example(
        arguments={"reshape_fn": same_size},
        nested={"reshape_fn": same_size},
    ),
    "BinarizeReward": Example(
        arguments={},
        nested={"in_keys": REWARDS},
        out={"in_keys": ["reward"], "out_keys": ["positive"]},
    ),
    "BurnInTransform": Example(
        arguments={"modules": [Adding("observation")], "burn_in": 0},
        offline=True,
    ),
    "CatFrames": Example(
        arguments={"N": 3, "dim": -1, "in_keys": ["observation"]},
        nested={"N": 2, "dim": -1, "in_keys": [SOLO, PAIR]},
        out={"N": 3, "dim": -1, "in_keys": ["observation"], "out_keys": [("stack", "frames")]},
        maps_next=True,
    ),
    "CatTensors": Example(
        arguments={"in_keys": ["observation", "precise"], "out_key": "vector"},
        nested={"in_keys": [SOLO, ("solo", "precise")], "out_key": ("solo", "vector")},
        out={
            "in_keys": ["observation", "precise"],
            "out_key": ("more", "vector"),
            "del_keys": False,
        },
        stored_differs="joins the entries that it names, those in next only by name",
    ),
    "CenterCrop": Example(
        arguments={"w": 4, "h": 3, "in_keys": ["image"]},
        nested={"w": 4, "in_keys": IMAGES},
        out={"w": 4, "h": 3, "in_keys": ["image"], "out_keys": ["middle"]},
    ),
    "ClipTransform": Example(
        arguments={"in_keys": ["observation", "reward"], "low": -1.5},
        nested={
            "in_keys": [*REWARDS, SOLO],
            "in_keys_inv": [("pair", "action")],
            "low": -1.0,
            "high": 1.5,
        },
        out={"in_keys": ["reward"], "out_keys": ["clipped"], "low": 0, "high": 2},
    ),
    "ConditionalPolicySwitch": Example(
        arguments={"policy": still, "condition": moved},
        nested={"policy": solo_still, "condition": solo_moved},
        rows=SteppedRowsEnv,
        groups=SteppedGroupsEnv,
        refuses_stored="stored data has none",
    ),
    "ConditionalSkip": Example(
        arguments={"cond": pushed},
        nested={"cond": solo_pushed},
        rows=SteppedRowsEnv,
        groups=SteppedGroupsEnv,
        refuses_stored="stored data has none",
    ),
    "Crop": Example(
        arguments={"w": 4, "h": 3, "top": 1, "left": 2, "in_keys": ["image"]},
        nested={"w": 4, "in_keys": IMAGES},
        out={"w": 4, "h": 3, "top": 2, "in_keys": ["image"], "out_keys": ["part"]},
    ),
    "DTypeCastTransform": Example(
        arguments={"dtype_in": torch.float32, "dtype_out": torch.float64},
        nested={"dtype_in": torch.float64, "dtype_out": torch.float16},
        out={
            "dtype_in": torch.uint8,
            "dtype_out": torch.int32,
            "in_keys": ["pixels"],
            "out_keys": ["counts"],
        },
        stored_differs="stored actions are cast; in steps the policy gives others",
    ),
    "DeviceCastTransform": Example(
        arguments={"device": "cpu"},
        nested={"device": "cpu", "orig_device": "cpu"},
    ),
    "DiscreteActionProjection": Example(
        arguments={"num_actions_effective": CATEGORIES, "max_actions": 6},
        nested={
            "num_actions_effective": CATEGORIES,
            "max_actions": CATEGORIES,
            "action_key": ("pair", "action"),
        },
        rows=OneHotRowsEnv,
        groups=OneHotGroupsEnv,
        stored_differs="stored actions are mapped; in steps the policy gives others",
    ),
    "DoubleToFloat": Example(
        arguments={},
        nested={},
        out={"in_keys": ["precise"], "out_keys": ["short"]},
    ),
    "EndOfLifeTransform": Example(
        arguments={"eol_attribute": "lives"},
        nested={
            "eol_key": ("solo", "eol"),
            "lives_key": ("solo", "lives"),
            "done_key": ("solo", "done"),
            "eol_attribute": "lives",
        },
        out={"eol_key": ("more", "eol"), "lives_key": "chances", "eol_attribute": "lives"},
        rows=CountedRowsEnv,
        groups=CountedGroupsEnv,
        refuses_stored="stored data has none",
    ),
    "ExcludeTransform": Example(
        arguments={"*": ["precise", "truncated"]},
        nested={"*": [("solo", "precise"), ("pair", "terminated")]},
        stored_differs="drops the keys that it names, those in next only by name",
    ),
    "ExpandAs": Example(
        arguments={"in_key": "reward", "ref_key": "observation"},
        nested={"in_key": ("solo", "reward"), "ref_key": ("solo", "observation")},
        out={"in_key": "done", "ref_key": "observation", "out_key": ("wide", "done")},
    ),
    "FiniteTensorDictCheck": Example(
        arguments={},
        nested={},
    ),
    "FlattenAction": Example(
        arguments={},
        nested={"in_keys_inv": [("solo", "action"), ("pair", "action")]},
        rows=MatrixRowsEnv,
        groups=MatrixGroupsEnv,
    ),
    "FlattenObservation": Example(
        arguments={"first_dim": -3, "last_dim": -2, "in_keys": ["pixels"], "out_keys": ["rows"]},
        nested={"first_dim": -3, "last_dim": -1, "in_keys": PIXELS},
        out={"first_dim": -3, "last_dim": -1, "in_keys": ["pixels"], "out_keys": ["flat"]},
    ),
    "FrameSkipTransform": Example(
        arguments={"frame_skip": 2},
        nested={"frame_skip": 2},
        refuses_stored="stored data has none",
    ),
    "GrayScale": Example(
        arguments={"in_keys": ["image"]},
        nested={"in_keys": IMAGES},
        out={"in_keys": ["image"], "out_keys": ["gray"]},
    ),
    "Hash": Example(
        arguments={"in_keys": ["observation"], "out_keys": ["hash"], "hash_fn": cubed},
        nested={
            "in_keys": [SOLO, PAIR],
            "out_keys": [("solo", "hash"), ("pair", "hash")],
            "hash_fn": cubed,
        },
        out={"in_keys": ["reward"], "out_keys": ["hash"], "hash_fn": cubed},
    ),
    "InitTracker": Example(
        arguments={},
        nested={},
        out={"init_key": "first"},
        maps_next=True,
    ),
    "LineariseRewards": Example(
        arguments={"in_keys": ["reward"], "weights": [0.5]},
        nested={"in_keys": REWARDS},
        out={"in_keys": ["reward"], "out_keys": ["total"], "weights": [-2.0]},
    ),
    "MultiAction": Example(
        arguments={"stack_rewards": False},
        nested={"action_key": ("pair", "action")},
        rows=SteppedRowsEnv,
        groups=SteppedGroupsEnv,
        refuses_stored="stored data has none",
    ),
    "MultiStepTransform": Example(
        arguments={"n_steps": 2, "gamma": 0.5},
        offline=True,
    ),
    "ModuleTransform": Example(
        arguments={"module_factory": cubing_observation},
        nested={"module_factory": cubing_solo_reward},
        out={"module_factory": cubing_precise},
        stored_differs="its keys are those of the module, which are not under `next`",
        no_twin="TorchRL does not export its own",
    ),
    "NextObservationDelta": Example(
        arguments={"in_keys": ["observation", "precise"]},
        nested={"in_keys": [SOLO, PAIR]},
        out={"in_keys": ["observation"], "out_keys": ["change"]},
        stored_differs="restores next observations, which this rollout has",
        maps_next=True,
    ),
    "NoopResetEnv": Example(
        arguments={"noops": 1},
        nested={"noops": 1, "random": False},
        rows=SteppedRowsEnv,
        groups=SteppedGroupsEnv,
        stored_differs="stored steps contain the results of no-ops; other steps need other ones",
    ),
    "ObservationNorm": Example(
        arguments={"loc": 0.5, "scale": 2.0},
        nested={"loc": 1.0, "scale": 4.0, "in_keys": [SOLO, PAIR], "standard_normal": True},
        out={"loc": 0.5, "scale": 2.0, "in_keys": ["observation"], "out_keys": ["normed"]},
    ),
    "PermuteTransform": Example(
        arguments={"dims": (-1, -3, -2), "in_keys": ["pixels"], "out_keys": ["turned"]},
        nested={"dims": (-1, -3, -2), "in_keys": PIXELS},
        out={"dims": (-1, -2), "in_keys": ["pixels"], "out_keys": ["turned"]},
    ),
    "PinMemoryTransform": Example(
        arguments={},
        nested={},
    ),
    "PixelRenderTransform": Example(
        arguments={"out_keys": ["frame"]},
        nested={"out_keys": [("solo", "frame")]},
        out={"out_keys": [("more", "frame")]},
        rows=CountedRowsEnv,
        groups=CountedGroupsEnv,
        refuses_stored="stored data has none",
    ),
    "R3MTransform": Example(
        arguments={
            "model_name": "resnet18",
            "in_keys": ["image"],
            "size": 8,
            "tensor_pixels_keys": ["image"],
        },
        nested={
            "model_name": "resnet18",
            "in_keys": PIXELS,
            "out_keys": [("solo", "r3m_vec"), ("pair", "r3m_vec")],
            "size": 8,
            "stack_images": False,
        },
        out={
            "model_name": "resnet18",
            "in_keys": ["pixels"],
            "out_keys": [("features", "r3m_vec")],
            "size": 8,
            "tensor_pixels_keys": ["pixels"],
        },
        stored_differs="maps the images that it names, those in next only by name",
    ),
    "RandomCropTensorDict": Example(
        arguments={"sub_seq_len": 1},
        offline=True,
    ),
    "RandomTruncationTransform": Example(
        arguments={"min_horizon": 1, "max_horizon": 1},
        nested={"min_horizon": 1, "max_horizon": 1},
        rows=CountedRowsEnv,
        groups=CountedGroupsEnv,
        refuses_stored="stored data has none",
    ),
    "RemoveEmptySpecs": Example(),
    "RenameTransform": Example(
        arguments={
            "in_keys": ["observation", "reward"],
            "out_keys": ["seen", ("sums", "reward")],
            "in_keys_inv": ["action"],
            "out_keys_inv": [("moves", "action")],
        },
        nested={"in_keys": [SOLO], "out_keys": ["seen"]},
        out={"in_keys": ["observation"], "out_keys": ["seen"], "create_copy": True},
        stored_differs="stored actions keep their name",
    ),
    "Resize": Example(
        arguments={"w": 4, "h": 5, "in_keys": ["image"]},
        nested={"w": 4, "in_keys": [("solo", "image"), ("pair", "image")]},
        out={"w": 4, "h": 5, "in_keys": ["image"], "out_keys": ["small"]},
    ),
    "Reward2GoTransform": Example(
        arguments={"gamma": 0.5, "out_keys": ["reward_to_go"]},
        offline=True,
    ),
    "RewardClipping": Example(
        arguments={"clamp_min": -1.0, "clamp_max": 1.5},
        nested={"clamp_min": -1.0, "clamp_max": 1.5, "in_keys": REWARDS},
        out={"clamp_max": 1.5, "in_keys": ["reward"], "out_keys": ["clipped"]},
    ),
    "RewardScaling": Example(
        arguments={"loc": 1.0, "scale": 0.5},
        nested={"loc": 1.0, "scale": 0.5, "in_keys": REWARDS},
        out={"loc": 1.0, "scale": 0.5, "in_keys": ["reward"], "out_keys": ["scaled"]},
    ),
    "RewardSum": Example(
        arguments={},
        nested={},
        out={"in_keys": ["reward"], "out_keys": [("sums", "total")]},
        maps_next=True,
    ),
    "SelectTransform": Example(
        arguments={"*": ["observation", "pixels"]},
        nested={"*": ["solo", ("pair", "precise")]},
        stored_differs="keeps the keys that it names; in steps the action is the policy's",
        maps_next=True,
    ),
    "SignTransform": Example(
        arguments={"in_keys": ["observation", "pixels"]},
        nested={"in_keys": [*REWARDS, SOLO], "in_keys_inv": [("pair", "action")]},
        out={"in_keys": ["reward"], "out_keys": ["sign"]},
    ),
    "SqueezeTransform": Example(
        arguments={"dim": -1, "in_keys": ["reward"], "out_keys": ["bare"]},
        nested={"dim": -1, "in_keys": REWARDS, "out_keys": ["solo_bare", "pair_bare"]},
        out={"dim": -1, "in_keys": ["reward"], "out_keys": [("more", "bare")]},
    ),
    "Stack": Example(
        arguments={"in_keys": ["observation"], "out_key": "layers"},
        nested={"in_keys": [SOLO], "out_key": ("solo", "layers"), "dim": -2},
        out={"in_keys": ["precise"], "out_key": ("more", "layers"), "del_keys": False},
        stored_differs="stacks the entries that it names, those in next only by name",
    ),
    "StepCounter": Example(
        arguments={"max_steps": 3},
        nested={"max_steps": 2},
        out={"step_count_key": "count"},
        refuses_stored="continues after max_steps=3",
    ),
    "SuccessReward": Example(
        arguments={"success_key": "done"},
        nested={"success_key": ("solo", "done"), "reward_key": ("solo", "reward"), "scale": -2.0},
        out={"success_key": "truncated", "reward_key": "bonus"},
        stored_differs="writes a reward for the flags at the root too; a reset writes none",
    ),
    "TargetReturn": Example(
        arguments={"target_return": 10.0},
        nested={"target_return": 3, "mode": "constant"},
        out={"target_return": 10.0, "in_keys": ["reward"], "out_keys": [("left", "reward")]},
        maps_next=True,
    ),
    "TensorDictPrimer": Example(
        arguments={"primers": {"hidden": Unbounded((2,))}, "default_value": 3.0},
        nested={
            "primers": {("solo", "hidden"): Unbounded((2,))},
            "reset_key": ("solo", "_reset"),
        },
        out={"primers": {("states", "hidden"): Unbounded((2,))}, "random": True},
        stored_differs="writes at the root; in steps values are carried into next",
    ),
    "TerminateTransform": Example(
        arguments={"stop": high},
        nested={"stop": solo_high},
        stored_differs="marks the data; in steps the env would be reset there",
    ),
    "TimeMaxPool": Example(
        arguments={"T": 3},
        nested={"in_keys": [SOLO, PAIR], "T": 2},
        out={"in_keys": ["image"], "out_keys": ["brightest"], "T": 2},
        maps_next=True,
    ),
    "Timer": Example(
        arguments={},
        nested={"out_keys": [("solo", "step"), ("solo", "policy"), ("solo", "reset")]},
        out={"time_key": "seconds"},
        refuses_stored="stored data has none",
    ),
    "ToTensorImage": Example(
        arguments={},
        nested={"in_keys": PIXELS},
        out={"in_keys": ["pixels"], "out_keys": ["image"]},
    ),
    "TrajCounter": Example(
        arguments={},
        nested={"out_key": ("pair", "traj_count")},
        out={"out_key": "episode"},
        lasting=True,
        refuses_stored="stored data has none",
    ),
    "UnaryTransform": Example(
        arguments={"in_keys": ["observation"], "out_keys": ["observation"], "fn": cubed},
        nested={
            "in_keys": REWARDS,
            "out_keys": [("solo", "cubed"), ("pair", "cubed")],
            "fn": cubed,
        },
        out={"in_keys": ["precise"], "out_keys": [("more", "cubed")], "fn": cubed},
    ),
    "UnsqueezeTransform": Example(
        arguments={
            "dim": -2,
            "in_keys": ["observation"],
            "out_keys": ["longer"],
            "in_keys_inv": ["action"],
        },
        nested={"dim": -1, "in_keys": [SOLO, PAIR], "in_keys_inv": [("pair", "action")]},
        out={"dim": -1, "in_keys": ["observation"], "out_keys": ["longer"]},
        stored_differs="stored actions stay; in steps the policy gives others",
    ),
    "VecNorm": Example(
        arguments={"decay": 0.9},
        nested={"in_keys": [*REWARDS, SOLO, PAIR]},
        out={"in_keys": ["reward", "pixels"], "out_keys": ["unit", ("normal", "pixels")]},
        lasting=True,
        stored_differs="its statistics take in all of the data, in steps what came before",
    ),
    "VecNormV2": Example(
        arguments={"in_keys": ["observation", "reward"], "decay": 0.9},
        nested={"in_keys": [*REWARDS, SOLO, PAIR], "reduce_batch_dims": True},
        out={"in_keys": ["reward", "pixels"], "out_keys": ["unit", ("normal", "pixels")]},
        lasting=True,
    ),
    "VideoRecorder": Example(
        arguments={"logger": None, "tag": "run"},
        nested={"logger": None, "tag": None, "in_keys": PIXELS, "make_grid": False},
        out={"logger": None, "tag": "run", "out_keys": ["copy"], "skip": 1, "max_frames": 3},
    ),
    "gSDENoise": Example(
        arguments={},
        nested={"state_dim": 3, "action_dim": 2, "reset_key": ("solo", "_reset")},
        stored_differs="writes at the root; in steps the noise is carried into next",
    ),
}


def transform_classes() -> dict[str, type[Transform]]:
    """Return the transform classes of all categories by name."""
    root = Path(inspect.getfile(tdx.transforms)).parent
    found = {}
    for path in sorted(root.glob("*/*.py")):
        if path.parent.name == "base" or path.stem.startswith("_"):
            continue
        module = import_module(f"tdx.transforms.{path.parent.name}.{path.stem}")
        for name, value in vars(module).items():
            is_transform = inspect.isclass(value) and issubclass(value, Transform)
            if is_transform and value.__module__ == module.__name__ and not name.startswith("_"):
                found[name] = value
    return found


CLASSES = transform_classes()
NAMES = sorted(CLASSES)


def example_of(name: str) -> Example:
    """Return the entry of a transform."""
    if name not in EXAMPLES:
        pytest.fail(
            f"{name} has no entry in tests/transforms/contract/examples.py: add "
            f'"{name}": Example(arguments={{...}}, nested={{...}}, out={{...}}) to EXAMPLES',
            pytrace=False,
        )
    return EXAMPLES[name]


def made(name: str, which: str = "arguments") -> Transform:
    """Create a transform with one set of its arguments."""
    example = example_of(name)
    named = dict(getattr(example, which))
    return CLASSES[name](*named.pop("*", ()), **named)


def rows_of(name: str, batch_size: tuple[int, ...] = (), endless: bool = False) -> RowsEnv:
    """Create the env for ``arguments`` and ``out``."""
    return example_of(name).rows(batch_size, endless)


def online() -> list[str]:
    """Return the names of the transforms that work in an env."""
    return [name for name in NAMES if name not in EXAMPLES or not EXAMPLES[name].offline]


def skip_if_lasting(name: str) -> None:
    """Skip a test of transforms whose state ends with the episode."""
    if example_of(name).lasting:
        pytest.skip("it outlasts episodes")


def whole_chain() -> Compose:
    """Return a chain of all transforms for ``RowsEnv``, except those that cannot be compared.

    Each writes to its own keys if possible; transforms that change what others need come last.
    """
    last = [
        "",
        "BinarizeReward",
        "ExpandAs",
        "ActionDiscretizer",
        "ExcludeTransform",
        "RenameTransform",
    ]
    names = [name for name in online() if example_of(name).rows is RowsEnv]
    names.remove("SelectTransform")
    names.remove("Timer")  # worker processes have a clock that runs
    names.remove("TrajCounter")  # clones of it share their count
    places = {name: last.index(name) if name in last else 0 for name in names}
    names.sort(key=lambda name: (places[name], name))
    # The primer draws random numbers, which differ in worker processes.
    ordinary = {"TensorDictPrimer", *(name for name in names if example_of(name).out is None)}
    which = ["arguments" if name in ordinary else "out" for name in names]
    return Compose(*map(made, names, which))
