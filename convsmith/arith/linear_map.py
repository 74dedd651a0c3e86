"""A constant matrix times a vector as straight-line code with few operations.

Rows that differ in the signs of some columns share a sum and a difference; so do columns that differ in the signs of
some rows. Zeros cost nothing, ones no multiplication. A row of thirds is a row of integers, divided at the end: in
binary floating point, all other factors are exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import combinations
from math import gcd, lcm

from convsmith.arith.winograd import Filtering, Matrix
from convsmith.diag.forking import cached_property
from convsmith.diag.record import record

Terms = tuple[tuple[Fraction, int], ...]
"""A sum of products: (factor, number of the value)."""


@record(frozen=True)
class LinearCode:
    """Straight-line code: the values are the ``inputs`` of the map, followed by one value per step; each of ``steps``
    is a sum of products of earlier values. ``results`` are the numbers of the results' values.
    """

    inputs: int
    steps: tuple[Terms, ...]
    results: tuple[int, ...]

    @cached_property
    def operations(self) -> int:
        """The number of additions and multiply-adds; a first term with another factor than 1 is a multiplication."""
        return sum(len(terms) - any(c == 1 for c, _ in terms) for terms in self.steps)

    @cached_property
    def largest(self) -> float:
        """Upper bound of the magnitudes of all values for inputs of magnitude 1."""
        return max(self.magnitudes([1.0] * self.inputs))

    def magnitudes(self, inputs: Sequence[float]) -> list[float]:
        """Return upper bounds of the magnitudes of all values, given upper bounds of the magnitudes of the ``inputs``.
        """
        bounds = list(inputs)
        for terms in self.steps:
            bounds.append(sum(abs(float(c)) * bounds[i] for c, i in terms))
        return bounds


def growth(made: Filtering) -> float:
    """Return the largest magnitude of a product of transformed elements, or of a sum that straight-line code of A^T
    adds up from products, for sources and weights of magnitude 1 and one channel.
    """
    factors = []
    for matrix in (made.input, made.weights):
        code = linear_code(matrix)
        bounds = code.magnitudes([1.0] * code.inputs)
        factors.append([bounds[i] for i in code.results])
    return max(linear_code(made.output).magnitudes([a * b for a, b in zip(*factors)]))


@lru_cache
def linear_code(matrix: Matrix) -> LinearCode:
    """Return straight-line code of ``matrix`` times a vector."""
    inputs = len(matrix[0])
    steps: list[Terms] = []

    def step(terms: Terms) -> int:
        """Return the number of the value of ``terms``, which may be an earlier one."""
        if len(terms) == 1 and terms[0][0] == 1:
            return terms[0][1]
        if terms not in steps:
            steps.append(terms)
        return inputs + steps.index(terms)

    scales = [_scale(row) for row in matrix]
    rows = [{j: c / scale for j, c in enumerate(row) if c} for row, scale in zip(matrix, scales)]
    for a, b in combinations(range(inputs), 2):
        if _is_pair([row.get(a, Fraction(0)) for row in rows], [row.get(b, Fraction(0)) for row in rows]):
            total, difference = step(((Fraction(1), a), (Fraction(1), b))), step(((Fraction(1), a), (Fraction(-1), b)))
            for n, row in enumerate(rows):
                if a in row:
                    other = {j: c for j, c in row.items() if j not in (a, b)}
                    rows[n] = {**other, (total if row[a] == row[b] else difference): row[a]}
    results: dict[int, int] = {}
    for i, k in combinations(range(len(rows)), 2):
        places = sorted(rows[i].keys() | rows[k].keys())
        pair = [[row.get(j, Fraction(0)) for j in places] for row in (rows[i], rows[k])]
        if i not in results and k not in results and len(places) > 2 and _is_pair(*pair):
            equal = step(tuple((rows[i][j], j) for j in places if rows[i][j] == rows[k][j]))
            opposite = step(tuple((rows[i][j], j) for j in places if rows[i][j] != rows[k][j]))
            results[i] = step(((Fraction(1), equal), (Fraction(1), opposite)))
            results[k] = step(((Fraction(1), equal), (Fraction(-1), opposite)))
    for i, row in enumerate(rows):
        if i not in results:
            results[i] = step(tuple((c, j) for j, c in sorted(row.items())))
    scaled = tuple(step(((scale, results[i]),)) for i, scale in enumerate(scales))
    return LinearCode(inputs, tuple(steps), scaled)


def _scale(row: Sequence[Fraction]) -> Fraction:
    """Return the factor that leaves integers in a row whose denominators are not all powers of two, else 1."""
    denominator = lcm(*(c.denominator for c in row))
    if denominator & (denominator - 1) == 0:
        return Fraction(1)
    return Fraction(gcd(*(int(c * denominator) for c in row)), denominator)


def _is_pair(a: list[Fraction], b: list[Fraction]) -> bool:
    """Return whether two lines differ only in sign: equal in some columns, opposite in others, with a column of each
    kind.
    """
    signs = {x == y for x, y in zip(a, b) if x or y}
    return signs == {True, False} and all(abs(x) == abs(y) for x, y in zip(a, b))
