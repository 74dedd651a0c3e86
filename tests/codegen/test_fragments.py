"""Registers for fragments are configured once for all tiles that need the same configuration, outside of loops."""

from __future__ import annotations

import re

import ml_dtypes  # noqa: F401  # numpy then knows bfloat16
import numpy as np
import pytest
from amx import needs_amx

import convsmith as cs
from convsmith.codegen import llvm_bind
from convsmith.compiler.driver import lower
from convsmith.ir.intern import interning
from convsmith.machine.x86.levels import LEVELS
from convsmith.problem import parse_problem
from convsmith.schedule.config import Config
from convsmith.schedule.plan import plan

AMX = next(t for t in LEVELS if t.name == "avx512_amx")
CONFIG = "--target=avx512_amx --lane=n --register=m:16,n:32 --order=m,n --instruction=tdpbusd_16 --k_step=k:64"


def functions(line: str, config: str) -> dict[str, str]:
    """The text of each function of a kernel."""
    with interning():
        text = lower(plan(parse_problem(line), Config.parse(config), AMX)).text
    return dict(re.findall(r"^define .*?@(\w+)\(.*?\{\n(.*?)^\}", text, re.MULTILINE | re.DOTALL))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("rows, configurations", [(64, 1), (72, 2)])
def test_a_configuration_stands_around_all_of_its_tiles(rows: int, configurations: int, threads: int) -> None:
    found = functions(f"--dt=u8:s8:s32 --matmul {rows}x128:128x64", f"{CONFIG} --threads={threads}")
    tiles = [text for name, text in found.items() if "_tile" in name]
    assert len(tiles) == configurations and all("tdpbusd" in text and "ldtilecfg" not in text for text in tiles)
    chunk = found["convsmith_chunk"]
    assert chunk.count("call void @llvm.x86.ldtilecfg") == chunk.count("call void @llvm.x86.tilerelease") > 0
    if configurations == 1:
        before, begin, inside = chunk.partition("call void @llvm.x86.ldtilecfg")
        assert "phi" not in before, "within a loop"
        assert inside.count("call void @convsmith_tile0") == 1 and begin


@pytest.mark.parametrize(("columns", "rows", "configurations"), [(80, 64, 1), (64, 64, 1), (80, 72, 2)])
def test_tiles_with_fewer_sums_share_the_configuration_of_others(columns: int, rows: int, configurations: int) -> None:
    """Their factors have two shapes, and all tiles of as many rows have registers for both."""
    config = CONFIG.replace("n:32", "n:48").replace("tdpbusd_16 --k_step=k:64", "tdpbusd_12 --k_step=k:48")
    found = functions(f"--dt=u8:s8:s32 --matmul {rows}x96:96x{columns}", config)
    assert len([name for name in found if "_tile" in name]) == 2 * configurations
    begun = re.findall(r"ldtilecfg\(ptr @(\w+)\)", found["convsmith_chunk"])
    assert len({*begun}) == configurations
    before, _, _ = found["convsmith_chunk"].partition("call void @llvm.x86.ldtilecfg")
    assert configurations > 1 or (len(begun) == 1 and "phi" not in before)


@needs_amx
@pytest.mark.parametrize(
    ("shape", "changes"),
    [
        ((72, 96, 80), {"n:32": "n:48", "tdpbusd_16 --k_step=k:64": "tdpbusd_12 --k_step=k:48"}),
        ((72, 96, 64), {"n:32": "n:48", "tdpbusd_16 --k_step=k:64": "tdpbusd_12 --k_step=k:48"}),
        ((26, 128, 80), {"n:32": "n:64"}),
    ],
    ids=["two shapes of factors", "few sums", "factors of one shape"],
)
def test_tiles_that_share_a_configuration_compute_their_sums(
    shape: tuple[int, int, int], changes: dict[str, str]
) -> None:
    """A product whose factors have one shape needs two registers of it, which tiles of ten rows have for columns only.
    """
    config, (m, k, n) = CONFIG, shape
    for old, new in changes.items():
        config = config.replace(old, new)
    kernel = cs.compile(f"--dt=u8:s8:s32 --matmul {m}x{k}:{k}x{n}", config=config, threads=1)
    rng = np.random.default_rng(1)
    a, b = rng.integers(0, 256, (m, k), np.uint8), rng.integers(-128, 128, (k, n), np.int8)
    assert np.array_equal(kernel.run(src=a, wei=b)["dst"], a.astype(np.int32) @ b.astype(np.int32))


