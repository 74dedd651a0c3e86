"""Memory of networks: values that are alive at once lie apart, and an area is no larger than needed."""

from __future__ import annotations

from random import Random

import pytest

from convsmith.network.placement.memory import ORDERS, Life, lower_bound, memory_plan, offsets_of


@pytest.mark.parametrize("seed", range(20))
def test_values_that_are_alive_at_once_lie_apart(seed: int) -> None:
    draw = Random(seed).randint
    drawn = [(draw(1, 5000), first, first + draw(0, 4)) for first in (draw(0, 8) for _ in range(12))]
    lives = dict(enumerate(drawn))
    offsets = offsets_of(lives)
    assert offsets.keys() == lives.keys() and all(at % 64 == 0 for at in offsets.values())
    for a, (a_bytes, a_first, a_last) in lives.items():
        for b, (b_bytes, b_first, b_last) in lives.items():
            if a < b and a_first <= b_last and b_first <= a_last:
                assert offsets[a] + a_bytes <= offsets[b] or offsets[b] + b_bytes <= offsets[a]


def test_results_of_a_chain_share_the_memory_of_two() -> None:
    offsets = offsets_of({n: (6400, n, n + 1) for n in range(9)})
    assert set(offsets.values()) == {0, 6400}


@pytest.mark.parametrize("seed", range(20))
def test_the_best_of_several_orders_is_kept(seed: int) -> None:
    draw = Random(seed).randint
    lives = {
        str(n): Life(draw(1, 40) * 128, first, first + draw(0, 5))
        for n, first in enumerate(draw(0, 9) for _ in range(14))
    }
    plan = memory_plan(lives)
    areas = [
        max(offsets[name] + life.nbytes for name, life in lives.items())
        for offsets in (offsets_of(lives, order) for order in ORDERS)
    ]
    assert plan.bound <= plan.nbytes == min(areas)


def test_no_area_is_smaller_than_the_values_of_one_step() -> None:
    lives = {"a": Life(1000, 0, 2), "b": Life(100, 1, 1), "c": Life(2000, 2, 5), "d": Life(1, 6, 6)}
    plan = memory_plan(lives)
    assert plan.bound == lower_bound(lives.values()) == 1024 + 2048 == plan.nbytes
    assert memory_plan({}) == ({}, 0, 0)
