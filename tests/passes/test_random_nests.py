"""Random nests and random rewrites: every rewrite keeps each value of each buffer, or refuses with an error of ours.

A nest has loops, statements, sums and accumulators that depend on each other in any way; the arguments of a rewrite are
legal or not.  All data is whole numbers, so that sums are exact in any order.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
from draws import examples
from hypothesis import example, given
from hypothesis import strategies as st

from convsmith.diag.errors import ConvsmithError
from convsmith.interp import InterpError, run
from convsmith.ir.buffer import make_buffer
from convsmith.ir.index import Var
from convsmith.ir.intern import interning
from convsmith.ir.parse import parse_kernel
from convsmith.ir.stmt import Kernel
from convsmith.ir.types import S32
from convsmith.ir.verify import verify
from convsmith.ir.walk import loops_of
from convsmith.passes.bind import bind
from convsmith.passes.block_reduction import block_reduction
from convsmith.passes.collapse import collapse
from convsmith.passes.compute_at import compute_at
from convsmith.passes.cut import cut
from convsmith.passes.derive_packing import derive_packing
from convsmith.passes.drain import drain
from convsmith.passes.fission import fission
from convsmith.passes.flatten import flatten
from convsmith.passes.fuse import fuse
from convsmith.passes.gather_stores import gather_stores
from convsmith.passes.guard_tails import guard_tails
from convsmith.passes.ordered_copy import OrderedCopy
from convsmith.passes.partition import partition
from convsmith.passes.rebase import rebase
from convsmith.passes.reorder import reorder
from convsmith.passes.residue import residue
from convsmith.passes.restrict import restrict
from convsmith.passes.rfactor import rfactor
from convsmith.passes.round_up import round_up
from convsmith.passes.simplify import simplify
from convsmith.passes.skip_zero import skip_zero
from convsmith.passes.stage import stage
from convsmith.passes.tile import tile
from convsmith.passes.transpose import transpose
from convsmith.passes.unroll import unroll
from convsmith.passes.vectorise import vectorise

EDGE = 40
"""Elements of an array along each of its dims; an index stays below half of them."""
RANKS = {"a": 1, "b": 2, "c": 1, "d": 2}
OF_SUMS = {
    "block_reduction", "block_reduction-ends", "block_reduction-given", "drain", "drain-fission", "fission",
    "rebase-rfactor", "rfactor", "rfactor-apart",
}  # fmt: skip
"""Rewrites of sums: they are asked of sums alone."""
ASK = {
    "block_reduction", "block_reduction-ends", "block_reduction-given", "collapse", "compute_at", "fission", "parallel",
    "rebase", "residue", "reversed", "rfactor", "round_up", "innermost", "vectorise-last",
}  # fmt: skip
"""Rewrites whose legality depends on the accesses, and which get more examples."""
HEAD = f"kernel k({', '.join(f'{n}: s32{[EDGE] * rank}' for n, rank in RANKS.items())})\n"

Rewrite = Callable[[Kernel], Kernel]


class Writer:
    """Writes the text of a random kernel."""

    def __init__(self, r: random.Random, sums: float) -> None:
        self.r = r
        self.favourite = r.choice(sorted(RANKS))
        """The array of every second access, so that many accesses meet."""
        self.sums = sums
        """The part of the nests that are sums."""
        self.lines: list[str] = []
        self.scope: dict[str, tuple[int, int]] = {}
        """Loops around, each with its least and greatest value."""
        self.ends: list[int] = []
        """Rows and columns of `t` that are read."""

    def line(self, text: str, depth: int) -> None:
        self.lines.append("  " * depth + text)

    def coordinate(self) -> str:
        """A coordinate within an array: a sum over loops around."""
        names = self.r.sample(sorted(self.scope), min(len(self.scope), self.r.choice((1, 1, 1, 2, 2, 3))))
        terms = {n: self.r.choice((1, 1, 1, 1, 2, -1, 3)) for n in names}
        low = sum(min(c * x for x in self.scope[n]) for n, c in terms.items())
        text = " + ".join(f"{n} * {c}" for n, c in terms.items()) or "0"
        form = self.r.choice(("", "", "", "", "", " // 2", " % 3")) if terms else ""
        return f"({text} + {self.r.choice((0, 0, 1, 1, 2, 3)) - low}){form}"

    def place(self, name: str = "") -> str:
        name = name or (self.favourite if self.r.random() < 0.5 else self.r.choice(sorted(RANKS)))
        return f"{name}[{', '.join(self.coordinate() for _ in range(RANKS[name]))}]"

    def value(self) -> str:
        load = self.place()
        kind = self.r.randrange(6)
        if kind == 0:
            return f"{load} * {self.place()}"
        if kind == 1:
            return f"({load} if {self.condition()} else s32(0))"
        return f"{load} + s32({self.r.randint(1, 5)})" if kind == 2 else load

    def condition(self) -> str:
        n = self.r.choice(sorted(self.scope))
        lo, hi = self.scope[n]
        sign, offset = self.r.choice((("", "-"), ("", "-"), ("-", "+")))
        return f"{sign}{n} {offset} {self.r.randint(lo, hi)} >= 0"

    def store(self, depth: int) -> None:
        if self.r.random() < 0.15:
            self.line(f"if {self.condition()}:", depth)
            depth += 1
        to = self.place()
        self.line(f"{to} = {to} + {self.value()}" if self.r.random() < 0.4 else f"{to} = {self.value()}", depth)

    def loop(self, name: str, depth: int) -> None:
        lo, n = self.r.choice((0, 0, 0, 0, 1)), self.r.choice((2, 3, 3, 4))
        end, most = str(lo + n), lo + n - 1
        if self.scope and self.r.random() < 0.15:
            outer = self.r.choice(sorted(self.scope))
            end, most = f"min({outer} + {lo + 1}, {lo + n})", most
        self.line(f"for {name} in {lo} .. {end}:", depth)
        self.scope[name] = lo, most

    def sum(self, depth: int, name: str) -> None:
        """A sum in a register, over the loop ``name``."""
        self.line("alloc acc: s32[] @register:", depth)
        start = "s32(0)" if self.r.random() < 0.5 else self.place() if self.r.random() < 0.5 else "s32(2)"
        self.line(f"acc[] = {start}", depth + 1)
        self.loop(name, depth + 1)
        self.line(f"acc[] = acc[] + {self.value()}", depth + 2)
        del self.scope[name]
        self.line(f"{self.place()} = acc[]" + self.r.choice(("", " * s32(2)", f" + {self.place()}")), depth + 1)

    def nest(self, names: list[str]) -> None:
        *outer, last = names[: self.r.choice((2, 3, 3))]
        for depth, name in enumerate(outer):
            self.loop(name, depth + 1)
        depth = len(outer) + 1
        if self.r.random() < self.sums:
            self.sum(depth, last)
        else:
            if self.r.random() < 0.6:
                self.loop(last, depth)
                depth += 1
            for _ in range(self.r.choice((1, 1, 2, 3))):
                self.store(depth)
        self.scope.clear()


    def rows(self, depth: int) -> str:
        """A coordinate of `t`, which starts at 0; `ends` notes how many there are."""
        names = self.r.sample(sorted(self.scope), self.r.choice((1, 1, 2)))
        terms = {n: self.r.choice((1, 1, 2)) for n in names}
        offset = self.r.choice((0, 0, 1, 2)) - sum(c * self.scope[n][0] for n, c in terms.items())
        most = sum(c * self.scope[n][1] for n, c in terms.items()) + offset
        self.ends[depth] = max(self.ends[depth], most + 1)
        return f"{' + '.join(f'{n} * {c}' for n, c in terms.items())} + {offset}"

    def stage(self) -> None:
        """A nest that fills `t`, perhaps another statement, and a nest that reads `t`."""
        self.ends = [1, 1]
        for depth, name in enumerate("ijk"):
            self.loop(name, depth + 2)
        for _ in range(self.r.choice((1, 1, 2))):
            self.line(f"{self.place()} = {self.value()} + t[{self.rows(0)}, {self.rows(1)}]", 5)
        reads, self.lines = self.lines, []
        ends = [n + self.r.choice((0, 0, 2)) for n in self.ends]
        self.scope = {"x": (0, ends[0] - 1), "y": (0, ends[1] - 1), "z": (0, 2)}
        self.line(f"alloc t: s32{ends} @cache:", 1)
        outer, inner = self.r.choice(("xy", "yx"))
        for depth, name in enumerate((outer, inner)):
            self.line(f"for {name} in 0 .. {ends[name == 'y']}:", 2 + depth)
        self.line(f"for z in 0 .. {self.r.choice(('1', '3', 'min(x + 1, 3)', 'min(y + 1, 3)'))}:", 4)
        self.line(f"t[x, y] = {self.value()}", 5)
        self.scope.clear()
        if self.r.random() < 0.3:
            self.loop("w", 2)
            self.store(3)
            self.scope.clear()
        self.lines += reads

    def pieces(self) -> None:
        """Two loops that may be pieces of one, and may hold another loop."""
        cut = self.r.randint(1, 3)
        inner = self.r.choice((("j", "j"), ("j", "j"), ("", ""), ("j", ""), ("j", "k")))
        for (lo, hi), name in zip(((0, cut), (cut, 4)), inner):
            self.line(f"for i in {lo} .. {hi}:", 1)
            self.scope = {"i": (0, 3), **({name: (0, 2)} if name else {})}
            if name:
                self.line(f"for {name} in 0 .. 3:", 2)
            of_task = f"d[i + {self.r.choice((0, 0, 0, 1))}, {name or 1}]"
            self.line(f"{of_task} = {self.value()}{self.r.choice(('', f' + {of_task}'))}", 3)
        self.scope.clear()

    def tails(self) -> None:
        """Loops over a part of a vector of private memory, which is set before."""
        self.loop("i", 1)
        self.line(f"alloc acc: s32[4] @{self.r.choice(('register', 'cache'))}:", 2)
        self.line("for l in 0 .. 4:", 3)
        self.line(f"acc[l] = {self.value()}", 4)
        for name in "mno"[: self.r.randint(2, 3)]:
            end = self.r.choice(("2", "3", "min(i + 1, 4)"))
            self.line(f"for {name} in 0 .. {end}:", 3)
            self.scope[name] = 0, 2
            own = self.r.choice((f"acc[{name}]", f"acc[{name}]", f"acc[-{name} + 3]", "acc[3]"))
            read = self.r.choice(("acc[3]", f"acc[{name}]", self.place("a"), self.place("a")))
            self.line(f"{own} = {read} + s32(2)" if self.r.random() < 0.6 else f"{self.place('c')} = {own}", 4)
            del self.scope[name]
        self.scope.clear()

    def partial(self) -> None:
        """A sum whose terms go to partial sums; now and then a statement tells these apart."""
        self.loop("i", 1)
        self.line("alloc acc: s32[4] @register:", 2)
        self.line(f"for l in {self.r.choice((0, 0, 0, 1))} .. 4:", 3)
        self.line(f"acc[l] = {self.r.choice(('s32(0)', 'a[l]'))}", 4)
        self.loop("j", 3)
        self.line(f"for m in {self.r.randint(1, 2)} .. {self.r.randint(3, 4)}:", 4)
        self.scope["m"] = 1, 3
        self.line(f"acc[m] = acc[m] + {self.value()}", 5)
        del self.scope["m"]
        depth = self.r.choice((3, 3, 4))
        if depth == 3:
            del self.scope["j"]
        apart = self.r.random()
        if apart < 0.15:
            self.line(f"{self.place()} = acc[{self.r.randint(1, 3)}]", depth)
        elif apart < 0.3:
            self.line(f"acc[{self.r.randint(1, 3)}] = s32(3)", depth)
        self.line("alloc total: s32[] @register:", depth)
        self.line("total[] = s32(0)", depth + 1)
        self.line(f"for n in {self.r.choice((0, 0, 0, 1))} .. 4:", depth + 1)
        self.line(f"total[] = total[] + acc[n]{self.r.choice(('', '', '', ' * acc[n]'))}", depth + 2)
        self.line(f"{self.place()} = total[]", depth + 1)
        self.scope.clear()


FORMS = {"compute_at": Writer.stage, "collapse": Writer.pieces, "round_up": Writer.tails, "rebase": Writer.partial}
"""Kernels in which these rewrites find what they ask for."""


def random_kernel(r: random.Random, sums: float, only: str = "") -> str:
    writer = Writer(r, sums)
    if only in FORMS:
        FORMS[only](writer)
        return HEAD + "\n".join(writer.lines) + "\n"
    writer.nest(list("ijk"))
    if r.random() < 0.3:
        writer.nest(r.choice((list("ijk"), list("xyz"))))
    return HEAD + "\n".join(writer.lines) + "\n"


def some(r: random.Random, names: list[str], least: int = 1) -> tuple[str, ...]:
    """Some of the names, in any order, mostly neighbours."""
    count = r.randint(min(least, len(names)), len(names))
    start = r.randint(0, len(names) - count)
    found = names[start : start + count]
    if r.random() < 0.5:
        r.shuffle(found)
    return tuple(found)


def rewrites(r: random.Random, kernel: Kernel, new: str) -> dict[str, Rewrite]:
    """Every rewrite with random arguments; ``new`` starts the names of new loops."""
    names = list(dict.fromkeys(x.var.name for x in loops_of(kernel.body)))
    one, size = r.choice(names), r.randint(1, 4)
    following = names[(names.index(one) + 1) % len(names)]
    sums, ends = make_buffer("sums", S32, (EDGE,)), (r.randint(0, 2), r.randint(1, 2), r.randint(1, 2))
    place = Var(names[0]) * r.randint(0, 4) + (Var(names[-2]) if len(names) > 2 else 0)
    chain, outer = some(r, names), tuple(names[:-1][-r.randint(1, 2) :])
    return {
        "reorder": lambda k: reorder(k, some(r, names, 2)),
        "reversed": lambda k: reorder(k, tuple(reversed(names[: r.randint(2, 3)]))),
        "innermost": lambda k: reorder(k, some(r, names), "innermost"),
        "tile": lambda k: tile(k, one, size, f"{new}o", f"{new}i"),
        "tile-ends": lambda k: tile(k, one, ends[1], f"{new}o", f"{new}i", ends[::2]),
        "fuse": lambda k: fuse(k, one, following, f"{new}f"),
        "coalesce": lambda k: fuse(flatten(k), one, following, f"{new}c", "nowhere"),
        "residue": lambda k: residue(k, one, size, f"{new}r"),
        "cut": lambda k: cut(k, one, (size,)),
        "fission": lambda k: fission(k, names[:-1]),
        "rfactor": lambda k: rfactor(k, one, r.choice((1, 4))),
        "rfactor-apart": lambda k: rfactor(k, one, r.choice((1, 4)), apart=True),
        "block_reduction": lambda k: block_reduction(k, names[-1], outer),
        "block_reduction-ends": lambda k: block_reduction(
            tile(k, names[-1], ends[1], f"{new}e", names[-1], ends[::2]), f"{new}e", outer
        ),
        "block_reduction-given": lambda k: block_reduction(k, names[-1], tuple(names[:-1]), sums, (place,)),
        "drain": lambda k: drain(k, chain, ".w"),
        "drain-fission": lambda k: drain(fission(k, names[:1]), (names[0],), ".w"),
        "parallel": lambda k: bind(k, chain, "parallel"),
        "rebase": lambda k: rebase(k, one),
        "rebase-rfactor": lambda k: rebase(cut(rfactor(k, one, r.choice((1, 4))), one, (1,)), one),
        "round_up": lambda k: round_up(k, chain, ((one, r.randint(1, 4)),)),
        "compute_at": lambda k: compute_at(k, "t", one, r.random() < 0.7),
        "collapse": lambda k: collapse(bind(k, ("i", "j", "k"), "parallel")),
        "tasks": lambda k: collapse(bind(k, names[: r.randint(1, 2)], "parallel")),
        "unroll": lambda k: unroll(bind(k, chain, "unrolled")),
        "vectorise": lambda k: vectorise(flatten(k), one, 4, r.random() < 0.5),
        "vectorise-last": lambda k: vectorise(flatten(k), names[-1], 4),
        "gather_stores": lambda k: gather_stores(flatten(k), one, 4),
        "transpose": lambda k: transpose(k, names[-2:], (4, 4)),
        "stage": lambda k: stage(k, r.choice(sorted(RANKS)), one),
        "derive_packing": lambda k: derive_packing(k, (r.choice(sorted(RANKS)),), f"{new}p"),
        "pack_near": lambda k: stage(k, r.choice(sorted(RANKS)), one, OrderedCopy()),
        "partition": lambda k: partition(k, chain, 4),
        "restrict": lambda k: restrict(skip_zero(k), chain),
        "guard_tails": lambda k: guard_tails(k, chain),
        "simplify": simplify,
    }


with interning():
    NAMES = sorted(rewrites(random.Random(0), parse_kernel(f"{HEAD}  for i in 0 .. 2:\n    a[i] = s32(1)\n"), ""))
SEEDS = st.integers(0, 1 << 32)


def memory_of(kernel: Kernel) -> dict[str, np.ndarray]:
    numbers = np.random.default_rng(1)
    return {b.name: numbers.integers(-9, 10, b.size).astype(b.dtype.numpy) for b in kernel.params}


def interpret(kernel: Kernel, start: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The parameters after the kernels that prepare arguments, and the kernel; new ones start with anything."""
    arrays = {n: x.copy() for n, x in start.items()}
    with np.errstate(over="ignore"):
        for k in (*kernel.packs, kernel):
            for b in k.params:
                arrays.setdefault(b.name, np.full(b.size, 77, b.dtype.numpy))
            run(k, {b.name: arrays[b.name] for b in k.params})
    return arrays


