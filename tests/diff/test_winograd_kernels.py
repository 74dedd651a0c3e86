"""Compiled Winograd kernels: exact where their arithmetic is, close to the reference on real numbers."""

from __future__ import annotations

import re

import numpy as np
import pytest

import convsmith as cs
from convsmith.compiler.driver import lower
from convsmith.ir.intern import interning
from convsmith.machine.registry import host_targets, target
from convsmith.measure.verification import verify_kernel
from convsmith.problem import parse_problem
from convsmith.problem.conv import Conv
from convsmith.problem.reference import conv_reference
from convsmith.schedule.config import Config
from convsmith.schedule.plan import plan

ISAS = [t.name for t in host_targets()]
EXACT = [
    ("--stag=axb --dtag=axb mb2ic19ih9iw11oc21oh9ow11kh3kw3ph1pw1",
     "--lane=oc --register=oc:16,tw:2 --winograd=oh:2,ow:2"),
    ("--dir=FWD_B --attr-post-ops=sum+relu --stag=axb --dtag=axb mb1ic16ih7oc40kh3ph1",
     "--lane=oc --fuse=th+tw --register=oc:16,th_tw:2 --winograd=oh:2,ow:2 --block=oh:1,ow:3"),
    ("--stag=aBx16b --dtag=aBx16b mb3ic20ih8oc24kh3ph1",
     "--lane=oc --register=oc:16,tw:2 --winograd=oh:2,ow:2 --block=oh:3"),
    ("--stag=axb --dtag=axb mb3ic20ih6oc24kh3ph1",
     "--lane=oc --fuse=tmb+th,tmb_th+tw --register=oc:16,tmb_th_tw:2 --winograd=oh:2,ow:2 --block=mb:2"),
    ("mb1ic5ih8oc7kh3ph0", "--lane=oc --register=oc:16 --winograd=oh:2,ow:2 --outline=no"),
    ("--dir=BWD_D --stag=axb --dtag=axb mb2ic18ih10oc17kh3ph1", "--lane=ic --register=ic:16,tw:2 --winograd=ih:2,iw:2"),
    ("--dir=BWD_D mb1ic18iw10oc17kw2pw1", "--lane=ic --register=ic:16,tw:2 --winograd=iw:3"),
    ("--deconv --stag=axb --dtag=axb mb1ic18ih6oc17kh3ph2", "--lane=oc --register=oc:16,tw:2 --winograd=oh:2,ow:2"),
    ("--stag=axb --dtag=axb mb1ic16id4ih5iw5oc16od4oh5ow5kd3kh3kw3pd1ph1pw1",
     "--lane=oc --register=oc:16,tw:2 --winograd=oh:2,ow:2"),
    ("--stag=axb --dtag=axb mb1ic16ih9iw9oc16oh5ow9kh3kw3sh2sw1ph1pw1",
     "--lane=oc --register=oc:16,tw:2 --winograd=ow:2"),
    ("--stag=axb --dtag=axb mb1ic19ih19oc21oh10kh3sh2ph1", "--lane=oc --register=oc:16,tw:2 --winograd=oh:3,ow:2"),
    ("--stag=axb --dtag=axb mb2ic16ih17iw23oc20oh7ow8kh5kw4sh2sw3ph1pw0",
     "--lane=oc --fuse=th+tw --register=oc:16,th_tw:2 --winograd=oh:1,ow:3 --block=oh:2"),
    ("--stag=abx --dtag=abx mb1ic19ih19oc21oh10kh3sh2ph1",
     "--lane=oc --register=oc:16,tw:2 --winograd=oh:2,ow:2 --block=oh:3"),
    ("--stag=axb --dtag=axb g3mb2ic15ih8oc21kh3ph1",
     "--lane=oc --fuse=th+tw --register=oc:16,th_tw:2 --winograd=oh:2,ow:2 --block=oh:2"),
    ("--dir=FWD_B --attr-post-ops=relu --stag=abx --dtag=abx g2mb1ic24ih9oc40oh9kh3ph1",
     "--lane=oc --register=oc:16,tw:2 --winograd=oh:2,ow:2"),
    ("--dir=BWD_D --stag=axb --dtag=aBx16b g2mb1ic36ih7oc34kh3ph1",
     "--lane=ic --register=ic:16,tw:2 --winograd=ih:2,iw:2"),
    ("--dt=bf16 --stag=axb --dtag=axb mb1ic19ih9oc21kh3ph1", "--lane=oc --register=oc:16,tw:2 --winograd=oh:2,ow:2"),
    ("--dir=BWD_D --dt=f16:f16:f32 --stag=abx --dtag=axb mb1ic19ih9oc21kh3ph1",
     "--lane=ic --register=ic:16,tw:2 --winograd=ih:2,iw:2"),
    ("--stag=axb --dtag=axb mb1ic16iw19oc20ow10kw1sw2", "--lane=oc --register=oc:16,tw:2 --winograd=ow:2"),
    ("--stag=axb --dtag=axb mb1ic16iw19oc20ow7kw2sw3", "--lane=oc --register=oc:16,tw:2 --winograd=ow:2"),
    ("--stag=abx --dtag=abx mb1ic19ih18oc40kh3ph1", "--lane=oc --register=oc:16,tw:2 --winograd=oh:2,ow:2"),
    ("--stag=abx --dtag=abx mb1ic19ih18oc40kh3ph1",
     "--lane=oc --register=oc:16,tw:2 --winograd=oh:2,ow:2 --block=oh:4"),
    ("--dir=FWD_B --attr-post-ops=sum+relu --stag=abx --dtag=abx mb1ic16ih16iw23oc20oh16ow23kh3kw3ph1pw1",
     "--lane=oc --register=oc:16,tw:2 --winograd=oh:2,ow:2 --block=oh:3,ow:4"),
    ("--stag=abx --dtag=axb mb3ic20ih6oc24kh3ph1",
     "--lane=oc --fuse=tmb+th,tmb_th+tw --register=oc:16,tmb_th_tw:2 --winograd=oh:2,ow:2 --block=mb:2"),
    ("--dir=BWD_D --stag=abx --dtag=abx mb2ic3iw40oc17kw2pw1", "--lane=ic --register=ic:16,tw:2 --winograd=iw:3"),
    ("--stag=abx --dtag=abx mb2ic32iw30oc32kw3pw1",
     "--lane=oc --fuse=tmb+tw --register=oc:16,tmb_tw:2 --winograd=ow:2 --block=mb:2"),
    ("--dir=BWD_D --stag=axb --dtag=axb mb2ic18ih10oc17oh5kh3sh2ph1",
     "--lane=ic --register=ic:16,tw:2 --winograd=ih:4,iw:6"),
    ("--deconv --stag=axb --dtag=axb g2mb1ic18ih6oc34oh13kh5sh2ph1",
     "--lane=oc --fuse=th+tw --register=oc:16,th_tw:2 --winograd=oh:4,ow:4 --block=oh:2"),
    ("--deconv --stag=abx --dtag=abx mb1ic18ih6oc17oh12kh4sh2ph1",
     "--lane=oc --register=oc:16,tw:2 --winograd=oh:4,ow:6"),
    ("--deconv --stag=axb --dtag=axb mb1ic18iw6oc17ow17kw2sw3", "--lane=oc --register=oc:16,tw:2 --winograd=ow:6"),
    ("--dir=BWD_D --stag=axb --dtag=axb mb1ic18ih9iw23oc17oh9ow8kh3kw7sh1sw3ph1pw2",
     "--lane=ic --register=ic:16,tw:2 --winograd=ih:2"),
    ("--dir=FWD_B --attr-post-ops=sum+relu --stag=axb --dtag=axb mb2ic17iw50oc20ow47kw3pw1dw2",
     "--lane=oc --register=oc:16,tpw:2 --winograd=ow:2"),
    ("--stag=axb --dtag=axb g2mb1ic34iw61oc36ow61kw3pw4dw3",
     "--lane=oc --fuse=tw+tpw --register=oc:16,tw_tpw:3 --winograd=ow:2 --block=ow:3"),
    ("--stag=axb --dtag=axb mb3ic16iw40oc16ow40kw7pw9dw2",
     "--lane=oc --fuse=tw+tpw --register=oc:16,tw_tpw:3 --order=f,oc,tw_tpw --winograd=ow:4 --block=ow:2"),
    ("--dir=BWD_D --stag=axb --dtag=axb mb1ic17iw30oc20kw3pw2dw1",
     "--lane=ic --fuse=tw+tpw --register=ic:16,tw_tpw:2 --winograd=iw:2"),
    ("--stag=aBx16b --dtag=aBx16b mb1ic20ih9iw20oc24oh9ow20kh3kw3ph1pw2dh0dw1",
     "--lane=oc --register=oc:16,tpw:2 --winograd=oh:2,ow:2 --block=oh:2,ow:2"),
    ("--dt=u8:s8:s32 --stag=axb --dtag=axb mb2ic19ih9iw11oc21oh9ow11kh3kw3ph1pw1",
     "--lane=oc --register=oc:16,tw:2 --winograd=oh:2,ow:2"),
    ("--dt=s8:s8:s8 --attr-zero-points=src:common:-128 --attr-post-ops=sum+relu --stag=axb --dtag=axb "
     "mb1ic16ih7oc40kh3ph1",
     "--lane=oc --fuse=th+tw --register=oc:16,th_tw:2 --winograd=oh:2,ow:2 --block=oh:1,ow:3"),
    ("--dt=u8:u8:s32 --stag=abx --dtag=abx mb1ic19ih18oc40kh3ph1",
     "--lane=oc --register=oc:16,tw:2 --winograd=oh:2,ow:2 --block=oh:4"),
    ("--dt=s8:u8:f32 --attr-zero-points=src:common:127 --stag=aBx16b --dtag=aBx16b g2mb3ic40ih8oc48kh3ph1",
     "--lane=oc --register=oc:16,tw:2 --winograd=oh:2,ow:2 --block=oh:3"),
    ("--dt=u8:s8:s8 --dir=BWD_D --stag=axb --dtag=axb mb2ic18ih10oc17kh3ph1",
     "--lane=ic --register=ic:16,tw:2 --winograd=ih:2,iw:2"),
    ("--dt=u8:s8:s32 --deconv --stag=axb --dtag=axb g2mb1ic18ih6oc34oh13kh5sh2ph1",
     "--lane=oc --fuse=th+tw --register=oc:16,th_tw:2 --winograd=oh:4,ow:4 --block=oh:2"),
    ("--dt=u8:s8:s32 --stag=axb --dtag=axb mb1ic19ih19oc21oh10kh3sh2ph1",
     "--lane=oc --register=oc:16,tw:2 --winograd=oh:2,ow:2"),
]  # fmt: skip


