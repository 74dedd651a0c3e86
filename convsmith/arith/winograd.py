"""Winograd's minimal filtering, generated from points by exact rational arithmetic.

F(m, r) computes m outputs of a correlation with r taps from n = m + r - 1 inputs d by n products (Toom-Cook,
transposed)::

    y = A^T ((G g) * (B^T d)),    y[i] = sum over k of d[i + k] * g[k]

The product of two polynomials, of degrees m - 1 and r - 1, is found by evaluating both at n - 1 points and at infinity,
multiplying, and interpolating. Evaluation is A (at degree m - 1) and G (at degree r - 1), interpolation is transposed
B. Each row of B is scaled to the coefficients of the product of (x - other points); its divisor moves to the row of G.

A correlation with stride s is a sum of s correlations with stride 1: phase p correlates the inputs p, p + s, p + 2 s
and so on with the taps p, p + s and so on. The matrices of F(m, r) with stride s hold those of F(m, taps of p) for all
phases, one phase after the other.

The transpose of a correlation with stride s places each input at every s-th output::

    y[i] = sum over k, where s divides i + pad - k, of d[(i + pad - k) / s] * g[k]

The outputs of one residue class modulo s are a correlation with stride 1, with the taps of one class in reverse. The
matrices hold those of F(m / s, taps of the class) for all classes, one class after the other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

Matrix = tuple[tuple[Fraction, ...], ...]
"""Rows of a matrix."""

POINTS = tuple(Fraction(x) for x in ("0", "1", "-1", "2", "-2", "1/2", "-1/2", "4", "-4", "1/4", "-1/4"))
"""Points in the order in which they are used: pairs of opposite sign share sums, and binary fractions are exact."""
FIVE_POINTS = tuple(Fraction(x) for x in ("0", "3/4", "-3/4", "3/2", "-3/2"))
"""Five points at which F(4, 3) errs half as much as at the first five of `POINTS`: a third as much in two dims."""


class Filtering(NamedTuple):
    """The matrices of F(m, r): ``output`` (A^T), ``weights`` (G) and ``input`` (B^T).

    A^T has m rows, G has r columns, and B^T has one column for each of (m - 1) * stride + r inputs. Frequencies are the
    columns of A^T, and the rows of G and B^T.
    """

    output: Matrix
    weights: Matrix
    input: Matrix


def whole_scale(made: Filtering) -> int:
    """Return the least power of two that makes whole numbers of the weights' matrix; ValueError if another number is
    needed, or if another matrix has fractions.
    """
    if any(x.denominator > 1 for rows in (made.output, made.input) for row in rows for x in row):
        raise ValueError("pixels are multiplied by fractions")
    scale = math.lcm(*(x.denominator for row in made.weights for x in row))
    if scale & (scale - 1):
        raise ValueError(f"sums are divided by {scale}, which is no power of two")
    return scale


def points_of(m: int, r: int, stride: int = 1) -> int:
    """Return the number of points besides infinity that F(m, r) with ``stride`` needs for its longest phase."""
    return m + -(-r // stride) - 2


@lru_cache
def filtering(m: int, r: int, stride: int = 1) -> Filtering:
    """Return the matrices of F(m, r) with ``stride``, at infinity and at `FIVE_POINTS`, or another number of `POINTS`.

    F(1, r) multiplies taps by pixels as they are; so does a phase of one tap.
    """
    if m == 1:
        rows = tuple(_unit(r, k) for k in range(r))
        return Filtering(((Fraction(1),) * r,), rows, rows)
    count = points_of(m, r, stride)
    if m < 1 or r < 1 or count > len(POINTS):
        raise ValueError(f"F({m}, {r}) needs {count} points, there are {len(POINTS)}")
    if stride > 1:
        return _sum_of_phases([_of_phase(m, r, stride, phase) for phase in range(min(stride, r))])
    if r == 1:
        rows = tuple(_unit(m, i) for i in range(m))
        return Filtering(rows, ((Fraction(1),),) * m, rows)
    return filtering_at(FIVE_POINTS if count == len(FIVE_POINTS) else POINTS[:count], m, r)


def _of_phase(m: int, r: int, stride: int, phase: int) -> Filtering:
    """Return the matrices of one ``phase`` of F(m, r), with zero columns for the inputs and taps of the other phases.
    """
    taps, inputs = range(phase, r, stride), (m - 1) * stride + r
    return _with_zero_columns(filtering(m, len(taps)), taps, r, range(phase, inputs, stride), inputs)


@lru_cache
def transposed_filtering(m: int, r: int, stride: int, pad: int) -> Filtering:
    """Return the matrices of m outputs of a transposed correlation with r taps, which has ``stride`` and ``pad``.

    ``stride`` divides m. Input 0 of the matrices is input `first_input` of the correlation.
    """
    first = first_input(r, stride, pad)
    classes = [_class(r, stride, pad, n) for n in range(stride)]
    inputs = max(start + m // stride + len(taps) - 1 for start, taps in classes if taps) - first
    return _sum_of_phases(
        [_of_class(m, r, n, stride, inputs, start - first, taps) for n, (start, taps) in enumerate(classes)]
    )


def first_input(r: int, stride: int, pad: int) -> int:
    """Return the first input of the outputs from 0 of a transposed correlation."""
    return min(start for start, taps in (_class(r, stride, pad, n) for n in range(stride)) if taps)


def _class(r: int, stride: int, pad: int, n: int) -> tuple[int, range]:
    """Return the first input of residue class ``n`` of outputs, and its taps in the order of inputs."""
    first = (n + pad) % stride
    taps = range(first, r, stride)[::-1]
    return (n + pad) // stride - len(taps) + 1, taps


def _of_class(m: int, r: int, n: int, stride: int, inputs: int, start: int, taps: range) -> Filtering:
    """Return the matrices of class ``n``, with zero rows and columns for the outputs, inputs and taps of the other
    classes.
    """
    if not taps:
        return Filtering(((),) * m, (), ())
    count = m // stride
    made = filtering(count, len(taps))
    nothing = (Fraction(0),) * len(made.weights)
    output = tuple(made.output[i // stride] if i % stride == n else nothing for i in range(m))
    read = range(start, start + count + len(taps) - 1)
    return _with_zero_columns(made._replace(output=output), taps, r, read, inputs)


def _with_zero_columns(made: Filtering, taps: Sequence[int], r: int, read: Sequence[int], inputs: int) -> Filtering:
    """Return matrices with zero columns for each of the ``r`` taps and ``inputs`` inputs that ``made`` lacks."""
    weights = tuple(_placed(row, taps, r) for row in made.weights)
    return Filtering(made.output, weights, tuple(_placed(row, read, inputs) for row in made.input))


def _placed(row: Sequence[Fraction], places: Sequence[int], size: int) -> tuple[Fraction, ...]:
    """Return a row of ``size`` zeros with the elements of ``row`` at ``places``."""
    by_place = dict(zip(places, row))
    return tuple(by_place.get(i, Fraction(0)) for i in range(size))


def _sum_of_phases(phases: Sequence[Filtering]) -> Filtering:
    """Return the matrices that add up the results of all ``phases``."""
    output = tuple(tuple(x for row in rows for x in row) for rows in zip(*(phase.output for phase in phases)))
    weights, data = ([row for rows in part for row in rows] for part in list(zip(*phases))[1:])
    return Filtering(output, tuple(weights), tuple(data))


def filtering_at(points: Sequence[Fraction], m: int, r: int) -> Filtering:
    """Return the matrices of F(m, r) at m + r - 2 different ``points``, and at infinity."""
    others = [[x for x in points if x != point] for point in points]
    divisors = [_value(_from_roots(rest), point) for rest, point in zip(others, points)]
    n = m + r - 1
    last = _unit(n, n - 1) if n == 1 else _from_roots(points)
    data = [_padded(_from_roots(rest), n) for rest in others]
    weights = [tuple(x**k / divisor for k in range(r)) for x, divisor in zip(points, divisors)]
    columns = [tuple(x**i for i in range(m)) for x in points]
    output = tuple(zip(*columns, _unit(m, m - 1), strict=True))
    return Filtering(output, (*weights, _unit(r, r - 1)), (*data, last))


@lru_cache
def error_ratio(m: int, r: int, stride: int = 1) -> float:
    """Return the expected error of F(m, r) with ``stride``, relative to the error of the sums of r products that it
    replaces.

    It is the root mean square over the m outputs, for independent inputs and weights of one variance each. The error of
    a product of frequency f grows with its magnitude, which G and B determine, and A^T adds the errors up. A direct sum
    rounds once per tap and channel, the sum over frequencies once per channel: r times fewer.
    """
    if m == 1:
        return 1.0
    return _error(filtering(m, r, stride), (r,) * m)


@lru_cache
def transposed_error_ratio(m: int, r: int, stride: int, pad: int) -> float:
    """Return the expected error of the outputs of `transposed_filtering` relative to the error of the direct sums of
    products.
    """
    if m == stride:
        return 1.0
    taps = [len(_class(r, stride, pad, i % stride)[1]) for i in range(m)]
    return _error(transposed_filtering(m, r, stride, pad), taps)


def _error(made: Filtering, products: Sequence[int]) -> float:
    """Return the error of ``made`` relative to the error of direct sums of ``products`` products per output."""
    sizes = [_squares(g) * _squares(b) for g, b in zip(made.weights, made.input)]
    squares = sum((c * c * size for row in made.output for c, size in zip(row, sizes)), Fraction(0))
    return math.sqrt(squares / sum(n * n for n in products))


def _squares(row: Sequence[Fraction]) -> Fraction:
    return sum((c * c for c in row), Fraction(0))


def _from_roots(roots: Sequence[Fraction]) -> tuple[Fraction, ...]:
    """Return the coefficients of the product of (x - root), lowest degree first."""
    out: tuple[Fraction, ...] = (Fraction(1),)
    for root in roots:
        out = tuple(a - root * b for a, b in zip((Fraction(0), *out), (*out, Fraction(0))))
    return out


def _value(coefficients: Sequence[Fraction], x: Fraction) -> Fraction:
    return sum((c * x**k for k, c in enumerate(coefficients)), Fraction(0))


def _padded(row: Sequence[Fraction], n: int) -> tuple[Fraction, ...]:
    return (*row, *(Fraction(0),) * (n - len(row)))


def _unit(n: int, place: int) -> tuple[Fraction, ...]:
    return tuple(Fraction(int(k == place)) for k in range(n))
