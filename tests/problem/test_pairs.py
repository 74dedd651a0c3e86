"""Pairs of coordinates are counted as by visiting them, and in as many steps for any extents."""

from __future__ import annotations

import random

from convsmith.problem.lines import parse_problem
from convsmith.problem.pairs import pairs_below


def test_the_number_is_that_of_the_pairs() -> None:
    rng = random.Random(0)
    for _ in range(3000):
        (m, n), (a, b), bound = rng.choices(range(8), k=2), rng.choices(range(1, 10), k=2), rng.randrange(-3, 90)
        pairs = sum(i * a + j * b < bound for i in range(m) for j in range(n))
        assert pairs_below(bound, (m, a), (n, b)) == pairs, (bound, (m, a), (n, b))


def test_extents_of_any_size() -> None:
    n = 10**30
    assert pairs_below(n, (n, 1), (n, 1)) == n * (n + 1) // 2
    assert pairs_below(2 * n * n, (n, n - 1), (n, n)) == n * n


def test_taps_that_read_the_image() -> None:
    rng = random.Random(0)
    for _ in range(300):
        s, d, k, p, o = (rng.randrange(*x) for x in ((1, 5), (0, 4), (1, 6), (0, 9), (1, 9)))
        low = (o - 1) * s + (k - 1) * (d + 1) + 1 - p
        i = max(1, low - rng.randrange(9))
        if (o - 1) * s - i + (k - 1) * (d + 1) + 1 - p <= -s:
            continue
        problem = parse_problem(f"mb1ic1iw{i}oc1ow{o}kw{k}sw{s}dw{d}pw{p}")
        ranges = (problem.tap_range(0, tap) for tap in range(k))  # type: ignore[union-attr]
        assert problem.flops_real == 2 * sum(high - low for low, high in ranges)
