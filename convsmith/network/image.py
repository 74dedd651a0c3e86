"""`NetworkImage`: all that a process needs to run a network: machine code, packed weights, and the form of a call."""

from __future__ import annotations

from dataclasses import field
from typing import Any

import numpy as np

from convsmith.codegen.artifact import Argument, Artifact, Role
from convsmith.diag.record import record
from convsmith.layout.layout import Layout
from convsmith.runtime.arrays import Array, numpy_dtype

__all__ = ["BEFORE", "OUTSIDE", "ImageStep", "NetworkForm", "NetworkImage", "NetworkValue", "tensor_arguments"]

BEFORE = 3
"""Arguments of the function of a network before inputs and outputs: the table of entries, weights, workspace."""
OUTSIDE = {"int64": "s32", "bool": "u8"}
"""Types of arrays of a caller, by numpy's names, which kernels compute with others."""


@record(frozen=True)
class NetworkValue:
    """An input, or a result, by name: its shape and its data type, by oneDNN's name.

    `outside` is numpy's name of the type of the arrays of a caller, "int64" or "bool", where that is another one.
    """

    name: str
    shape: tuple[int, ...]
    type: str
    outside: str = ""

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the arrays of a caller."""
        return np.dtype(self.outside) if self.outside in OUTSIDE else numpy_dtype(self.type)


@record(frozen=True)
class NetworkForm:
    """The inputs of a network of several sizes: their `names`, and `dims`, numbers or names of sizes, as texts; none
    for a network of one size.
    """

    names: tuple[str, ...] = ()
    dims: tuple[tuple[str, ...], ...] = ()


@record(frozen=True)
class ImageStep:
    """A step of a network, for people: the line of what it computes, the nodes of the model, the bytes of the
    workspace that are `alive` while it runs, and why it is a kernel `apart` from the one that computes what it reads.
    """

    work: str
    names: tuple[str, ...]
    alive: int
    apart: str


@record(frozen=True)
class NetworkImage:
    """A network in machine code: the function `driver` calls the entries of `kernels` in the `table`, by the number of
    a kernel and the entry's name.

    A call needs a `workspace` of that many bytes; in one step, values of `bound` bytes are alive.
    """

    name: str
    inputs: tuple[NetworkValue, ...]
    outputs: tuple[NetworkValue, ...]
    workspace: int
    bound: int
    table: tuple[tuple[int, str], ...]
    steps: tuple[ImageStep, ...]
    driver: Artifact
    kernels: tuple[Artifact, ...]
    weights: Array = field(repr=False)


def tensor_arguments(inputs: tuple[NetworkValue, ...], outputs: tuple[NetworkValue, ...]) -> list[Argument]:
    """Return the arguments for inputs and outputs, under their names in the model."""
    return [*(_tensor(x, "in", "src") for x in inputs), *(_tensor(x, "out", "dst") for x in outputs)]


def _tensor(x: NetworkValue, role: Role, holds: str) -> Argument:
    layout = Layout.from_tag("any", x.shape or (1,))
    dims = tuple(f"d{n}" for n in range(len(layout.shape)))
    return Argument(x.name, role, x.type, layout.shape, layout.tag(), layout.size, dims, holds=holds)
