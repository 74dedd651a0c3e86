"""Convolutions of one tap whose source is packed in each call in the terms of an instruction, with pixels as lanes."""

from __future__ import annotations

import pytest

import convsmith as cs
from convsmith.diag.errors import UnsupportedError
from convsmith.ir.intern import interning
from convsmith.machine.registry import known_targets
from convsmith.machine.registry import target as known_target
from convsmith.problem import parse_problem
from convsmith.problem.problem import Problem
from convsmith.schedule.config import Config
from convsmith.tune.candidates import candidates, default_config

BF16, BYTES = "--dt=bf16 --stag=abx --dtag=abx", "--dt=u8:s8:s32 --stag=abx --dtag=abx"
SCALED = (
    "--dt=u8:s8:u8 --stag=abx --dtag=abx --attr-scales=src:common:0.5+wei:per_oc+dst:common:2 "
    "--attr-zero-points=src:common:3+dst:common:5"
)
ON_FRAGMENTS = (
    f"{BF16} mb2ic64ih7oc48oh7kh1ph0",
    f"{BF16} mb3ic80ih3oc131oh3kh1ph0",
    f"{BF16} mb1ic17ih9oc33oh9kh1ph0",
    f"{BF16} --dir=FWD_B --attr-post-ops=sum+relu mb1ic40ih9oc33oh5kh1sh2ph0",
    f"{BF16} mb1ic16iw50oc24ow50kw1pw0",
    f"{BF16} mb1ic64ih45oc32oh23kh1sh2ph0",
    f"{BYTES} mb1ic64ih44iw45oc32oh15ow23kh1kw1sh3sw2ph0pw0",
    f"{BF16} --dir=BWD_D mb2ic24ih9oc70oh9kh1ph0",
    f"{BF16} --deconv mb2ic72ih9oc16oh9kh1ph0",
    "--dt=bf16 --deconv --stag=abx --dtag=axb mb1ic64ih8oc40oh8kh1ph0",
    f"{BF16} g2mb1ic48ih9oc66oh9kh1ph0",
    f"{BF16} mb1ic16id4oc16od4kd1",
    "--dt=bf16:bf16:f32 --stag=abx --dtag=abx mb2ic64ih7oc48oh7kh1ph0",
    f"{BYTES} mb2ic80ih7oc40oh7kh1ph0",
    f"{BYTES} mb2ic23ih9oc130oh9kh1ph0",
    f"{SCALED} mb2ic64ih7oc20oh7kh1ph0",
    f"{SCALED} g2mb2ic22ih7oc40oh7kh1ph0",
    "--dt=s8:s8:s32 --stag=abx --dtag=abx mb2ic24ih7oc20oh7kh1ph0",
    "--dt=u8:u8:s32 --stag=abx --dtag=abx mb2ic24ih7oc20oh7kh1ph0",
)
"""Problems whose source is packed for products on fragments."""


def packed_configs(problem: Problem, target: str, threads: int) -> list[Config]:
    """Return the candidates that pack the source for an instruction with pixels along the lanes, three of them; if the
    target has fragments, candidates on fragments.
    """
    machine = known_target(target)
    with interning():
        every = [c.config for c in candidates(problem.canonical(), machine, threads)]
    channels = ("oc", "ic", "g", "g_oc", "g_ic")
    found = [c for c in every if c.instruction and len(c.staged("pack")) == 2 and c.lane not in channels]
    fragments = [c for c in found if machine.rows[c.instruction].rows > 1]
    return (fragments or found)[:3]


