"""Pointer tables of a problem as the interpreter takes them: positions in place of addresses."""

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
    """Return the entries of the pointer table of every form, and its zero buffer, by the names of the kernels'
    parameters.
    """
    arrays_by_name: dict[str, Array] = {}
    try:
        for p in (pointers(statement(problem), form) for form in FORMS):
            arrays_by_name[p.table.name] = p.entries.entries.ravel().copy()
            arrays_by_name[p.zero.name] = absent_array(problem, p.zero, arrays)
    except ConfigError:
        return {}
    return arrays_by_name


def absent_array(problem: Problem, zero: Buffer, arrays: Mapping[str, Array]) -> Array:
    """Return the memory of the zero buffer: zeros, or the source's zero points.

    Zero points outside the range of the source's type are clamped; no legal call has them.
    """
    memory = np.zeros(zero.size, zero.dtype.numpy)
    points = arrays.get(problem.attribute_name(ZERO_POINTS, "src"))
    if points is None:
        return memory
    points, layout = np.clip(points, *zero.dtype.limits), Layout(zero.shape, zero.blocks)
    for channel, point in enumerate(np.broadcast_to(points, zero.shape if points.size == 1 else points.shape)):
        memory[layout.offset((channel,))] = point
    return memory
