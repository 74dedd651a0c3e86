"""Warnings of this package, which point to the line of the program that called it."""

from __future__ import annotations

import os
import sys
import warnings

__all__ = ["ConvsmithWarning", "warn"]

_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep


class ConvsmithWarning(UserWarning):
    """Something is not as it should be, and the program works on."""


def warn(message: str, category: type[ConvsmithWarning]) -> None:
    """Issue a warning for the innermost line outside this package."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
