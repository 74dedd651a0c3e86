"""Padded copies of sources in channels first: tiles of channels and pixels are transposed in registers."""

from __future__ import annotations

import pytest

import convsmith as cs
from convsmith.machine.base import Machine
from convsmith.machine.registry import host_targets, target
from convsmith.passes.transpose import transpose
from convsmith.problem import parse_problem
from convsmith.schedule.config import Config
from convsmith.schedule.plan import plan

SCALED = "--attr-scales=src:common:0.5+wei:per_oc+dst:common:2 --attr-zero-points=src:common:3+dst:common:4"
BYTES = f"--stag=abx --dtag=abx --dt=u8:s8:u8 {SCALED}"
SIGNED, FLOATS = "--stag=abx --dtag=abx --dt=s8:s8:s32", "--stag=abx --dtag=abx --dt=bf16"
LEVELS = [t for t in host_targets() if t.name in ("avx512_vnni", "avx512_bf16", "avx2")]
CONFIG = "--target=avx512_vnni --lane=oc --register=ow:7,oc:16 --order=mb,oc,oh,ow --reduce=kh,kw,ic " \
    "--instruction=vpdpbusd_512 --k_step=ic:4 --realise=pad_copy --offsets=sums"  # fmt: skip


@pytest.mark.parametrize("level", LEVELS, ids=lambda t: t.name)
@pytest.mark.parametrize(
    "line",
    [
        f"{BYTES} mb2ic32ih17oc20oh17kh3ph1",
        f"{BYTES} mb1ic32ih33oc8oh17kh3sh2ph1",
        f"{BYTES} g2mb2ic64ih16oc24oh16kh3ph1",
        f"{BYTES} mb1ic48iw200oc8ow200kw5pw2",
        f"{BYTES} mb1ic32id6ih8iw16oc8od6oh8ow16kd3kh3kw3pd1ph1pw1",
        f"{BYTES} mb1ic40ih19oc20oh19kh3ph1",
        f"{BYTES} --deconv mb1ic32ih18oc16oh36kh4sh2ph1",
        f"{SIGNED} mb2ic32ih15iw40oc20oh13ow38kh3kw3ph0pw0",
        f"{FLOATS} mb2ic32ih17oc20oh17kh3ph1",
        f"{FLOATS} --dir=BWD_D g2mb1ic64ih20oc32oh20kh3ph1",
        f"{FLOATS} --dir=BWD_D mb2ic24ih39oc32oh20kh5sh2ph2",
        f"{FLOATS} mb2ic17ih24oc20oh24kh3ph1",
        f"{FLOATS} mb1ic37ih18oc20oh18kh3ph1",
        f"{FLOATS} --dir=BWD_D mb1ic24ih36oc35oh18kh3sh2ph1",
        f"{FLOATS} --deconv mb1ic21ih20oc16oh60kh3sh3ph0",
    ],
)
@pytest.mark.sampled(15, "level")
def test_results_are_exact(line: str, level: Machine) -> None:
    for threads in (1, 2):
        verdict = cs.compile(line, target=level.name, threads=threads, config="--realise=pad_copy").verify()
        assert verdict.ok, verdict.detail


@pytest.mark.parametrize(
    ("sizes", "is_turned"),
    [
        ("mb2ic32ih17oc16oh17kh3ph1", True),
        ("--deconv mb1ic32ih18oc16oh36kh4sh2ph1", True),  # residue classes of the result read one copy
        ("mb2ic40ih17oc16oh17kh3ph1", True),  # the last tile of channels is not whole
        ("mb2ic39ih17oc16oh17kh3ph1", True),  # nor is its last group of terms
        ("mb2ic32ih7oc16oh7kh3ph1", False),  # rows are shorter than tiles
        ("mb1ic16ih16oc16oh16kh3ph1", False),  # few elements are copied sooner than a transposition is compiled
    ],
)
def test_tiles_are_transposed_where_rows_fill_them(sizes: str, is_turned: bool) -> None:
    """On Zen 5 a copy of bytes that gathers them takes 0.5 cycles an element, one that transposes them 0.1."""
    made = plan(parse_problem(f"{BYTES} {sizes}").canonical(), Config.parse(CONFIG), target("avx512_vnni"))
    assert any(step.run is transpose for step in made.pipeline) is is_turned


@pytest.mark.parametrize("threads", [1, 2])
def test_pairs_of_taps_copy_rows_of_pixels(threads: int) -> None:
    """Neighbours in a row that an instruction adds up are adjacent in the copy too, as in channels first."""
    line, level = f"{FLOATS} mb1ic3ih30iw200oc24oh8ow50kh7kw7sh4sw4ph3pw3", target("avx512_bf16")
    config = Config.parse(
        "--target=avx512_bf16 --lane=oc --register=ow:7,oc:32 --order=mb,oc,oh,ow --reduce=kh,kw,ic "
        f"--instruction=vdpbf16ps_512 --k_step=kw:2 --realise=pad_copy --threads={threads}"
    )
    text = cs.compile(line, target=level.name, threads=threads, config=str(config)).ir()
    copies = [x for x in text.splitlines() if "= src[" in x or "= (src[" in x]
    assert copies and not any(":" in part.split("}")[0] for x in copies for part in x.split("{")[1:])
    if level in LEVELS:
        verdict = cs.compile(line, target=level.name, threads=threads, config=str(config)).verify()
        assert verdict.ok, verdict.detail