def check(seed: int, only: str = "") -> set[str]:
    """Apply random rewrites to a random kernel, one after the other; return the names of those that succeeded."""
    r = random.Random(seed)
    done: set[str] = set()
    with interning():
        kernel = parse_kernel(random_kernel(r, 1.0 if only in OF_SUMS else 0.4, only))
        verify(kernel)
        start = memory_of(kernel)
        try:
            wanted = interpret(kernel, start)
        except InterpError:
            assert only in FORMS  # Iterations of a parallel loop touch one element, or partial sums are not all set.
            return done
        for turn in range(3):
            choice = rewrites(r, kernel, f"t{turn}")
            name = only or r.choice(sorted(choice))
            before = str(kernel)
            try:
                kernel = choice[name](kernel)
            except ConvsmithError:
                continue
            done.add(name)
            try:
                verify(kernel)
                found = interpret(kernel, start)
            except ConvsmithError as error:
                raise AssertionError(f"{name}: {error}\n{before}\n{kernel}") from error
            for n in RANKS:
                np.testing.assert_array_equal(found[n], wanted[n], err_msg=f"{name}: {n}\n{before}\n{kernel}")
            if not any(True for _ in loops_of(kernel.body)):
                break
    return done


@examples(100)
@given(SEEDS)
def test_rewrites_in_a_row_keep_every_value_or_refuse(seed: int) -> None:
    check(seed)


@pytest.mark.parametrize("name", sorted(ASK))
@examples(80)
@given(SEEDS)
@example(seed=9)  # a dependence against the direction of a loop
@example(seed=34)  # loops of equal ends, of which one is rounded up
def test_a_rewrite_that_asks_keeps_every_value_or_refuses(name: str, seed: int) -> None:
    check(seed, name)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", [n for n in NAMES if n not in ASK])
@examples(15)
@given(SEEDS)
def test_another_rewrite_keeps_every_value_or_refuses(name: str, seed: int) -> None:
    check(seed, name)


@pytest.mark.parametrize("name", NAMES)
def test_a_rewrite_succeeds_now_and_then(name: str) -> None:
    assert any(name in check(seed, name) for seed in range(200))


@pytest.mark.slow
@examples(5000)
@given(SEEDS)
def test_many_rewrites_in_a_row_keep_every_value_or_refuse(seed: int) -> None:
    check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@examples(400)
@given(SEEDS)
def test_many_nests_keep_every_value_or_are_refused(name: str, seed: int) -> None:
    check(seed, name)