@pytest.mark.sampled(18, "threads")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("line", "target"),
    [
        (f"{BF16} mb2ic24ih7oc20oh7kh1ph0", "avx512_bf16"),
        (f"{BF16} mb2ic17ih7oc20oh7kh1ph0", "avx512_bf16"),
        (f"{BF16} --dir=FWD_B --attr-post-ops=sum+relu mb1ic16ih9oc33oh5kh1sh2ph0", "avx512_bf16"),
        (f"{BF16} mb1ic16iw50oc24ow50kw1pw0", "avx512_bf16"),
        (f"{BF16} --dir=BWD_D mb2ic24ih9oc16oh9kh1ph0", "avx512_bf16"),
        (f"{BF16} --deconv mb2ic24ih9oc16oh9kh1ph0", "avx512_bf16"),
        (f"{BF16} g2mb1ic24ih9oc48oh9kh1ph0", "avx512_bf16"),
        (f"{BF16} mb1ic16id4oc16od4kd1", "avx512_bf16"),
        (f"{BF16} mb2ic24ih7oc20oh7kh1ph0", "aarch64+bf16"),
        (f"{BYTES} mb2ic24ih7oc20oh7kh1ph0", "avx512_vnni"),
        (f"{BYTES} mb2ic23ih7oc20oh7kh1ph0", "avx512_vnni"),
        (f"{BYTES} mb2ic24ih7oc20oh7kh1ph0", "avx2"),
        (f"{BYTES} mb2ic24ih7oc20oh7kh1ph0", "aarch64+dotprod"),
        (f"{SCALED} mb2ic24ih7oc20oh7kh1ph0", "avx512_vnni"),
        (f"{SCALED} g2mb2ic22ih7oc20oh7kh1ph0", "avx512_vnni"),
        ("--dt=s8:s8:s32 --stag=abx --dtag=abx mb2ic24ih7oc20oh7kh1ph0", "avx512_vnni"),
        *((line, "avx512_amx") for line in ON_FRAGMENTS),
    ],
)  # fmt: skip
def test_results_are_exact(line: str, target: str, threads: int) -> None:
    problem = parse_problem(line)
    configs = packed_configs(problem, target, threads)
    assert configs
    for config in configs:
        try:
            verdict = cs.compile(line, target=target, config=str(config)).verify()
        except UnsupportedError as error:
            pytest.skip(str(error))
        assert verdict.ok, f"{config}: {verdict.detail}"


@pytest.mark.sampled(4)
@pytest.mark.parametrize("line", [
    f"{BF16} mb2ic64ih7oc48oh7kh1ph0",
    f"{BF16} mb1ic17ih9oc33oh9kh1ph0",
    f"{BF16} --dir=FWD_B --attr-post-ops=sum+relu mb1ic40ih9oc33oh5kh1sh2ph0",
    f"{BF16} --dir=BWD_D mb2ic24ih9oc70oh9kh1ph0",
    f"{BF16} --deconv mb2ic72ih9oc16oh9kh1ph0",
    f"{BF16} g2mb1ic48ih9oc66oh9kh1ph0",
    f"{BYTES} mb2ic23ih9oc130oh9kh1ph0",
])  # fmt: skip
def test_fragments_pack_their_pixels_at_a_loop(line: str) -> None:
    problem = parse_problem(line).canonical()
    with interning():
        every = [c.config for c in candidates(problem, known_target("avx512_amx"), 1)]
    configs = [c for c in every if c.staged_at("pack_at") and c.instruction.startswith("tdp")][:2]
    assert configs
    for config in configs:
        try:
            verdict = cs.compile(line, target="avx512_amx", config=str(config)).verify()
        except UnsupportedError as error:
            pytest.skip(str(error))
        assert verdict.ok, f"{config}: {verdict.detail}"


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("line", "words"), [
    (f"{BF16} mb2ic17ih7oc20oh7kh1ph0", "--lane=oh_ow --fuse=oh+ow --register=oc:5,oh_ow:16 --pack_at=src+oh_ow"),
    (f"{BF16} mb2ic17ih7oc20oh7kh1ph0", "--lane=ow --register=oc:3,ow:16 --order=mb,oh,ow,oc --pack_at=src+oh"),
    (f"{BF16} mb1ic16ih9oc33oh5kh1sh2ph0", "--lane=ow --register=oc:7,ow:16 --pack_at=src+ow"),
    (f"{BF16} g2mb1ic22ih9oc48oh9kh1ph0", "--lane=oh_ow --fuse=oh+ow --register=oc:7,oh_ow:32 --pack_at=src+oh_ow"),
    (
        f"{BF16} mb2ic7ih9oc20oh9kh1ph0",
        "--lane=oh_ow --fuse=oh+ow --register=oc:7,oh_ow:16 --cache=oh_ow:32 --pack_at=src+oh_ow:32",
    ),
    (f"{BYTES} mb2ic23ih7oc20oh7kh1ph0", "--lane=oh_ow --fuse=oh+ow --register=oc:5,oh_ow:16 --pack_at=src+oh_ow"),
    (f"{SCALED} g2mb2ic22ih7oc20oh7kh1ph0", "--lane=ow --offsets=sums --register=oc:5,ow:16 --pack_at=src+ow"),
])  # fmt: skip
def test_vectors_pack_their_pixels_at_a_loop(line: str, words: str, threads: int) -> None:
    level, step = ("avx512_bf16", 2) if line.startswith(BF16) else ("avx512_vnni", 4)
    config = f"--target={level} --threads={threads} --k_step=ic:{step} {words}"
    try:
        verdict = cs.compile(line, target=level, config=config).verify()
    except UnsupportedError as error:
        pytest.skip(str(error))
    assert verdict.ok, verdict.detail


