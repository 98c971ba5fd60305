"""Gymnasium's envs as tdx envs.

Names resolve on first use, so that ``tdx.envs.gym.registry`` loads no torch.
"""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
