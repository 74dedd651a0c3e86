"""Configs and names of micro-kernels: what they print they read, and what contradicts itself is refused."""

from __future__ import annotations

import re
from typing import get_args

import pytest

from convsmith.compiler.micro_kernel import micro_kernel_artifact
from convsmith.diag.errors import ConfigError
from convsmith.machine.registry import target
from convsmith.problem.micro_kernel import MicroKernel
from convsmith.schedule.config import Config, Level, Scope, ScopeAtLoop
from convsmith.schedule.config_rows import CONFIG_ROWS, DEFAULTS
from convsmith.schedule.former_words import FORMER_WORDS
from convsmith.schedule.micro_kernel import micro_kernel_plan

HEAD = "--target=avx2 --lane=oc"
WORDS = [
    "", "--fuse=oh+ow,mb+oh_ow", "--register=oc:32,ow:14", "--order=mb,oc,oh", "--reduce=kh,ic", "--k_step=ic:4",
    "--register=oc:8 --cache=oc:64,ic:128",
    "--split=mb:3", "--pack=", "--pack=src,wei", "--resident=wei", "--spill_sums=yes",
    "--register=kw:5 --first_last_tile=kw:6,kw:7", "--register=oc:32 --remainder=oc:8",
    "--register=oc:2 --group=oc:32,ic:8", "--shared=src,wei", "--shared=wei --pad=wei:1",
    "--split=mb:3,oh:2 --join=atomic",
    "--shared=src,wei --swizzle=src:4,wei:1", "--shared=wei --buffers=3 --copies=async", "--barriers=split",
    "--load_ahead=yes --shared=wei", "--shared=wei --buffers=2 --rounds=yes",
    "--carry=yes", "--realise=pad_copy --restrict=kd,kh", "--pack_at=src+oh,wei+oc:64",
    "--offsets=sums --flip=src,wei", "--pieces=1", "--outline=no", "--threads=7", "--k_step=ic:4 --cache=ic:8",
    *(f"--{name}={word}" for name in ("realise", "table", "offsets") for word in CONFIG_ROWS[name].legal),
]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "kind"), [(Level, "level"), (Scope, "scope"), (ScopeAtLoop, "scope at a loop")]
)
def test_types_of_words_are_those_of_the_rows(words: object, kind: str) -> None:
    assert {*get_args(words)} == {row.name for row in CONFIG_ROWS.values() if row.kind == kind}


