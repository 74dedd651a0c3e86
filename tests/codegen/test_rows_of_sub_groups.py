"""Instructions on fragments of the sub-groups of Xe GPUs: exact through OpenCL, and as ocloc makes them."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from opencl_driver import require_opencl
from sub_groups import BLOCK_MESSAGES, DEVICES, assembly

from convsmith.codegen import llvm_bind
from convsmith.codegen.artifact import Artifact, Entry
from convsmith.codegen.device_module import device_text
from convsmith.compiler.arguments import buffer_argument
from convsmith.compiler.facts import facts
from convsmith.compiler.launch import launch_of
from convsmith.emulate.opencl import OPENCL
from convsmith.interp import run
from convsmith.ir.instruction import LANES, Instruction
from convsmith.ir.intern import interning
from convsmith.ir.parse import parse_kernel
from convsmith.ir.stmt import Invoke, Kernel
from convsmith.ir.types import dtype
from convsmith.ir.verify import verify
from convsmith.ir.walk import statements_of
from convsmith.machine.base import Machine
from convsmith.machine.registry import target
from convsmith.passes.block_messages import block_messages
from convsmith.passes.simplify import simplify
from convsmith.passes.spread_lanes import spread_lanes
from convsmith.passes.unroll import unroll
from convsmith.runtime.host_block import HostBlock

ROWS = [
    pytest.param(name, row.mnemonic, row, id=f"{name}-{row.name}")
    for name in DEVICES for row in target(name).instructions if row.result.file == LANES
]  # fmt: skip


def one_product(row: Instruction, machine: Machine) -> Kernel:
    """Return the kernel in which a sub-group adds a product of ``row`` to its sums; block messages load and store where
    elements follow each other.
    """
    c, a, b = row.operands
    (rows, columns), terms = c.shape, a.shape[1]
    with interning():
        kernel = parse_kernel(f"""\
kernel k(a: {a.dtype}[{a.size}], b: {b.dtype}[{b.size}], c: {c.dtype}[{c.size}])
  for w in 0 .. 1 #warp:
    alloc sums: {c.dtype}[{rows}, {columns}] @fragment:
      alloc a_f: {a.dtype}[{rows}, {terms}] @fragment:
        alloc b_f: {b.dtype}[{terms}, {columns}] @fragment:
          for m in 0 .. {rows}:
            for l in 0 .. {columns}:
              sums[m, l] = c[l + m * {columns}]
          for m in 0 .. {rows}:
            for k in 0 .. {terms}:
              a_f[m, k] = a[k + m * {terms}]
          for k in 0 .. {terms}:
            for l in 0 .. {columns}:
              b_f[k, l] = b[l + k * {columns}]
          {row.name}(sums[0, 0]{{{c.size}}}, a_f[0, 0]{{{a.size}}}, b_f[0, 0]{{{b.size}}})
          for m in 0 .. {rows}:
            for l in 0 .. {columns}:
              c[l + m * {columns}] = sums[m, l]