@pytest.mark.sampled(69, wide=1, every="line isa")
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("line", "words"), EXACT)
def test_exact(line: str, words: str, isa: str) -> None:
    threads = 1 + (len(line) + ISAS.index(isa)) % 2
    verdict = verify_kernel(cs.compile(line, config=f"--target={isa} {words} --pack=wei_w --threads={threads}"))
    assert verdict.ok, verdict.detail


@pytest.mark.sampled(3, "ends", "isa")
@pytest.mark.parametrize("ends", [(255, -128), (0, -128), (255, 127)])
@pytest.mark.parametrize("isa", ISAS)
def test_the_largest_bytes_stay_exact(isa: str, ends: tuple[int, int]) -> None:
    """The most channels of which sums of the largest products, multiplied by four, fit 32 bits."""
    line = "--dt=u8:s8:s32 --stag=axb --dtag=axb mb1ic1827ih4oc8kh3ph1"
    kernel = cs.compile(line, config=f"--target={isa} --lane=oc --register=oc:8,tw:2 --pack=wei_w --winograd=oh:2,ow:2")
    p = Conv.parse(line)
    x, w = np.full(p.src_shape, ends[0], np.uint8), np.full(p.wei_shape, ends[1], np.int8)
    w[::2, ::3], x[:, :, ::2] = 127, 255
    np.testing.assert_array_equal(kernel(x, w), conv_reference(p, x, w))


