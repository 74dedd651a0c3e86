"""Products whose calls bring weights of their own: which of them get a kernel for that, and that its bits are equal."""

from __future__ import annotations

import numpy as np
import pytest

import convsmith as cs
from convsmith.ir.intern import interning
from convsmith.ir.types import DTYPES
from convsmith.machine.registry import host_targets, known_targets
from convsmith.problem.lines import parse_problem
from convsmith.schedule.near_copies import is_transposed
from convsmith.schedule.planned import plan_for
from convsmith.tune.candidates import default_config
from convsmith.tune.plain_weights import STREAMS, config_of_plain_weights

FAR_ROWS = ["--matmul 3x300:300x1024", "--matmul 8x300:300x1101"]
"""Products that read weights in place whose rows are a page or more apart."""
IN_PLACE, COPIED = "--pack=", "--pack= --pack_at=wei+k"
CHOICES = [
    ("--matmul 3x300:300x1001", IN_PLACE),
    *((line, IN_PLACE) for line in FAR_ROWS),
    ("--matmul 40x300:300x1001", COPIED),
    ("--matmul --dt=f64 40x300:300x600", COPIED),
    ("--matmul --bia-dt=f32 --bia-mask=2 --attr-post-ops=relu 40x300:300x1000", COPIED),
    ("--matmul --attr-post-ops=sum 40x300:300x1000", COPIED),
]
MORE = ["--matmul --stag=ba 40x300:300x1000", "--matmul 370x800:800x520"]
"""A product of a source of contiguous columns, and one of which blocks of rows are copied as well at 256 bits."""
TRANSPOSED = [
    "--matmul --wtag=ba 1x512:512x1056", "--matmul --wtag=ba 9x528:528x768",
    "--matmul --wtag=ba --dt=f64 5x256:256x768",
    "--matmul --wtag=ba --bia-dt=f32 --bia-mask=2 --attr-post-ops=relu 6x640:640x608",
    "--stag=axb --dtag=axb mb3ic512ih1oc1024kh1",
]
"""Products of few rows whose weights are rows of terms, as PyTorch's are."""
"""Products of few rows, and how their kernel for plain weights reads them."""
OTHERS = [
    "--matmul 40x300:300x800",  # the second-level cache holds the weights
    "--matmul 4096x300:300x1000",  # packing takes little of the time
    "--matmul --wtag=ba 4x300:300x1000",  # no block of whole tiles divides the terms
    "--matmul --wtag=ba 4x512:512x1001",  # nor the columns
    "--matmul --wtag=ba 200x512:512x1024",  # packing takes little of the time
    "--matmul --dt=bf16 40x600:600x1000",  # pairs of terms lie side by side
    "--matmul --dt=u8:s8:s32 40x1200:1200x1000",
    "--matmul 2x40x300:2x300x1000",
    "mb1ic1024ih7oc512oh7kh1",
    "--dir=BWD_W mb1ic1024ih7oc512oh7kh1",
]
LEVELS = {t.name: t for t in known_targets()}
HERE = [t.name for t in host_targets() if t.name in ("avx512", "avx2", "generic")]


@pytest.mark.parametrize("line, read", CHOICES)
@pytest.mark.parametrize("level", ("avx512", "avx2"))
def test_products_of_few_rows(line: str, read: str, level: str) -> None:
    problem, machine = parse_problem(line).canonical(), LEVELS[level]
    with interning():
        config = default_config(problem, machine)
        other = config_of_plain_weights(problem, config, machine)
        assert other is not None and str(other).endswith(read)
        depth = dict(other.tiles_at("cache")).get("k", 300)
        block = depth * other.size("n") * DTYPES[problem.acc].bytes
        assert depth == STREAMS if line in FAR_ROWS else machine.l1.kept // 2 < block <= machine.l1.kept
        assert config_of_plain_weights(problem, other, machine) is None


