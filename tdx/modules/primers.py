"""The primers that the modules inside a module need."""

from __future__ import annotations

import warnings

from torch import nn

from tdx.core.transforms import Compose
from tdx.errors import ArgumentError
from tdx.keys import format_key
from tdx.transforms.episode.tensordict_primer import TensorDictPrimer


def get_primers_from_module(
    module: nn.Module, warn: bool = True
) -> TensorDictPrimer | Compose | None:
    """The transform that gives an env what the modules inside a module carry from step to step.

    Args:
        module: a policy, say; each module in it that has a ``make_tensordict_primer`` is asked.
        warn: whether to warn where there is none.

    Returns:
        the primer, a ``Compose`` of them where there are several, or ``None``.

    Raises:
        ArgumentError: two modules carry a state under the same key.

    Example:
        >>> from tdx import GRUModule, GymEnv, SerialEnv, TransformedEnv, get_primers_from_module
        >>> gru = GRUModule(input_size=3, hidden_size=2, in_key="observation", out_key="action")
        >>> env = TransformedEnv(SerialEnv(2, lambda: GymEnv("Pendulum-v1")))
        >>> env = env.append_transform(get_primers_from_module(gru))
        >>> env.reset()["recurrent_state"].shape
        torch.Size([2, 1, 2])
    """
    makers = (getattr(each, "make_tensordict_primer", None) for each in module.modules())
    primers: list[TensorDictPrimer] = [make() for make in makers if make is not None]
    _check_distinct(primers)
    if not primers:
        if warn:
            warnings.warn(f"no module in {type(module).__name__} has a primer", stacklevel=2)
        return None
    return primers[0] if len(primers) == 1 else Compose(*primers)


def _check_distinct(primers: list[TensorDictPrimer]) -> None:
    seen = set()
    for primer in primers:
        for key in primer.primers.keys(True, True):
            if key in seen:
                raise ArgumentError(
                    f"two modules carry a state under {format_key(key)!r}",
                    hint="give them keys of their own by in_keys and out_keys",
                )
            seen.add(key)
