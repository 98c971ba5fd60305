"""Write images that the env renders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from tensordict import NonTensorData, TensorDictBase
from torch import Tensor

from tdx.core.transforms import EnvOnlyTransform, TimeBehavior
from tdx.core.transforms.spec_maps import normalize_keys, require_free_key, with_entries
from tdx.foundation.errors import ArgumentError, ChainError, EnvError, Where
from tdx.foundation.keys import NestedKey
from tdx.specs import Composite, NonTensor, TensorSpec, Unbounded


class PixelRenderTransform(EnvOnlyTransform):
    """Render the env after each reset and step, and write the image.

    The env must be able to render, for example ``GymEnv(..., render_mode="rgb_array")``. The
    images of a batch of envs are stacked. To declare the image, the env is reset once and
    rendered when the specs are computed for the first time.

    Args:
        out_keys: Key to write, also as a list of one; ``pixels`` by default.
        preproc: Function of the rendered array, or list of arrays, whose result is written.
        as_non_tensor: Write the image as ``NonTensorData``. ``None``: if a batch of envs renders
            a single image.
        render_method: Name of the method to call.
        pass_tensordict: Pass the output of the step to the method.
        **kwargs: Arguments for the method.

    Raises:
        ArgumentError: There is not one key, or ``preproc`` is not a function.
        ChainError: The env already writes the key (when its specs are computed), or the transform
            is applied to stored data.
        EnvError: The env has no such method, or renders no image.

    Example:
        >>> import numpy as np
        >>> from tdx import GymEnv, PixelRenderTransform, TransformedEnv
        >>> env = GymEnv("CartPole-v1", render_mode="rgb_array")
        >>> env = TransformedEnv(env, PixelRenderTransform())
        >>> env.rollout(2)["pixels"].shape
        torch.Size([2, 400, 600, 3])
    """

    why_not_exported = "it renders the env"
    _is_verified = True
    STORED_ERR = "it renders an env, and stored data has none"

    time_behavior = TimeBehavior.CONTROL

    def __init__(
        self,
        out_keys: Sequence[NestedKey] | NestedKey | None = None,
        preproc: Callable[[Any], Any] | None = None,
        as_non_tensor: bool | None = None,
        render_method: str = "render",
        pass_tensordict: bool = False,
        **kwargs: Any,
    ) -> None:
        if isinstance(out_keys, tuple) and all(isinstance(part, str) for part in out_keys):
            out_keys = [out_keys]
        keys = normalize_keys(["pixels"] if out_keys is None else out_keys, "out_keys")
        if len(keys) != 1:
            raise ArgumentError(
                f"PixelRenderTransform writes one image, got out_keys={keys}",
                hint='for example out_keys=["pixels"]',
            )
        if preproc is not None and not callable(preproc):
            raise ArgumentError(
                f"preproc must be a function of an array, got {preproc!r}",
                hint="for example lambda image: image[::2, ::2]",
            )
        super().__init__(in_keys=[], out_keys=keys)
        self.preproc, self.as_non_tensor = preproc, as_non_tensor
        self.render_method, self.pass_tensordict = render_method, pass_tensordict
        self.kwargs = kwargs
        self._enabled = True
        self._batch_size = torch.Size(())
        self._image_spec: TensorSpec | None = None

    # Rendering

    @property
    def _env(self) -> Any:
        """The env inside, which renders."""
        env = getattr(self.container, "base_env", None)
        if env is None:
            raise ChainError(
                "it renders an env, and stored data has none",
                hint="put it into the env that records the data",
                where=Where(transform="PixelRenderTransform"),
            )
        return env

    def _render(self, tensordict: TensorDictBase) -> Any:
        """Return the rendered image ``[*B, H, W, C]``."""
        method = getattr(self._env, self.render_method, None)
        if not callable(method):
            raise EnvError(
                f"the env has no method {self.render_method!r}",
                hint="name the method that renders: render_method=...",
                where=Where(transform="PixelRenderTransform"),
            )
        given = (tensordict,) if self.pass_tensordict else ()
        image = method(*given, **self.kwargs)
        if isinstance(image, (list, tuple)) and len(image) and not self.preproc:
            image = np.stack([np.asarray(row) for row in image])
        image = image if self.preproc is None else self.preproc(image)
        if image is None:
            raise EnvError(
                "the env renders no image",
                hint='create it with render_mode="rgb_array"',
                where=Where(transform="PixelRenderTransform"),
            )
        as_object = self.as_non_tensor
        if as_object is None:
            as_object = np.ndim(image) == 3 and bool(self._batch_size)
        if as_object:
            return NonTensorData(image, batch_size=tensordict.batch_size)
        # Copies, since an env may render into the same array again.
        copy = torch.as_tensor(np.asarray(image)).clone()
        return copy.to(tensordict.device or "cpu", non_blocking=True)

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        if self._enabled:
            (key,) = self.out_keys
            next_tensordict.set(key, self._render(next_tensordict))
        return next_tensordict

    def _reset(
        self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        return self._call(tensordict_reset)

    @property
    def enabled(self) -> bool:
        """True if images are rendered."""
        return self._enabled

    def switch(self, mode: Literal["on", "off"] | bool | None = None) -> None:
        """Turn rendering on or off; while it is off, the image is missing in the data.

        Args:
            mode: ``on`` or true, ``off`` or false. ``None``: the opposite of the current mode.

        Raises:
            ArgumentError: The mode is none of these.
        """
        if mode not in ("on", "off", True, False, None):
            raise ArgumentError(f"unknown mode {mode!r}", hint="one of on, off, True and False")
        self._enabled = not self._enabled if mode is None else mode in ("on", True)
        self.notify_changed()

    # Specs

    def _bind(self, input_spec: Composite, output_spec: Composite) -> None:
        if self._image_spec is not None and self._batch_size == output_spec.shape:
            return
        self._batch_size = output_spec.shape
        image = self._render(self._env.reset())
        if isinstance(image, Tensor):
            self._image_spec = _image_spec(image, self._batch_size)
        else:
            self._image_spec = NonTensor(self._batch_size, example_data=image.data)

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """Return the observation spec with the image."""
        (key,) = self.out_keys
        if self._image_spec is None or not self._enabled:
            return observation_spec
        require_free_key(observation_spec, key)
        return with_entries(observation_spec, {key: self._image_spec})

    def __repr__(self) -> str:
        return f"PixelRenderTransform(render_method={self.render_method!r}, keys={self.out_keys})"


def _image_spec(image: Tensor, batch_size: torch.Size) -> TensorSpec:
    if image.shape[: len(batch_size)] != batch_size:
        raise EnvError(
            f"the rendered image has shape {tuple(image.shape)}, which does not start with the "
            f"env's batch size {tuple(batch_size)}",
            hint="change it with preproc, or write it with as_non_tensor=True",
            where=Where(transform="PixelRenderTransform"),
        )
    return Unbounded(image.shape, image.device, image.dtype)
