"""Memory for the tables of pointers of a problem: what the interpreter is given in place of addresses."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from convsmith.build.indirect import pointers
from convsmith.build.statement import statement
from convsmith.diag.errors import ConfigError
from convsmith.layout.indirection import FORMS
from convsmith.problem.problem import Problem


def table_arrays(problem: Problem) -> dict[str, npt.NDArray[Any]]:
    """Entries of the table of every form, and zeros, by the names that kernels have for them."""
    found: dict[str, npt.NDArray[Any]] = {}
    try:
        for p in (pointers(statement(problem), form) for form in FORMS):
            found[p.table.name] = p.entries.entries.ravel().copy()
            found[p.zero.name] = np.zeros(p.zero.size, p.zero.dtype.numpy)
    except ConfigError:
        return {}
    return found
