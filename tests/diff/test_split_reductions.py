"""Gradients of weights whose reduction is split: right, the same bits every time, and chosen where weights are few."""

from __future__ import annotations

import numpy as np
import pytest

import convsmith as cs
from convsmith.frontend.verification import verify_kernel
from convsmith.target.registry import host_targets

ISAS = [t.isa for t in host_targets()]
SPLIT = [
    ("--dir=BWD_W --stag=axb --dtag=axb mb2ic16ih8oc16kh3ph1", "--lane=oc --tile=ic:2,oc:16 --split=mb:2 --pack="),
    ("--dir=BWD_WB mb1ic5ih14oc7kh3ph1", "--lane=oc --tile=ic:2,oc:16 --split=oh:7"),
    ("--dir=BWD_W --dt=bf16 g4mb4ic16ih9oc20kh3ph1sh2", "--lane=oc --tile=ic:2,oc:16 --split=mb:4"),
    ("--dir=BWD_W --wtag=axb mb4ic16iw9oc20kw3pw1dw1", "--lane=ic --tile=oc:2,ic:16 --split=mb:2 --pack=diff_dst"),
    ("--deconv --dir=BWD_W mb2ic5ih9oc7kh3ph1sh2", "--lane=ic --tile=oc:2,ic:16 --reduce=mb,ih,iw --split=ih:3"),
    ("--dir=BWD_W mb1ic3iw40oc2ow40kw3pw1", "--lane=ow --tile=ic:3,oc:2 --split=ow:2 --pack="),
    ("--dir=BWD_W --dt=f64 mb3ic4iw7oc4kw2", "--lane=oc --split=mb:3"),
]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("line", "words"), SPLIT)
def test_splits_are_exact(line: str, words: str, threads: int, isa: str) -> None:
    kernel = cs.compile(line, config=f"--isa={isa} {words} --threads={threads}")
    verdict = verify_kernel(kernel)
    assert verdict.ok, verdict.detail


def test_few_weights_are_summed_in_parts_by_several_threads() -> None:
    line = "--dir=BWD_W --stag=axb --dtag=axb mb4ic8ih14oc8kh1"
    assert cs.compile(line, threads=4).config.split == (("mb", 4),)
    assert not cs.compile(line, threads=1).config.split
    assert not cs.compile("--dir=BWD_W --stag=axb --dtag=axb mb1ic64ih14oc64kh3ph1", threads=2).config.split
    verdict = verify_kernel(cs.compile(line, threads=4))
    assert verdict.ok, verdict.detail


@pytest.mark.parametrize("threads", [2, 3, 4])
def test_the_same_bits_for_the_same_number_of_threads(threads: int) -> None:
    rng = np.random.default_rng(threads)
    src, diff = (rng.standard_normal((4, c, 15, 13), np.float32) for c in (6, 8))
    runs = []
    for _ in range(3):
        kernel = cs.compile("--dir=BWD_W mb4ic6ih15iw13oc8kh1kw1", threads=threads)
        assert kernel.config.split
        runs.append(kernel.run(src=src, diff_dst=diff)["diff_wei"].tobytes())
    assert len(set(runs)) == 1


@pytest.mark.parametrize(
    ("line", "words", "text"),
    [
        ("--dir=BWD_W mb3ic4iw7oc4kw2", "--lane=oc --split=mb:2", "a divisor of it: mb (3), ow (6)"),
        ("--dir=BWD_W mb3ic4iw7oc4kw2", "--lane=oc --split=kw:2", "legal is a reduction loop"),
        ("--dir=BWD_W --wtag=Abc16a mb2ic4iw7oc16kw2", "--lane=oc --split=mb:2", "in a plain layout"),
        ("--dir=BWD_W g2mb2ic4id2oc4kd2", "--lane=oc --split=mb:2", "fewer than 6 dims"),
        ("mb2ic4iw7oc4kw2", "--lane=oc --split=ic:2", "only gradients of weights"),
        ("--dir=BWD_W mb3ic4iw7oc4kw2", "--lane=oc --split=mb:0", "in at least one part"),
    ],
)
def test_what_cannot_be_split(line: str, words: str, text: str) -> None:
    with pytest.raises(cs.ConfigError, match="--split=") as caught:
        cs.compile(line, config=f"--isa=generic {words}")
    assert caught.value.code == "split" and text in str(caught.value)