@pytest.mark.parametrize("line", [f"{BF16} --dir=BWD_D mb8ic64ih32oc256oh32kh1ph0", f"{SCALED} mb1ic192ih65oc32kh1ph0"])
def test_pairs_of_channels_are_packed_beside_the_tiles_of_pixels_that_read_them(line: str) -> None:
    level = "avx512_bf16" if line.startswith(BF16) else "avx512_vnni"
    (machine,) = (t for t in known_targets("znver5") if t.name == level)
    with interning():
        config = default_config(parse_problem(line).canonical(), machine)
    assert config.instruction and config.lane in ("oh_ow", "ih_iw")
    assert config.staged_at("pack_at") and config.staged("pack") == ("wei",)


@pytest.mark.parametrize(("line", "is_near"), [
    (f"{BF16} --dir=BWD_D mb1ic64ih44oc384oh44kh1ph0", True),
    (f"{BF16} --deconv mb32ic64ih128oc16oh128kh1ph0", True),
    (f"{BF16} mb1ic512ih7oc2048oh7kh1ph0", False),
])  # fmt: skip
def test_pixels_are_packed_at_a_loop_for_weights_that_a_cache_holds(line: str, is_near: bool) -> None:
    with interning():
        config = default_config(parse_problem(line).canonical(), known_target("avx512_amx"))
    assert config.lane.endswith(("oh_ow", "ih_iw")) and bool(config.staged_at("pack_at")) == is_near


@pytest.mark.parametrize(
    ("line", "level"),
    [
        (f"{BF16} mb1ic256ih28oc128oh28kh1ph0", "avx512_bf16"),
        (f"{BF16} --deconv mb4ic32ih80iw128oc24oh80ow128kh1kw1ph0pw0", "avx512_bf16"),
        (f"{SCALED} mb1ic336ih56oc192oh56kh1ph0", "avx512_vnni"),
    ],
)
def test_they_are_chosen(line: str, level: str) -> None:
    (machine,) = (t for t in known_targets("znver4") if t.name == level)
    with interning():
        config = default_config(parse_problem(line), machine)
    assert config.lane.endswith(("oh_ow", "ow")) and config.instruction and len(config.packed) == 2


def test_channels_last_and_taps_are_read_as_they_lie() -> None:
    for line in ("--dt=bf16 --stag=axb --dtag=axb mb1ic64ih28oc64kh1", f"{BF16} mb1ic64ih28oc64kh3ph1"):
        assert not packed_configs(parse_problem(line), "avx512_bf16", 1)
