"""Weights of 4 bits: two to a byte in packed memory, unpacked where they are multiplied; exact on every kind of level.
"""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest
from emulated import LACKING, check_emulated, skip_without_emulator
from guarded import check_result, expected, memories
from natives import run_native

import convsmith as cs
from convsmith.codegen import llvm_bind
from convsmith.compiler.driver import build_artifact, lower
from convsmith.diag.errors import InternalError
from convsmith.interp import run
from convsmith.ir.intern import interning
from convsmith.ir.parse import parse_kernel
from convsmith.ir.types import DTYPES, dtype
from convsmith.machine.base import Machine
from convsmith.machine.generic.level import level
from convsmith.machine.registry import known_targets, target
from convsmith.passes.strength import strength_reduce
from convsmith.problem import Problem
from convsmith.problem.data import random_arrays
from convsmith.problem.lines import parse_problem
from convsmith.problem.reference import reference
from convsmith.runtime.arrays import ArraySpec
from convsmith.runtime.border import tensors_of
from convsmith.runtime.host_kernel import HostKernel
from convsmith.schedule.config import Config
from convsmith.schedule.plan import plan
from convsmith.tune.candidates import default_config

NHWC = "--stag=axb --dtag=axb"
SMALL = f"{NHWC} mb1ic16ih6oc40oh6kh3ph1"
LINES = {
    "s8 by s4": f"--dt=s8:s4:s32 {SMALL}",
    "u8 by u4, one tap": f"--dt=u8:u4:s32 {NHWC} mb2ic24ih5oc40oh5kh1",
    "scales": f"--dt=u8:s4:f32 --dir=FWD_B --attr-scales=wei:per_oc --attr-post-ops=relu {NHWC} mb1ic8ih9oc20kh3sh2ph1",
    "zero points, groups": f"--dt=u8:s4:u8 --attr-scales=wei:per_oc --attr-zero-points=src:common:3+wei:common:2 "
                           f"{NHWC} g2mb1ic16ih5oc48oh5kh3ph1",
    "f32 by s4": f"--dt=f32:s4:f32 --attr-scales=wei:per_oc {SMALL}",
    "f32 by u4, channels first": "--dt=f32:u4:f32 --stag=abx --dtag=abx mb1ic16ih6oc40oh6kh3ph1",
    "bf16 by s4": f"--dt=bf16:s4:f32 {SMALL}",
    "f16 by s4": f"--dt=f16:s4:f16 {SMALL}",
    "depthwise": f"--dt=s8:s4:s32 {NHWC} g44mb1ic44ih5oc44oh5kh3ph1",
    "product": "--dt=s8:s4:s32 --matmul 6x40:40x33",
    "product of floats": "--dt=f32:s4:f32 --matmul 3x40:40x33",
    "blocks": "--dt=s8:s4:s32 --stag=aBx16b --dtag=aBx16b mb1ic32ih5oc32oh5kh3ph1",
    "few channels": f"--dt=u8:s4:s32 {NHWC} mb1ic3ih12oc32oh6kh5sh2ph2",
    "deconvolution": f"--deconv --dt=u8:s4:s32 {NHWC} mb1ic16ih6oc24oh6kh3ph1",
    "zero points by channel": "--dt=s8:u4:f32 --bia-dt=f8_e5m2 --stag=axb --wtag=axb --dtag=abx "
                              "--attr-acc-mode=relaxed --attr-zero-points=wei:per_dim_0 --attr-post-ops=s32_add "
                              "g1mb2ic3id14ih1iw2oc1od9oh2ow1kd1kh3kw1sd2sh4sw2pd1ph1pw0dd2dh0dw2",
    "channels that fill no vector": f"--dt=f32:s4:f32 {NHWC} mb1ic5iw9oc7ow9kw3pw1",
}  # fmt: skip
CONFIGS = {
    "in place": (f"--dt=f32:s4:f32 {SMALL}", "--lane=oc --register=ow:3,oc:{lanes} --pack="),
    "pixels along lanes": ("--dt=f32:s4:f32 mb1ic16ih6oc40oh6kh3ph1", "--lane=ow --register=oc:4,ow:{lanes}"),
    "resident": (f"--dt=f32:s4:f32 {NHWC} g40mb1ic40ih6oc40oh6kh3ph1", "--lane=g --register=ow:3,g:{lanes},kh:3,kw:3 "
                 "--resident=wei"),
    "sums in memory": (f"--dt=f32:s4:f32 {SMALL}", "--lane=oc --register=ow:3,oc:{lanes} --cache=ic:4"),
    "no functions": (f"--dt=f32:s4:f32 {SMALL}", "--lane=oc --register=ow:3,oc:{lanes} --outline=no"),
    "a table": (f"--dt=f32:s4:f32 {SMALL}", "--lane=oc --register=ow:3,oc:{lanes} --realise=indirection"),
}  # fmt: skip
ALWAYS = ("generic", "avx2", "avx512_vnni", "aarch64+i8mm")
LEVELS = [
    pytest.param(t, id=t.name, marks=() if t.name in ALWAYS else pytest.mark.wide)
    for t in known_targets() if "amx" not in t.name and "sme" not in t.name and "fp" not in t.name
]  # fmt: skip


