"""Norms of groups of channels whose pixels threads share.

A norm reads its whole image before the first result, so threads share its images only. In three steps, they share
blocks of pixels: the sums of blocks, the squares of blocks, and the results.
"""

from __future__ import annotations

from dataclasses import replace

from convsmith.machine.base import Machine
from convsmith.network.graph import Graph, NetworkNode, result_of
from convsmith.network.image import NetworkValue
from convsmith.network.operators.norm import GroupNorm
from convsmith.network.operators.norm_in_blocks import BlockSquares, NormByBlocks, block_sums
from convsmith.network.placement.layout_choice import operator_cycles

__all__ = ["with_shared_norms"]


def with_shared_norms(graph: Graph, machine: Machine, threads: int) -> Graph:
    """Return the graph, whose works have their layouts, with norms of channels-last images in three steps where
    `threads` then take fewer cycles than for the images alone, with two more meetings.
    """
    nodes, values = list[NetworkNode](), dict(graph.values)
    for node in graph.nodes:
        norm = node.work
        if isinstance(norm, GroupNorm) and (rows := _rows(norm, machine, threads)):
            nodes += _steps(node, norm, rows, values)
        else:
            nodes.append(node)
    return replace(graph, values=values).changed(nodes)


def _rows(norm: GroupNorm, machine: Machine, threads: int) -> int:
    """Return the rows of a block, of which threads that share an image have one each; 0 if a norm stays one step."""
    images, height = norm.shape[0], norm.shape[2] if len(norm.shape) > 2 else 1
    rows = -(-height // -(-threads // images))
    blocks = -(-height // rows)
    if blocks == 1 or norm.adjacent_dims != {1}:
        return 0
    cycles = operator_cycles(norm, machine) / images
    return rows if cycles * (1 - 1 / blocks) > 2 * machine.prices["meeting"] else 0


def _steps(node: NetworkNode, norm: GroupNorm, rows: int, values: dict[str, NetworkValue]) -> list[NetworkNode]:
    """Return the three steps of a norm, and add the values between them."""
    source, tag = node.arguments["src"], norm.tags[0]
    sums, squares = (f"{node.output}.{word}" for word in ("sums", "squares"))
    same = {"type": norm.type, "shape": norm.shape, "epsilon": norm.epsilon, "groups": norm.groups, "rows": rows}
    pool, of_blocks = block_sums(norm, rows), BlockSquares(**same, tags=(tag,) * 3)  # type: ignore[arg-type]
    last = NormByBlocks(
        **same, factors=norm.factors, tags=(tag, tag, tag, norm.tags[1]), steps=norm.steps,  # type: ignore[arg-type]
    )  # fmt: skip
    parts = result_of(pool).shape
    values |= {name: NetworkValue(name, parts, norm.type) for name in (sums, squares)}
    return [
        NetworkNode(pool, {"src": source}, sums, node.names),
        NetworkNode(of_blocks, {"src": source, "sums": sums}, squares, node.names),
        replace(node, work=last, arguments={**node.arguments, "sums": sums, "squares": squares}),
    ]
