"""TVM's pairs of convolutions over blocked layouts: the cases of its test, whole or of fewer and smaller blocks."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from convsmith.problem import parse_problem
from convsmith.problem.chain import Chain
from convsmith.schedule.custom import KernelSchedule
from convsmith.schedule.library.blocked_chain import blocked_chain, blocked_nest
from convsmith.schedule.library.finish import finish

DATA = Path(__file__).parent / "data"


class Sizes(NamedTuple):
    """Rows, columns and channels of the source, and the sizes of blocks of rows, columns and channels."""

    ih: int
    iw: int
    channels: int
    blocks: tuple[int, int, int]


SMALL = Sizes(20, 6, 8, (5, 3, 2))
"""Four blocks of rows, of which the last one of a 3x3 convolution is short, as are two of eight in TVM's sizes."""
TILED = Sizes(20, 6, 32, (5, 3, 8))
"""Blocks of a vector of channels, four of them, so that two make a tile."""


BYTES = ("--dt=s8:s8:s8", "--dt=s8:s8:s8")
"""Options of stages whose results saturate at those of bytes."""


def cases() -> list[dict[str, Any]]:
    """The cases of TVM's test."""
    found: list[dict[str, Any]] = json.loads((DATA / "tvm_conv2d_conv2d.json").read_text())["cases"]
    return found


def name(case: dict[str, Any]) -> str:
    """Kernel sizes and splits."""
    return "{kernel_size1}-{kernel_size2}-{k_split_factor}-{h_split_factor}".format(**case)


def line(case: dict[str, Any], sizes: Sizes | None = None, options: tuple[str, str] = ("", "")) -> str:
    """The pair as a chain, each stage with its ``options``; with ``sizes``, of these instead of TVM's."""
    ih = iw = case["in_size"]
    channels = case["in_channel"], case["out_channel1"], case["out_channel2"]
    tags = first = ""
    if sizes is not None:
        ih, iw, channels = sizes.ih, sizes.iw, (sizes.channels,) * 3
        rows, columns, block = sizes.blocks
        terms = min(block, 4)
        tags = f"--wtag=OIHW{block // terms}i{block}o{terms}i --dtag=NHWC{rows}h{columns}w{block}c "
        first = "--stag=axb "
    stages = []
    for n in (1, 2):
        k = case[f"kernel_size{n}"]
        oh, ow = ih - k + 1, iw - k + 1
        dims = f"mb1ic{channels[n - 1]}ih{ih}iw{iw}oc{channels[n]}oh{oh}ow{ow}kh{k}kw{k}ph0pw0"
        stages.append(f"{options[n - 1]} {first}{tags}{dims}".lstrip())
        ih, iw, first = oh, ow, ""
    return " -> ".join(stages)


def chain(case: dict[str, Any], sizes: Sizes | None = None, options: tuple[str, str] = ("", "")) -> Chain:
    """The pair as a problem."""
    made = parse_problem(line(case, sizes, options))
    assert isinstance(made, Chain)
    return made


def schedule(case: dict[str, Any], ring: bool = False) -> Callable[[KernelSchedule], None]:
    """The schedule of the library with the splits of a case."""
    return partial(blocked_chain, k_split=case["k_split_factor"], h_split=case["h_split_factor"], ring=ring)


def printed(case: dict[str, Any]) -> Callable[[KernelSchedule], None]:
    """The nest of TVM's document, whose sums are in caches, with the splits of a case, as code."""

    def made(s: KernelSchedule) -> None:
        nests = blocked_nest(s, case["k_split_factor"], case["h_split_factor"])
        for nest in nests:
            s.reorder(nest.terms[1], nest.inner[2])
        finish(s, [nest.inner[2] for nest in nests])

    return made


def config(case: dict[str, Any], target: str, blocks: tuple[int, int, int] = (8, 8, 32), words: str = "") -> str:
    """The config of a case for blocks of rows, columns and channels: its splits are cache tiles of both stages.

    Windows of the source are copied as they lie in memory, single pixels in the order in which they are read.
    """
    rows, columns, channels = blocks
    oc, oh = f"oc:{channels * case['k_split_factor']}", f"oh:{rows * case['h_split_factor']}"
    shared = f"--target={target} --lane=oc --register=ow:{min(columns, 4)},oc:{channels} --order=mb,oc,oh,ow {words}"
    source, tiles = f"--pack= --pack_at=src+{oh},wei+{oc}", f"{oh},{oc}"
    if case["kernel_size1"] > 1 or case["kernel_size2"] > 1:
        tiles = f"{oc},{oh}"
    if case["kernel_size1"] > 1:
        source = "--pack= --realise=pad_copy --pack_at=wei+" + oc
    first = f"{shared} --cache={tiles} {source} --compute_at={oh} --halo=recompute"
    return f"{first} / {shared} --cache={oc},{oh} --pack= --pack_at=wei+{oh}"