def check(problem: Problem, config: Config, machine: Machine, seed: int = 1) -> None:
    """The kernel is exact, whatever the upper halves of the weights' bytes hold."""
    arrays = random_arrays(problem, seed)
    noise = np.random.default_rng(seed).integers(0, 16, arrays["wei"].shape, np.uint8)
    arrays["wei"].view(np.uint8)[...] |= noise << 4
    artifact = build_artifact(problem, config, machine)
    if machine in LACKING:
        skip_without_emulator(machine)
        check_emulated(problem, artifact, arrays)
        return
    memory = memories(problem, arrays)
    specs = [ArraySpec(argument) for argument in tensors_of(artifact).values()]
    views = {s.argument.name: np.ndarray(s.shape, s.dtype, memory[s.argument.name], 0, s.strides) for s in specs}
    HostKernel(artifact).run(views)
    check_result(problem, memory, expected(problem, arrays))


@pytest.mark.sampled(11)
@pytest.mark.parametrize("name", LINES)
@pytest.mark.parametrize("machine", LEVELS)
def test_exact(machine: Machine, name: str) -> None:
    problem = parse_problem(LINES[name])
    check(problem, default_config(problem, machine), machine)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("machine", [p for p in LEVELS if p.id in ("generic", "aarch64+i8mm")])
def test_any_config_is_exact(machine: Machine, name: str) -> None:
    line, text = CONFIGS[name]
    problem = parse_problem(line)
    config = Config.parse(f"--target={machine.name} {text.format(lanes=machine.lanes(32))}")
    check(problem, config, machine)


def test_packed_weights_take_half_of_the_bytes() -> None:
    line = f"--dt=u8:s4:s32 {NHWC} mb1ic64ih6oc64oh6kh3ph1"
    kernel = cs.compile(line, threads=1, target="generic")
    arrays = random_arrays(kernel.problem, 2)
    packed = kernel.pack(arrays["wei"])
    assert 2 * packed.buffer.nbytes == arrays["wei"].size == 64 * 64 * 9
    wanted = reference(kernel.problem, arrays)["dst"]
    np.testing.assert_array_equal(kernel(arrays["src"], packed), wanted)
    np.testing.assert_array_equal(kernel(arrays["src"], arrays["wei"]), wanted)
    assert "wei_p: s4, global, until the operand changes, 18432 bytes" in kernel.explain()
    with pytest.raises(cs.UsageError, match=r"weights: dtype is int8; legal is int4 \(arrays are never cast\)"):
        kernel(arrays["src"], arrays["wei"].astype(np.int8))


def assembly(name: str, machine: str) -> str:
    level, problem = target(machine), parse_problem(LINES[name])
    with interning():
        text = lower(plan(problem.canonical(), default_config(problem, level), level)).text
    return llvm_bind.assembly(text, level.triple, level.cpu, level.features)


@pytest.mark.parametrize(("machine", "widens", "dot"), [("avx512_vnni", "vpmovzxbw", "vpdpbusd"),
                                                        ("aarch64+i8mm", "ushll", "usdot")])  # fmt: skip
