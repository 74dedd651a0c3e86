"""Loads of streamed operands carry a hint: fragments keep the lines of the other operand, vectors prefetch lines."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from amx import needs_amx

import convsmith as cs
from convsmith.codegen.accesses import starts_line
from convsmith.compiler.driver import lower
from convsmith.diag.errors import ConfigError, UsageError
from convsmith.ir.equal import first_mismatch
from convsmith.ir.intern import interning
from convsmith.ir.parse import parse_kernel
from convsmith.machine.registry import host_targets, target
from convsmith.machine.x86.levels import LEVELS
from convsmith.measure.calls import aligned_inputs, bound_call
from convsmith.measure.verification import verify_kernel
from convsmith.passes.manager import run_steps
from convsmith.passes.stream import stream
from convsmith.problem import parse_problem
from convsmith.problem.data import random_arrays
from convsmith.runtime.arrays import aligned_empty
from convsmith.schedule.config import Config
from convsmith.schedule.plan import plan

AMX = next(t for t in LEVELS if t.name == "avx512_amx")
LINE = "--dt=u8:s8:s32 --stag=axb --dtag=axb mb1ic64ih9iw9oc64oh9ow9kh3kw3ph1pw1"
CONFIG = (
    "--target=avx512_amx --lane=oc --register=ow:9,oc:32 --order=mb,oc,oh,ow --reduce=kh,kw,ic "
    "--instruction=tdpbusd_16 --k_step=ic:64 --realise=pad_copy"
)
"""A kernel that reads its source through a padded copy, and packed weights."""
KERNEL = """kernel k(a: f32[2], b: f32[2]) #i32 #stream(a: 256)
  for i in 0 .. 2:
    b[i] = a[i]
"""


def loads(names: tuple[str, ...]) -> dict[str, set[str]]:
    """The registers that are loaded with the hint and without; each holds fragments of one operand."""
    with interning():
        text = lower(plan(parse_problem(LINE), Config.parse(CONFIG).changed(stream=names), AMX)).text
    found: dict[str, set[str]] = {"normal": set(), "streamed": set()}
    for name, register in re.findall(r"@llvm\.x86\.(tileload\w+)\(i8 (\d)", text):
        found["streamed" if name == "tileloaddt164" else "normal"].add(register)
    return found


def test_fragments_of_streamed_operands_alone_carry_the_hint() -> None:
    plain, source, weights, both = (loads(names) for names in ((), ("src",), ("wei",), ("src", "wei")))
    assert plain["normal"] and not plain["streamed"] and both["streamed"] and not both["normal"]
    assert source["streamed"] == weights["normal"] and source["normal"] == weights["streamed"]
    assert source["streamed"] and source["normal"] and not source["streamed"] & source["normal"]


@needs_amx
@pytest.mark.parametrize("names", ["src", "wei", "src,wei"])
def test_the_hint_changes_no_result(names: str) -> None:
    assert verify_kernel(cs.compile(LINE, config=f"{CONFIG} --stream={names}", threads=1)).ok


def prefetches(words: str, level: str) -> tuple[int, int]:
    """The prefetches, and the loads of whole vectors, of a kernel's main function."""
    target = next(t for t in LEVELS if t.name == level)
    config = Config.parse(f"--target={level} --lane=oc --register=oc:32,ow:2 {words}")
    with interning():
        text = lower(plan(parse_problem("--stag=axb --dtag=axb mb1ic64iw8oc64ow8kw1"), config, target)).text
    (main,) = re.findall(r"^define \S+ @convsmith_kernel\w*_chunk\(.*?^}", text, re.DOTALL | re.MULTILINE) or [text]
    return main.count("call void @llvm.prefetch"), len(re.findall(r"load <\d+ x float>", main))


@pytest.mark.parametrize(("level", "lines"), [("avx512", 2), ("avx2", 2)])
def test_loads_of_streamed_weights_prefetch_each_line_once(level: str, lines: int) -> None:
    (none, _), (ahead, loads_) = prefetches("", level), prefetches("--stream=wei", level)
    assert none == 0 and ahead > 0 and ahead % lines == 0
    assert ahead == loads_ // (1 if level == "avx512" else 2)


