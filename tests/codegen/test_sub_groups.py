"""Kernels of Xe GPUs: products of fragments of sub-groups, exact as IR and through OpenCL, and as ocloc makes them."""

from __future__ import annotations

import re
from math import prod
from pathlib import Path

import numpy as np
import pytest
from devices import check_fragments
from opencl_driver import require_opencl
from sub_groups import DEVICES, assembly, run_emulated

import convsmith as cs
from convsmith.codegen import llvm_bind
from convsmith.codegen.artifact import Artifact, Entry, Launch, build_options
from convsmith.codegen.device_module import device_text
from convsmith.compiler.arguments import buffer_argument
from convsmith.compiler.facts import facts
from convsmith.compiler.launch import launch_of
from convsmith.compiler.ocloc import uses_on_chip
from convsmith.diag.errors import ConfigError
from convsmith.emulate.opencl import OPENCL
from convsmith.frontend.kernel import CompiledKernel
from convsmith.interp import run
from convsmith.ir.instruction import LANES, Instruction
from convsmith.ir.intern import interning
from convsmith.ir.parse import parse_kernel
from convsmith.ir.stmt import Invoke, Kernel
from convsmith.ir.walk import statements_of
from convsmith.machine.base import Machine
from convsmith.machine.registry import target
from convsmith.passes.block_messages import block_messages
from convsmith.passes.manager import run_steps
from convsmith.passes.simplify import simplify
from convsmith.passes.spread_lanes import spread_lanes
from convsmith.passes.unroll import unroll
from convsmith.problem import parse_problem
from convsmith.runtime.host_block import HostBlock
from convsmith.schedule.config import Config
from convsmith.schedule.planned import plan_for
from convsmith.schedule.text import decisions
from convsmith.tune.device import device_config
from convsmith.tune.device_features import kernel_features

MESSAGES = {
    "xe_hpc": {"global": (r"load\.ugm\.d32x\d+t\.a64", r"store\.ugm\.d\d+x\d+t\.a64"),
               "shared": (r"load\.slm\.d32x\d+t", r"load\.slm\.d32x8\.a32")},
} | {
    name: {"global": ("oword block read", "oword block write"), "shared": ("oword block read", "untyped surface")}
    for name in ("xe_hpg", "xe_lp")
}  # fmt: skip
"""Block loads and stores of global memory, block loads and loads of vectors of shared memory, as devices call them."""
ROWS = [
    pytest.param(name, row.mnemonic, row, id=f"{name}-{row.name}")
    for name in DEVICES for row in target(name).instructions if row.result.file == LANES
]  # fmt: skip


def _words(row: str, tiles: str, name: str = "dpas", how: str = "--realise=pad_copy --shared=src,wei") -> str:
    return f"--pack= --lane=oc --instruction={name}_{row} {how} {tiles}"