def test_a_vector_is_unpacked_once_for_all_pixels(machine: str, widens: str, dot: str) -> None:
    """In the loops of the kernel there are fewer instructions that unpack than products."""
    loops = re.findall(r"^\.LBB\w+:.*\n((?:\t.*\n)+)", assembly("few channels", machine), re.MULTILINE)
    inner = [x for x in loops if re.search(rf"\t{dot}", x)]
    assert inner
    for x in inner:
        assert 0 < len(re.findall(rf"\t{widens}", x)) < len(re.findall(rf"\t{dot}", x)), x


def test_other_types_are_refused_in_words() -> None:
    with pytest.raises(cs.UnsupportedError, match=r"--dt=s4:s8:s32 .* the nearest is --dt=s8:s8:s32"):
        cs.compile("--dt=s4:s8:s32 ic16ih6oc16kh3ph1")
    with pytest.raises(cs.UnsupportedError, match="zero points of wei beside sums of type f32 are not available"):
        cs.compile("--dt=f32:s4:f32 --attr-zero-points=wei:common:2 ic16ih6oc16kh3ph1")
    with pytest.raises(cs.UnsupportedError, match=r"--attr-post-ops: s4 is not available; available: f32, .*u8$"):
        cs.compile("--dt=u8:s4:s32 --attr-post-ops=add:s4:per_oc ic16ih6oc16kh3ph1")


# -- memory of elements that share bytes


def test_memory_is_counted_in_bits() -> None:
    counted = {name: (t.bytes_of(1), t.bytes_of(2), t.bytes_of(5), t.per_byte) for name, t in DTYPES.items()}
    assert counted.pop("s4") == counted.pop("u4") == (1, 1, 3, 2)
    assert counted == {name: (n, 2 * n, 5 * n, 1) for name, n in ((x, dtype(x).bytes) for x in counted)}
    with pytest.raises(InternalError, match="an element of s4 has 4 bits, which are no whole bytes"):
        _ = dtype("s4").bytes


COPIES = {
    "one by one": "for i in 0 .. 11:\n    b[10 - i] = a[i]",
    "vectors at whole bytes": "for i in 0 .. 2:\n    b[i * 4 + 2]{4} = a[i * 4]{4}",
    "vectors within bytes": "for i in 0 .. 2:\n    b[i * 4 + 1]{4} = a[i * 4 + 3]{4}",
    "a part of a vector": "b[4]{4/3} = a[2]{4/3}",
    "an element in every lane": "for i in 0 .. 5:\n    b[i * 2]{2} = a[i]{2:0}",
    "lanes that are apart": "b[0]{4:2} = a[1]{4:2}",
    "pointers": "for i in 0 .. 5:\n    for j in 0 .. 2:\n      b[i * 2 + j] = a[i + j]",
}


@pytest.mark.parametrize("kind", ["s4", "u4"])
@pytest.mark.parametrize("name", COPIES)
def test_machine_code_moves_elements_as_the_interpreter_does(name: str, kind: str) -> None:
    """Elements beside those that are written stay as they are."""
    text = COPIES[name]
    kernel = parse_kernel(f"kernel k(a: {kind}[12], b: {kind}[12])\n  {text}\n")
    numbers = np.arange(12) * 5 % 16 - (8 if kind == "s4" else 0)
    arrays = {"a": numbers.astype(dtype(kind).numpy), "b": numbers[::-1].astype(dtype(kind).numpy)}
    moved = {n: x.copy() for n, x in arrays.items()}
    run_native(kernel, moved, level())
    run(kernel, arrays)
    for n, x in arrays.items():
        np.testing.assert_array_equal(moved[n], x)


def test_pointers_point_at_whole_bytes() -> None:
    """A loop whose steps are no whole bytes carries no pointer to such elements; others do."""
    text = "kernel k(a: {0}[12], b: s8[12])\n  for i in 0 .. 4:\n    b[i] = cast(s8, a[i * {1}])\n"
    carried = {x: "a = 0" in str(strength_reduce(parse_kernel(text.format(*x)))) for x in (("s4", 2), ("s4", 3))}
    assert carried == {("s4", 2): True, ("s4", 3): False}


def test_arrays_are_those_of_ml_dtypes() -> None:
    problem = parse_problem(LINES["s8 by s4"])
    assert random_arrays(problem)["wei"].dtype == ml_dtypes.int4
    assert {*map(int, random_arrays(problem)["wei"].astype(int).flat)} == {*range(-8, 8)}
