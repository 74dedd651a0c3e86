"""Warnings that point at the caller's source line instead of a line inside convsmith."""

from __future__ import annotations

import os
import sys
import warnings

__all__ = ["ConvsmithWarning", "warn"]

_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep


class ConvsmithWarning(UserWarning):
    """Base class of convsmith's warnings: the program continues, but a result or its speed may not be as intended."""


def warn(message: str, category: type[ConvsmithWarning]) -> None:
    """Issue a warning of class `category` at the innermost stack frame outside convsmith."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