LAST = "--stag=axb --dtag=axb"
KINDS = {
    "one-sub-group": ("xe_hpc", f"{LAST} --dt=bf16:bf16:f32 mb1ic32iw16oc16ow16kw1",
                      _words("m8n16k16_bf16", "--register=oc:16,ow:16 --group=oc:16,ow:16,ic:16")),
    "tails": ("xe_hpc", f"{LAST} --dt=bf16 mb1ic20iw19oc20ow19kw3pw1",
              _words("m8n16k16_bf16", "--register=oc:16,ow:16 --group=oc:32,ow:32,ic:16")),
    "bytes": ("xe_hpc", f"{LAST} --dt=s8:s8:s32 mb1ic40iw17oc12ow17kw3pw1",
              _words("m8n16k32_s8", "--register=oc:16,ow:8 --group=oc:16,ow:32,ic:32")),
    "mad": ("xe_hpc", f"{LAST} --attr-post-ops=relu mb1ic20iw19oc20ow19kw3pw1",
            _words("m8n16k16_f32", "--register=oc:16,ow:8 --group=oc:32,ow:16,ic:16", "mad")),
    "dp4a": ("xe_lp", f"{LAST} --dt=u8:s8:u8 --attr-post-ops=linear:2:1 mb1ic33ih5oc9oh3kh3ph1sh2",
             _words("m8n8k32_u8_s8", "--register=oc:8,oh:4,ow:2 --group=oc:16,oh:4,ow:4,ic:32", "dp4a")),
    "buffers": ("xe_hpc", f"{LAST} --dt=f16 mb1ic48iw16oc16ow16kw1",
                _words("m8n16k16_f16", "--register=oc:16,ow:8 --group=oc:16,ow:16,ic:16 --buffers=2")),
    "eight-lanes": ("xe_hpg", f"{LAST} --dt=bf16:bf16:f32 mb1ic32iw16oc16ow16kw1",
                    _words("m8n8k16_bf16", "--register=oc:8,ow:16 --group=oc:16,ow:16,ic:16")),
    "in-fragments": ("xe_hpc", f"{LAST} --dt=bf16 mb1ic40ih6iw19oc40oh6ow19kh3kw3ph1pw1",
                     _words("m8n16k16_bf16", "--register=oc:16,oh:2,ow:4 --group=oc:32,oh:2,ow:8,kw:3,ic:16 --buffers=2"
                            " --fragments=src:16,wei:16 --register_file=256")),
    "sub-tiles": ("xe_hpc", f"{LAST} --dt=bf16 mb1ic40iw19oc40ow19kw3pw1",
                  _words("m8n16k16_bf16", "--register=oc:32,ow:16 --group=oc:64,ow:16,ic:32 --fragments=src:16,wei:16"
                         " --sub_tile=16")),
    "rows-of-a-matrix": ("xe_hpc", f"{LAST} --dt=bf16 mb1ic64iw34oc20ow32kw3",
                         _words("m8n16k16_bf16", "--register=oc:16,ow:16 --group=oc:32,ow:32,ic:32 --fragments=wei:16",
                                how="--realise=mask --shared=wei")),
    "rows-of-bytes": ("xe_hpc", f"{LAST} --dt=u8:s8:s32 mb1ic128iw33oc32ow16kw2sw2",
                      _words("m8n16k32_u8_s8", "--register=oc:16,ow:8 --group=oc:32,ow:16,ic:32 --fragments=wei:32",
                             how="--realise=mask --shared=wei")),
    "words-of-four-rows": ("xe_hpc", f"{LAST} --dt=s8:s8:s32 --wtag=cba mb1ic64iw18oc64ow16kw3",
                           _words("m8n16k32_s8", "--register=oc:16,ow:8 --group=oc:32,ow:16,ic:32 --fragments=wei:32")),
    "words-of-both": ("xe_hpg", f"{LAST} --dir=BWD_W --dt=bf16 mb2ic64iw16oc64ow16kw1",
                      _words("m8n8k16_bf16", "--register=oc:16,ic:16 --group=oc:32,ic:32,ow:16"
                             " --fragments=src:16,diff_dst:16", how="--realise=pad_copy --shared=src,diff_dst")),
    "skipped-pixels": ("xe_hpc", f"{LAST} --dt=s8:s8:s32 mb1ic40iw33oc12ow17kw3pw1sw2",
                       _words("m8n16k32_s8", "--register=oc:16,ow:8 --group=oc:16,ow:16,ic:32"
                              " --fragments=src:32,wei:32")),
    "tf32": ("xe_hpc", f"{LAST} --accuracy=any mb1ic20iw19oc20ow19kw3pw1",
             _words("m8n16k8_tf32", "--register=oc:16,ow:8 --group=oc:32,ow:16,ic:16 --fragments=src:8,wei:8")),
    "mad-in-fragments": ("xe_hpg", f"{LAST} mb1ic20iw19oc20ow19kw3pw1",
                         _words("m8n8k8_f32", "--register=oc:16,ow:8 --group=oc:32,ow:16,ic:16"
                                " --fragments=src:8,wei:8", "mad")),
    "halves": ("xe_lp", f"{LAST} --dt=f16 mb1ic20iw19oc20ow19kw3pw1",
               _words("m8n8k8_f16_f32", "--register=oc:8,ow:8 --group=oc:16,ow:16,ic:16 --fragments=wei:8", "mad")),
    "sums-of-halves": ("xe_lp", f"{LAST} --dt=f16 --attr-acc-mode=any mb1ic20iw19oc20ow19kw3pw1",
                       _words("m8n8k8_f16", "--register=oc:8,ow:8 --group=oc:16,ow:16,ic:16 --fragments=src:8", "mad")),
    "stride-and-relu": ("xe_hpg", f"{LAST} --dt=u8:s8:u8 --attr-post-ops=relu mb1ic33ih5oc9oh3kh3ph1sh2",
                        _words("m8n8k32_u8_s8", "--register=oc:8,oh:4,ow:2 --group=oc:16,oh:4,ow:4,ic:32")),
}  # fmt: skip
"""Problems and configs whose sub-groups compute fragments, each with the device."""
DEFAULT = {
    "zero-points": ("xe_hpc", f"{LAST} --dt=u8:s8:s32 --attr-zero-points=src:common:3 mb2ic64iw64oc64ow64kw3pw1"),
    "f16": ("xe_hpc", f"{LAST} --dt=f16 mb1ic32ih6oc32oh6kh3ph1"),
    "strided-gradient": ("xe_hpg", f"{LAST} --dir=BWD_D --dt=bf16 mb1ic16ih8oc16oh4kh3ph1sh2"),
    "bytes": ("xe_hpg", f"{LAST} --dt=u8:s8:s32 --attr-post-ops=linear:2:1 mb1ic32ih6oc16oh6kh1"),
    "zero-points-of-channels": (
        "xe_hpc", f"{LAST} --dt=u8:s8:s32 --attr-zero-points=src:per_dim_1 mb2ic64ih8oc64oh8kh3ph1",
    ),
    "zero-points-of-both": (
        "xe_hpg", f"{LAST} --dt=u8:s8:s32 --attr-zero-points=src:per_dim_1+wei:common:3 mb1ic64iw64oc64ow64kw3pw1",
    ),
    "zero-points-2d": ("xe_hpc", f"{LAST} --dt=u8:s8:s32 --attr-zero-points=src:common:3 mb1ic32ih6oc16oh6kh1"),
    "f32": ("xe_lp", f"{LAST} mb1ic32ih8oc32oh8kh1"),
    "bytes-without-dpas": ("xe_lp", f"{LAST} --dt=s8:s8:s32 mb1ic32ih6oc16oh6kh1"),
}  # fmt: skip
"""Problems whose default configs compute fragments, each with the device."""
SCALAR = {
    "types": ("--dt=bf16 mb1ic16iw16oc16ow16kw1", "xe_lp has no instruction for products of bf16:bf16:f32, but for"),
    "depthwise": (f"{LAST} --dt=bf16 g32mb1ic32iw16oc32ow16kw3pw1",
                  "dpas_m8n16k16_bf16: 8 x 16 x 16 rows, columns and terms; the loops have 16 x 1 x 3"),
    "padding-alone": ("--dt=bf16 mb16ic32iw1oc32ow1kw1sw2pw1", "no element of src is there"),
}  # fmt: skip
"""Problems whose kernels have no fragments, each with the reason."""
SMALL = {
    "sixteen-lanes": ("xe_hpc", f"{LAST} --dt=bf16:bf16:f32 mb1ic5iw7oc5ow7kw1",
                      _words("m8n16k16_bf16", "--register=oc:16,ow:8 --group=oc:16,ow:8,ic:16")),
    "eight-lanes": ("xe_hpg", f"{LAST} --dt=s8:s8:s32 mb1ic9iw7oc5ow7kw1",
                    _words("m8n8k32_s8", "--register=oc:8,ow:8 --group=oc:8,ow:8,ic:32")),
}  # fmt: skip
"""Problems that the interpreter of the IR runs after each pass."""


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


