"""Waits for lines of the factor that lanes share, in gradients of the weights whose vectors are packed."""

from __future__ import annotations

from math import prod

from convsmith.ir.index import Var
from convsmith.schedule.config import Config
from convsmith.schedule.loops import Loops
from convsmith.statement.statement import view_steps
from convsmith.tune.costs.shared_facts import SharedFacts

__all__ = ["arriving_steps", "vectors_of_first_passes"]


def arriving_steps(facts: SharedFacts, loops: Loops, config: Config) -> float:
    """Return the fraction of the steps of a gradient of the weights that read a line which is still in flight: all
    steps, unless the factor that supplies vectors is packed and the pixels of the other one share lines.
    """
    kind, st = loops.kinds[config.lane], facts.st
    vectors, shared = (st.a, st.b) if kind == "m" else (st.b, st.a)
    if kind not in ("m", "n") or vectors.name not in config.packed:
        return 1.0
    inner = next((n for n in reversed(config.reduce or loops.of("k")) if loops.extents[n] > 1), st.reduce[-1])
    moved = abs(view_steps(shared).get(Var(facts.dims[inner][-1]), 0)) * facts.bytes
    return min(moved / facts.target.l1.line, 1.0)


def vectors_of_first_passes(facts: SharedFacts, loops: Loops, config: Config) -> tuple[float, float]:
    """Return the fraction of the steps of a gradient of the weights that read lines of the factor which lanes share
    from beyond the second-level cache, and the vectors of such lines that a step reads of each channel.

    Blocks of pixels, which pack the other factor, stay in that cache until all tiles have read them: only the first
    tiles of lanes and the first taps wait for lines.
    """
    shared = facts.st.b if loops.kinds[config.lane] == "m" else facts.st.a
    if not config.staged_at("pack_at") or shared.name in config.packed or shared.bytes <= facts.target.l2.bytes:
        return 0.0, 0.0
    taps = [n for n in loops.extents if loops.axes[n] and loops.kinds[n] != "k"]
    passes = prod(-(-loops.extents[n] // config.size(n)) for n in (config.lane, *taps))
    block = {n: 1 if n in taps else size for n, size in facts.sizes.items()}
    block |= {facts.dims[n][-1]: size for n, size in config.tiles_at("cache")}
    array = facts.traffic.of(config)[facts.st.factors.index(shared)]
    pixels = prod(block[d.name] for d in facts.st.of("k"))
    channels = prod(block[d.name] for d in facts.st.of("m", "n") if Var(d.name) in view_steps(shared))
    vectors = array.touched(block)[0][1] * 8 / facts.target.vector_bits
    return min(config.threads / passes, 1.0), vectors / (pixels * channels)
