"""The roofline of a problem: how fast the machine could compute it, by its multiply-adds and by its bytes.

Samuel Williams, Andrew Waterman and David Patterson, "Roofline: An Insightful Visual Performance Model for Multicore
Architectures", CACM 52 (2009). The ceilings are the machine's kept figures.
"""

from __future__ import annotations

from convsmith.diag.record import record
from convsmith.machine.base import Machine
from convsmith.machine.host import cache_sizes
from convsmith.measure.ceilings import Figure, peak_ceiling, read_ceiling
from convsmith.measure.peak import Types, peak_types
from convsmith.problem.problem import Problem

__all__ = ["Roofline", "bytes_of_arrays", "rate_unit", "roofline"]


@record(frozen=True)
class Roofline:
    """The ceilings of ``flops`` operations that move ``nbytes``.

    ``read`` is the bandwidth of ``level``, the smallest cache that holds all arrays. ``peak`` is the rate of the
    multiply-adds in ``types``, the problem's own types or the types that it converts them to; both are None if the
    instruction-set level has no such multiply-adds. Rates are in 1e9 per second.
    """

    flops: int
    nbytes: int
    level: str
    read: Figure
    types: Types | None
    peak: Figure | None

    @property
    def intensity(self) -> float:
        """Operations for each byte moved."""
        return self.flops / max(self.nbytes, 1)

    @property
    def side(self) -> str:
        """The side that takes longer: "the bytes" or "the multiply-adds"."""
        return "the multiply-adds" if self._by_products >= self._by_bytes else "the bytes"

    @property
    def bound(self) -> float:
        """The highest rate of operations, in 1e9 a second; 0 if no result has a product."""
        return self.flops / self.seconds * 1e-9

    @property
    def seconds(self) -> float:
        """The shortest possible time of a call: the time to move the bytes or to compute the products, whichever is
        longer.
        """
        return max(self._by_bytes, self._by_products)

    @property
    def _by_bytes(self) -> float:
        return max(self.nbytes, 1) / self.read.rate * 1e-9

    @property
    def _by_products(self) -> float:
        return 0.0 if self.peak is None else self.flops / self.peak.rate * 1e-9


def roofline(problem: Problem, machine: Machine, threads: int) -> Roofline:
    """Return the roofline of ``problem`` on ``threads`` of the host, which must run the code of ``machine``.

    The first call for a number of threads measures the ceilings, which takes about 50 ms each.
    """
    nbytes = bytes_of_arrays(problem)
    level = next((level for level, size in cache_sizes().items() if nbytes <= size), "DRAM")
    types = peak_types(problem, machine)
    peak = None if types is None else peak_ceiling(machine.name, types).figure(threads)
    return Roofline(problem.flops_real, nbytes, level, read_ceiling(level).figure(threads), types, peak)


def bytes_of_arrays(problem: Problem) -> int:
    """Return the bytes of all arrays of ``problem``, in their layouts."""
    return sum(t.nbytes for t in problem.tensors)


def rate_unit(problem: Problem) -> str:
    """Return the unit of a rate of operations."""
    return "GOP/s" if problem.acc == "s32" else "GFLOP/s"