@pytest.mark.sampled(3, "name+mnemonic")
@pytest.mark.parametrize("name, mnemonic, row", ROWS)
def test_a_layout_of_a_sub_group_has_each_element_once(name: str, mnemonic: str, row: Instruction) -> None:
    (lanes,) = target(name).device.warps  # type: ignore[union-attr]
    for x in row.operands:
        assert x.layout.lanes == lanes and x.layout.count == x.size == len(x.layout.places())


@pytest.mark.sampled(3, "name+mnemonic")
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


@pytest.mark.sampled(3, "name+mnemonic")
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
    load, store = MESSAGES[name]["global"]
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


@pytest.mark.parametrize("kind", SMALL)
def test_every_pass_keeps_the_result_of_sub_groups(kind: str) -> None:
    """The interpreter runs the kernel after the passes that know of fragments, and those that follow them."""
    name, line, words = SMALL[kind]
    check_fragments(line, words, name)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", KINDS)
def test_kernels_of_sub_groups_are_exact_through_opencl(kind: str) -> None:
    name, line, words = KINDS[kind]
    require_opencl()
    run_emulated(parse_problem(line), target(name), Config.parse(f"--target={name} {words}"))


def _messages(line: str, name: str, words: str) -> tuple[dict[int, int], float]:
    """Return the messages that load fragments from shared memory, by the registers of each lane that they load, and the
    number that the model expects of a sub-group.
    """
    machine = target(name)
    with interning():
        plan = plan_for(parse_problem(line), Config.parse(f"--target={name} {words}"), machine)
        kernel, k = run_steps(plan.naive(), plan.pipeline), plan.main
        features = kernel_features(k.columns, k.loops, k.config, k.nest, machine, k.shared)
    found = re.findall(r"block_read_shared_\w+_x(\d)\(", str(kernel))
    (expected,) = (n for x in features for _, events in x.causes for event, n in events if event == "warp_message")
    groups = prod(x.extent for x in k.nest.threads)
    return {int(n): found.count(n) for n in sorted({*found}, reverse=True)}, expected / groups


