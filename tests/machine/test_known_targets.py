"""Targets that this machine knows and does not run: everything but a call works, and a call says why it does not."""

from __future__ import annotations

import re
import subprocess
import sys

import numpy as np
import pytest

import convsmith as cs
from convsmith.machine.base import Machine
from convsmith.machine.registry import device_targets, host_target, host_targets, known_targets, target_names
from convsmith.measure.peak import peak_sample

LINE = "mb1ic16ih6oc32kh3ph1"
FOREIGN = [t for t in known_targets() if t not in host_targets()]
MACHINES = {
    "x86_64": (18, b"\x3e\0"), "aarch64": (18, b"\xb7\0"), "hexagon": (18, b"\xa4\0"),
    "riscv64": (18, b"\xf3\0"), "riscv32": (18, b"\xf3\0"), "thumbv8.1m.main": (18, b"\x28\0"),
    "thumbv7em": (18, b"\x28\0"), "wasm32": (0, b"\0asm"),
}  # fmt: skip
"""Bytes in the header of an object that name the machine, and their place, by the first word of its triple."""


def test_no_name_comes_twice() -> None:
    assert len(set(target_names())) == len(target_names()) == len(known_targets()) + len(device_targets())
    assert FOREIGN and host_targets()[-1].name == "generic"


@pytest.mark.sampled(31)
@pytest.mark.parametrize("target", FOREIGN, ids=lambda t: t.name)
def test_a_foreign_kernel_answers_every_question(target: Machine) -> None:
    isa, triple = target.name, target.triple
    for threads in (1, 2):
        kernel = cs.compile(LINE, target=isa, threads=threads)
        assert kernel.artifact is not None
        at, mark = MACHINES[triple.partition("-")[0]]
        assert kernel.artifact.code[at : at + len(mark)] == mark
        assert f'target triple = "{triple}"' in kernel.llvm()
        row = next(iter(target.fragment_rows("f32", "f32", "f32")), target.row("f32", "f32", "f32"))
        assert row is not None
        assert re.search(rf"\t.*\b{row.mnemonic}", kernel.asm())
        assert row.name in kernel.ir()
        page = kernel.explain()
        assert f"roofline      not known: this machine does not run {isa}" in page
        with pytest.raises(cs.UnsupportedError, match=f"is made for {re.escape(isa)}, which this CPU cannot run"):
            kernel(np.ones((1, 16, 6, 6), np.float32), np.ones((32, 16, 3, 3), np.float32))
        with pytest.raises(cs.UnsupportedError, match="which this CPU cannot run"):
            kernel.pack(np.ones((32, 16, 3, 3), np.float32))


def test_llvm_has_no_matrix_unit_of_hexagon() -> None:
    """Rows of HMX can be added to `machine/hexagon/` once this fails; docs/usage/limits.md names its absence."""
    features = "+hvxv73,+hvx-length128b,+hmx"
    made = f"Target.from_triple('hexagon').create_target_machine(cpu='hexagonv73', features='{features}')"
    code = f"from llvmlite.binding import *; initialize_all_targets(); initialize_all_asmprinters(); {made}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert "'+hmx' is not a recognized feature" in done.stderr
    assert "hvx" not in done.stderr


def test_a_foreign_kernel_of_dynamic_sizes() -> None:
    kernel = cs.compile(LINE, target=FOREIGN[0].name, threads=1, dynamic="mb,ih,iw")
    assert kernel.asm()
    with pytest.raises(cs.UnsupportedError, match="which this CPU cannot run"):
        kernel(np.ones((2, 16, 9, 9), np.float32), np.ones((32, 16, 3, 3), np.float32))


def test_what_measures_refuses_at_once() -> None:
    for refused in (lambda: host_target(FOREIGN[0].name), lambda: peak_sample(FOREIGN[0].name, 1)):
        with pytest.raises(cs.UnsupportedError, match=r"needs .*, which this machine lacks; it has .*generic"):
            refused()
