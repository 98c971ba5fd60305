"""What stages do, whatever library they come from, and how exact their values are."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from tdx.contracts.values import Tolerance

PASSIVE = ("plumbing", "monitor", "limit")
"""Roles of stages that do not change what a policy reads or does."""
STACK = "stack frames"
NORMALIZE = "normalize"
RESCALE_ACTION = "rescale action"

_ROLES: tuple[tuple[str, str], ...] = (
    (
        "plumbing",
        r"passiveenvchecker|orderenforcing|dummyvecenv|subprocvecenv|(a?sync)vectorenv|autoreset|"
        r"veccheckna?n|humanrendering|rendercollection|recordvideo|vecvideorecorder|"
        r"devicecasttransform|pinmemorytransform|videorecorder|addrenderobservation_",
    ),
    (
        "monitor",
        r"monitor|vecmonitor|recordepisodestatistics|rewardsum|stepcounter|trajcounter|timer",
    ),
    ("limit", r"timelimit|randomtruncationtransform"),
    (NORMALIZE, r"normalizeobservation|vecnormalize|vecnorm|vecnormv2|observationnorm"),
    (STACK, r"framestackobservation|vecframestack|catframes|framestack"),
    (RESCALE_ACTION, r"rescaleaction|actionscaling"),
    ("clip action", r"clipaction"),
    ("flatten", r"flattenobservation|cattensors"),
    ("grayscale", r"grayscaleobservation|grayscale|grayscalewrapper"),
    ("resize", r"resizeobservation|resize|warpframe"),
    ("transpose", r"vectransposeimage|permutetransform"),
    ("to tensor image", r"totensorimage"),
    ("cast", r"dtypeobservation|doubletofloat|dtypecasttransform"),
    ("skip frames", r"frameskiptransform|maxandskipobservation|maxandskipenv"),
    ("rescale observation", r"rescaleobservation"),
)

_MODES = {
    *("training", "norm_reward", "update_running_mean", "frozen", "num_envs", "lock"),
    *("shared_td", "shapes", "disable_render_order_enforcing", "clip_reward", "gamma"),
}
"""Arguments in which training and evaluation differ on purpose; state and values show the rest."""
MAX_LENGTH = 64
"""Longest list among the arguments of a stage."""
MAX_DEPTH = 4


def role_of(name: str) -> str:
    """Return what a stage does by the name of its class; the name itself if it is not known.

    Example:
        >>> role_of("VecNormalize"), role_of("CatFrames"), role_of("MyWrapper")
        ('normalize', 'stack frames', 'MyWrapper')
    """
    folded = name.casefold()
    return next((role for role, names in _ROLES if re.fullmatch(names, folded)), name)


def plain_arguments(arguments: Mapping[str, object]) -> dict[str, Any]:
    """Return the arguments of a stage as plain data, without those that only set a mode.

    Example:
        >>> plain_arguments({"func": len, "clip": 10.0, "training": True})
        {'func': 'len()', 'clip': 10.0}
    """
    return {
        str(name): plain_argument(value) for name, value in arguments.items() if name not in _MODES
    }


def plain_argument(value: object, depth: int = 0) -> Any:
    """Return an argument as plain data; an object as the name of its class."""
    if value is None or isinstance(value, bool | int | float | str):
        return value if not isinstance(value, str) else str(value)[:1_000]
    if isinstance(value, type):
        return value.__name__
    if hasattr(value, "tolist") and hasattr(value, "dtype"):
        array: Any = value
        size = getattr(array, "size", 0)
        count = size if isinstance(size, int) else array.numel()
        return array.tolist() if count <= MAX_LENGTH else f"<{type(value).__name__}>"
    if depth < MAX_DEPTH and isinstance(value, Mapping):
        items = list(value.items())[:MAX_LENGTH]
        return {str(name): plain_argument(each, depth + 1) for name, each in items}
    if depth < MAX_DEPTH and isinstance(value, Sequence | set | frozenset):
        parts = sorted(value, key=str) if isinstance(value, set | frozenset) else list(value)
        return [plain_argument(each, depth + 1) for each in parts[:MAX_LENGTH]]
    if type(value).__name__ in ("dtype", "device"):
        return str(value)
    if callable(value):
        return f"{getattr(value, '__name__', type(value).__name__)}()"
    return f"<{type(value).__name__}>"


_EXACT = {STACK, "flatten", "transpose", "cast", "clip action", "skip frames", *PASSIVE}
_FLOAT_TOLERANCES = {
    "float64": Tolerance(1e-7, 1e-9),
    "float32": Tolerance(1e-5, 1e-6),
    "bfloat16": Tolerance(2e-2, 1e-2),
    "float16": Tolerance(2e-3, 1e-3),
}


def tolerance_of(role: str, dtypes: Sequence[str], *, first: bool = False) -> Tolerance:
    """Return the tolerance of a stage by what it does and by the dtypes that it writes.

    Args:
        role: What it does.
        dtypes: Dtypes of the values.
        first: True if no stage before it rounds, so that moving values keeps them exactly.

    Example:
        >>> tolerance_of("normalize", ["float32"])
        Tolerance(rtol=0.0001, atol=1e-05)
    """
    known = [_FLOAT_TOLERANCES[name] for name in dtypes if name in _FLOAT_TOLERANCES]
    if role in ("resize", "grayscale") and not known:
        # Libraries round the same pixel up or down.
        return Tolerance(0.0, 1.0)
    if not known or (first and role in _EXACT):
        return Tolerance()
    widest = max(known, key=lambda each: each.rtol)
    if role == NORMALIZE:
        return _scaled(widest, 10, 10)
    if role in ("resize", "grayscale"):
        return _scaled(widest, 100, 1_000)
    return widest


def _scaled(tolerance: Tolerance, rtol: float, atol: float) -> Tolerance:
    """Multiply both parts; as short decimal numbers."""
    return Tolerance(float(f"{tolerance.rtol * rtol:.3g}"), float(f"{tolerance.atol * atol:.3g}"))
