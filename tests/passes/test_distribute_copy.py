"""Copies that the threads of a group make: each element once, in turns of the whole nest or of parts of it."""

from __future__ import annotations

import random
from math import prod

import numpy as np
import pytest

from convsmith.interp import run
from convsmith.ir.parse import parse_kernel
from convsmith.ir.stmt import Kernel
from convsmith.passes.distribute_copy import NestPart, distribute_copy, turns_of


def copied(extents: tuple[int, ...]) -> Kernel:
    """Return a kernel that copies the first elements of rows to shared memory, and from there to its result."""
    shape, index = ", ".join(map(str, extents)), ", ".join(f"a_s{n}" for n in range(len(extents)))
    longer = ", ".join(map(str, (*extents[:-1], extents[-1] + 1)))
    loops = [f"{'  ' * (n + 2)}for a_s{n} in 0 .. {size}:" for n, size in enumerate(extents)]
    last = "  " * (len(extents) + 2)
    return parse_kernel(
        f"kernel k(a: f32[{longer}], dst: f32[{shape}])\n  alloc a_s: f32[{shape}] @shared:\n"
        + "\n".join([*loops, f"{last}a_s[{index}] = a[{index}]"])
        + "\n" + "\n".join([*(x.replace("a_s", "d") for x in loops)])
        + f"\n{last}dst[{index.replace('a_s', 'd')}] = a_s[{index.replace('a_s', 'd')}]\n"
    )  # fmt: skip


def test_each_element_is_copied() -> None:
    rng, parts = random.Random(1), 0
    for _ in range(60):
        extents = tuple(rng.randint(1, 7) for _ in range(rng.randint(1, 4)))
        threads = rng.choice((1, 2, 3, 8, 12, 32))
        kernel = copied(extents)
        made = distribute_copy(kernel, "a_s", threads, "t", in_parts=True)
        parts += turns_of([n for n in extents if n > 1] or [1], threads)[1] is not None
        rows = np.arange(prod(extents) // extents[-1] * (extents[-1] + 1), dtype=np.float32)
        memory = {"a": rows, "dst": np.full(prod(extents), np.nan, np.float32)}
        run(made, memory)
        wanted = rows.reshape(-1, extents[-1] + 1)[:, :-1].ravel()
        np.testing.assert_array_equal(memory["dst"], wanted)
    assert 10 < parts < 50


@pytest.mark.parametrize(
    ("extents", "threads", "turns", "part"),
    [
        ((14, 14, 4), 32, 28, NestPart(1, 7, 4)), ((20, 34, 4), 224, 13, None),
        ((20, 34, 4), 160, 20, NestPart(0, 1, 136)),
        ((37, 37), 128, 13, NestPart(0, 3, 37)),
        ((16, 16, 4), 128, 8, None), ((18, 8), 32, 5, None), ((7, 3), 32, 1, None), ((5, 13), 8, 10, NestPart(1, 7, 1)),
    ],
)  # fmt: skip
def test_parts_of_a_nest_save_divisions(
    extents: tuple[int, ...], threads: int, turns: int, part: NestPart | None
) -> None:
    """Threads run parts where the places in the whole nest take divisions by other numbers than powers of two."""
    assert turns_of(extents, threads) == (turns, part)


def test_parts_take_at_most_half_as_many_turns_again() -> None:
    rng = random.Random(2)
    for _ in range(2000):
        extents, threads = [rng.randint(2, 40) for _ in range(rng.randint(1, 4))], rng.randint(1, 300)
        assert 2 * turns_of(extents, threads)[0] <= 3 * -(-prod(extents) // threads)


def test_elements_that_are_evenly_apart_take_no_parts() -> None:
    kernel = parse_kernel(str(copied((3, 5))).replace("a: f32[3, 6]", "a: f32[3, 5]"))
    assert "a_s.e * 4 - t + 14" in str(distribute_copy(kernel, "a_s", 4, "t", in_parts=True))
    assert "a_s.e * 4 - t + 14" not in str(distribute_copy(copied((3, 5)), "a_s", 4, "t", in_parts=True))