@pytest.mark.parametrize(("tile", "rows"), [
    ("--register=oc:32,oh:2,ow:16 --group=oc:128,mb:2,oh:2,ow:16,ic:32", {8: 12}),
    ("--register=oc:32,oh:8,ow:4 --group=oc:128,mb:2,oh:8,ow:4,ic:32", {8: 12}),
    ("--register=oc:32,oh:8,ow:4 --group=oc:128,mb:2,oh:8,ow:8,ic:32", {8: 4, 4: 16}),
])  # fmt: skip
@pytest.mark.parametrize("image", ["ih14", "ih28sh2"])
def test_a_message_loads_the_rows_that_lie_side_by_side(tile: str, rows: dict[int, int], image: str) -> None:
    """Sixteen products take 64 messages of one row where rows lie apart, and 12 of eight rows in fragments, also where
    a stride skips pixels.
    """
    line, words = f"{LAST} --dt=bf16 mb2ic64{image}oc128oh14kh3ph1", _words("m8n16k16_bf16", tile)
    of_columns = 4 * 8  # registers of the right factor that are parts of vectors
    assert _messages(line, "xe_hpc", f"{words} --pad=src:8,wei:8") == ({1: 64}, 64 + of_columns)
    assert _messages(line, "xe_hpc", f"{words} --fragments=src:16,wei:16") == (rows, sum(rows.values()))


def test_words_of_adjacent_rows_are_made_in_registers() -> None:
    """A thread loads vectors of columns of two rows, and stores their elements in turn: whole blocks of the right
    factor, words of each row of the left one.
    """
    name, line, words = KINDS["words-of-both"]
    machine = target(name)
    with interning():
        plan = plan_for(parse_problem(line), Config.parse(f"--target={name} {words}"), machine)
        kernel = str(run_steps(plan.naive(), plan.pipeline))
    zipped = ", ".join(f"{n}, {n + 64}" for n in range(8))
    stored = {"diff_dst": "{16}", "src": "{8 * 2:16}"}
    for operand, places in stored.items():
        (line,) = (x for x in kernel.splitlines() if f" {operand}_s[" in x and f"= {operand}[" in x)
        assert f"]{places} = " in line and line.endswith(f"]{{({zipped})}}")