""")
        return unroll(simplify(block_messages(spread_lanes(kernel, (row,)), machine.messages)))


def llvm(kernel: Kernel, machine: Machine) -> str:
    with interning():
        return device_text({kernel.name: kernel}, facts(machine))


def spirv(text: str, machine: Machine) -> bytes:
    return llvm_bind.object_code(text, machine.triple, machine.cpu, machine.features)


@pytest.mark.sampled(9, "name+mnemonic")
@pytest.mark.parametrize("name, mnemonic, row", ROWS)
def test_a_layout_of_a_sub_group_has_each_element_once(name: str, mnemonic: str, row: Instruction) -> None:
    (lanes,) = target(name).device.warps  # type: ignore[union-attr]
    for x in row.operands:
        assert x.layout.lanes == lanes and x.layout.count == x.size == len(x.layout.places())


@pytest.mark.sampled(11, wide=1, every="name+mnemonic name")
@pytest.mark.parametrize("name, mnemonic, row", ROWS)
def test_the_registers_of_a_row_give_its_specification(name: str, mnemonic: str, row: Instruction) -> None:
    """A driver of OpenCL runs the kernel; functions of broadcasts stand in for dpas."""
    require_opencl()
    machine = target(name)
    kernel = one_product(row, machine)
    text = llvm(kernel, machine)
    assert row.mnemonic == mnemonic and row.declare in text
    arguments = tuple(buffer_argument(b, "inout" if b.name == "c" else "in") for b in kernel.params)
    with interning():
        entry = Entry(kernel.name, arguments, launch_of(kernel, 1, machine))
    made = Artifact(spirv(text, machine), machine.name, {"main": entry}, kernel.name, f"--target={machine.name}",
                    needs=machine.needs)  # fmt: skip
    rng = np.random.default_rng(1)
    arrays = {}
    for b in kernel.params:
        low, high = b.dtype.limits if b.dtype.bits == 8 else (-9, 9)
        arrays[b.name] = rng.integers(low, high, b.size, endpoint=True).astype(b.dtype.numpy)
    wanted = {x: y.copy() for x, y in arrays.items()}
    run(row.kernel, wanted)
    function = OPENCL.load(made)["main"]
    block = HostBlock(function.entry, {x: y.ctypes.data for x, y in arrays.items()})
    function(block.address)
    np.testing.assert_array_equal(arrays["c"], wanted["c"])


def test_factors_of_tf32_are_rounded_to_the_nearest() -> None:
    """One and 1024 of the 4096 parts between two numbers of 11 bits are dropped, 3072 of them and a half count as one;
    the hardware, which drops what is beyond 11 bits, finds nothing there.
    """
    row = target("xe_hpc").rows["dpas_m8n16k8_tf32"]
    step = float(np.ldexp(1, -10))
    words = {f"{x}{n}": f"%{x}{n}" for x, count in (("a", 4), ("b", 8), ("c", 8)) for n in range(count)}
    lines = [line.format(*(f"%{n}" for n in range(200)), **words) for line in row.llvm.splitlines()]
    rounding = [x for x in lines if x.startswith(("add i32", "and i32"))]
    assert len(rounding) == 2 * (4 + 8) and rounding[0].endswith(", 4096") and rounding[1].endswith(", -8192")
    for part, wanted in ((0.25, 1.0), (0.5, 1 + step), (0.75, 1 + step)):
        bits = np.float32(1 + part * step).view(np.int32)
        assert ((bits + 4096) & -8192).view(np.float32) == np.float32(wanted)


@pytest.mark.sampled(9, "name+mnemonic")
@pytest.mark.parametrize("name, mnemonic, row", ROWS)
def test_a_row_becomes_its_instruction(name: str, mnemonic: str, row: Instruction, tmp_path: Path) -> None:
    machine = target(name)
    kernel = one_product(row, machine)
    found = assembly(spirv(llvm(kernel, machine), machine), machine, tmp_path)
    products = [x for x in found.splitlines() if re.match(rf" *{mnemonic}\S* ", x) and len(x.split()) > 4]
    if mnemonic == "dpas":
        assert [x.split()[0] for x in products] == ["dpas.8x8"]
    else:  # an instruction reads one lane of a register
        lanes = row.result.layout.lanes
        given = [x for x in products if re.search(r"r\d+\.\d+<0(;0)?>:", x)]
        assert len(given) == 8 * lanes
    a, _, c = kernel.params
    used = {s.instruction for s in statements_of(kernel.body) if isinstance(s, Invoke)} - {row.name}
    together = row.operands[1].layout.elements
    of_left = f"block_read_global_{a.dtype}{f'_{together}' * (together > 1)}_x8"
    assert used >= {of_left, f"block_read_global_{c.dtype}_x8", f"block_write_global_{c.dtype}"}
    load, store = BLOCK_MESSAGES[name]["global"]
    assert len(re.findall(store, found)) == 8 and len(re.findall(load, found)) >= 2


def test_a_message_loads_rows_of_a_matrix() -> None:
    """They are 96 bytes apart, or more, in global memory; other rows take a message each."""
    with interning():
        kernel = parse_kernel("""\
kernel k(a: bf16[4096], b: u8[4096], dst: bf16[512])
  for w in 0 .. 1 #warp:
    alloc s: bf16[1024] @shared:
      alloc x: bf16[7, 16] @fragment:
        alloc y: u8[2, 32] @fragment:
          for lane in 0 .. 16 #lane:
            x[0, lane] = a[lane + w * 16]
            x[1, lane] = a[lane + w * 16 + 48]
            x[2, lane] = a[lane]
            x[3, lane] = a[lane + 40]
            x[4, lane] = s[lane]
            x[5, lane] = s[lane + 64]
            x[6, lane] = a[lane * 2]
            for lane.2 in 0 .. 2 #unrolled:
              y[0, lane * 2 + lane.2] = b[lane * 2 + lane.2]
            for lane.2 in 0 .. 2 #unrolled:
              y[1, lane * 2 + lane.2] = b[lane * 2 + lane.2 + 128]
          for lane in 0 .. 16 #lane:
            dst[lane * 3] = x[0, lane]
""")
        made = {name: block_messages(kernel, target(name).messages) for name in ("xe_hpc", "xe_hpg")}
    found = {name: [s.instruction for s in statements_of(k.body) if isinstance(s, Invoke)] for name, k in made.items()}
    one, shared = "block_read_global_bf16_x1", ["block_read_shared_bf16_x1"] * 2
    assert found["xe_hpc"] == ["block_rows_global_bf16_x2", one, one, *shared, "block_rows_global_u8_2_x2"]
    assert found["xe_hpg"] == [one, one, one, one, *shared, *["block_read_global_u8_2_x1"] * 2]


_ROWS = """\
kernel k(a: bf16[192], dst: bf16[128])
  for w in 0 .. 2 #warp:
    alloc x: bf16[4, 16] @fragment:
      for lane in 0 .. 16 #lane:
        x[0, lane] = (a[lane + w * 48{at}] if {0} else bf16(0.0))
        x[1, lane] = (a[lane + w * 48{at} + 48] if {1} else bf16(0.0))
        x[2, lane] = (a[lane + w * 48{at} + 96] if {2} else bf16(0.0))
        x[3, lane] = (a[lane + w * 48{at} + 144] if {3} else bf16(0.0))
      for lane in 0 .. 16 #lane:
        for r in 0 .. 4:
          dst[lane + r * 16 + w * 64] = x[r, lane]
