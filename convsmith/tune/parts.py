"""Parts of sums: how threads share a reduction whose result has too few register tiles for them."""

from __future__ import annotations

from math import lcm, prod

from convsmith.ir.index import Mod, Var
from convsmith.ir.types import dtype
from convsmith.ir.walk import variables_of
from convsmith.machine.base import Machine
from convsmith.problem.problem import Problem
from convsmith.schedule.config import Config
from convsmith.schedule.loops import Loops
from convsmith.schedule.product_shape import ProductShape
from convsmith.statement.phases import phases
from convsmith.statement.statement import Statement, view_steps

TILES_A_THREAD = 3
"""Register tiles per thread from which a result is large enough to be divided among threads."""
SHARES = 16
"""Register tiles, times parts of their sums, that any number of threads can share."""


def parts_of_sums(
    problem: Problem, st: Statement, loops: Loops, config: Config, unit: ProductShape, target: Machine
) -> tuple[tuple[str, int], ...]:
    """Return the reduction loop that threads share and the number of its parts; empty if that is not faster.

    A gradient of weights has a part for each thread. The parts of other results, and hence their bits, are the same for
    any number of threads: enough for many threads, and each long enough to amortise a thread.
    """
    tiles = prod(-(-n // config.size(name)) for name, n in loops.extents.items() if loops.kinds[name] != "k")
    if not st.constant:
        most = config.threads if tiles < TILES_A_THREAD * config.threads else 1
    else:
        most = SHARES // max(tiles, 1)
        most = min(most, _work(problem, st, unit, target) // target.costs.thread_start) if most > 1 else 1
    if most < 2 or (unit.rows > 1 and _fills_products(loops, config)):
        return ()
    sizes = {d.name: d.size for d in st.of("k")}
    terms, fused = dict(config.tiles_at("k_step")), {n for pair in config.fuse for n in pair}
    by_pixel = phases(st) if config.phases else {}
    tapped = {by_pixel[pixel].tap for pixel in config.phases}  # its phases divide it already
    ways = [(1, st.reduce[-1])]
    for n in (n for n in st.reduce if n not in tapped):
        # A fragment has no product for a residue class that no tap of a part reads.
        classes = st.residues.get(n, 1) if unit.rows > 1 else 1
        whole = sizes[n] if n in fused else max(config.size(n), classes)
        unit_of_part = lcm(terms.get(n, 1), _block(st, n) if n == config.lane else 1)  # vectors are within blocks
        even = (p for p in range(1, most + 1) if not sizes[n] % (p * unit_of_part) and sizes[n] // p >= whole)
        ways.append((max(even, default=1), n))
    # Of loops with equally many parts, the outermost one is divided, so that each thread reads whole rows.
    parts, loop = max(ways, key=lambda way: (way[0] > 1 and way[1] != config.lane, way[0]))
    return ((loop, parts),) if parts > 1 else ()


def _fills_products(loops: Loops, config: Config) -> bool:
    """Return whether a copy fills up the last product of fragments, which a fragment of a part cannot read."""
    return config.realise == "pad_copy" and any(loops.extents[n] % size for n, size in config.tiles_at("k_step"))


def _block(st: Statement, channels: str) -> int:
    """Return the number of ``channels`` of a block of the source in memory; 1 if it has no blocks."""
    atoms = (atom for atom in view_steps(st.a) if Var(channels) in variables_of(atom))
    return lcm(*(atom.den for atom in atoms if isinstance(atom, Mod)))


def _work(problem: Problem, st: Statement, unit: ProductShape, target: Machine) -> int:
    """Return the time of the sums, including reads from memory, in multiply-adds of one lane."""
    read = sum(v.layout.size * dtype(v.dtype).bytes for v in (st.a, st.b))
    return problem.flops_real // 2 // (unit.terms * unit.rows) + read * target.costs.memory_byte