@pytest.mark.parametrize(("words", "why"), [
    ("--group=oc:32,ow:32,ic:32 --fragments=src:32", "--fragments=src:32: legal are the terms of the instruction, 16"),
    ("--group=oc:32,ow:32,ic:8,kw:2 --fragments=wei:16",
     "--fragments=wei:16: a fragment has 16 iterations of ic in a row of wei, the loop has 8"),
    ("--group=oc:32,ow:32,ic:32 --pad=src:8 --fragments=src:16", "in one of --pad=, --swizzle= and --fragments="),
    ("--group=oc:32,ow:32,ic:32 --register_file=512",
     "--register_file=512: a thread of xe_hpc usually has 128 registers; legal are 256"),
    ("--register=oc:64,ow:16 --group=oc:64,ow:32,ic:32 --sub_tile=24",
     "--sub_tile=24: a warp has 64 columns, in fragments of 16; legal are columns of whole fragments that divide them"),
    ("--register=oc:64,ow:16 --group=oc:64,ow:32,ic:32 --sub_tile=48", "--sub_tile=48: a warp has 64 columns"),
    ("--group=oc:32,ow:32,ic:32 --sub_tile=16 --load_ahead=yes", "without --realise=hardware and --load_ahead=yes"),
    ("--register=oc:64,ow:64 --group=oc:64,ow:64,ic:32",
     "needs 320 registers of a lane (256 for sums, 64 for factors), xe_hpc has 128"),
    ("--register=oc:16,ow:8 --group=oc:128,ow:64,ic:16 --register_file=256",
     "needs 262144 registers for 1024 threads with 256 each, a unit of xe_hpc has 131072"),
])  # fmt: skip
def test_configs_that_fragments_cannot_have(words: str, why: str) -> None:
    tile = "" if "--register=" in words else "--register=oc:16,ow:16 "
    config = f"--target=xe_hpc {_words('m8n16k16_bf16', tile + words)}"
    with interning(), pytest.raises(ConfigError) as raised:
        plan_for(parse_problem(f"{LAST} --dt=bf16 mb1ic64iw64oc128ow64kw3pw1"), Config.parse(config), target("xe_hpc"))
    assert why in str(raised.value)


def test_a_launch_states_the_registers_of_a_thread() -> None:
    """The driver's compiler gets an option of the number, and twice the registers halve the threads of a unit."""
    name, line, words = KINDS["in-fragments"]
    kernel = CompiledKernel(parse_problem(line), target(name), Config.parse(f"--target={name} {words}"))
    assert kernel.artifact is not None
    launch = kernel.artifact.entries["main"].launch
    assert launch.registers == 256 and build_options([launch]) == ["-cl-intel-256-GRF-per-thread"]
    units = target(name).device.units  # type: ignore[union-attr]
    assert units.residing(64, 0, launch.registers)["registers"] * 2 == units.residing(64, 0)["threads"]
    assert build_options([Launch()]) == []


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", DEFAULT)
def test_default_configs_compute_fragments(kind: str) -> None:
    name, line = DEFAULT[kind]
    require_opencl()
    config = run_emulated(parse_problem(line), target(name), None)
    (lanes,) = target(name).device.warps  # type: ignore[union-attr]
    mnemonic = {"f32": "mad", "bytes-without-dpas": "dp4a"}.get(kind, "dpas")
    assert config.instruction.startswith(f"{mnemonic}_m8n{lanes}") and config.size(config.lane) % lanes == 0


LAYERS = ("mb32ic256ih14oc256oh14kh3ph1", "mb32ic64ih56oc256oh56kh1", "mb32ic64ih56oc64oh56kh3ph1",
          "mb32ic128ih28oc128oh28kh3ph1", "mb32ic512ih7oc512oh7kh3ph1")


