"""Vectors in memory on Hexagon: what lies there in part is read without the rest, what is aligned by aligned loads."""

from __future__ import annotations

import re

import numpy as np
import pytest
from emulated import emulated_kernel, skip_without_emulator
from natives import llvm_text

import convsmith as cs
from convsmith.codegen import llvm_bind
from convsmith.codegen.artifact import Argument, Artifact, Entry
from convsmith.diag.settings import settings
from convsmith.ir.parse import parse_kernel
from convsmith.ir.types import DTYPES
from convsmith.machine.registry import target

LEVEL = target("hexagon+v68")
TYPES = {"u8": 128, "s32": 32, "f32": 32, "bf16": 64}
"""Types, and the lanes of a vector of them."""


def artifact_of(text: str) -> Artifact:
    kernel = parse_kernel(text)
    roles = {b.name: "inout" if b.name == "dst" else "in" for b in kernel.params}
    arguments = tuple(
        Argument(b.name, roles[b.name], b.dtype.name, b.shape, "a", b.size)  # type: ignore[arg-type]
        for b in kernel.params
    )
    code = llvm_bind.object_code(llvm_text(kernel, LEVEL), LEVEL.triple, LEVEL.cpu, LEVEL.features)
    entries = {"main": Entry("k", arguments)}
    return Artifact(code, LEVEL.name, entries, "vectors", "", needs=LEVEL.needs, address_bits=LEVEL.address_bits)


@pytest.mark.parametrize("name", TYPES)
def test_the_first_lanes_of_a_vector(name: str) -> None:
    """The source ends where its page does, the result has zeros behind the lanes, and elements behind it stay."""
    skip_without_emulator(LEVEL)
    lanes, size = TYPES[name], 300
    for active in sorted({1, 2, lanes // 2, lanes - 1}):
        for vectors in (1, 2):
            count = lanes * vectors
            text = (
                f"kernel k(a: {name}[{size}], dst: {name}[{size}])\n"
                f"  dst[3]{{{count}}} = a[{size - active}]{{{count}/{active}}}\n"
            )
            a = np.arange(1, size + 1).astype(DTYPES[name].numpy)
            dst = np.full(size, 99, a.dtype)
            found = emulated_kernel(artifact_of(text)).run({"a": a, "dst": dst.copy()})["dst"]
            wanted = dst.copy()
            wanted[3 : 3 + count] = 0
            wanted[3 : 3 + active] = a[-active:]
            np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("name", TYPES)
def test_storing_the_first_lanes_of_a_vector(name: str) -> None:
    """Nothing behind the lanes is written, and no page behind the array's last is touched."""
    skip_without_emulator(LEVEL)
    lanes, size = TYPES[name], 300
    for active in sorted({1, 2, lanes // 2, lanes - 1}):
        text = (
            f"kernel k(a: {name}[{size}], dst: {name}[{size}])\n"
            f"  dst[{size - active}]{{{lanes}/{active}}} = a[5]{{{lanes}}}\n"
        )
        a = np.arange(1, size + 1).astype(DTYPES[name].numpy)
        found = emulated_kernel(artifact_of(text)).run({"a": a, "dst": np.full(size, 99, a.dtype)})["dst"]
        wanted = np.full(size, 99, a.dtype)
        wanted[size - active :] = a[5 : 5 + active]
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.sampled(2, "rows")
@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("rows", [2, 5])
def test_neighbouring_stores_touch_no_page_behind_the_last(name: str, rows: int) -> None:
    """LLVM could join them to stores of aligned blocks, and read and write a whole block for none of its bytes."""
    skip_without_emulator(LEVEL)
    lanes = TYPES[name]
    for active in sorted({lanes // 4 + 1, lanes // 2, lanes // 2 + 1, lanes - 1}):
        size = 2 * lanes + rows * active
        places = enumerate(size - (rows - n) * active for n in range(rows))
        text = (
            f"kernel k(a: {name}[{size}], dst: {name}[{size}])\n  alloc x: {name}[{rows}, {lanes}] @register:\n"
            + "".join(f"    x[{n}, 0]{{{lanes}}} = a[{5 * n}]{{{lanes}}}\n" for n in range(rows))
            + "".join(f"    dst[{at}]{{{lanes}/{active}}} = x[{n}, 0]{{{lanes}/{active}}}\n" for n, at in places)
        )
        a = (np.arange(size) % 100 + 1).astype(DTYPES[name].numpy)
        found = emulated_kernel(artifact_of(text)).run({"a": a, "dst": np.full(size, 99, a.dtype)})["dst"]
        wanted = np.full(size, 99, a.dtype)
        wanted[size - rows * active :] = np.concatenate([a[5 * n : 5 * n + active] for n in range(rows)])
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("alignment, mnemonic", [(1, "vmemu"), (4, "vmemu"), (64, "vmemu"), (128, "vmem")])
def test_loads_and_stores_by_alignment(alignment: int, mnemonic: str) -> None:
    text = (
        f'target triple = "{LEVEL.triple}"\n'
        "define void @k(ptr %a, ptr %b) nounwind {\n"
        f"  %x = load <32 x i32>, ptr %a, align {alignment}\n"
        f"  store <32 x i32> %x, ptr %b, align {alignment}\n"
        "  ret void\n}\n"
    )
    assembly = llvm_bind.assembly(text, LEVEL.triple, LEVEL.cpu, LEVEL.features)
    assert re.findall(r"\bvmemu?\b", assembly) == [mnemonic] * 2


def test_the_head_of_a_vector_takes_two_aligned_loads() -> None:
    text = llvm_text(parse_kernel("kernel k(a: s32[40], dst: s32[40])\n  dst[0]{32} = a[3]{32/7}\n"), LEVEL)
    assembly = llvm_bind.assembly(text, LEVEL.triple, LEVEL.cpu, LEVEL.features)
    assert "llvm.masked.load" not in text
    loads = re.findall(r"= (vmemu?)\(r", assembly)
    assert loads.count("vmem") >= 2 and "vmemu" not in loads
    assert "valign" in assembly


def test_products_of_splatted_vectors_are_right() -> None:
    """LLVM's pass that combines vectors, which ends the process on them, does not run."""
    skip_without_emulator(LEVEL)
    config = (
        "--target=hexagon+v68 --lane=oc --fuse=kw+ic --register=ow:2,oc:32 --reduce=kw_ic --instruction=vrmpy_ub_b "
        "--k_step=kw_ic:4 --realise=indirection --table=column"
    )
    problem = "--dt=u8:s8:s32 --stag=axb --dtag=axb mb1ic15oc1ih5kh1iw2ow2kw2sw2pw3"
    assert cs.compile(problem, config=config, target="hexagon+v68", threads=1).verify().detail == "exact"


@pytest.mark.parametrize("name", TYPES)
def test_llvm_verifies_the_text(name: str) -> None:
    """The masks of pointers in the load of a head have the bits of the target's addresses."""
    lanes = TYPES[name]
    kernel = parse_kernel(f"kernel k(a: {name}[300], dst: {name}[300])\n  dst[0]{{{lanes}}} = a[3]{{{lanes}/7}}\n")
    with settings.scope(check="verify"):
        text = llvm_text(kernel, LEVEL)
    assert "ptrmask" in text
    llvm_bind.parse(text, LEVEL.triple, LEVEL.cpu, LEVEL.features)
