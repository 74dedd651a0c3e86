"""Channels first, one tap: what a tile of pixels reads of channels that lie far apart is packed in a cache."""

from __future__ import annotations

import pytest
from guarded import Compiled, check_result, expected

import convsmith as cs
from convsmith.compiler.driver import build_artifact
from convsmith.diag.errors import ConfigError
from convsmith.machine.registry import host_targets, target
from convsmith.problem import parse_problem
from convsmith.problem.data import random_arrays
from convsmith.schedule.config import Config
from convsmith.schedule.plan import plan
from convsmith.tune.candidates import default_config

TARGETS = {t.name: t for t in host_targets()}
BEST = next(iter(TARGETS))
FIRST = "--stag=abx --dtag=abx"
FUSED = "--lane=oh_ow --fuse=oh+ow --order=mb,oh_ow,oc --pack_at=src+oh_ow"
CASES = [
    ("mb2ic19ih13oc21oh13kh1ph0", f"{FUSED} --register=oc:2,oh_ow:8"),
    ("--dir=FWD_B --attr-post-ops=relu mb1ic7ih9iw11oc5oh9ow11kh1kw1", f"{FUSED} --register=oc:2,oh_ow:8"),
    ("mb1ic9ih11oc10oh11kh1ph0",
     "--lane=oc --fuse=oh+ow --register=oc:8,oh_ow:5 --order=mb,oh_ow,oc --pack_at=src+oh_ow"),
    ("mb1ic9ih23oc10oh12kh1sh2ph0", "--lane=ow --register=oc:3,ow:8 --order=mb,oh,ow,oc --pack_at=src+ow"),
    ("g2mb1ic6ih23oc10oh12kh1sh2ph0", "--lane=ow --register=oc:3,ow:8 --order=mb,g,oh,ow,oc --pack_at=src+oh"),
    ("--dir=BWD_D mb1ic9ih8oc11oh8kh1ph0", "--lane=iw --register=ic:2,iw:8 --order=mb,ih,iw,ic --pack_at=diff_dst+iw"),
    ("mb1ic5ih6iw19oc6oh4ow17kh3kw3ph0pw0", "--lane=ow --register=oc:2,ow:8 --order=mb,oh,ow,oc --pack_at=src+ow"),
    ("--dt=f64 mb1ic9ih10oc10oh10kh1ph0", f"{FUSED} --register=oc:2,oh_ow:8"),
    ("mb1ic9ih5oc10oh5kh1ph0", "--lane=oc --register=oc:8,ow:3 --order=mb,oc,oh,ow --pack_at=src+ow"),
    (
        "mb2ic9ih11oc32oh9kh3ph0",
        "--lane=oc --register=oc:8,ow:3 --cache=oh:4,oc:16 --pack= --pack_at=src+oh:4,wei+oc:16",
    ),
    (
        "mb2ic9ih11oc32oh9kh3ph0",
        "--lane=oc --register=oc:8,ow:3 --cache=oh:4,oc:16 --pack= --realise=pad_copy --pack_at=wei+oc:16",
    ),
]
LARGE = ["mb1ic512ih32oc64oh32kh1ph0", "mb1ic256ih32oc128oh16kh1sh2ph0"]


def check(line: str, config: Config) -> None:
    problem = parse_problem(line)
    arrays = random_arrays(problem)
    compiled = Compiled(problem, build_artifact(problem, config, TARGETS[config.target]))
    check_result(problem, compiled(arrays), expected(problem, arrays))


@pytest.mark.sampled(6, "line", "name", "threads")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", [n for n in (BEST, "avx2", "generic") if n in TARGETS])
@pytest.mark.parametrize(("line", "words"), CASES)
def test_a_tile_reads_a_copy(line: str, words: str, name: str, threads: int) -> None:
    lanes = TARGETS[name].lanes(64 if "f64" in line else 32)
    config = Config.parse(f"--target={name} --threads={threads} {words}")
    tile = tuple(
        (n, -(-size // lanes) * lanes if n == config.lane else size) for n, size in config.tiles_at("register")
    )
    check(f"{FIRST} {line}", config.changed(register=tile))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("line", LARGE)
def test_channels_that_are_far_apart_are_copied(line: str, threads: int) -> None:
    with cs.settings.scope(micro_architecture="generic"):
        config = default_config(parse_problem(f"{FIRST} {line}"), target(BEST), threads)
    near = {name for name, _ in config.staged_at("pack_at")}
    assert near and not near & set(config.staged("pack"))
    check(f"{FIRST} {line}", config)


@pytest.mark.parametrize(
    ("line", "words", "message"),
    [
        ("mb1ic4ih5oc4oh5kh3ph1", "--pack_at=src+oh", "of which no element is absent, unless .*: none here"),
        ("mb1ic4ih5oc4oh5kh1ph0", "--pack_at=wei+oh", "neither packed nor copied before, .*: src"),
        ("mb1ic4ih5oc4oh5kh1ph0", "--pack_at=src+oc:8", "no loop oc:8 is around the register tile; legal are oc:4, mb"),
        ("mb1ic4ih5oc4oh5kh1",
         "--realise=pad_copy --pack= --pack_at=src+oh", "neither packed nor copied before, .*: wei"),
        ("mb1ic4ih5oc4oh5kh1ph0",
         "--pack_at=src+ic", "no loop ic is around the register tile; legal are oc:4, mb, oh, o"),
    ],
)
def test_what_cannot_be_copied_is_refused(line: str, words: str, message: str) -> None:
    config = Config.parse(f"--target=generic --lane=oc --register=ow:2,oc:4 {words}")
    with pytest.raises(ConfigError, match=message):
        plan(parse_problem(f"{FIRST} {line}"), config, TARGETS["generic"])
