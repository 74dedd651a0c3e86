"""Names of the package that are defined in modules above this one, for methods of kernels."""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["public"]


def public(name: str) -> Any:
    """Return the public ``name`` of the package, which loads its module at first use."""
    return getattr(sys.modules["convsmith"], name)