def test_pairs_of_words_multiply_transformed_bytes() -> None:
    line = "--dt=u8:s8:s32 --stag=axb --dtag=axb mb1ic64ih14oc32oh14kh3ph1"
    words = "--lane=oc --fuse=th+tw --register=th_tw:5,oc:16 --order=f,oc,th_tw --reduce=ic --pack=wei_w --k_step=ic:2"
    config = Config.parse(f"--target=avx2 {words} --instruction=vpmaddwd_256_s16 --winograd=oh:2,ow:2")
    with interning():
        text = lower(plan(parse_problem(line), config, target("avx2"))).text
    assert text.count("@llvm.x86.avx2.pmadd.wd") > 10


@pytest.mark.parametrize(
    ("sizes", "words"),
    [("id6ih6iw6oc16od4oh4ow4kd3kh3kw3", "od:4,oh:4,ow:4"), ("ih6iw6oc16oh4ow4kh3kw3ph0pw0", "oh:4,ow:4")],
)
def test_weights_are_transformed_in_loops(sizes: str, words: str) -> None:
    """Straight-line code of the transforms of all places would have 670 lines with two axes, 2,700 with three."""
    line = f"--stag=axb --dtag=axb mb1ic16{sizes}"
    config = Config.parse(f"--target=avx512 --lane=oc --register=oc:16,tw:2 --pack=wei_w --winograd={words}")
    with interning():
        text = lower(plan(parse_problem(line), config, target("avx512"))).text
    (weights,) = re.findall(r"^define void @\w*wei_w_chunk\(.*?^}", text, re.DOTALL | re.MULTILINE)[:1]
    assert "wei_w" in weights and 100 < weights.count("\n") < 400


