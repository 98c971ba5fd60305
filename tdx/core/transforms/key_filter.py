"""The base class of transforms that take entries away."""

from __future__ import annotations

from tdx.core.transforms.spec_edits import refuse_lost_flags
from tdx.core.transforms.transform import Transform
from tdx.specs import Composite


class KeyFilter(Transform):
    """Takes entries away; a subclass says by ``_mapped`` what is left of a spec."""

    def transform_state_spec(self, state_spec: Composite) -> Composite:
        """The state spec without what no output holds any longer."""
        return self._mapped(state_spec)

    def transform_done_spec(self, done_spec: Composite) -> Composite:
        """The done flags that are left.

        Raises:
            ChainError: there are none in some group.
        """
        result = self._mapped(done_spec)
        refuse_lost_flags(done_spec, result)
        return result