@pytest.mark.parametrize("threads", (1, 2))
def test_blocks_are_copied_row_by_row(threads: int) -> None:
    """A block has all columns of a thread; the copy reads it in the order of the weights, in vectors."""
    line, machine = "--matmul 40x300:300x1000", LEVELS["avx2"]
    problem = parse_problem(line).canonical()
    with interning():
        other = config_of_plain_weights(problem, default_config(problem, machine, threads=threads), machine)
    assert other is not None
    text = cs.compile(line, target="avx2", threads=threads, config=str(other)).ir()
    nest = text[text.index("kernel conv(") :]
    assert ("#parallel" in nest) is (threads > 1)
    assert 0 < nest.index("for wei_n.k in") < nest.index("for wei_n.n.o in") < nest.index("]{8} = wei[")
    assert "for wei_n.n.v in" not in nest


@pytest.mark.parametrize("threads", (1, 2, 3))
@pytest.mark.parametrize("level", ("avx512", "avx2"))
def test_threads_copy_equally_many_blocks(level: str, threads: int) -> None:
    """The sums of a block of all columns of a thread would not stay in a cache."""
    problem, machine = parse_problem("--matmul 512x1024:1024x4096").canonical(), LEVELS[level]
    with interning():
        other = config_of_plain_weights(problem, default_config(problem, machine, threads=threads), machine)
    assert other is not None
    width = dict(other.tiles_at("cache"))["n"]
    assert -(-4096 // width) % threads == 0 and 512 * width * 4 <= 2 * machine.costs.images_near


@pytest.mark.parametrize("line, whole", [("40x300:300x1001", True), ("--stag=ba 40x300:300x1001", False)])
def test_blocks_have_whole_lines_of_the_source(line: str, whole: bool) -> None:
    problem, machine = parse_problem(f"--matmul {line}").canonical(), LEVELS["avx512"]
    with interning():
        other = config_of_plain_weights(problem, default_config(problem, machine), machine)
    assert other is not None
    assert (dict(other.tiles_at("cache"))["k"] * 4 % machine.l1.line == 0) is whole


@pytest.mark.sampled(3)
@pytest.mark.parametrize("line", TRANSPOSED)
@pytest.mark.parametrize("level", ("avx512", "avx2"))
def test_rows_of_terms_are_transposed_next_to_their_use(line: str, level: str) -> None:
    problem, machine = parse_problem(line).canonical(), LEVELS[level]
    with interning():
        other = config_of_plain_weights(problem, default_config(problem, machine), machine)
        assert other is not None and not other.staged("pack")
        assert is_transposed(plan_for(problem, other, machine).main, "wei")


def test_a_level_without_transpositions_packs_ahead() -> None:
    problem, machine = parse_problem("--matmul --wtag=ba 4x512:512x1024").canonical(), LEVELS["aarch64+sve"]
    with interning():
        assert config_of_plain_weights(problem, default_config(problem, machine), machine) is None


@pytest.mark.parametrize("line", OTHERS)
def test_other_problems_keep_their_kernel(line: str) -> None:
    problem = parse_problem(line).canonical()
    machine = LEVELS["avx512_amx"]
    with interning():
        assert config_of_plain_weights(problem, default_config(problem, machine), machine) is None


@pytest.mark.sampled(12, "threads", "line", "level")
@pytest.mark.parametrize("threads", (1, 2))
@pytest.mark.parametrize("line", [*(line for line, _ in CHOICES), *MORE, *TRANSPOSED])
@pytest.mark.parametrize("level", HERE)
def test_plain_weights_give_the_bits_of_packed_ones(line: str, level: str, threads: int) -> None:
    k = cs.compile(line, target=level, threads=threads)
    rng = np.random.default_rng(0)
    for _ in range(3):
        arrays = {a.name: rng.standard_normal(a.shape).astype(DTYPES[a.dtype].numpy) for a in k.arguments}
        packed = k.pack(arrays["wei"], arrays.get("bia"))
        wanted, found = arrays["dst"].copy(), arrays["dst"].copy()
        k.run(**{**{name: x for name, x in arrays.items() if name != "bia"}, "wei": packed, "dst": wanted})
        k.run(**{**arrays, "dst": found})
        np.testing.assert_array_equal(found, wanted)
    with interning():
        other = config_of_plain_weights(k.problem.canonical(), k.config, k.target)
    assert (k.host._plain_calls.kernel(k.host) is k.host) == (other is None)
    bound = arrays["dst"].copy()
    k.bind_each(**{**arrays, "dst": bound})()
    np.testing.assert_array_equal(bound, wanted)
