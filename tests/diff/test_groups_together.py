"""Depthwise convolutions in channels first whose lanes are groups: a copy of a tile of groups makes them adjacent."""

from __future__ import annotations

import pytest

import convsmith as cs
from convsmith.ir.intern import interning
from convsmith.machine.registry import host_targets, known_targets
from convsmith.problem import parse_problem
from convsmith.tune.candidates import default_config

BEST = next(iter(host_targets())).name
FIRST = "--stag=abx --dtag=abx"
SCALED = (
    "--dt=u8:s8:u8 --attr-scales=src:common:0.5+wei:per_oc+dst:common:2 "
    "--attr-zero-points=src:common:3+dst:common:4"
)
SHAPES = (
    "g40mb2ic40ih15oc40oh5kh11ph0", "g17mb1ic17ih21oc17oh11kh11sh2ph5", "g70mb1ic70ih19oc70oh19kh3ph1",
    "g33mb2ic33iw40oc33ow40kw9pw4", "g20mb1ic20id5ih9iw9oc20od5oh9ow9kd3kh3kw3pd1ph1pw1",
)  # fmt: skip


@pytest.mark.sampled(6, "options", "threads")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("options", ["", "--dt=bf16", SCALED, "--dt=f64", "--dir=BWD_D"])
def test_results_are_exact(options: str, shape: str, threads: int) -> None:
    line = f"{options} {FIRST} {shape}".strip()
    rows = [n for n in ("d", "h", "w") if f"i{n}" in shape or (n != "d" and "iw" not in shape)]
    inner, channel = ("i", "ic") if "BWD_D" in options else ("o", "oc")
    order = ",".join(["mb", "g", *(f"{inner}{n}" for n in rows), channel])
    words = f"--lane=g --register={inner}w:5,g:32 --order={order} --realise=pad_copy --threads={threads}"
    verdict = cs.compile(line, config=words + (" --offsets=sums" if "zero" in options else "")).verify()
    assert verdict.ok, verdict.detail


@pytest.mark.parametrize(("line", "level"), [
    (f"{SCALED} {FIRST} g1024mb1ic1024ih15oc1024oh5kh11ph0", "avx512_vnni"),
    (f"{FIRST} g1024mb1ic1024ih43oc1024oh17kh11sh2ph1", "avx512"),
])  # fmt: skip
def test_it_is_chosen_where_rows_fill_no_vectors(line: str, level: str) -> None:
    (machine,) = (t for t in known_targets("znver5") if t.name == level)
    with interning():
        config = default_config(parse_problem(line).canonical(), machine)
    assert config.lane == "g" and config.realise == "pad_copy"
    assert config.order.index("g") < config.order.index("oh")
