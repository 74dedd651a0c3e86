"""Networks exported for AArch64 and RISC-V: their examples, built by a cross compiler, check themselves under qemu."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exported import run, tool

pytest.importorskip("onnx")

from onnx import TensorProto
from onnx_networks import NetworkBuilder, mobile_net, u_net

from convsmith.onnx.graph import read_graph
from convsmith.onnx.network import export_for

FLAGS = ("-std=gnu11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O1", "-static")


def _language() -> Any:
    """A network of tokens: rows by number, a recurrent layer, and a product."""
    b, rng = NetworkBuilder(5, real=True), np.random.default_rng(0)
    table = b.held(rng.standard_normal((20, 8)).astype(np.float32))
    rows = b.op("Gather", table, b.input("ids", 6, 1, type_=TensorProto.INT64))
    weights = [b.held((rng.standard_normal(shape) / 2).astype(np.float32)) for shape in ((1, 24, 8), (1, 24, 8))]
    states = b.op("GRU", rows, *weights, outputs=2, hidden_size=8)
    return b.model(b.op("MatMul", states[0], b.held(rng.standard_normal((8, 5)).astype(np.float32))))


NETWORKS = {"u_net": lambda: u_net(8, real=True), "mobile": lambda: mobile_net(16, real=True), "language": _language}
TARGETS = {
    "aarch64-linux-gnu": ("aarch64-linux-gnu-gcc", ("qemu-aarch64",)),
    "aarch64-linux-gnu+dotprod+fp16": ("aarch64-linux-gnu-gcc", ("qemu-aarch64",)),
    "riscv64-linux-gnu+v": ("riscv64-linux-gnu-gcc", ("qemu-riscv64", "-cpu", "rv64,v=true,vlen=256")),
}
"""Targets, with a compiler and the command of an emulator of programs."""


@pytest.mark.sampled(3, "name", "target")
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("target", TARGETS)
def test_examples_check_themselves_in_emulators(target: str, name: str, tmp_path: Path) -> None:
    compiler, emulator = tool(TARGETS[target][0]), (tool(TARGETS[target][1][0]), *TARGETS[target][1][1:])
    library = export_for(read_graph(NETWORKS[name]()), tmp_path, f"{name}_net", target, 1)
    program = tmp_path / "example"
    run(compiler, *FLAGS, tmp_path / "example.c", library.library, "-lm", "-o", program)
    assert f"{name}_net: right" in run(*emulator, program)
    text = (tmp_path / "example.c").read_text()
    start = text.index("values_of_", text.index("values_of_"))
    first = text.index("{", start) + 1
    changed = tmp_path / "changed.c"
    changed.write_text(f"{text[:first]}9{text[first:]}")
    run(compiler, *FLAGS, changed, library.library, "-lm", "-o", program)
    with pytest.raises(AssertionError, match="is "):
        run(*emulator, program)