@pytest.mark.parametrize(
    ("line", "words", "ahead"),
    [
        ("mb1ic8ih12oc3oh12kh1ph0", "--lane=oh_ow --fuse=oh+ow --register=oc:3,oh_ow:32 --order=mb,oh_ow,oc", 256),
        ("mb1ic8ih12oc4oh12kh1ph0", "--lane=oh_ow --fuse=oh+ow --register=oc:2,oh_ow:16 --order=mb,oh_ow,oc", 128),
        ("g4mb1ic4ih9iw66oc4oh4ow32kh3kw3sh2sw2ph0pw0", "--lane=ow --register=oh:2,ow:16,kh:3 --order=mb,g,oh,ow", 256),
        ("g4mb1ic4ih9iw34oc4oh4ow16kh3kw3sh2sw2ph0pw0", "--lane=ow --register=oh:2,ow:16 --order=mb,g,oh,ow", 1088),
    ],
)
def test_vectors_of_pixels_prefetch_those_of_the_register_tile_after_the_next_one(
    line: str, words: str, ahead: int
) -> None:
    config = Config.parse(f"--target=avx512 {words} --stream=src")
    with interning():
        text = lower(plan(parse_problem(f"--stag=abx --dtag=abx {line}"), config, target("avx512"))).text
    addresses = re.findall(r"@llvm\.prefetch\.p0\(ptr (%\S+),", text)
    assert addresses and all(re.search(rf"{x} = getelementptr i8, .*, i64 {ahead}\n", text) for x in addresses)


@pytest.mark.parametrize(
    ("line", "pixels"),
    [("mb1ic8ih12oc64oh12kh1ph0", 6), ("--deconv mb1ic8ih6oc64oh12kh2sh2ph0", 2 * 6)],
    ids=["plain", "classes-of-pixels"],
)
def test_vectors_of_a_result_that_is_added_to_prefetch_those_of_the_next_tile_of_pixels(
    line: str, pixels: int
) -> None:
    """They are not stored past the caches, in which they are."""
    words = "--target=avx512 --lane=oc --register=ow:6,oc:32 --order=mb,oh,ow,oc --stream=dst"
    line = f"--stag=axb --dtag=axb --attr-post-ops=sum {line}"
    with interning():
        text = lower(plan(parse_problem(line), Config.parse(words), target("avx512"))).text
        plain = lower(plan(parse_problem(line.replace("sum", "relu")), Config.parse(words), target("avx512"))).text
    addresses = re.findall(r"@llvm\.prefetch\.p0\(ptr (%\S+),", text)
    assert addresses and len(addresses) % 12 == 0 and "!nontemporal" not in text
    assert all(re.search(rf"{x} = getelementptr i8, .*, i64 {pixels * 64 * 4}\n", text) for x in addresses)
    assert "@llvm.prefetch" not in plain and "!nontemporal" in plain


GRADIENT = "--dir=BWD_W --dt=bf16 --stag=axb --wtag=axb --dtag=axb mb1ic28ih28oc32oh28kh1ph0"
NEAR = (
    "--target=avx512_bf16 --lane=oc --fuse=oh+ow --register=ic:14,oc:32 --reduce=mb,oh_ow --instruction=vdpbf16ps_512 "
    "--k_step=oh_ow:2 --cache=oh_ow:392 --pack= --pack_at=src+oh_ow,diff_dst+oh_ow"
)


def test_loads_that_pack_a_block_prefetch_the_callers_array() -> None:
    """Tiles of 14 channels are loaded under a mask; those of the second pixel begin 56 bytes after the first one."""

    def prefetched(names: tuple[str, ...]) -> tuple[set[str], int]:
        config = Config.parse(NEAR).changed(stream=names)
        with interning():
            made = plan(parse_problem(GRADIENT), config, target("avx512_bf16"))
            text = lower(made).text
            assert tuple(run_steps(made.naive(), made.pipeline).streamed) == names
        addresses = re.findall(r"@llvm\.prefetch\.p0\(ptr (%\S+),", text)
        distances = [d for x in set(addresses) for d in re.findall(rf"{x} = getelementptr i8, .*, i64 (\d+)\n", text)]
        return set(distances), len(addresses)

    assert prefetched(()) == (set(), 0)
    (near, of_source), (_, of_both) = prefetched(("src",)), prefetched(("src", "diff_dst"))
    assert near == {"4096"} and of_both > of_source and not of_source % 2


@pytest.mark.parametrize(
    ("first", "nbytes", "starts"), [(0, 16, True), (48, 32, True), (32, 32, False), (48, 16, False), (16, 64, True)]
)
def test_a_vector_prefetches_the_lines_that_begin_in_it(first: int, nbytes: int, starts: bool) -> None:
    assert starts_line(first, nbytes) == starts


