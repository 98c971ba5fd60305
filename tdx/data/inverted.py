"""A transform the other way round."""

from __future__ import annotations

from tensordict import TensorDictBase

from tdx.core.transforms import TimeBehaviour, Transform


class InvertedTransform(Transform):
    """Does on the way into a buffer what another transform does on the way out, and vice versa.

    Args:
        transform: the other.
    """

    time_behaviour = TimeBehaviour.CONTROL

    def __init__(self, transform: Transform) -> None:
        super().__init__()
        self.transform = transform
        transform.set_container(self)

    @property
    def invertible(self) -> bool:
        """Whether anything happens on the way in: always."""
        return True

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """The other's way in."""
        return self.transform.inv(tensordict)

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self.transform(tensordict)

    def __repr__(self) -> str:
        return f"InvertedTransform({self.transform})"
