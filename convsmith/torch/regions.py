"""Divides a program into regions, each of which one native function computes, and nodes that stay PyTorch's.

The regions are the largest that need no value of one another through a node of PyTorch: a node has a number, and the
nodes of one number that a graph can express are a region. A node that reads a result of PyTorch comes at least one
number later than it.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor, fx

from convsmith.diag.record import record
from convsmith.torch.aten_call import SMALL_TYPES
from convsmith.torch.aten_products import PRODUCTS
from convsmith.torch.program import ReadProgram, name_of

__all__ = ["ProgramDivision", "ProgramRegion", "division_of", "is_product"]

_TYPES = (torch.float32, torch.float64, *SMALL_TYPES, torch.bool, torch.uint8, torch.int8, torch.int32)
"""Types of values that regions compute: whole numbers of 64 bits would be computed in 32."""
_NORMS = ("batch_norm", "_native_batch_norm_legit_no_training", "layer_norm", "group_norm", "instance_norm", "rms_norm")
_MULTIPLYING = frozenset(PRODUCTS) - frozenset(_NORMS)


@record(frozen=True, eq=False)
class ProgramRegion:
    """Nodes of a program that one function computes, in order, from `inputs`; others read its `outputs`."""

    nodes: tuple[fx.Node, ...]
    inputs: tuple[fx.Node, ...]
    outputs: tuple[fx.Node, ...]


def is_product(node: fx.Node) -> bool:
    """Return whether a node is a convolution or a product."""
    return name_of(node) in _MULTIPLYING


@record(frozen=True, eq=False)
class ProgramDivision:
    """The regions of a program by number, the nodes of PyTorch that run after the region of a number, and the reasons
    why these are no part of a region.
    """

    regions: dict[int, ProgramRegion]
    others: dict[int, list[fx.Node]]
    why: dict[fx.Node, str]


def division_of(
    program: ReadProgram, kept: Sequence[str] = (), without_kernels: Mapping[str, str] = MappingProxyType({})
) -> ProgramDivision:
    """Return the division of a program. Operators whose names are `kept`, nodes `without_kernels`, by name with the
    reason, and regions without a convolution or a product, stay PyTorch's.
    """
    theirs: dict[fx.Node, str] = {}
    for node in program.computed:
        source = node.args[0] if node.target is operator.getitem else None
        why = theirs[source] if source in theirs else _obstacle(program, node, kept)  # type: ignore[index]
        why = why or without_kernels.get(node.name, "")
        if why:
            theirs[node] = why
    while True:
        stages = _stages(program, theirs)
        groups: dict[int, list[fx.Node]] = {}
        for node in program.computed:
            if node not in theirs:
                groups.setdefault(stages[node], []).append(node)
        alone = [node for nodes in groups.values() if not any(map(is_product, nodes)) for node in nodes]
        if not alone:
            others: dict[int, list[fx.Node]] = {}
            for node in program.computed:
                if node in theirs:
                    others.setdefault(stages[node], []).append(node)
            regions = {number: _region(program, nodes) for number, nodes in groups.items()}
            return ProgramDivision(regions, others, theirs)
        theirs |= dict.fromkeys(alone, "no product is beside it")


def _obstacle(program: ReadProgram, node: fx.Node, kept: Sequence[str]) -> str:
    """Return the reason why a node is no part of a region; empty if there is none."""
    if node in program.refused:
        return program.refused[node]
    if name_of(node) in kept:
        return "faster there"
    if not _has_types(program, node):
        return "it reads or computes whole numbers of 64 bits, or complex numbers"
    constants = (program.tensors[x.name] for x in node.all_input_nodes if x.name in program.tensors)
    if is_product(node) and not all(map(_is_finite, constants)):
        return "its weights hold infinities or NaN"
    return ""


def _is_finite(x: Tensor) -> bool:
    """Return whether no element of a tensor is infinite or NaN; its extremes tell, which need no other memory."""
    if x.is_complex() or not x.numel():
        return bool(x.isfinite().all())
    return all(bool(extreme.isfinite()) for extreme in x.aminmax())


def _stages(program: ReadProgram, theirs: Collection[fx.Node]) -> dict[fx.Node, int]:
    """Return the number of each node that is computed: the nodes `theirs` run after the region of their number."""
    stages: dict[fx.Node, int] = {}
    for node in program.computed:
        after = (stages[x] + (x in theirs and node not in theirs) for x in node.all_input_nodes if x in stages)
        stages[node] = max(after, default=0)
        if node.target is operator.getitem:  # results of one node are in one place
            (source,) = node.all_input_nodes
            stages[node] = stages.get(source, 0)
    return stages


def _has_types(program: ReadProgram, node: fx.Node) -> bool:
    """Return whether a region may compute a node and read what it reads."""
    read = (x for x in node.all_input_nodes if not program.is_constant(x))
    values = [node.meta.get("val"), *(x.meta.get("val") for x in read)]
    tensors = [x for value in values for x in (value if isinstance(value, list | tuple) else (value,))]
    return all(isinstance(x, Tensor) and x.dtype in _TYPES for x in tensors if x is not None)


def _region(program: ReadProgram, nodes: list[fx.Node]) -> ProgramRegion:
    """Return the region of some nodes."""
    own = {*nodes}
    read = dict.fromkeys(x for node in nodes for x in node.all_input_nodes)
    inputs = tuple(x for x in read if x not in own and not program.is_constant(x))
    outputs = tuple(node for node in nodes if any(user not in own for user in _readers(node)))
    return ProgramRegion(tuple(nodes), inputs, outputs)


def _readers(node: fx.Node) -> Mapping[fx.Node, None]:
    """Return the nodes that read a tensor; several results of a node are read through other nodes."""
    return node.users if isinstance(node.meta.get("val"), Tensor) else {}
