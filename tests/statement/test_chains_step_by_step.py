"""Chains interpreted: what every nest computes after every rewrite, and the footprints of its rows."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from blocked_chains import Sizes, cases, config, name
from blocked_chains import chain as blocked_chain
from chain_problems import random_chain
from draws import examples
from hypothesis import assume, given
from hypothesis import strategies as st
from oracles import Oracle, small_target

from convsmith.diag.errors import ConfigError
from convsmith.ir.index import Index, Var, as_index
from convsmith.ir.intern import interning
from convsmith.ir.rewrite import substitute
from convsmith.ir.stmt import Alloc, For, Stmt, Store
from convsmith.ir.verify import verify
from convsmith.ir.walk import children, statements_of
from convsmith.machine.base import Machine
from convsmith.passes.compute_at import compute_at
from convsmith.passes.manager import run_steps
from convsmith.problem import Chain, Conv, parse_problem
from convsmith.problem.fusion import middle, reads_padding_alone, stages_of
from convsmith.schedule.config import Config
from convsmith.schedule.plan import plan
from convsmith.statement.fused import FusedStatements
from convsmith.statement.views import statement
from convsmith.tune.chains import config_of
from convsmith.tune.stage_configs import StageConfigs

CHAINS = {
    "depthwise-pointwise": "--stag=axb g3mb1ic3ih4iw3oc3oh4ow3kh3kw3ph1pw1 -> --dtag=axb mb1ic3ih4iw3oc2oh4ow3kh1kw1",
    "inverted-residual": (
        "--stag=axb --attr-post-ops=relu mb1ic2ih3iw2oc3oh3ow2kh1kw1 -> g3mb1ic3ih3iw2oc3oh3ow2kh3kw1ph1 -> "
        "--dtag=axb --dir=FWD_B --attr-post-ops=sum:src mb1ic3ih3iw2oc2oh3ow2kh1kw1"
    ),
    "three-windows": (
        "mb1ic1ih5iw1oc2oh5ow1kh3kw1ph1 -> mb1ic2ih5iw1oc3oh3ow1kh3kw1sh2ph1 -> mb1ic3ih3iw1oc1oh3kh3ph1kw1"
    ),
    "blocks": (
        "--stag=axb --dtag=NHWC2h2w2c mb1ic2ih5iw3oc3oh3ow3kh3kw1ph0 -> --dtag=axb mb1ic3ih3iw3oc2oh3ow1kh1kw3ph0pw0"
    ),
    "int8": (
        "--stag=axb --dt=u8:s8:u8 mb1ic2ih3iw2oc4oh3ow2kh1kw1 -> --dt=u8:s8:s8 --attr-zero-points=src:common:2 "
        "--dtag=axb mb1ic4ih3iw2oc2oh3ow2kh3kw1ph1"
    ),
}  # fmt: skip
TARGET = small_target()


def check_every_step(chain: Chain, config: Config, machine: Machine = TARGET) -> None:
    with interning():
        made = plan(chain, config, machine)
        run_steps(made.naive(), made.pipeline, [Oracle(chain, machine)])


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name, halo", [*((name, "keep") for name in CHAINS), ("three-windows", "recompute")])
def test_every_rewrite_keeps_the_numbers(name: str, halo: str) -> None:
    chain = parse_problem(CHAINS[name]).canonical()
    stages = stages_of(chain)
    assert isinstance(chain, Chain) and stages is not None
    with interning():
        config = config_of(stages, StageConfigs(TARGET), 2, [True] * (len(stages) - 1))
    text = str(config) if halo == "keep" else str(config).replace(" --compute_at=", " --halo=recompute --compute_at=")
    check_every_step(chain, Config.parse(text))


@pytest.mark.parametrize(
    ("text", "ih", "iw"),
    [("1-1-2-2", 3, 2), pytest.param("3-1-2-1", 5, 4, marks=pytest.mark.slow),
     pytest.param("3-3-2-2", 7, 5, marks=pytest.mark.slow)],
)  # fmt: skip
def test_every_rewrite_keeps_the_numbers_of_two_convolutions_in_tiles(text: str, ih: int, iw: int) -> None:
    """Channels and rows of both stages are in cache tiles, for which operands are packed and the source is copied."""
    case, machine = next(case for case in cases() if name(case) == text), small_target(2)
    sizes = Sizes(ih, iw, 6, (1, 2, 2))
    check_every_step(blocked_chain(case, sizes), Config.parse(config(case, machine.name, sizes.blocks)), machine)


@pytest.mark.slow
def test_every_rewrite_keeps_the_numbers_of_random_chains() -> None:
    rng, done = random.Random(3), 0
    while done < 12:
        chain = random_chain(rng, macs=1_000).canonical()
        stages = stages_of(chain)
        assert isinstance(chain, Chain) and stages is not None
        with interning():
            config = config_of(stages, StageConfigs(TARGET), rng.choice((1, 2)), [True] * (len(stages) - 1))
        try:
            check_every_step(chain, config)
        except ConfigError as error:
            assert error.code in ("dependence", "compute-at", "registers", "instruction"), error
            continue
        done += 1


# -- footprints
def windows() -> st.SearchStrategy[tuple[int, ...]]:
    """Extent, taps, stride, dilation and front pad of a window along an axis."""
    return st.tuples(st.integers(1, 12), st.integers(1, 4), st.integers(1, 3), st.integers(0, 2), st.integers(0, 4))


def read_rows(window: tuple[int, ...], at: int) -> range:
    """The rows from the first to the last that an output's taps meet, by enumeration."""
    extent, taps, stride, dilation, pad = window
    met = [row for k in range(taps) if 0 <= (row := at * stride + k * (dilation + 1) - pad) < extent]
    lowest, highest = at * stride - pad, at * stride + (taps - 1) * (dilation + 1) - pad
    hull = range(max(lowest, 0), min(highest, extent - 1) + 1)
    assert set(met) <= set(hull)
    return hull


