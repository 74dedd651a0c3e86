"""Kernels that read through a table of pointers, as users call them."""

from __future__ import annotations

import numpy as np
import pytest
from callers import on_threads

import convsmith as cs
from convsmith.problem import parse_problem, reference

LINE = "--stag=axb --dtag=axb g24mb2ic24ih9iw7oc24oh9ow7kh3kw3ph1pw1"


def kernel(line: str = LINE, table: str = "sections", threads: int = 1) -> cs.CompiledKernel:
    return cs.compile(line, threads=threads, config=f"--realise=indirection --table={table} --split=")


def operands(k: cs.CompiledKernel, seed: int) -> list[np.ndarray]:
    numbers = np.random.default_rng(seed)
    return [numbers.integers(-4, 5, t.shape).astype(np.float32) for t in k.problem.inputs]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("table", ["row", "column", "compressed", "sections"])
@pytest.mark.parametrize(
    "line",
    [
        LINE, "mb1ic17ih6iw7oc9oh3ow4kh3kw3sh2sw2ph1pw1", "mb1ic3iw12oc5ow9kw4", "mb1ic8ih5iw5oc8oh5ow5kh1kw1",
        "--stag=axb mb1ic5id4ih4iw3oc7od4oh4ow3kd3kh2kw1pd1ph0pw0",
    ],
)  # fmt: skip
def test_every_form_computes_the_same(line: str, table: str) -> None:
    k = kernel(line, table)
    x, w = operands(k, 1)
    truth = reference(k.problem, {"src": x, "wei": w})["dst"]
    assert (k(x, w) == truth).all()
    packed, out = k.pack(w), np.empty(truth.shape, np.float32)
    assert (k(x, packed, out=out) == truth).all() and (out == truth).all()


@pytest.mark.parametrize("line", ["mb1ic17ih6iw7oc9oh3ow4kh3kw3sh2sw2ph1pw1", "g4mb2ic8iw9oc8ow9kw3pw1"])
def test_the_gradient_of_the_source_reads_the_gradient_of_the_result(line: str) -> None:
    k = kernel(f"--dir=BWD_D {line}", "row")
    w, dy = operands(k, 1)
    truth = reference(k.problem, {"wei": w, "diff_dst": dy})["diff_src"]
    assert (k.run(wei=w, diff_dst=dy)["diff_src"] == truth).all()


def test_the_table_follows_the_source() -> None:
    k = kernel(threads=2)
    packed = k.pack(operands(k, 0)[1])
    for seed in range(6):
        x, _ = operands(k, seed)
        moved = np.empty(x.size + 64, np.float32)[seed : seed + x.size].reshape(2, 9, 7, 24).transpose(0, 3, 1, 2)
        moved[...] = x
        truth = k(x, packed)
        assert (k(moved, packed) == truth).all() and (k(x.copy(), packed) == truth).all()


def test_several_threads_have_tables_of_their_own() -> None:
    k = kernel()
    w = operands(k, 0)[1]
    packed = k.pack(w)
    sources = [operands(k, seed)[0] for seed in range(4)]
    truths = [reference(k.problem, {"src": x, "wei": w})["dst"] for x in sources]

    def work(n: int) -> None:
        for _ in range(100):
            assert (k(sources[n], packed) == truths[n]).all()

    on_threads(work, range(4))


def test_infinite_weights_run_through_another_kernel() -> None:
    k = kernel()
    x, w = operands(k, 3)
    w.flat[5] = np.inf
    with np.errstate(invalid="ignore"):
        truth = reference(k.problem, {"src": x, "wei": w})["dst"]
    np.testing.assert_array_equal(k(x, w), truth)


def test_sections_have_three_rows_of_pointers() -> None:
    k = kernel("--stag=axb --dtag=axb g16mb1ic16ih224iw224oc16oh224ow224kh3kw3ph1pw1")
    assert k.artifact is not None
    (size,) = (a.size for a in k.artifact.entries["main"].arguments if a.role == "table")
    assert size == 3 * (224 + 2) * 3


@pytest.mark.parametrize(
    "line, words, code, text",
    [
        ("--matmul 8x9:9x16", "--lane=n --realise=indirection", "realise", "a matrix product has no pixels"),
        ("mb1ic8iw8oc16ow8kw3pw1", "--lane=oc --table=long", "table", "--table=long is unknown; legal are row, column"),
        ("--stag=aBC2c4b mb1ic8iw8oc16ow8kw3pw1", "--lane=oc --realise=indirection", "realise", "blocks along pixels"),
    ],
)  # fmt: skip
def test_what_is_refused(line: str, words: str, code: str, text: str) -> None:
    with pytest.raises(cs.ConfigError, match=text) as error:
        cs.compile(parse_problem(line), config=f"--target=generic {words}")
    assert error.value.code == code