@pytest.mark.parametrize(
    "words", ["--lane=oc --register=oc:16", "--lane=ow --register=ow:16 --pack=src,wei", "--lane=ow --realise=pad_copy"]
)
def test_only_pixels_of_the_callers_source_are_prefetched(words: str) -> None:
    config = Config.parse(f"--target=avx512 {words} --stream=src")
    with interning(), pytest.raises(ConfigError, match=r"--stream=src: legal are .* a source"):
        plan(parse_problem("--stag=abx --dtag=abx mb1ic8ih12oc4oh12kh1ph0"), config, target("avx512"))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("axb mb1ic64ih5oc64oh5kh3ph1", "--lane=oc --register=oc:4,ow:2 --stream=wei"),
        ("abx mb1ic3ih5iw37oc4oh5ow37kh3kw3ph1pw1", "--lane=ow --register=oc:2,ow:16 --stream=src"),
        ("abx g3mb1ic3ih5iw74oc3oh3ow37kh3kw3sh2sw2ph1pw1", "--lane=ow --register=oh:2,ow:8,kh:3 --stream=src"),
        (
            "axb mb1ic5ih5oc6oh5kh1ph0",
            "--lane=oc --fuse=oh+ow --register=oc:4,oh_ow:3 --order=mb,oh_ow,oc --pack_at=src+oh_ow --stream=src",
        ),
    ],
)
def test_a_prefetch_changes_no_result(line: str, words: str) -> None:
    tag, plain = line.split()
    config = f"--target={host_targets()[-1].name} {words}"
    assert verify_kernel(cs.compile(f"--stag={tag} --dtag={tag} {plain}", config=config, threads=1)).ok


def test_the_mark_prints_parses_and_belongs_to_the_kernel() -> None:
    with interning():
        kernel = parse_kernel(KERNEL)
        assert str(kernel) == KERNEL and kernel.streamed == {"a": 256}
        plain, near = replace(kernel, streamed={}), replace(kernel, streamed={"a": 0})
        assert first_mismatch(kernel, plain) is not None and first_mismatch(kernel, near) is not None
        assert first_mismatch(kernel, stream(plain, (("a", 256),))) is None
        assert str(near) == KERNEL.replace("a: 256)", "a)") and parse_kernel(str(near)).streamed == {"a": 0}
        with pytest.raises(UsageError, match="#stream"):
            parse_kernel(KERNEL.replace("#stream", "#other"))


def test_a_streamed_buffer_is_one_of_the_kernel() -> None:
    with interning(), pytest.raises(ConfigError, match=r"k has no buffer z; it has \['a', 'b'\]"):
        stream(parse_kernel(KERNEL), (("a", 0), ("z", 0)))


RESULTS = [
    ("--stag=axb --dtag=axb mb2ic5ih9oc32oh9kh3ph1", "--lane=oc --register=ow:2,oc:32"),
    ("--dir=FWD_B --attr-post-ops=relu --stag=aBx16b --dtag=aBx16b mb1ic20ih7oc48oh7kh3ph1",
     "--lane=oc --register=ow:2,oc:16 --outline=no"),
    ("--dt=bf16 --stag=axb --dtag=axb mb1ic8ih7oc32oh7kh1ph0", "--lane=oc --register=ow:3,oc:16 --threads=2"),
    ("--dir=BWD_D --stag=axb --dtag=axb mb1ic32ih7oc9oh7kh3ph1", "--lane=ic --register=iw:3,ic:16"),
    ("--matmul 9x7:7x32", "--lane=n --register=m:4,n:16"),
    ("--dir=FWD_B --stag=aBx16b --dtag=aBx16b mb2ic20ih7oc27oh7kh3ph1", "--lane=oc --register=ow:2,oc:16"),
    ("--stag=aBx32b --dtag=aBx32b mb1ic5ih9oc9oh9kh3ph1", "--lane=oc --register=ow:3,oc:16"),
    ("--dir=BWD_D --stag=axb --dtag=axb mb2ic32ih9oc7oh5kh1sh2ph0", "--lane=ic --register=iw:3,ic:16"),
    ("--dir=BWD_D --stag=axb --dtag=axb mb1ic32ih11oc5oh4kh3sh3ph1", "--lane=ic --register=iw:2,ic:32"),
]  # fmt: skip