@pytest.mark.parametrize("words", WORDS)
def test_what_is_printed_is_read(words: str) -> None:
    config = Config.parse(f"{HEAD} {words}")
    assert Config.parse(str(config)) == config
    for word in words.split():
        known = word in (f"--{name}={DEFAULTS[name]}" for name in ("realise", "table", "offsets"))
        assert known or word in str(config).split()


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        ("--realise=guess", "realise", "--realise=guess is unknown; legal are mask, peel"),
        ("--table=diagonal", "table", "--table=diagonal is unknown; legal are row"),
        ("--offsets=none", "offsets", "--offsets=none is unknown; legal are each, sums"),
        ("--flip=src", "offsets", "--flip=src needs --offsets=sums"),
        ("--register=oc:8,ow:0", "tile-size", "--register=ow:0: a tile has at least one iteration"),
        ("--cache=oc:0", "cache", "--cache=oc:0: a cache tile is a multiple"),
        ("--register=oc:8 --cache=oc:12", "cache", "--cache=oc:12: a cache tile is a multiple of the register tile"),
        ("--k_step=ic:4 --cache=ic:6", "cache", "--cache=ic:6: a cache tile is a multiple of the register tile"),
        ("--k_step=ic:0", "k_step", "--k_step=ic:0: expected one loop that has no tile, and at least 1"),
        ("--k_step=oc:4", "k_step", "--k_step=oc:4: expected one loop"),
        ("--register=ic:4 --k_step=ic:4", "k_step", "--k_step=ic:4: expected one loop"),
        ("--k_step=ic:4,kw:2", "k_step", "--k_step=ic:4,kw:2: expected one loop"),
        ("--pack_at=src+oh,wei+oc:x", "pack_at",
         "--pack_at=src+oh,wei+oc:x: legal behind the colon are the iterations"),
        ("--buffers=0", "buffers", "--buffers=0: expected 1 to 8"),
        ("--copies=soon", "copies", "--copies=soon is unknown; legal are wait, async"),
        ("--barriers=half", "barriers", "--barriers=half is unknown; legal are whole, split"),
        ("--join=late", "join", "--join=late is unknown; legal are ordered, atomic"),
        ("--split=mb:0", "split", "--split=mb:0: expected different loops, each in at least one part"),
        ("--split=mb:2,mb:2", "split", "--split=mb:2,mb:2: expected different loops"),
        ("--first_last_tile=kw:6", "first_last_tile",
         "--first_last_tile=kw:6: expected one loop twice, with at least 1 iteration each"),
        ("--first_last_tile=kw:6,kh:7", "first_last_tile", "--first_last_tile=kw:6,kh:7: expected one loop twice"),
        ("--k_step=ic:4 --first_last_tile=ic:3,ic:5", "first_last_tile",
         "--first_last_tile=ic:3,ic:5: ic has lanes or terms of one size"),
        ("--first_last_tile=oc:3,oc:5", "first_last_tile",
         "--first_last_tile=oc:3,oc:5: oc has lanes or terms of one size"),
        ("--first_last_tile=kw:6,kw:0", "first_last_tile", "--first_last_tile=kw:6,kw:0: expected one loop twice"),
        ("--register=ow:4 --remainder=ow:5", "remainder", "--remainder=ow:5: expected 1 to 4, the register tile"),
        ("--group=oc:0", "group", "--group=oc:0: the tile of a group is a multiple of that of a thread"),
        ("--register=oc:4 --group=oc:6", "group", "a multiple of that of a thread, --register=oc:4"),
        ("--threads=0", "threads", "--threads=0: expected 1 to 1024"),
        ("--pieces=0", "pieces", "--pieces=0: a loop has at least one piece"),
        ("--pieces=many", "syntax", "'--pieces=many' does not read as pieces; for example --pieces=8"),
        ("--outline=maybe", "syntax", "'--outline=maybe' does not read as outline"),
        ("--fuse=oh", "syntax", "'--fuse=oh' does not read as fuse; for example --fuse=oh+ow"),
        ("register=oc:8", "syntax", "'register=oc:8' is not one of --target=, --lane="),
        ("--tiles=oc:8", "syntax", "'--tiles=oc:8' is not one of"),
        *((f"--{former}=oc:8", "syntax", f"did you mean '{present}'?") for former, present in FORMER_WORDS.items()),
    ],
)
def test_what_is_refused(words: str, code: str, text: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(text)) as error:
        Config.parse(f"{HEAD} {words}")
    assert error.value.code == code


@pytest.mark.parametrize("word", ["target", "lane"])
def test_what_every_config_says(word: str) -> None:
    other = "lane" if word == "target" else "target"
    with pytest.raises(ConfigError, match=f"--{word}= is missing"):
        Config.parse(f"--{other}=x")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("f32_dwconv_up16x9", "--register=c:16,k:9"),
        ("qs8_dwconv_fp32_up16x9", "--register=c:16,k:9"),
        ("f32_dwconv_6f5m7l16c8s4r",
         "--register=c:16,k:5 --cache=x:1,k:5 --first_last_tile=k:6,k:7 --remainder=c:8"),
    ],
)  # fmt: skip
def test_names_of_micro_kernels_are_configs(name: str, words: str) -> None:
    m = MicroKernel.parse(name)
    assert m.name == name
    made = micro_kernel_plan(m, target("avx2"))
    head = "--target=avx2 --lane=c --order=x,c --realise=indirection --pack=kernel --outline=no"
    assert made.config == Config.parse(f"{head} {words}") == Config.parse(str(made.config))
    assert micro_kernel_artifact(m, target("avx2")).config == str(made.config)
    loops = {loop.name: (loop.of, loop.role, loop.tile) for loop in made.main.nest.loops}
    assert loops["c.o"] == ("c", "batch", 16) and loops["x"] == ("x", "m", 1)


def test_passes_of_micro_kernels() -> None:
    """Each tap has a pointer, and no pass in the middle is empty."""
    kernel = MicroKernel.parse("f32_dwconv_3f4m5l16c8s4r")
    for taps in range(1, 40):
        middle = kernel.passes(taps)
        assert middle >= 0 and kernel.pointers(taps) == 3 + 4 * middle + 5 >= taps
        assert middle == 0 or 3 + 4 * (middle - 1) + 5 < taps
    one = MicroKernel.parse("f32_dwconv_up8x9")
    assert [one.pointers(taps) for taps in (1, 9)] == [9, 9] and one.passes(9) == 0
    for wrong in (0, 10):
        with pytest.raises(ConfigError):
            one.pointers(wrong)