def conv(windows: tuple[tuple[int, ...], ...], channels: int) -> Conv | None:
    i, k, s, d, p = zip(*windows)
    o = tuple((i + 2 * p - (k - 1) * (d + 1) - 1) // s + 1 for i, k, s, d, p in windows)
    if min(o) < 1:
        return None
    return Conv(mb=1, ic=channels, oc=1, i=i, o=o, k=k, s=s, d=d, p=p, accuracy="strict")


def stores(s: Stmt, buffer: str, at: dict[Var, Index]) -> Iterator[tuple[int, ...]]:
    """The places that a run stores to in `buffer`."""
    if isinstance(s, For):
        lo, hi = substitute(s.lo, at), substitute(s.hi, at)
        for n in range(int(lo), int(hi)):
            yield from stores(s.body, buffer, {**at, s.var: as_index(n)})
    elif isinstance(s, Store):
        if s.buffer.name == buffer:
            yield tuple(int(substitute(i, at)) for i in s.index)
    else:
        for x in children(s):
            if isinstance(x, Stmt):
                yield from stores(x, buffer, at)


@examples(40)
@given(st.tuples(windows(), windows()), st.booleans())
def test_an_iteration_computes_exactly_the_rows_that_it_reads(axes: tuple[tuple[int, ...], ...], keeps: bool) -> None:
    second = conv(axes, 2)
    assume(second is not None)
    assert second is not None
    first = Conv(
        mb=1, ic=1, oc=2, i=second.i, o=second.i, k=(1, 1), s=(1, 1), d=(0, 0), p=(0, 0), accuracy="strict",
    )  # fmt: skip
    stages = stages_of(Chain(stages=(first, second)))
    assert stages is not None
    assume(reads_padding_alone(stages.problems) is None)
    rows, columns = ([read_rows(window, n) for n in range(size)] for window, size in zip(axes, second.o))
    with interning():
        whole = FusedStatements(stages, 0, tuple(statement(p, TARGET) for p in stages.problems))
        moved = compute_at(whole.naive(), middle(0), "oh2", keeps)
        verify(moved)
        done = sum(1 for _ in stores(moved.body, middle(0), {}))
        (buffer,) = {s.buffer for s in statements_of(moved.body) if isinstance(s, Alloc) and s.buffer.name == "mid"}
    # A dim is computed whole where its footprint, padding included, is as long.
    width, taps, stride, dilation, _ = axes[1]
    is_whole = (second.o[1] - 1) * stride + (taps - 1) * (dilation + 1) + 1 >= width
    wide = width if is_whole else columns[-1].stop - columns[0].start
    extent, taps, stride, dilation, _ = axes[0]
    reach = (taps - 1) * (dilation + 1) + 1
    overlaps = keeps and stride < reach and len(rows) > 0
    each = sum(map(len, rows))
    together = len(set(range(rows[0].start, rows[-1].stop)))
    assert done == 2 * wide * (together if overlaps else each)
    assert buffer.shape[2] >= max(map(len, rows)) and (not overlaps or buffer.shape[2] >= reach)
    assert buffer.shape[2] <= max(1 << (reach - 1).bit_length(), extent)