def test_a_product_reads_two_registers_where_its_factors_have_one_shape() -> None:
    texts = functions("--dt=u8:s8:s32 --matmul 26x128:128x80", CONFIG.replace("n:32", "n:64")).values()
    products = [x for text in texts for x in re.findall(r"tdpbusd\(i8 (\d), i8 (\d), i8 (\d)\)", text)]
    assert products and all(len({*registers}) == 3 for registers in products)


def test_without_functions_a_tile_is_configured_in_place() -> None:
    found = functions("--dt=u8:s8:s32 --matmul 64x128:128x64", f"{CONFIG} --outline=no")
    assert found["convsmith_chunk"].count("call void @llvm.x86.ldtilecfg") == 1


def test_sums_of_a_partial_fragment_are_written_as_vectors() -> None:
    """The second vector of 24 channels is half full: a loop over its lanes would write them one by one."""
    found = functions("--dt=u8:s8:s32 --matmul 64x128:128x24", CONFIG)
    (tile,) = (text for name, text in found.items() if "_tile" in name)
    stores = re.findall(r"store (\S+ x \S+|\S+) |@llvm\.masked\.store\.(\w+)", tile)
    assert stores and all("x" in plain or masked for plain, masked in stores)


def test_each_turn_of_a_loop_over_products_has_one_addition() -> None:
    """Without one, the unit that stores fragments powers down during a long sum, and the first store waits for it."""
    texts = functions("--dt=u8:s8:s32 --matmul 64x4096:4096x64", CONFIG).values()
    blocks = [block for text in texts for block in re.split(r"^\w+:$", text, flags=re.MULTILINE)]
    products = [block for block in blocks if "@llvm.x86.tdpbusd" in block]
    assert products and all(block.count("constrained.fadd") == 1 for block in products)
    assert not any("constrained.fadd" in block for block in blocks if block not in products)
    with interning():
        module = lower(plan(parse_problem("--dt=u8:s8:s32 --matmul 64x4096:4096x64"), Config.parse(CONFIG), AMX))
        assembly = llvm_bind.assembly(module.text, AMX.triple, AMX.cpu, AMX.features)
    loop = assembly.partition("tdpbusd")[0].rpartition(":\n")[2]
    assert "vaddss" in loop, "LLVM drops an addition whose result nobody reads"


BFLOAT = "--target=avx512_amx --lane=n --register=m:16,n:16 --order=m,n --instruction=tdpbf16ps_16 --k_step=k:32"


@pytest.mark.parametrize(("options", "converts"), [("", True), ("--attr-post-ops=relu", True), ("--bia-dt=f32", False)])
def test_sums_that_are_never_denormal_are_converted_by_one_instruction(options: str, converts: bool) -> None:
    """The instruction takes a denormal number for zero; a sum and a bias may add up to one."""
    texts = functions(f"--dt=bf16 {options} --matmul 16x32:32x16", BFLOAT).values()
    assert any("to <16 x bfloat>" in text for text in texts) == converts
    assert any("lshr <16 x i32>" in text for text in texts) != converts


@needs_amx
def test_conversions_of_sums_round_to_even() -> None:
    kernel = cs.compile("--dt=bf16 --matmul 64x32:32x16", config=BFLOAT, threads=1)
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-16, 17, shape).astype("bfloat16") for shape in ((64, 32), (32, 16)))
    exact = x.astype(np.float32) @ w.astype(np.float32)
    assert (np.abs(exact) > 256).any(), "sums that bf16 does not hold"
    np.testing.assert_array_equal(kernel.run(src=x, wei=w)["dst"], exact.astype("bfloat16"))