@pytest.mark.sampled(4)
@pytest.mark.parametrize("shift", [0, 4])
@pytest.mark.parametrize("isa", [t.name for t in host_targets() if t.name in ("avx2", "avx512")])
@pytest.mark.parametrize(("line", "words"), RESULTS)
def test_results_past_the_caches_are_exact_wherever_they_lie(line: str, words: str, isa: str, shift: int) -> None:
    """A vector that is stored past the caches lies at a multiple of its bytes: else the kernel's other form runs."""
    problem = parse_problem(line)
    (name,) = (t.name for t in problem.tensors if t.role == "out")
    plain, kernel = (cs.compile(line, config=f"--target={isa} {words}{past}") for past in ("", f" --stream={name}"))
    inputs = aligned_inputs(problem, random_arrays(problem))
    call, outputs = bound_call(problem, plain, inputs)
    call()
    expected = outputs[name]
    memory = aligned_empty(expected.nbytes + 64)[shift : shift + expected.nbytes].view(expected.dtype)
    memory[:] = 0
    out = np.lib.stride_tricks.as_strided(memory, expected.shape, expected.strides)
    assert out.ctypes.data % 64 == shift
    bound_call(problem, kernel, inputs, {name: out})[0]()
    np.testing.assert_array_equal(np.array(out, np.float64), np.array(expected, np.float64))


def test_full_vectors_alone_are_stored_past_the_caches() -> None:
    line, words = RESULTS[0]
    config = Config.parse(f"--target=avx512 {words} --stream=dst")
    with interning():
        text = lower(plan(parse_problem(line), config, target("avx512"))).text
    aligned, unaligned = (
        "".join(re.findall(rf"define [^\n]*@convsmith_{form}_.*?\n}}", text, re.DOTALL))
        for form in ("aligned", "unaligned")
    )
    stores = re.findall(r"store <16 x float> .*", aligned)
    assert stores and all(s.endswith("align 64, !nontemporal !0") for s in stores) and "sfence()" in aligned
    assert "nontemporal" not in unaligned and "sfence" not in unaligned


@pytest.mark.parametrize(
    ("line", "words", "level"),
    [
        ("--stag=axb --dtag=axb mb1ic5ih9oc24oh9kh3ph1", "--lane=oc --register=ow:3,oc:16", "avx512"),
        ("--stag=aBx24b --dtag=aBx24b mb1ic5ih9oc9oh9kh3ph1", "--lane=oc --register=ow:3,oc:16", "avx512"),
        ("--stag=abx --dtag=abx mb1ic5ih9oc32oh9kh3ph1", "--lane=oc --register=ow:3,oc:16", "avx512"),
        ("--stag=axb --dtag=axb mb1ic64ih9oc32oh9kh3ph1", "--lane=oc --register=ow:3,oc:16 --cache=ic:16", "avx512"),
        ("--stag=axb --dtag=axb g2mb1ic6ih9oc32oh9kh3ph1", "--lane=oc --register=ow:3,oc:16", "avx512"),
        ("--stag=axb --dtag=axb mb1ic5ih9oc32oh9kh3ph1", "--lane=oc --register=ow:3,oc:16", "aarch64"),
    ],
)
def test_results_that_are_no_full_vectors_stay_in_the_caches(line: str, words: str, level: str) -> None:
    config = Config.parse(f"--target={level} {words} --stream=dst")
    with interning(), pytest.raises(ConfigError, match="a result that full vectors of channels write once: wei"):
        plan(parse_problem(line), config, target(level))


@pytest.mark.parametrize(
    ("line", "config"),
    [
        (LINE, f"{CONFIG} --stream=dst"),
        ("--stag=axb --dtag=axb mb1ic16ih9iw9oc16oh9ow9kh3kw3ph1pw1", "--target=avx512_amx --lane=oc --stream=src"),
        (
            "--stag=axb --dtag=axb mb1ic16ih9iw9oc16oh9ow9kh3kw3ph1pw1",
            "--target=avx512_amx --lane=oc --pack= --stream=wei",
        ),
    ],
)
def test_other_operands_cannot_be_streamed(line: str, config: str) -> None:
    with interning(), pytest.raises(ConfigError, match="legal are operands whose fragments") as raised:
        plan(parse_problem(line), Config.parse(config), AMX)
    assert raised.value.code == "stream"
