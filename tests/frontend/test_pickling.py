"""Kernels and packed weights cross to other processes, and copies of them stand for themselves."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import convsmith as cs
from convsmith.machine.registry import target
from convsmith.problem.data import random_arrays

LINES = [
    "mb1ic6ih7oc20oh7kh3ph1", "--dir=FWD_B --dt=bf16 --stag=axb --dtag=axb mb1ic16ih5oc16kh3",
    "--dir=BWD_D g2mb1ic4ih5oc6kh3", "--matmul --dt=u8:s8:s32 3x16:16x5", "mb0ic3ih5oc4kh3",
    "--attr-post-ops=dw:k3s1p1 mb1ic8ih5oc6kh1", "--dt=u8:s8:u8 --attr-scales=src:common:0.5 mb1ic4iw8oc8kw3",
]  # fmt: skip

CHILD = """
import pickle, sys
kernel, arrays = pickle.loads(sys.stdin.buffer.read())
sys.stdout.buffer.write(pickle.dumps(kernel.run(**arrays)))
"""


def arrays_of(kernel: cs.CompiledKernel) -> dict[str, Any]:
    given = random_arrays(kernel.problem, 0)
    return {tensor.name: given[tensor.name] for tensor in kernel.arguments if tensor.role == "in"}


def equal(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("line", LINES)
def test_a_kernel_is_what_it_was(line: str) -> None:
    kernel = cs.compile(line, threads=1)
    arrays = arrays_of(kernel)
    for other in (pickle.loads(pickle.dumps(kernel)), copy.deepcopy(kernel), copy.copy(kernel)):
        assert other.problem == kernel.problem and other.target.name == kernel.target.name
        assert str(other.config) == str(kernel.config) and other.config.threads == 1
        assert equal(other.run(**arrays), kernel.run(**arrays))


def test_kernel_and_packed_weights_in_another_process(tmp_path: Path) -> None:
    config = "--target=generic --lane=oc --register=oc:8,ow:3 --threads=2"
    kernel = cs.compile("mb1ic6ih7oc20oh7kh3ph1", bias=True, config=config)
    arrays = arrays_of(kernel)
    want = kernel.run(**arrays)
    packed = kernel.pack(arrays.pop("wei"), arrays.pop("bia"))
    given = pickle.dumps((kernel, {**arrays, "wei": packed}))
    assert len(given) < 30_000, "a pickle holds no code"
    child = subprocess.run([sys.executable, "-c", CHILD], input=given, stdout=subprocess.PIPE, check=True)
    assert equal(pickle.loads(child.stdout), want)


def test_packed_weights_have_memory_of_their_own() -> None:
    kernel = cs.compile(LINES[1], threads=1)
    arrays = arrays_of(kernel)
    packed = kernel.pack(arrays["wei"], arrays["bia"])
    for other in (pickle.loads(pickle.dumps(packed)), copy.deepcopy(packed), copy.copy(packed)):
        assert other.addresses[0] == other.buffer.ctypes.data != packed.addresses[0]
        assert other.addresses[1] == other.bias.ctypes.data != packed.addresses[1]
        assert other.addresses[0] % 64 == 0 and not other.buffer.flags.writeable
        assert other.signature is packed.signature and str(other.magnitude) == str(packed.magnitude)
        np.testing.assert_array_equal(kernel(arrays["src"], other), kernel(arrays["src"], packed))


def test_a_machine_without_the_instructions_says_so_at_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = cs.compile(LINES[0], threads=1, target=target().name)
    given, arrays = pickle.dumps(kernel), arrays_of(kernel)
    monkeypatch.setattr("convsmith.runtime.host.lacking", list)
    other = pickle.loads(given)
    assert other.asm() == kernel.asm()
    with pytest.raises(cs.UnsupportedError, match="which this CPU cannot run: it lacks"):
        other.run(**arrays)


def test_a_product_that_knows_its_rhs() -> None:
    lhs, rhs = np.arange(15, dtype=np.uint8).reshape(3, 5), np.arange(20, dtype=np.uint8).reshape(5, 4)
    product = cs.pack_lowp(3, rhs, -2, output_stages=[("saturate_u8",)])
    other = pickle.loads(pickle.dumps(product))
    np.testing.assert_array_equal(other(lhs), product(lhs))
