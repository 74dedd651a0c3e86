"""Memory for the tables of pointers of a problem: what the interpreter is given in place of addresses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from convsmith.diag.errors import ConfigError
from convsmith.ir.buffer import Buffer
from convsmith.layout.indirection import FORMS
from convsmith.layout.layout import Layout
from convsmith.plan.pointers import pointers
from convsmith.problem.attributes import ZERO_POINTS
from convsmith.problem.problem import Problem
from convsmith.statement.views import statement

Array = npt.NDArray[Any]


def table_arrays(problem: Problem, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Entries of the table of every form, and what is absent, by the names that kernels have for them."""
    found: dict[str, Array] = {}
    try:
        for p in (pointers(statement(problem), form) for form in FORMS):
            found[p.table.name] = p.entries.entries.ravel().copy()
            found[p.zero.name] = absent_array(problem, p.zero, arrays)
    except ConfigError:
        return {}
    return found


def absent_array(problem: Problem, zero: Buffer, arrays: Mapping[str, Array]) -> Array:
    """The memory that stands for absent pixels: zeros, or the zero points among the arrays of the source.

    Those that its type has no room for are those of no call.
    """
    memory = np.zeros(zero.size, zero.dtype.numpy)
    points = arrays.get(problem.attribute_name(ZERO_POINTS, "src"))
    if points is None:
        return memory
    points, layout = np.clip(points, *zero.dtype.limits), Layout(zero.shape, zero.blocks)
    for channel, point in enumerate(np.broadcast_to(points, zero.shape if points.size == 1 else points.shape)):
        memory[layout.offset((channel,))] = point
    return memory
