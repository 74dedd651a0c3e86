"""The pipeline of sm_90a in the interpreter of PTX: exact under several schedules, and every planted fault is found."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from convsmith.compiler.cubin import assemble_ptx
from convsmith.emulate.ptx.launch import Blank, run
from convsmith.emulate.ptx.parser import PtxError
from ptx.hopper_kernels import COLUMNS, ROWS, Layer, hopper_ptx, maps, reference
from ptx.sass import sass, skip_without

LAYERS = [
    Layer(1, 6, 7, 64), Layer(1, 8, 8, 128), Layer(2, 5, 5, 64, 1, 1, pad=0), Layer(2, 9, 9, 64, stride=2),
    Layer(1, 9, 10, 64, dilation=2, pad=2), Layer(3, 4, 4, 64, 3, 1), Layer(1, 7, 5, 64, 1, 3, stride=2),
    Layer(1, 8, 9, 64, 2, 2, pad=0), Layer(4, 3, 3, 64), Layer(1, 12, 4, 64, pad=0), Layer(1, 5, 13, 64, 5, 5, pad=2),
    Layer(2, 6, 6, 192, 1, 1, pad=0),
]  # fmt: skip


def sums(x: Layer, stages: int, fault: str = "", seed: int = 0, swizzle: int = 128) -> tuple[np.ndarray, np.ndarray]:
    """Return the sums that the kernel computes, and those that it should."""
    rng = np.random.default_rng(x.h * x.w)
    images = rng.integers(-3, 4, (x.n, x.h, x.w, x.c)).astype(ml_dtypes.bfloat16)
    weights = rng.integers(-3, 4, (COLUMNS, x.r, x.s, x.c)).astype(ml_dtypes.bfloat16)
    given = [*maps(x, swizzle), images, weights, Blank(x.pixels * COLUMNS, np.float32)]
    found = run(hopper_ptx(x, stages, fault), "k", -(-x.pixels // ROWS), given, seed=seed)[-1]
    assert found is not None
    return found.reshape(-1, COLUMNS), reference(x, images, weights)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("x", LAYERS, ids=str)
def test_the_pipeline_is_exact(x: Layer, seed: int) -> None:
    found, wanted = sums(x, 2 + seed % 2, seed=seed)
    np.testing.assert_array_equal(found, wanted)


FAULTS = {
    "early release": "may still read it|while an asynchronous operation reads it",
    "no wait for a free stage": "may still read it|while an asynchronous operation|arrivals at a barrier",
    "no final wait": "before their products were waited for",
    "wrong parity": "no warp can go on|before it is written|before its asynchronous copy|without a barrier",
    "init": "there is no barrier|without a barrier|before it is written",
    "short count": "no warp can go on|before its asynchronous copy|before it is written|without a barrier|arrivals",
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("seed", range(2))
def test_a_fault_is_reported(fault: str, seed: int) -> None:
    with pytest.raises(PtxError, match=FAULTS[fault]):
        sums(LAYERS[0], 2, fault, seed)


@pytest.mark.parametrize("fault", ["wrong descriptor", "swapped offsets", "swizzle"])
def test_a_wrong_place_gives_wrong_numbers(fault: str) -> None:
    """The numbers are wrong, or the place was not written yet."""
    try:
        if fault == "swizzle":
            found, wanted = sums(LAYERS[0], 2, swizzle=0)
        else:
            found, wanted = sums(LAYERS[0], 2, fault)
    except PtxError as error:
        assert "is read before" in str(error)
    else:
        assert (found != wanted).any()


def test_the_pipeline_assembles() -> None:
    """No spills, no advice against the order of its products, and the instructions are those of sm_90a."""
    skip_without("sm_90a")
    made = assemble_ptx(hopper_ptx(LAYERS[0], 3), "sm_90a")
    assert (made.uses["k"].spilled, made.warnings) == (0, ())
    opcodes = sass(made.cubin)["k"]
    for mnemonic in ("HGMMA.64x16x16.F32.BF16", "UTMALDG.4D.IM2COL", "UTMALDG.2D", "SYNCS"):
        assert any(x.startswith(mnemonic) for x in opcodes), f"{mnemonic} is not among {sorted(set(opcodes))}"
