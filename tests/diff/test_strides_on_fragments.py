"""Gradients of the source and deconvolutions with a stride: fragments hold pixels of one residue class at a time."""

from __future__ import annotations

import pytest
from amx import needs_amx

import convsmith as cs
from convsmith.measure.verification import verify_kernel
from convsmith.schedule.config import Config

SOURCE = "--dir=BWD_D --dt=bf16 --stag=axb --dtag=axb"
LINES = [
    f"{SOURCE} mb2ic64ih28oc64oh14kh3sh2ph1",
    f"{SOURCE} mb1ic48ih29oc96oh15kh3sh2ph1",
    f"{SOURCE} mb1ic32ih31oc64oh11kh5sh3ph2",
    f"{SOURCE} g2mb2ic64ih28oc128oh14kh3sh2ph1",
    f"{SOURCE} mb2ic64iw128oc64ow32kw8sw4pw2",
    f"{SOURCE} mb2ic64id8oc64od4kd3sd2pd1",
    f"{SOURCE} mb1ic32ih28iw14oc64oh14ow14kh3kw3sh2sw1ph1pw1",
    f"{SOURCE} mb1ic32ih14iw28oc64oh14ow14kh3kw3sh1sw2ph1pw1",
    f"{SOURCE} mb1ic64ih33oc64oh16kh5sh2ph2",
    "--dir=BWD_D --dt=bf16 --stag=abx --dtag=abx mb1ic64ih28oc64oh14kh3sh2ph1",
    "--dir=BWD_D --dt=bf16 --stag=aBx16b --dtag=aBx16b mb1ic64ih28oc64oh14kh3sh2ph1",
    "--dir=BWD_D --dt=bf16 --stag=abx --dtag=abx mb1ic256ih28oc256oh14kh1sh2ph0",
    f"{SOURCE} mb1ic256ih28oc256oh14kh1sh2ph0",
    "--deconv --dt=bf16 --stag=abx --dtag=abx mb1ic64ih12oc96oh25kh3sh2ph0",
    "--deconv --dt=u8:s8:u8 --stag=abx --dtag=abx mb1ic64ih12oc96oh36kh3sh3ph0",
    "--deconv --dt=bf16 --stag=axb --dtag=axb mb1ic64ih14oc64oh28kh4sh2ph1",
    "--deconv --dt=u8:s8:f32 --stag=axb --dtag=axb mb1ic64ih14oc64oh28kh4sh2ph1",
    "--deconv --dt=u8:s8:s32 --stag=axb --dtag=axb mb1ic64ih14oc64oh27kh3sh2ph1",
]


@needs_amx
@pytest.mark.sampled(12, "threads", wide=1, every="line")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("line", LINES)
def test_strides_are_exact(line: str, threads: int) -> None:
    kernel = cs.compile(line, target="avx512_amx", threads=threads)
    assert kernel.config.instruction.startswith("tdp")
    verdict = verify_kernel(kernel)
    assert verdict.ok, f"{kernel.config}: {verdict.detail}"


@pytest.mark.sampled(4)
@needs_amx
@pytest.mark.parametrize("layout", ["axb", "abx"])
@pytest.mark.parametrize(
    "window", ["ih28oc64oh14kh1sh2ph0", "ih33oc64oh16kh3sh2ph1dh1", "ih28oc64oh7kh3sh4ph1", "ih13oc64oh5kh1sh3ph0"]
)
def test_pixels_that_no_tap_meets_are_zero(window: str, layout: str) -> None:
    words = "--lane=ic --register=iw:14,ic:32 --instruction=tdpbf16ps_16 --k_step=oc:32 --realise=pad_copy"
    line = f"--dir=BWD_D --dt=bf16 --stag={layout} --dtag={layout} mb2ic64{window}"
    verdict = verify_kernel(cs.compile(line, target="avx512_amx", config=f"{words} --order=mb,ic,ih,iw"))
    assert verdict.ok, verdict.detail


@needs_amx
@pytest.mark.parametrize(
    "line",
    [
        "--dt=bf16 --stag=abx --dtag=abx mb2ic64ih50iw1oc48oh25ow1kh2kw1sh2sw1ph0pw0",
        "--dt=bf16 --stag=axb --dtag=axb mb1ic64ih50iw1oc48oh50ow1kh3kw1ph1pw0",
        "--dir=BWD_D --dt=bf16 --stag=abx --dtag=abx mb1ic64ih100iw1oc64oh50ow1kh3kw1sh2sw1ph1pw0",
    ],
)
def test_rows_of_fragments_run_down_an_image_of_width_one(line: str) -> None:
    kernel = cs.compile(line, target="avx512_amx", threads=1)
    assert kernel.config.instruction.startswith("tdp")
    assert isinstance(kernel.config, Config)
    assert any(n in ("oh", "ih", "oh_ow", "ih_iw") and size > 8 for n, size in kernel.config.tiles_at("register"))
    verdict = verify_kernel(kernel)
    assert verdict.ok, f"{kernel.config}: {verdict.detail}"


@needs_amx
def test_a_pixel_with_a_single_tap_is_no_stride() -> None:
    """Both borders of one row leave one tap, which equates the pixel and the tap as a stride does."""
    kernel = cs.compile(f"{SOURCE} mb1ic16ih1oc16oh1kh7ph6", target="avx512_amx", threads=1)
    assert verify_kernel(kernel).ok


@needs_amx
@pytest.mark.parametrize(("kernel", "copies"), [("ih14oc32oh56kh4sh4ph0", 0), ("ih28oc32oh56kh1sh2ph0", 0),
                                                ("ih14oc32oh28kh4sh2ph1", 1)])  # fmt: skip
def test_residue_classes_share_one_copy_of_an_image(kernel: str, copies: int) -> None:
    """There is no copy where strides alone decide which taps a pixel meets."""
    made = cs.compile(f"--deconv --dt=bf16 --stag=axb --dtag=axb mb2ic64{kernel}", target="avx512_amx", threads=1)
    assert made.config.instruction.startswith("tdp")
    assert str(made.ir()).count("alloc src_s:") == copies
    assert verify_kernel(made).ok