@pytest.mark.parametrize("words", ["", "--block=oh:4"])
def test_tiles_at_all_borders_share_the_code_of_a_transform(words: str) -> None:
    """A transform has one function for the interior of an image and one for all of its borders."""
    line = "--stag=axb --dtag=axb mb1ic32ih22oc32kh3ph1"
    config = Config.parse(
        f"--target=avx512 --lane=oc --fuse=th+tw --register=th_tw:4,oc:32 --order=f,oc,th_tw --reduce=ic --pack=wei_w "
        f"--winograd=oh:4,ow:4 --outline=no {words}"
    )
    with interning():
        functions = lower(plan(parse_problem(line), config, target("avx512"))).kernel.functions
    ends = [{buffer.name for _, buffer in f.pointers} & {"src", "dst"} for f in functions]
    assert ends == [{"src"}, {"src"}, {"dst"}, {"dst"}]


@pytest.mark.skipif("avx512" not in ISAS, reason="the machine lacks AVX-512")
@pytest.mark.parametrize("taps", [3, 5])
def test_constants_of_transforms_leave_the_registers_to_sums(taps: int) -> None:
    """28 sums, two vectors of weights and a pixel fill the registers of a product's loop, which stores no sum."""
    words = "--lane=oc --fuse=th+tw --register=th_tw:14,oc:32 --order=f,oc,th_tw --reduce=ic --pack=wei_w"
    config = f"--target=avx512 {words} --winograd=oh:4,ow:4 --outline=no"
    line = f"--stag=axb --dtag=axb mb1ic64ih28oc32kh{taps}ph{taps // 2}"
    blocks = re.split(r"^\S+:", cs.compile(line, config=config).asm(), flags=re.MULTILINE)
    (product,) = (block for block in blocks if block.count("vfmadd231ps") == 28)
    assert not re.search(r"zmm\d+, -?\d*\(%rsp\)", product)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("m", "r", "stride"),
    [(2, 3, 1), (3, 3, 1), (4, 3, 1), (6, 3, 1), (2, 5, 1), (4, 5, 1), (2, 7, 1), (4, 3, 2), (2, 5, 2), (4, 7, 2)],
)
def test_error_is_the_expected_multiple_of_the_direct_one(m: int, r: int, stride: int) -> None:
    """Root mean squares of the errors, both axes nested."""
    line = f"--stag=axb --dtag=axb mb1ic64ih{16 * stride}oc32oh16kh{r}sh{stride}ph{r // 2}"
    p = Conv.parse(line)
    words = f"--lane=oc --register=oc:16,tw:2 --pack=wei_w --winograd=oh:{m},ow:{m}"
    kernel, direct = (
        cs.compile(line, config=f"--target={ISAS[0]} {words}", accuracy="any")
        for words in (words, "--lane=oc --register=oc:16,ow:2")
    )
    rng = np.random.default_rng(m * r)
    x, w = rng.standard_normal(p.src_shape).astype(np.float32), rng.standard_normal(p.wei_shape).astype(np.float32)
    truth = conv_reference(p, x.astype(np.float64), w.astype(np.float64))
    error, error_of_direct = (np.sqrt(np.mean((k(x, w) - truth) ** 2)) for k in (kernel, direct))
    (transform,) = kernel.transforms
    assert 0.7 < error / error_of_direct / transform.error < 1.5


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("m", "r"), [(4, 3), (8, 3), (4, 4), (8, 4), (8, 5)])
def test_error_by_data_with_a_stride_is_the_expected_multiple(m: int, r: int) -> None:
    """Residue classes with more taps have the larger part of both errors."""
    line = f"--deconv --stag=axb --dtag=axb mb1ic64ih16oc32oh32kh{r}sh2ph{(r - 1) // 2}"
    p = Conv.parse(line)
    words = f"--lane=oc --register=oc:16,tw:2 --pack=wei_w --winograd=oh:{m},ow:{m}"
    kernel, direct = (
        cs.compile(line, config=f"--target={ISAS[0]} {words}", accuracy="any")
        for words in (words, "--lane=oc --register=oc:16,ow:2")
    )
    rng = np.random.default_rng(m * r)
    x, w = rng.standard_normal(p.src_shape).astype(np.float32), rng.standard_normal(p.wei_shape).astype(np.float32)
    truth = conv_reference(p, x.astype(np.float64), w.astype(np.float64))
    error, error_of_direct = (np.sqrt(np.mean((k(x, w) - truth) ** 2)) for k in (kernel, direct))
    (transform,) = kernel.transforms
    assert 0.7 < error / error_of_direct / transform.error < 1.5


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_weights_that_are_not_finite_run_through_another_kernel(bad: float) -> None:
    line = "--stag=axb --dtag=axb mb1ic5ih6oc20oh6kh3ph1"
    p = Conv.parse(line)
    words = "--lane=oc --register=oc:16,tw:2 --pack=wei_w --winograd=oh:2,ow:2"
    kernel = cs.compile(line, config=f"--target={ISAS[0]} {words}")
    rng = np.random.default_rng(0)
    x = rng.integers(-3, 4, p.src_shape).astype(np.float32)
    w = rng.integers(-3, 4, p.wei_shape).astype(np.float32)
    w[0, 0, 0, 0] = bad
    with np.errstate(invalid="ignore"):
        truth = conv_reference(p, x, w).astype(np.float32)
    for weights in (w, kernel.pack(w)):
        np.testing.assert_array_equal(kernel(x, weights), truth)


