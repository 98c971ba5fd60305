"""Encode images with R3M, a residual network trained on videos of people."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, Self

import torch
from tensordict import TensorDictBase
from tensordict.nn import dispatch
from torch import Tensor, nn

from tdx.core.transforms import TimeBehavior, Transform
from tdx.core.transforms.spec_maps import (
    normalize_keys,
    require_free_key,
    require_keys,
    unlocked_copy,
)
from tdx.core.transforms.validation import check_choice, check_integer
from tdx.foundation.errors import ArgumentError, Where
from tdx.foundation.keys import NestedKey
from tdx.foundation.tensordicts import read, write
from tdx.specs import Composite, Unbounded
from tdx.transforms.encoders.checkpoints import (
    checkpoint_file,
    fetch_checkpoint,
    r3m_checkpoint,
    read_resnet,
    torchvision_checkpoint,
)
from tdx.transforms.encoders.resnet import (
    FEATURES,
    RESNETS,
    ResNetName,
    check_images,
    empty_resnet,
    prepare_images,
    untrained_resnet,
)

if TYPE_CHECKING:
    from torchvision.models import WeightsEnum

OUT_KEY = "r3m_vec"
# Limits the memory for a chunk of images; larger batches are not faster.
IMAGES_AT_ONCE = 64


class R3MTransform(Transform):
    """Replace images by feature vectors of R3M, a residual network, frozen by default.

    R3M ("R3M: A Universal Visual Representation for Robot Manipulation", Nair et al., 2022,
    https://arxiv.org/abs/2203.12601) is trained on the videos of Ego4D. Its batch norms stay in
    eval mode. It is built when a spec or ``forward`` is first needed. Images of bytes have shape
    ``[*B, H, W, 3]``, images of floats from 0 to 1 ``[*B, 3, H, W]``; the other layout is detected
    by the number of channels. They are resized and normalized as in training. The network runs on
    the device of the images, unless it is moved by ``to``.

    Args:
        model_name: "resnet18" or "resnet34" (512 features), or "resnet50" (2048).
        in_keys: Images to read and remove; ``pixels`` by default.
        out_keys: Keys of the vectors; ``r3m_vec`` by default, or ``r3m_vec_0`` and so on if
            several images are not stacked.
        size: Height and width to which images are resized.
        stack_images: Concatenate the vectors of several images.
        download: Use R3M's weights, from the cache or downloaded; or torchvision weights, as its
            enum or by name. ``False``: initial weights, the same in every run.
        download_path: Folder of the cache; torch.hub's by default. Or a checkpoint file, and
            nothing is downloaded.
        tensor_pixels_keys: Keys under which to keep the images, one per in-key.
        requires_grad: Compute gradients of the network's parameters, to fine-tune it on stored
            data.

    Raises:
        UnknownNameError: The model or the weights are unknown.
        ArgumentError: The numbers of keys differ, ``size`` is not an integer of at least 1, or a
            checkpoint or an image does not fit (when its specs are computed, or in a call).
        EnvError: The weights cannot be downloaded.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tdx import R3MTransform
        >>> encoder = R3MTransform("resnet18", in_keys=["pixels"], size=32)
        >>> frames = torch.zeros(2, 48, 64, 3, dtype=torch.uint8)
        >>> encoder(TensorDict(pixels=frames, batch_size=[2]))["r3m_vec"].shape
        torch.Size([2, 512])
    """

    _is_verified = True
    # Convolutions round in another way for another number of images.
    mixes_rows = True

    time_behavior = TimeBehavior.POINTWISE
    default_in_keys = ("pixels",)
    mean: Tensor
    std: Tensor

    def __init__(
        self,
        model_name: ResNetName,
        in_keys: Sequence[NestedKey] | None = None,
        out_keys: Sequence[NestedKey] | None = None,
        size: int = 244,
        stack_images: bool = True,
        download: bool | str | WeightsEnum = False,
        download_path: str | PathLike[str] | None = None,
        tensor_pixels_keys: Sequence[NestedKey] | None = None,
        requires_grad: bool = False,
    ) -> None:
        super().__init__(in_keys=[])
        check_choice(model_name, "R3M model", RESNETS)
        check_integer(size, "size", 1, "for example size=244")
        self.model_name, self.size, self.stack_images = model_name, size, stack_images
        self.download, self.download_path = download, download_path
        self.requires_grad = requires_grad
        images = normalize_keys(in_keys or self.default_in_keys, "in_keys")
        if not out_keys:
            one = stack_images or len(images) == 1
            out_keys = [OUT_KEY] if one else [f"{OUT_KEY}_{i}" for i in range(len(images))]
        self._set_keys(images, out_keys)
        self.tensor_pixels_keys = normalize_keys(tensor_pixels_keys, "tensor_pixels_keys")
        if self.tensor_pixels_keys:
            _check_count("tensor_pixels_keys", self.tensor_pixels_keys, len(images))
        self._follows_images = True
        # Mean and standard deviation of ImageNet, as in R3M and torchvision.
        for name, values in (("mean", [0.485, 0.456, 0.406]), ("std", [0.229, 0.224, 0.225])):
            self.register_buffer(name, torch.tensor(values).view(3, 1, 1), persistent=False)

    def _set_keys(
        self, in_keys: Sequence[NestedKey] | None, out_keys: Sequence[NestedKey] | None
    ) -> None:
        # The base class requires one out-key per in-key; stacked images have one in total.
        self._in_keys = normalize_keys(in_keys, "in_keys")
        self._out_keys = normalize_keys(out_keys, "out_keys")
        self._pairs = ()
        if self._in_keys:
            wanted = 1 if self.stack_images else len(self._in_keys)
            _check_count("out_keys", self._out_keys, wanted)

    # The network

    @property
    def initialized(self) -> bool:
        """True if the network is built."""
        return "convnet" in self._modules

    @property
    def device(self) -> torch.device:
        """Device of the network."""
        return self.mean.device

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the network and of its vectors."""
        return self.mean.dtype

    def follow_env_device(self, device: torch.device | None) -> None:
        """Do nothing: the network follows the images, or stays where it was moved."""

    def _network(self, device: torch.device | None) -> nn.Module:
        """Return the network on the images' device, unless it was moved; build it if necessary."""
        if self._follows_images and device is not None and device != self.device:
            super()._apply(lambda tensor: tensor.to(device))
        if not self.initialized:
            path = checkpoint_file(self.download_path)
            if path is None and self.download is not False:
                if self.download is True:
                    checkpoint = r3m_checkpoint(self.model_name)
                else:
                    checkpoint = torchvision_checkpoint(self.model_name, self.download)
                path = fetch_checkpoint(checkpoint, self.download_path)
            if path is None:
                network = untrained_resnet(self.model_name)
            else:
                network = empty_resnet(self.model_name)
                network.load_state_dict(read_resnet(path, self.model_name), assign=True)
            self._install(network)
        convnet: nn.Module = self._modules["convnet"]  # type: ignore[assignment]
        return convnet

    def _install(self, network: nn.Module) -> None:
        network.to(device=self.device, dtype=self.dtype)
        network.requires_grad_(self.requires_grad).eval()
        self.convnet = network

    def train(self, mode: bool = True) -> Self:
        """Set the mode of the transform; the network stays in eval mode."""
        super().train(mode)
        if self.initialized:
            self.convnet.eval()
        return self

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        before = self.device
        super()._apply(fn, recurse)
        if self.device != before:
            self._follows_images = False
        self.notify_changed()
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        if not self.initialized and any(key.startswith(f"{prefix}convnet.") for key in state_dict):
            self._install(empty_resnet(self.model_name).to_empty(device=self.device))
        super()._load_from_state_dict(state_dict, prefix, *args)

    # Data

    def _encode(self, images: list[Tensor]) -> list[Tensor]:
        """Return one vector ``[*B, F]`` for each out-key."""
        network = self._network(images[0].device)
        planes = [prepare_images(image, self.size, self.mean, self.std) for image in images]
        block = planes[0] if len(planes) == 1 else torch.cat(planes)
        with torch.set_grad_enabled(self.requires_grad and torch.is_grad_enabled()):
            parts = [network(part) for part in block.split(IMAGES_AT_ONCE)]
        vectors = parts[0] if len(parts) == 1 else torch.cat(parts)
        separate = [
            part.reshape(*image.shape[:-3], part.shape[-1]).to(image.device)
            for image, part in zip(images, vectors.split([len(p) for p in planes]), strict=True)
        ]
        if self.stack_images and len(separate) > 1:
            return [torch.cat(separate, -1)]
        return separate

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        images = [read(next_tensordict, key) for key in self._in_keys]
        for key, image in zip(self._in_keys, images, strict=True):
            if image is None:
                if self._missing_tolerance:
                    return next_tensordict
                raise self._missing_key(key, next_tensordict)
            check_images(image.shape, image.dtype, key)
        vectors = self._encode(images)
        for key in self._in_keys:
            next_tensordict.del_(key)
        for key, image in zip(self.tensor_pixels_keys, images, strict=False):
            write(next_tensordict, key, image)
        for key, vector in zip(self._out_keys, vectors, strict=True):
            write(next_tensordict, key, vector)
        return next_tensordict

    @dispatch(source="in_keys", dest="out_keys")
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Replace the images of stored data by their vectors, in place."""
        return self._call(tensordict)

    # Specs

    def _bind(self, input_spec: Composite, output_spec: Composite) -> None:
        if not self._missing_tolerance:
            require_keys(output_spec, self._in_keys, "the env at this stage")
        for key in (*self._out_keys, *self.tensor_pixels_keys):
            if key not in self._in_keys:
                for part in output_spec.values():
                    require_free_key(part, key)

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """Return the observation spec with vectors instead of images."""
        result = unlocked_copy(observation_spec)
        images = [result.get(key, None) for key in self._in_keys]
        if any(image is None for image in images):
            return observation_spec
        for key, image in zip(self._in_keys, images, strict=True):
            check_images(image.shape, image.dtype, key)
            del result[key]
        self._network(images[0].device)
        for key, image in zip(self.tensor_pixels_keys, images, strict=False):
            result[key] = image.clone()
        shapes = [(*image.shape[:-3], FEATURES[self.model_name]) for image in images]
        if self.stack_images:
            if len(set(shapes)) > 1:
                raise ArgumentError(
                    "images with different batch dims cannot be stacked: "
                    + ", ".join(str(tuple(image.shape)) for image in images),
                    hint="pass stack_images=False",
                )
            shapes = [(*shapes[0][:-1], shapes[0][-1] * len(images))]
        for key, shape, image in zip(self._out_keys, shapes, images, strict=False):
            result[key] = Unbounded(shape, dtype=self.dtype, device=image.device)
        return result

    def __repr__(self) -> str:
        return f"R3MTransform({self.model_name!r}, size={self.size}, keys={self.in_keys})"


def _check_count(name: str, keys: Sequence[NestedKey], wanted: int) -> None:
    if len(keys) != wanted:
        what = "one key" if wanted == 1 else f"{wanted} keys"
        raise ArgumentError(
            f"{name} must be {what}, got {len(keys)}",
            where=Where(),
            hint="give one key per in-key, or one in total if images are stacked",
        )
