"""Kernels for any sizes that copy the pixels of a register tile through a table of pointers."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from oracles import small_target
from sizes_of_call import AtSizes

import convsmith as cs
from convsmith.compiler.dynamic import requirements
from convsmith.diag.errors import ConfigError
from convsmith.ir.intern import interning
from convsmith.layout.reorder import to_layout
from convsmith.machine import registry
from convsmith.passes.manager import run_steps
from convsmith.problem import Conv, reference
from convsmith.problem.data import random_arrays
from convsmith.schedule.call_variants import config_of_call
from convsmith.schedule.config import Config
from convsmith.schedule.dynamic import at_sizes, check_dynamic, general
from convsmith.schedule.plan import plan
from convsmith.tune.dynamic import dynamic_config

COPIES = "--lane=oc --register=ow:6,oc:16 --order=mb,g,oh,ow,oc --realise=indirection --pack_at=src+ow"
LINES = (
    "mb1ic7ih8oc40kh3ph1",
    "--dir=FWD_B --attr-post-ops=relu mb1ic5ih8oc40kh3sh2ph1",
    "g2mb1ic6ih8oc36kh3ph1",
    "mb1ic5iw8oc40kw3pw1",
)


def _config(p: Conv, target: str, threads: int) -> str:
    names = {d for t in p.tensors for d in t.dims}
    words = COPIES.replace("g,", "g," if p.g > 1 else "").replace("oh,", "oh," if "oh" in names else "")
    return f"--target={target} {words} --threads={threads}"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("line", LINES)
def test_any_sizes_and_pads(line: str) -> None:
    """Of one image and of several, with rows that run as one and rows that do not, on one thread and on two."""
    p, rng = Conv.parse(f"--stag=abx --dtag=abx {line}"), random.Random(line)
    target, threads = registry.host_target().name, 1 + (p.g > 1)
    dims = ",".join(["mb", *(f"i{a}" for a in p.axes)])
    k = cs.compile(p, target=target, threads=threads, dynamic=dims, config=_config(p, target, threads))
    weights = {t.name: to_layout(random_arrays(k.problem, 7)[t.name], t.layout) for t in k.problem.inputs}
    packed = k.pack(weights["wei"], weights.get("bia"))
    for seed in range(12):
        i = tuple(rng.randrange(3, 15) for _ in p.axes)
        pads = [(rng.randrange(3), rng.randrange(3)) for _ in p.axes]
        o = tuple((x + sum(pad) - keff) // s + 1 for x, pad, keff, s in zip(i, pads, p.keff, p.s))
        q = at_sizes(k.problem, rng.randrange(1, 4), i, o, tuple(front for front, _ in pads))
        arrays = random_arrays(q, seed) | {n: x for n, x in weights.items() if n != "src"}
        truth = to_layout(reference(q, arrays, np.float64)["dst"], q.dst_layout)
        got = k.run(pads=pads, src=to_layout(arrays["src"], q.src_layout), wei=packed)["dst"]
        np.testing.assert_array_equal(got.astype(np.float64), truth.astype(np.float64), err_msg=f"{q} {pads}")


@pytest.mark.wide
@pytest.mark.parametrize("sizes", ["mb2ih3iw3ph1pw1", "mb1ih4iw9ph0pw1"])
def test_every_step_computes_the_same(sizes: str) -> None:
    target = small_target(4, 12)
    instructions = {row.name: row.kernel for row in (*target.instructions, *target.transpositions)}
    with interning():
        q = Conv.parse(f"--stag=abx --dtag=abx ic5oc6kh2kw2{sizes}")
        p = general(check_dynamic(q)).canonical()
        config = dynamic_config(p, target, 1)
        config = config.changed(order=("mb", "oh", "ow", "oc"), pack_at=(("src", "ow"),))
        made = plan(p, config, target, requirements(q, ()))
        run_steps(made.program.naive(), made.pipeline, [AtSizes(q, instructions, ("dst",), config)])


def test_kernels_of_fixed_sizes_copy_through_a_table() -> None:
    p = Conv.parse("--stag=abx --dtag=abx mb1ic6ih9oc16oh9kh3ph1")
    target = registry.host_target().name
    k = cs.compile(p, config=f"--target={target} {COPIES.replace('g,', '')}", threads=1)
    arrays = random_arrays(p, 3)
    got = k.run(**{t.name: to_layout(arrays[t.name], t.layout) for t in p.inputs})["dst"]
    truth = to_layout(reference(p, arrays, np.float64)["dst"], p.dst_layout)
    np.testing.assert_array_equal(got.astype(np.float64), truth)


@pytest.mark.parametrize("threads", [1, 2])
def test_many_channels_that_lie_apart_are_copied_for_many_results(threads: int) -> None:
    """Few results would not share a copy, and adjacent channels need none."""
    copied = {}
    for line in ("abx ic512oc512", "abx ic512oc16", "abx ic8oc64", "axb ic512oc512"):
        tag, channels = line.split()
        p = Conv.parse(f"--stag={tag} --dtag={tag} mb1{channels}ih14oh14kh3ph1")
        config = dynamic_config(general(check_dynamic(p)).canonical(), registry.target("avx2"), threads)
        copied[line] = config.staged_at("pack_at")
    assert copied == {
        "abx ic512oc512": (("src", "ow"),), "abx ic512oc16": (), "abx ic8oc64": (), "axb ic512oc512": (),
    }  # fmt: skip


def test_a_call_of_mostly_absent_pixels_reads_in_place() -> None:
    config = Config.parse(f"--target=avx2 {COPIES.replace('g,', '')} --reduce=kh,kw,ic")
    q = replace(Conv.parse("--stag=abx --dtag=abx mb1ic8ih2oc32oh8kh1ph3"), name=None)
    found = config_of_call(q, config, registry.target("avx2"))
    assert found.realise == "mask" and not found.staged_at("pack_at")


def test_a_copy_is_made_at_the_loop_over_a_row() -> None:
    with pytest.raises(ConfigError, match=r"pack_at.*dynamic sizes need"):
        config = f"--target={registry.host_target().name} {COPIES.replace('g,', '').replace('+ow', '+oh')}"
        cs.compile("--stag=abx --dtag=abx mb1ic6ih9oc16oh9kh3ph1", dynamic="mb", config=config, threads=1)