"""
_MASKS = {
    "before": (" - 48", ["w - 1 >= 0", "w >= 0", "w + 1 >= 0", "w + 2 >= 0"], ["lane_number + w - 1 >= 0"]),
    "behind": ("", ["-w + 2 >= 0", "-w + 1 >= 0", "-w >= 0", "-w - 1 >= 0"], ["-lane_number - w + 2 >= 0"]),
    "both, and all": (
        " - 48", [f"-w + 1 >= 0 and w + {n} >= 0 and -w * 2 + {7 - n * 2} >= 0" for n in range(-1, 3)],
        ["-w + 1 >= 0", "lane_number + w - 1 >= 0", "-lane_number - w + 4 >= 0"],
    ),
    "none": (" - 192", ["w - 4 >= 0", "w - 3 >= 0", "w - 2 >= 0", "w - 1 >= 0"], ["lane_number + w - 4 >= 0"]),
}  # fmt: skip


@pytest.mark.parametrize("kind", _MASKS)
def test_rows_that_are_absent_are_zeros(kind: str) -> None:
    """Before and behind those of the matrix; the message reads none of them."""
    at, masks, wanted = _MASKS[kind]
    rows = {row.name: row.kernel for row in target("xe_hpc").messages}
    with interning():
        kernel = parse_kernel(_ROWS.format(*masks, at=at))
        made = block_messages(kernel, target("xe_hpc").messages)
        (message,) = (s for s in statements_of(made.body) if isinstance(s, Invoke) and "rows" in s.instruction)
        assert message.instruction == "block_rows_global_bf16_x4" and all(x in str(message) for x in wanted)
        assert str(parse_kernel(str(made))) == str(made)
        verify(made)
        found = []
        for x in (kernel, made):
            arrays = {"a": np.arange(192).astype(dtype("bf16").numpy), "dst": np.zeros(128, dtype("bf16").numpy)}
            run(x, arrays, rows)
            found.append(arrays["dst"])
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize(("masks", "wanted"), [
    (["w - 1 >= 0", "w >= 0", "w - 1 >= 0", "w >= 0"], ["x2", "x2"]), (["lane - 1 >= 0"] * 4, []),
    (["w >= 0", "w >= 0 and w - 1 >= 0"] * 2, []), (["w >= 0", "w * 2 >= 0", "w - 1 >= 0", "w - 1 >= 0"], ["x2", "x2"]),
])  # fmt: skip
def test_rows_of_a_message_have_one_condition_on_their_number(masks: list[str], wanted: list[str]) -> None:
    with interning():
        made = block_messages(parse_kernel(_ROWS.format(*masks, at="")), target("xe_hpc").messages)
    found = [s.instruction for s in statements_of(made.body) if isinstance(s, Invoke)]
    assert [x.rpartition("_")[2] for x in found if "rows" in x] == wanted


def test_messages_have_aligned_addresses_and_one_branch() -> None:
    """Lanes that read elsewhere, or that a condition separates, have an address each."""
    with interning():
        kernel = parse_kernel("""\
kernel k(a: f32[128], dst: f32[64])
  for w in 0 .. 1 #warp:
    alloc x: f32[5, 16] @fragment:
      for lane in 0 .. 16 #lane:
        x[0, lane] = a[lane + w * 16]
        x[1, lane] = a[lane + 2]
        x[2, lane] = a[lane * 2]
        x[3, lane] = a[lane - lane // 8 * 8 + 32]
        if w - 1 >= 0:
          x[4, lane] = a[lane + 64]
      for lane in 0 .. 16 #lane:
        if lane - 3 >= 0:
          dst[lane + 16] = x[0, lane]
        dst[lane + 2] = x[0, lane]
        if -w >= 0:
          dst[lane + 32] = x[0, lane] + x[1, lane]
""")
        made = block_messages(kernel, target("xe_hpc").messages)
    found = [str(s) for s in statements_of(made.body) if isinstance(s, Invoke)]
    assert found == [
        "block_read_global_f32_x1(x[0, lane], a[lane + w * 16])",
        "block_read_global_f32_x1(x[4, lane], a[lane + 64])",
        "block_write_global_f32(dst[lane + 32], x[0, lane] + x[1, lane])",
    ]
