"""Convolutions of images whose pixels are repeated, as deconvolutions of the images themselves.

A resize to a multiple of the size by the nearest pixel, and the convolution behind it, compute the same sums as a
deconvolution whose stride is the multiple: its weights are sums of the weights of all taps that read one pixel. Each
pixel of the result then has fewer products, and the larger image needs no memory. In one dim, with the multiple 2 and
the weights a, b, c::

    x0 x0 x1 x1 ...     resized                     x0    x1    x2  ...
     a  b  c            the result at 1             a+b    c
        a  b  c         the result at 2              a    b+c
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from convsmith.machine.base import Machine
from convsmith.network.graph import Graph, NetworkNode
from convsmith.network.operators.resize import Resize
from convsmith.network.placement.layout_choice import operator_cycles
from convsmith.network.placement.layouts import LAST
from convsmith.problem.conv import Conv
from convsmith.runtime.arrays import Array
from convsmith.tune.compile import default_cycles

__all__ = ["with_deconvolutions"]

_TYPES = ("f32", "f64")
"""Types whose sums of weights are as accurate as sums of products."""


def with_deconvolutions(graph: Graph, machine: Machine, threads: int = 1) -> Graph:
    """Return the graph with deconvolutions in place of convolutions of repeated pixels, where the model expects that
    kernels of ``machine`` take fewer cycles.
    """
    makers, readers, constants = graph.makers(), graph.readers(), dict(graph.constants)
    nodes = list[NetworkNode]()
    for node in graph.nodes:
        name = node.arguments.get("src", "")
        before, uses = makers.get(name), [*node.arguments.values()].count(name)
        is_inner = uses == 1 == len(readers.get(name, ())) and name not in graph.outputs
        made = _deconvolution(before.work, node.work) if before is not None and is_inner else None
        weights = constants.get(node.arguments.get("wei", ""))
        if before is None or made is None or weights is None or not _pays(before, node, made, machine, threads):
            nodes.append(node)
            continue
        summed = f"{node.output}.summed"
        constants[summed] = _summed(weights.reshape(node.work.wei_shape), made.s)  # type: ignore[union-attr]
        arguments = {**node.arguments, "src": before.arguments["src"], "wei": summed}
        nodes.append(NetworkNode(made, arguments, node.output, (*before.names, *node.names)))
    made_graph = graph.changed(nodes, constants)
    return made_graph.changed(tuple(made_graph.live_nodes()))


def _deconvolution(resize: Any, conv: Any) -> Conv | None:
    """Return the deconvolution that computes both works; None if there is none."""
    if not isinstance(resize, Resize) or not isinstance(conv, Conv) or conv.deconv or not conv.forward:
        return None
    times = resize.repeated
    is_plain = set(conv.s) == {1} and not any(conv.d) and all(t in _TYPES for t in conv.dt)
    if times is None or times[:2] != (1, 1) or max(times) == 1 or not is_plain:
        return None
    if any(not 0 <= k - 1 - pad for k, *pads in zip(conv.k, conv.p, conv.pr) for pad in pads):
        return None
    return replace(
        conv, deconv=True, i=resize.shape[2:], s=times[2:], k=tuple(k + n - 1 for k, n in zip(conv.k, times[2:])),
        p=tuple(k - 1 - p for k, p in zip(conv.k, conv.p)),
    )  # fmt: skip


def _pays(before: NetworkNode, node: NetworkNode, made: Conv, machine: Machine, threads: int) -> bool:
    """Return whether a deconvolution takes fewer cycles than a resize and a convolution, with channels last."""
    assert isinstance(before.work, Resize) and isinstance(node.work, Conv)
    own, other = (replace(x, stag=LAST, dtag=LAST) for x in (made, node.work))
    resized = operator_cycles(before.work.with_tags({"src": LAST, "dst": LAST}), machine)
    return default_cycles(own, machine, threads) < default_cycles(other, machine, threads) + resized


def _summed(weights: Array, times: Sequence[int]) -> Array:
    """Return the weights of a deconvolution: along each axis of taps, sums of so many adjacent ones, in reverse order.
    """
    found: Any = weights.astype(np.float64)
    for axis, count in enumerate(times, found.ndim - len(times)):
        turned = np.flip(found, axis)
        pads = ([(0, 0)] * axis + [(n, count - 1 - n)] + [(0, 0)] * (found.ndim - axis - 1) for n in range(count))
        found = sum(np.pad(turned, pad) for pad in pads)
    return np.ascontiguousarray(found, weights.dtype)
