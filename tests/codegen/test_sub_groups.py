"""Kernels of Xe GPUs: products of fragments of sub-groups, exact as IR and through OpenCL, and their registers."""

from __future__ import annotations

import re
from math import prod
from pathlib import Path

import pytest
from devices import check_fragments
from opencl_driver import require_opencl
from sub_groups import BLOCK_MESSAGES, DEVICES, assembly, run_emulated

import convsmith as cs
from convsmith.codegen.artifact import Launch, build_options
from convsmith.compiler.ocloc import uses_on_chip
from convsmith.diag.errors import ConfigError
from convsmith.frontend.kernel import CompiledKernel
from convsmith.ir.intern import interning
from convsmith.machine.registry import target
from convsmith.passes.manager import run_steps
from convsmith.problem import parse_problem
from convsmith.schedule.config import Config
from convsmith.schedule.planned import plan_for
from convsmith.schedule.text import decisions
from convsmith.tune.devices.device import device_config
from convsmith.tune.devices.device_features import kernel_features


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
    "padded-rows": ("xe_hpc", f"{LAST} --dt=bf16 mb1ic64ih5iw19oc20oh5ow19kh3kw3ph1pw1",
                    _words("m8n16k16_bf16", "--register=oc:16,ow:16 --group=oc:32,ow:32,ic:32 --fragments=wei:16",
                           how="--realise=mask --shared=wei")),
    "padded-rows-of-bytes": ("xe_hpc", f"{LAST} --dt=u8:s8:s32 mb1ic128iw33oc32ow17kw3sw2pw1",
                             _words("m8n16k32_u8_s8", "--register=oc:16,ow:8 --group=oc:32,ow:16,ic:32"
                                    " --fragments=wei:32", how="--realise=mask --shared=wei")),
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
BYTES = "--dt=u8:s8:s32 --attr-zero-points=src:common:3"
SMALL = {
    "sixteen-lanes": ("xe_hpc", f"{LAST} --dt=bf16:bf16:f32 mb1ic5iw7oc5ow7kw1",
                      _words("m8n16k16_bf16", "--register=oc:16,ow:8 --group=oc:16,ow:8,ic:16")),
    "eight-lanes": ("xe_hpg", f"{LAST} --dt=s8:s8:s32 mb1ic9iw7oc5ow7kw1",
                    _words("m8n8k32_s8", "--register=oc:8,ow:8 --group=oc:8,ow:8,ic:32")),
}  # fmt: skip
"""Problems that the interpreter of the IR runs after each pass."""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", SMALL)
def test_every_pass_keeps_the_result_of_sub_groups(kind: str) -> None:
    """The interpreter runs the kernel after the passes that know of fragments, and those that follow them."""
    name, line, words = SMALL[kind]
    check_fragments(line, words, name)


@pytest.mark.sampled(19)
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


@pytest.mark.sampled(2, "image", "tile")
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


@pytest.mark.parametrize("kind", ["padded-rows", "padded-rows-of-bytes"])
def test_a_message_loads_pixels_and_padding(kind: str) -> None:
    """No pixel is loaded by itself, and each message has the numbers of the rows that are present."""
    name, line, words = KINDS[kind]
    machine = target(name)
    with interning():
        plan = plan_for(parse_problem(line), Config.parse(f"--target={name} {words}"), machine)
        kernel = run_steps(plan.naive(), plan.pipeline)
    text = str(kernel)
    assert kernel.index_bits == 32 and not re.search(r"src_f\[.*\] = .*src\[", text)
    assert re.search(r"block_rows_global_\w+\(src_f\[.*\{\d.*\} if .*lane_number.* else \w+\(0(\.0)?\)\)\)", text)


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


@pytest.mark.sampled(9)
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


@pytest.mark.sampled(4)
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


@pytest.mark.sampled(10)
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


@pytest.mark.sampled(3)
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


def test_explain_says_why_zero_points_of_each_factor_leave_no_fragments() -> None:
    machine, problem = target("xe_hpc"), parse_problem(f"{LAST} {BYTES} mb32ic64ih28oc64oh28kh3ph1")
    words = "--target=xe_hpc --lane=oc --register=oc:16,ow:4 --group=oc:16,ow:4 --realise=mask --offsets=each"
    with interning():
        found = dict(decisions(plan_for(problem, Config.parse(words), machine)))
    assert "--offsets=sums subtracts them from the sums" in found["fragments"]


@pytest.mark.parametrize("kind", ["tails", "eight-lanes"])
def test_products_of_kernels_are_dpas(kind: str, tmp_path: Path) -> None:
    """Factors come from shared memory by block messages, and by vectors in the order of a fragment."""
    name, line, words = KINDS[kind]
    kernel = CompiledKernel(parse_problem(line), target(name), Config.parse(f"--target={name} {words}"))
    assert kernel.artifact is not None
    found = assembly(kernel.artifact.code, target(name), tmp_path)
    assert f"dpas.8x8 ({16 if name == 'xe_hpc' else 8}|M0)" in found and ":bf" in found
    assert all(re.search(x, found) for x in BLOCK_MESSAGES[name]["shared"])
    assert (re.search(BLOCK_MESSAGES[name]["global"][1], found) is None) is (kind == "tails")
    assert kind != "tails" or "add3 (" in found  # of the sums in places of pixels
