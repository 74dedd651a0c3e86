"""Problems and configs that went wrong once, on every level."""

from __future__ import annotations

import pytest
from guarded import Compiled, check_result, expected
from problems import exact

from convsmith.compiler.driver import build_artifact
from convsmith.machine.registry import host_targets
from convsmith.problem import parse_problem
from convsmith.problem.data import random_arrays
from convsmith.schedule.config import Config
from convsmith.tune.candidates import default_config

TARGETS = {t.name: t for t in host_targets()}

FOUND = {
    "scratch-of-doubles": ("--dt=f64 mb1ic16iw8oc16ow8kw3pw1", "--lane=oc --realise=pad_copy --threads=2"),
    "bytes-along-lanes": ("--dt=u8:s8:s32 --stag=axb mb1ic16iw1oc1ow1kw1", "--lane=ic --pack= --outline=no"),
    "part-of-a-vector-of-bf16": ("--dir=FWD_B --bia-dt=bf16 mb1ic4iw13oc5ow13kw1", "--lane=oc"),
    "part-of-a-vector-of-f16": ("--dt=f16 --stag=axb --dtag=axb mb1ic5iw3oc5ow3kw1", "--lane=oc --pack="),
    "products-of-nothing": ("--dt=u8:s8:s32 mb1ic6iw3oc20ow2kw1sw9pw4", ""),
    "fragments-where-taps-meet-nothing": ("--dir=BWD_D --dt=bf16:s8:s8 mb1ic4ih1oc128oh2kh2sh4ph14dh9", ""),
    "fragments-of-nothing": (
        "--dir=BWD_D --dt=f16:u8:u8 mb1ic40ih56iw2oc16oh35ow2kh5kw11sh3sw3ph44pw64dh9dw5", "",
    ),
    "fragments-where-pairs-meet-nothing": ("--dir=BWD_D --dt=f32:bf16:bf16 mb2ic16iw1oc1024ow2kw2sw4pw14dw9", ""),
    "doubles-of-nothing": ("--dt=f64 g2mb1ic4iw1oc32ow2kw1sw3pw2", ""),
    "terms-of-nothing": (
        "--dir=BWD_D --dt=f32:bf16:bf16 --stag=aBc4b --dtag=a:1:3136_b:13:241_c:16:15_b:4:3_a:2:1 "
        "g4mb1ic96iw17oc52ow16kw3pw1",
        "",
    ),
    "zero-points-at-the-end-of-channels": (
        "--dt=s8:s8:f32 --attr-zero-points=src:common:3+wei:common:2 mb1ic3iw5oc20ow5kw3pw1", "",
    ),
    "lanes-of-padding-not-packed": (
        "--deconv --dt=u8:s8:s8 --stag=aBc8b --wtag=ABc4b4a mb1ic31iw32oc5ow31kw1pw1",
        "--lane=oc --k_step=ic:4 --pack=",
    ),
    "one-term": ("--matmul --dt=u8:s8:s32 7x1:1x20", ""),
    "batch-of-products-of-one-number": ("--matmul 1x17x1x1:1x17x1x1", ""),
    "scale-of-one-group": ("--dir=BWD_D --dt=s32:s8:u8 --attr-scales=wei:common:0.5 mb1ic5iw4oc7ow4kw3pw1", ""),
    "classes-in-threads": ("--dir=BWD_D mb1ic4iw7oc2ow3kw3sw3", "--lane=ic --order=iw,ic --pieces=1 --threads=2"),
    "weights-held-and-a-long-epilogue": (
        "--stag=axb --dtag=axb --attr-post-ops=square+linear:2:1 g32mb2ic32iw9oc32ow9kw3pw1",
        "--lane=g --register=ow:3,kw:3 --order=mb,g,oc,ow --resident=wei --spill_sums=yes --threads=2",
    ),
    "weights-held-in-a-layout-of-their-own": (
        "--wtag=bcda --stag=axb --dtag=axb g16mb1ic16iw7oc16ow7kw3pw1",
        "--lane=g --register=ow:3,kw:3 --order=mb,g,oc,ow --resident=wei --pack=",
    ),
    "fragments-of-rows-in-blocks": (
        "--dir=FWD_B --dt=bf16 --stag=aBCd4b2c --dtag=axb mb1ic64ih15oc8oh17kh1ph1", "",
    ),
    "phases-of-a-long-sum": ("--deconv --stag=axb mb1ic32ih1iw1oc5oh1ow2kh7kw1024sh10sw1ph0pw0", ""),
    "weights-held-beside-a-copy-in-threads": (
        "--stag=axb --dtag=axb g2mb3ic2ih5iw1oc4oh5ow7kh3kw1ph4pw3dh1",
        "--lane=g --register=oc:3,kh:3 --order=g,oc,mb,oh,ow --reduce=kw,ic,kh --realise=pad_copy --resident=wei "
        "--threads=2",
    ),
    "few-columns-of-a-group": ("--dt=bf16:bf16:f32 --stag=axb --dtag=axb g2mb1ic32iw16oc16ow16kw1", ""),
    "few-columns-of-a-group-of-bytes": ("--dt=u8:s8:s32 --stag=axb g2mb1ic32iw64oc16ow64kw1", ""),
    "taps-farther-apart-than-the-stride": ("--deconv --dt=s8:s8:s32 mb1ic4iw3oc4kw3sw2dw2", ""),
    "taps-and-stride-with-a-common-factor": ("--deconv --dt=s8:u8:f32 mb1ic4iw3oc20ow22kw4sw4dw5pw1", ""),
    "weights-of-classes-cut-short": (
        "--dir=BWD_D --dt=u8:s8:u8 mb1ic16ih20iw5oc31oh6ow3kh7kw3sh3sw2ph1pw1", "",
    ),
    "weights-of-many-classes": (
        "--deconv --stag=axb --dtag=axb g32mb1ic32id1ih6iw6oc32od7oh6ow6kd7kh1kw3sd20pd0ph0pw1", "",
    ),
    "pixels-before-the-first-class": ("--deconv --dt=s8:s8:s32 mb1ic4iw1oc20ow2kw3sw4dw1pw2", ""),
}  # fmt: skip
"""A problem, and a config without its level, or nothing for the default."""


@pytest.mark.sampled(23, "isa")
@pytest.mark.parametrize("isa", list(TARGETS))
@pytest.mark.parametrize("name", FOUND)
def test_found(name: str, isa: str) -> None:
    line, words = FOUND[name]
    problem, target = parse_problem(line), TARGETS[isa]
    config = Config.parse(f"--target={isa} {words}") if words else default_config(exact(problem), target)
    arrays = random_arrays(problem)
    check_result(problem, Compiled(problem, build_artifact(problem, config, target))(arrays), expected(problem, arrays))
