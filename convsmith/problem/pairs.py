"""Numbers of pairs of coordinates, counted without visiting the pairs."""

from __future__ import annotations


def pairs_below(bound: int, first: tuple[int, int], second: tuple[int, int]) -> int:
    """Return the number of pairs (i, j) with ``i * step + j * other_step < bound``, of two extents with their steps.

    ``first`` is (extent of i, step) and ``second`` (extent of j, other_step); steps are positive.
    """
    (m, a), (n, b) = first, second
    if bound <= 0 or not m or not n:
        return 0
    some = min(n, (bound - 1) // b + 1)  # each j below `some` has an i
    every = min(max((bound - 1 - (m - 1) * a) // b + 1, 0), some)  # each j below `every` has all of them
    return every * m + _sum_of_floors(some - every, a, b, bound - 1 - (some - 1) * b) + some - every


def _sum_of_floors(n: int, divisor: int, factor: int, start: int) -> int:
    """Return the sum of ``(start + factor * i) // divisor`` over i from 0 to n - 1, in as many steps as Euclid's
    algorithm takes for factor and divisor.
    """
    total = 0
    while n > 0:
        total += n * (n - 1) // 2 * (factor // divisor) + n * (start // divisor)
        factor, start = factor % divisor, start % divisor
        # The points of the grid below the line are counted in rows instead of columns.
        top = start + factor * n
        n, start, factor, divisor = top // divisor, top % divisor, divisor, factor
    return total