@pytest.mark.parametrize("line", LAYERS)
@pytest.mark.parametrize("name", ["xe_hpc", "xe_hpg"])
def test_registers_hold_the_factors_of_two_products(name: str, line: str) -> None:
    """Intel's compiler loads the factors of two products of a step before it multiplies, beside addresses."""
    machine, problem = target(name), parse_problem(f"{LAST} --dt=bf16 {line}")
    with interning():
        plan = plan_for(problem, device_config(problem, machine), machine)
    nest, config = plan.main.nest, plan.main.config
    assert nest.warp is not None and machine.device is not None
    sums, *factors = nest.warp.registers
    held = sums + min(nest.warp.steps, 2) * sum(factors) + machine.device.costs.warp_beside
    assert held <= (config.register_file or machine.registers)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("line", LAYERS)
@pytest.mark.parametrize("name", ["xe_hpc", "xe_hpg"])
def test_default_kernels_spill_nothing(name: str, line: str) -> None:
    kernel = cs.compile(f"{LAST} --wtag=axb --dt=bf16 {line}", target=name)
    assert kernel.artifact is not None and kernel.target.device is not None
    uses = uses_on_chip(kernel.artifact, kernel.target.device.chip)
    if not uses:
        pytest.skip("ocloc or libiga64 is not installed: nothing makes code of Xe GPUs of SPIR-V here")
    assert {*uses.values()} == {"no spills"}


def test_a_part_of_the_columns_is_in_registers_at_once() -> None:
    """The fragments of the other factor are loaded once for all parts."""
    name, line, words = KINDS["sub-tiles"]
    problem, machine = parse_problem(line), target(name)
    with interning():
        plan = plan_for(problem, Config.parse(f"--target={name} {words}"), machine)
    assert plan.main.nest.warp is not None and plan.main.nest.warp.registers == (32, 8, 8)
    kernel = cs.compile(line, target=name, threads=1, config=words)
    (text,) = (str(x.kernel) for x in kernel.passes() if x.name == "hold_fragments")
    source, part, weights = (text.index(x) for x in ("src_s_f: bf16[2, 8, 16]", "for n.p", "wei_s_f: bf16[16, 16]"))
    assert source < text.index("for n.p", source) < weights and part < source


@pytest.mark.parametrize("name", DEVICES)
def test_sums_take_half_of_the_registers(name: str) -> None:
    machine, type_ = target(name), "f32" if name == "xe_lp" else "bf16"
    with interning():
        config = device_config(parse_problem(f"{LAST} --dt={type_} mb32ic256ih56oc256oh56kh3ph1"), machine)
    (lanes,) = machine.device.warps  # type: ignore[union-attr]
    registers, sums = config.register_file or machine.registers, prod(n for _, n in config.tiles_at("register"))
    assert registers // 4 <= sums // lanes <= registers // 2


@pytest.mark.parametrize("kind", SCALAR)
def test_explain_says_why_there_are_no_fragments(kind: str) -> None:
    line, why = SCALAR[kind]
    machine = target("xe_lp" if kind == "types" else "xe_hpc")
    with interning():
        problem = parse_problem(line)
        config = device_config(problem, machine)
        plan = plan_for(problem, config, machine)
        found = dict(decisions(plan))
    assert not plan.decided.instruction and found["fragments"].startswith("not used: ") and why in found["fragments"]


@pytest.mark.parametrize("kind", ["tails", "eight-lanes"])
def test_products_of_kernels_are_dpas(kind: str, tmp_path: Path) -> None:
    """Factors come from shared memory by block messages, and by vectors in the order of a fragment."""
    name, line, words = KINDS[kind]
    kernel = CompiledKernel(parse_problem(line), target(name), Config.parse(f"--target={name} {words}"))
    assert kernel.artifact is not None
    found = assembly(kernel.artifact.code, target(name), tmp_path)
    assert f"dpas.8x8 ({16 if name == 'xe_hpc' else 8}|M0)" in found and ":bf" in found
    assert all(re.search(x, found) for x in MESSAGES[name]["shared"])
    assert (re.search(MESSAGES[name]["global"][1], found) is None) is (kind == "tails")
    assert kind != "tails" or "add3 (" in found  # of the sums in places of pixels
