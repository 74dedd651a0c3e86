"""Kernels of every kind on the GPU of CUDA that this machine has: exact on integers, as in the interpreter of PTX.

A process of its own runs the kernels of a level, and another one those that follow a fault of the GPU.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from math import prod
from pathlib import Path

import pytest
from devices import SPLIT
from schedule.test_diagonal import KINDS as DIAGONAL
from schedule.test_zero_terms import KINDS as ZEROS

from convsmith.compiler.driver import emit, lower
from convsmith.diag.collection import no_collection
from convsmith.diag.errors import ConvsmithError
from convsmith.ir.intern import one_table
from convsmith.machine.nvidia.host import capability
from convsmith.machine.registry import target
from convsmith.problem import parse_problem
from convsmith.runtime.cuda import check_device
from convsmith.schedule.config import Config
from convsmith.schedule.config_rows import CONFIG_ROWS
from convsmith.schedule.planned import plan_for
from convsmith.tune.search.process import WorkerProcess
from ptx.hopper_configs import KINDS, LAST, forward, stored
from ptx.tensor_kinds import AMPERE, SMALL, VOLTA
from ptx.test_convolutions import EVERY, LAYERS
from ptx.test_other_realisations import CASES
from ptx.test_quads import KINDS as QUADS

WORKER = Path(__file__).parents[2] / "benchmarks" / "gpu_worker.py"
SECONDS = 40.0
"""Seconds after which a kernel hangs."""
_GROUPS = "--stag=axb --dtag=axb"
DEFAULTS = (
    *LAYERS, *(line for line, _ in CASES.values()),
    f"{LAST} --dt=bf16 mb2ic64ih20oc96oh20kh3ph1", f"{LAST} --dt=bf16 mb3ic256ih14oc64oh14kh1",
    f"{LAST} --dt=f16 mb2ic128ih14oc256oh7kh3ph1sh2", f"{LAST} --dt=bf16 mb2ic3ih32oc64oh16kh7sh2ph3",
    f"--dir=BWD_D {LAST} --dt=bf16 mb2ic64ih14oc64oh7kh3ph1sh2",
    f"--dir=BWD_W {LAST} --dt=bf16 mb4ic64ih14oc64oh14kh3ph1",
    f"--dir=BWD_W {LAST} --accuracy=any mb4ic64ih56oc64oh56kh3ph1",
    f"{_GROUPS} --dt=bf16 g32mb2ic128ih14oc128oh14kh3ph1", f"{_GROUPS} --dt=bf16 g96mb2ic96ih14oc96oh14kh7ph3",
    f"{LAST} --dt=s8:s8:s32 mb2ic64ih14oc128oh14kh3ph1", "--matmul --dt=bf16 200x512:512x300",
    f"{LAST} --dt=bf16 mb1ic64id4ih9iw9oc64od4oh9ow9kd3kh3kw3pd1ph1pw1",
    f"{LAST} mb2ic64ih14oc64oh14kh3ph1", "mb2ic64ih14oc64oh14kh3ph1",
)  # fmt: skip
"""Problems with the default config of sm_90a."""
_WIDE = forward(128, 128, slots=6, row="wgmma_m64n128k16_bf16")
_NARROW = forward(128, 64, slots=4, row="wgmma_m64n64k16_bf16")
_WIDEST = forward(128, 256, slots=3, row="wgmma_m64n256k16_bf16")
_THIRDS = forward(192, 256, slots=4, row="wgmma_m64n128k16_bf16")
_ROUNDS = f"{LAST} --dt=bf16 mb620ic64ih8oc{{}}oh8kh1"
_TAPS = f"{LAST} --dt=bf16 mb620ic64ih8iw8oc64oh8ow8kh1kw3ph0pw1"
ROUNDS = {
    "teams": (_ROUNDS.format(128), f"{_WIDE} --teams=2"),
    "teams and an epilogue": (f"--dir=FWD_B --attr-post-ops=sum+relu {_ROUNDS.format(120)}", f"{_WIDE} --teams=2"),
    "teams and blocks of tiles": (
        _ROUNDS.format(256), f"{_WIDE} --teams=2 --l2=mb_oh_ow:2048 --order=oc,mb_oh_ow"),
    "teams and stored tiles": (
        _ROUNDS.format(128), stored(forward(128, 128, slots=5, row="wgmma_m64n128k16_bf16")) + " --teams=2"),
    "teams and stored tiles in parts": (
        _ROUNDS.format(256), f"{stored(_WIDE)} --teams=2 --store_parts=2"),
    "resident weights": (_TAPS, f"{_NARROW} --resident=wei"),
    "resident weights and stored tiles": (_TAPS, f"{_NARROW} --resident=wei".replace("src,wei", "src,wei,dst")),
    "resident weights of clusters": (_TAPS, f"{_NARROW} --resident=wei --cluster=mb_oh_ow:2"),
    "stored tiles": (_ROUNDS.format(256), _WIDEST.replace("src,wei", "src,wei,dst")),
    "stored tiles in parts": (
        _ROUNDS.format(256), f"{_WIDEST} --store_parts=2".replace("src,wei", "src,wei,dst")),
    "registers of other threads": (_ROUNDS.format(256), _THIRDS),
    "groups side by side whose weights stay": (
        "--stag=axb --dtag=axb --dt=bf16 g8mb620ic64ih8iw8oc64oh8ow8kh1kw3ph0pw1",
        f"{_NARROW} --pack=wei --diagonal=g:8 --resident=wei --order=mb_oh_ow,g,oc",
    ),
    "phases": (
        f"--dir=BWD_D {LAST} --dt=bf16 mb310ic64ih16oc64oh8kh3ph1sh2",
        "--lane=ic --fuse=mb+ih,mb_ih+iw --phases=ih,iw --reduce=kh,kw,oc --register=mb_ih_iw:64,ic:64 --buffers=4 "
        "--group=mb_ih_iw:128,ic:64,oc:64 --shared=diff_dst,wei --instruction=wgmma_m64n64k16_bf16_k_mn",
    ),
}  # fmt: skip
"""Problems of sm_90a with configs under which a group computes several tiles on a GPU of 132 units."""
OF_CPUS = {
    "k_step", "cache", "first_last_tile", "remainder", "restrict", "table", "unfold", "pack_at", "stream", "fetch",
    "flip", "spill_sums", "pieces", "outline", "vector_registers", "winograd", "block", "threads", "compute_at", "halo",
}  # fmt: skip
"""Words of configs that kernels of threads do not have."""
OF_XE = {"fragments", "register_file"}
"""Words of configs that kernels of sub-groups alone have."""


def _kernels() -> Iterator[tuple[str, str, str, str]]:
    """Yield the name of each kind, its level, its problem, and its config or nothing."""
    for name, (line, words) in KINDS.items():
        yield f"copy engine: {name}", "sm_90a", line, f"--target=sm_90a --pack= --realise=hardware {words}"
    for level, kinds in (("sm_80", AMPERE), ("sm_90a", AMPERE), ("sm_70", VOLTA)):
        for name, (line, words) in kinds.items():
            yield f"fragments: {name} {level}", level, line, f"--target={level} --pack= {words}"
    for name, (line, words, level) in SMALL.items():
        yield f"fragments: small {name}", level, line, f"--target={level} --pack= {words}"
    for level in ("sm_70", "sm_80", "sm_90a"):
        for name, (line, words) in EVERY.items():
            yield f"threads: {name} {level}", level, line, f"--target={level} --pack= {words}"
    for name, (line, words) in QUADS.items():
        yield f"quads: {name}", "sm_90a", line, f"--target=sm_90a --pack= {words}"
    for name, (line, words) in ROUNDS.items():
        yield f"several tiles: {name}", "sm_90a", line, f"--target=sm_90a --realise=hardware --pack= {words}"
    for level in ("sm_80", "sm_90a"):
        for name, (line, words) in SPLIT.items():
            yield f"split barriers: {name} {level}", level, line, f"--target={level} --pack= {words}"
    for name, (line, config) in DIAGONAL.items():
        yield f"side by side: {name}", Config.parse(config).target, line, config
    for name, (line, words, level) in ZEROS.items():
        yield f"packed zeros: {name}", level, line, f"--target={level} {words}"
    for line in DEFAULTS:
        yield f"default: {line}", "sm_90a", line, ""


KERNELS = {name: rest for name, *rest in _kernels()}


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of compiled kernels."""
    return tmp_path_factory.mktemp("kernels")


