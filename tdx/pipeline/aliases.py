"""Names under which users of other libraries look for a transform."""

from __future__ import annotations

from collections.abc import Mapping

ALIASES: Mapping[str, tuple[str, ...]] = {
    # Gymnasium
    "AddRenderObservation": ("PixelRenderTransform",),
    "AtariPreprocessing": (
        *("NoopResetEnv", "FrameSkipTransform", "TimeMaxPool", "EndOfLifeTransform"),
        *("GrayScale", "Resize"),
    ),
    "ClipAction": ('ClipTransform(in_keys_inv=["action"], low=…, high=…)',),
    "ClipReward": ("RewardClipping",),
    "DiscretizeAction": ("ActionDiscretizer",),
    "DtypeObservation": ("DTypeCastTransform",),
    "FilterObservation": ("SelectTransform",),
    "FrameStack": ("CatFrames",),
    "FrameStackObservation": ("CatFrames",),
    "GrayscaleObservation": ("GrayScale",),
    "MaxAndSkipObservation": ("FrameSkipTransform", "TimeMaxPool"),
    "NormalizeObservation": ("VecNormV2", "ObservationNorm"),
    "NormalizeReward": ("VecNormV2", "RewardScaling"),
    "NumpyToTorch": ("DeviceCastTransform",),
    "PixelObservationWrapper": ("PixelRenderTransform",),
    "RecordEpisodeStatistics": ("RewardSum", "StepCounter"),
    "RecordVideo": ("VideoRecorder",),
    "RescaleAction": ("ActionScaling",),
    "RescaleObservation": ("ObservationNorm",),
    "ReshapeObservation": ("FlattenObservation", "UnsqueezeTransform", "SqueezeTransform"),
    "ResizeObservation": ("Resize",),
    "TimeAwareObservation": ("StepCounter",),
    "TimeLimit": ("StepCounter",),
    "TransformObservation": ("UnaryTransform",),
    "TransformReward": ("RewardScaling", "RewardClipping", "UnaryTransform"),
    # Stable-Baselines3
    "ActionMasker": ("ActionMask",),
    "AtariWrapper": (
        *("NoopResetEnv", "FrameSkipTransform", "TimeMaxPool", "EndOfLifeTransform"),
        *("GrayScale", "Resize", "SignTransform"),
    ),
    "ClipRewardEnv": ("SignTransform",),
    "EpisodicLifeEnv": ("EndOfLifeTransform",),
    "MaxAndSkipEnv": ("FrameSkipTransform", "TimeMaxPool"),
    "Monitor": ("RewardSum", "StepCounter"),
    "MonitorWrapper": ("RewardSum", "StepCounter"),
    "RunningMeanStd": ("VecNormV2", "VecNorm"),
    "TimeFeatureWrapper": ("StepCounter",),
    "VecCheckNan": ("FiniteTensorDictCheck",),
    "VecExtractDictObs": ("SelectTransform",),
    "VecFrameStack": ("CatFrames",),
    "VecMonitor": ("RewardSum", "StepCounter"),
    "VecNormalize": ("VecNormV2", "ObservationNorm"),
    "VecTransposeImage": ("PermuteTransform", "ToTensorImage"),
    "VecVideoRecorder": ("VideoRecorder",),
    "WarpFrame": ("GrayScale", "Resize"),
    # Tianshou and PufferLib
    "EpisodeStats": ("RewardSum", "StepCounter"),
    "VectorEnvNormObs": ("VecNorm", "ObservationNorm"),
    # Training code and papers
    "ActionRepeat": ("FrameSkipTransform",),
    "ImageToPyTorch": ("ToTensorImage",),
    "NStep": ("MultiStepTransform",),
    "Normalize": ("ObservationNorm", "VecNormV2"),
    "ReturnToGo": ("Reward2GoTransform",),
    "Standardize": ("ObservationNorm", "VecNormV2"),
    "ToTensor": ("ToTensorImage",),
    "TransposeImage": ("PermuteTransform", "ToTensorImage"),
}
"""Names of other libraries, and the transforms that do the same or parts of it.

Arguments are written where the default ones do something else.
"""


def find_aliased(name: str) -> tuple[str, ...]:
    """Return the transforms for a name of another library; case, spaces and ``_`` do not count.

    Example:
        >>> find_aliased("frame stack"), find_aliased("ClipAction")
        (('CatFrames',), ('ClipTransform',))
    """
    return tuple(call.partition("(")[0] for call in find_aliased_calls(name))


def find_aliased_calls(name: str) -> tuple[str, ...]:
    """Like :func:`find_aliased`, with the arguments that a transform needs to do the same."""
    return _BY_PLAIN_NAME.get(_plain(name), ())


def aliases_of(transform: str) -> list[str]:
    """Return the names under which other libraries have a transform.

    Example:
        >>> aliases_of("TimeMaxPool")
        ['AtariPreprocessing', 'MaxAndSkipObservation', 'AtariWrapper', 'MaxAndSkipEnv']
    """
    return [alias for alias in ALIASES if transform in find_aliased(alias)]


def _plain(name: str) -> str:
    return "".join(char for char in name.casefold() if char.isalnum())


_BY_PLAIN_NAME = {_plain(alias): names for alias, names in ALIASES.items()}
