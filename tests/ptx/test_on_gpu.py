"""Kernels of every kind on the GPU of CUDA that this machine has: exact on integers, as in the interpreter of PTX.

A process of its own runs the kernels of a level, and another one those that follow a fault of the GPU.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from convsmith.diag.errors import ConvsmithError
from convsmith.machine.nvidia.host import capability
from convsmith.runtime.cuda import check_device
from convsmith.tune.process import WorkerProcess
from ptx.hopper_configs import KINDS, LAST
from ptx.tensor_kinds import AMPERE, SMALL, VOLTA
from ptx.test_convolutions import EVERY, LAYERS
from ptx.test_other_realisations import CASES

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
    f"{_GROUPS} --dt=bf16 g32mb2ic128ih14oc128oh14kh3ph1", f"{_GROUPS} --dt=bf16 g96mb2ic96ih14oc96oh14kh7ph3",
    f"{LAST} --dt=s8:s8:s32 mb2ic64ih14oc128oh14kh3ph1", "--matmul --dt=bf16 200x512:512x300",
    f"{LAST} --dt=bf16 mb1ic64id4ih9iw9oc64od4oh9ow9kd3kh3kw3pd1ph1pw1",
    f"{LAST} mb2ic64ih14oc64oh14kh3ph1", "mb2ic64ih14oc64oh14kh3ph1",
)  # fmt: skip
"""Problems with the default config of sm_90a."""


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
