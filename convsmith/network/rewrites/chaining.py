"""Convolutions that follow one another as one kernel, which keeps rows of a large result in a cache, where the next
convolution reads them.

The model of chains chooses the joints at which that takes fewer cycles (`tune/chains.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from convsmith.ir.intern import interning
from convsmith.layout.tags import ANY
from convsmith.network.graph import Graph, NetworkNode
from convsmith.problem.chain import MAX_STAGES, Chain
from convsmith.problem.conv import Conv
from convsmith.problem.fusion import stages_of
from convsmith.problem.post_ops import PER_TENSOR, SOURCE, BinaryPostOp, PostOp, SumPostOp
from convsmith.problem.problem import Problem
from convsmith.tune.chains import Joint, joints
from convsmith.tune.stage_configs import StageConfigs

__all__ = ["RowJoints", "followers", "with_chains"]


class RowJoints:
    """Returns what the model chooses for the values between convolutions that follow one another, whose stages have
    `configs`, on `threads`. Rows of nodes that are equal chains have the same joints, which are chosen once.
    """

    def __init__(self, configs: StageConfigs, threads: int = 1) -> None:
        self._configs, self._threads = configs, threads
        self._known: dict[Problem, list[Joint]] = {}

    def __call__(self, row: Sequence[NetworkNode]) -> list[Joint]:
        """Return the joints of the works of `row`."""
        with interning():
            chain = _chain(row).canonical()
            if chain not in self._known:
                stages = stages_of(chain)
                assert stages is not None
                self._known[chain] = joints(stages, self._configs, self._threads)
            return self._known[chain]


def with_chains(graph: Graph, held: Collection[str], joints_of: RowJoints) -> Graph:
    """Return the graph, whose works have their layouts, with a chain for convolutions that are faster as one kernel.

    Values that are `held`, because they are parts of others, stay results of kernels of their own.
    """
    followed, makers = followers(graph, held), graph.makers()
    made: dict[str, NetworkNode] = {}
    gone: set[str] = set()
    for start in sorted(followed.keys() - {after.output for after in followed.values()}):
        row = [makers[start]]
        while row[-1].output in followed and len(row) < MAX_STAGES:
            row.append(followed[row[-1].output])
        for part in _fused(row, joints_of):
            gone |= {node.output for node in part}
            made[part[-1].output] = _joined(part)
    nodes = [made.get(node.output, node) for node in graph.nodes if node.output in made or node.output not in gone]
    return graph.changed(nodes)


def followers(graph: Graph, held: Collection[str]) -> dict[str, NetworkNode]:
    """Return the convolution that follows another one, by the value between them, which nothing else reads."""
    readers, found = graph.readers(), dict[str, NetworkNode]()
    for node in graph.nodes:
        name = node.output
        if not _is_stage(node) or name in held or name in graph.outputs or len(readers.get(name, ())) != 1:
            continue
        (after,) = readers[name]
        uses = [array for array, x in after.arguments.items() if x == name]
        if _is_stage(after) and uses == ["src"] and after.work.src_layout == node.work.dst_layout:  # type: ignore[union-attr]
            found[name] = after
    return found


def _is_stage(node: NetworkNode) -> bool:
    return isinstance(node.work, Conv) and node.work.forward and not node.work.deconv


def _fused(row: Sequence[NetworkNode], joints_of: RowJoints) -> Iterator[tuple[NetworkNode, ...]]:
    """Yield the parts of a row of convolutions that become one kernel each."""
    if len(row) < 2:
        return
    fused = [False, *(joint.fused for joint in joints_of(row))]
    start = 0
    for end in range(1, len(row) + 1):
        if end < len(row) and fused[end]:
            continue
        part = tuple(row[start:end])
        if len(part) > 1 and all(joint.fused for joint in joints_of(part)):
            yield part
        start = end


def _chain(row: Sequence[NetworkNode]) -> Chain:
    """Return the chain of convolutions; the last may add the source of the first."""
    last, stages = len(row) - 1, list[Conv]()
    for n, node in enumerate(row):
        assert isinstance(node.work, Conv)
        post_ops: list[PostOp] = [
            SumPostOp(array=SOURCE) if n == last and _adds_source(row, k, op) else op
            for k, op in enumerate(node.work.post_ops)
        ]
        tags = {"stag": node.work.stag if n == 0 else ANY, "dtag": node.work.dtag if n == last else ANY}
        stages.append(replace(node.work, post_ops=tuple(post_ops), **tags))  # type: ignore[arg-type]
    return Chain(stages=tuple(stages))


def _adds_source(row: Sequence[NetworkNode], n: int, op: PostOp) -> bool:
    """Return whether step `n` of the last of several convolutions adds the source of the first, in its layout."""
    first, last = row[0].work, row[-1].work
    assert isinstance(first, Conv) and isinstance(last, Conv)
    is_sum = isinstance(op, BinaryPostOp) and op.alg == "add" and op.mask == PER_TENSOR
    is_source = row[-1].arguments.get(f"post_op_{n}") == row[0].arguments["src"]
    return is_sum and is_source and first.src_layout == last.dst_layout and first.dt[0] == last.dst_type


def _joined(row: Sequence[NetworkNode]) -> NetworkNode:
    """Return one node for several."""
    chain, arguments = _chain(row), {"src": row[0].arguments["src"]}
    known = {t.name for t in chain.tensors}
    for n, node in enumerate(row):
        names = chain.names(n)
        given = {names[array]: x for array, x in node.arguments.items() if array in names}
        arguments |= {array: x for array, x in given.items() if array in known and array != "src"}
    nodes = tuple(dict.fromkeys(name for node in row for name in node.names))
    return NetworkNode(chain, arguments, row[-1].output, nodes)