@pytest.mark.parametrize(
    ("line", "words", "text"),
    [
        ("mb1ic8ih9oc8oh4kh3sh2ph1dh1", "--winograd=oh:2,ow:2", "axis h has a dilation with a stride, or a stride by"),
        ("--dir=BWD_D mb1ic8ih8oc8kh1sh2", "--winograd=ih:2,iw:2", "or a stride by data with one tap; legal with a"),
        ("mb1ic8ih8oc8oh6kh3ph1dh1", "--winograd=oh:2", "channels are strided, and a transform copies adjacent pixels"),
        ("--stag=axb --dtag=axb mb1ic16ih8oc16oh6kh3ph1dh1", "--winograd=oh:2,ow:2", "dilated along oh and ow,"),
        ("--dir=BWD_D mb1ic8ih8oc8kh3ph1sh2", "--winograd=ih:3,iw:2", "ih:3 is no multiple of 2, the stride by data"),
        ("mb1ic8ih8oc8kh3ph1", "--winograd=oh:12", r"F\(12, 3\) needs 13 points; there are 11"),
        ("mb1ic8ih8oc8kh3ph1", "--winograd=ic:2", "--winograd=ic:2: legal are oh, ow, and at least 1"),
        ("mb1ic8ih8oc8kh3ph1", "--winograd=oh:2 --block=od:2", "--block=od:2: legal are mb, oh, ow, and at least 1"),
        ("mb1ic8ih8oc8kh3ph1", "--block=oh:2", "--block=oh:2 needs --winograd="),
        ("mb1ic8ih8oc8kh3ph1", "--winograd=oh:2 --realise=mask", "legal beside --winograd= is the schedule of"),
        ("--dir=BWD_W mb1ic8ih8oc8kh3ph1", "--winograd=oh:2", "legal are convolutions forward and by data"),
        ("--dt=f64 mb1ic8ih8oc8kh3ph1", "--winograd=oh:2", "in f32, or in s16 for bytes; products of f64"),
        ("--dt=u8:s8:s32 mb1ic8ih8oc8kh3ph1", "--winograd=oh:4,ow:4", "pixels are multiplied by fractions"),
        ("--dt=u8:s8:s32 mb1ic8ih8oc8kh3ph1", "--winograd=oh:3", "sums are divided by 6, which is no power of two"),
        ("--dt=u8:s8:s32 mb1ic1828ih8oc8kh3ph1", "--winograd=oh:2,ow:2",
         "sums of 16452 products, multiplied by 4, exceed"),
        ("--dt=u8:s8:s32 --attr-zero-points=wei:common:3 mb1ic8ih8oc8kh3ph1", "--winograd=oh:2,ow:2",
         "legal are zero points of the source alone"),
        ("--matmul 8x8:8x8", "--winograd=oh:2", "legal are convolutions forward and by data"),
    ],
)
def test_refused_with_the_reason(line: str, words: str, text: str) -> None:
    with pytest.raises(cs.ConfigError, match=text):
        cs.compile(parse_problem(line), config=f"--target={ISAS[0]} --lane=oc {words}")
