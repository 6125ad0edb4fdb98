"""Warnings that point at the line of the user's program that led to them."""

from __future__ import annotations

import sys
import warnings

from autoloop._records import AutoloopWarning

#: Packages whose frames lie between that line and us.
_BETWEEN = ("autoloop", "jax", "contextlib", "functools")


def warn(text: str) -> None:
    """Issues an `AutoloopWarning`, located where the user's code called into autoloop or jax."""
    level, frame = 1, sys._getframe()
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in _BETWEEN:
        level, frame = level + 1, frame.f_back  # type: ignore[assignment]
    warnings.warn(f"autoloop: {text}", AutoloopWarning, stacklevel=level)
