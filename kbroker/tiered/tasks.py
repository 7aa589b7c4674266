"""What the tier does for ever; the loops alone."""

from __future__ import annotations

import trio

__all__ = ["trio"]