@cache
def worker(level: str, folder: Path) -> WorkerProcess:
    """Return the process that runs kernels of a level."""
    return WorkerProcess((sys.executable, str(WORKER), level, str(folder)), SECONDS)


def test_every_word_of_a_config_has_a_kernel() -> None:
    """The text of a config has the words that differ from their defaults."""
    texts = (str(Config.parse(config)) for _, _, config in KERNELS.values() if config)
    found = {word.partition("=")[0].removeprefix("--") for text in texts for word in text.split()}
    assert found == {*CONFIG_ROWS} - OF_CPUS - OF_XE


@pytest.mark.parametrize("kind", ROUNDS)
def test_a_group_computes_several_tiles(kind: str) -> None:
    level, line, words = KERNELS[f"several tiles: {kind}"]
    with no_collection(), one_table():
        plan = plan_for(parse_problem(line), Config.parse(words), target(level))
        launch = emit(plan, lower(plan)).entries["main"].launch
    device = target(level).device
    assert device is not None and prod(launch.grid) % device.units.count == 0


@pytest.mark.parametrize("kind", KERNELS)
def test_results_on_the_gpu_are_exact(kind: str, folder: Path) -> None:
    level, line, config = KERNELS[kind]
    try:
        capability()
        check_device(level, ())
    except ConvsmithError as error:
        pytest.skip(str(error))
    process = worker(level, folder)
    answer = process.ask(op="verify", problem=line, config=config)
    if answer.pop("lost", False):
        process.close()
    assert answer.get("wrong") == "", answer
