"""The policy that a pipeline names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tdx.pipeline.policies import parse_policy

if TYPE_CHECKING:
    from torch import nn

    from tdx.pipeline import Pipeline


def imported_policy(pipeline: Pipeline, allow_code: bool) -> nn.Module | None:
    """The policy of a pipeline, where it is Python code that may be imported.

    Args:
        pipeline: the pipeline.
        allow_code: whether Python objects that it names may be imported.

    Returns:
        the module, or what a function or a class makes without arguments; ``None`` where the
        pipeline names no code, the code may not be imported, or it is no module.

    Raises:
        TdxError: there is no such object.
    """
    reference = parse_policy(pipeline.policy).reference if pipeline.policy else None
    if reference is None or not allow_code:
        return None
    from torch import nn

    from tdx.pipeline.resolver import ValueResolver

    found = ValueResolver(allow_code).import_object(reference)
    if not isinstance(found, nn.Module) and callable(found):
        try:
            found = found()
        except Exception:
            # It is a function of a TensorDict, which says nothing of its keys.
            return None
    return found if isinstance(found, nn.Module) else None
