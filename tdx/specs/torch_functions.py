"""torch functions on specs: ``torch.stack([spec, spec])`` and what else makes sense."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch

Handler = Callable[..., Any]


class TorchFunctions:
    """Lets a class be an argument of the torch functions registered for it."""

    _handlers: ClassVar[dict[Handler, Handler]] = {
        torch.squeeze: lambda input, dim=None: input.squeeze(dim),
        torch.unsqueeze: lambda input, dim: input.unsqueeze(dim),
        torch.flatten: lambda input, start_dim=0, end_dim=-1: input.flatten(start_dim, end_dim),
        torch.unflatten: lambda input, dim, sizes: input.unflatten(dim, sizes),
        torch.reshape: lambda input, shape: input.reshape(shape),
        torch.unbind: lambda input, dim=0: input.unbind(dim),
        torch.index_select: lambda input, dim, index: input.index_select(dim, index),
    }

    @classmethod
    def __torch_function__(
        cls,
        func: Handler,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        handler = cls._handlers.get(func)
        if handler is None:
            return NotImplemented
        return handler(*args, **(kwargs or {}))

    @classmethod
    def implements_for_spec(cls, torch_function: Handler) -> Callable[[Handler], Handler]:
        """Register the decorated function for a torch function."""

        def register(handler: Handler) -> Handler:
            cls._handlers[torch_function] = handler
            return handler

        return register
