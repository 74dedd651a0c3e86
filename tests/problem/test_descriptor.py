from __future__ import annotations

import dataclasses
import json
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.problem import Conv, Eltwise
from convsmith.problem.attributes import ARGUMENTS, Quantity
from convsmith.problem.descriptor import output_size
from convsmith.problem.types import TYPES

EDGE_CASES = json.loads((Path(__file__).parents[1] / "data" / "oneDNN_edge_cases.json").read_text())


FLOAT_TYPES = [
    ("f32", "f32", "f32"), ("f64", "f64", "f64"), ("bf16", "bf16", "bf16"), ("f16", "f16", "f16"),
    ("f16", "f32", "f16"),
]  # fmt: skip
DATA_TYPES = [*FLOAT_TYPES, ("u8", "s8", "s8"), ("f32", "bf16", "bf16")]
FORWARD_TYPES = [
    *FLOAT_TYPES[:4], ("f32", "bf16", "f32"), ("f32", "f16", "s8"), ("bf16", "bf16", "u8"), ("u8", "s8", "s32"),
    ("s8", "s8", "bf16"), ("u8", "u8", "f16"),
]  # fmt: skip


@st.composite
def problems(draw: st.DrawFn) -> Conv:
    rank = draw(st.integers(1, 3))

    def sizes(low: int, high: int) -> tuple[int, ...]:
        return (draw(st.integers(low, high)),) * rank if draw(st.booleans()) else tuple(
            draw(st.integers(low, high)) for _ in range(rank)
        )  # fmt: skip

    has_groups = draw(st.booleans())
    g = draw(st.integers(1, 5)) if has_groups else 1
    fine, k, s, d, p = sizes(0, 2**17), sizes(1, 9), sizes(1, 4), sizes(0, 3), sizes(0, 5)
    smallest = [max(output_size(*axis, 0), 0) for axis in zip(fine, k, s, d, p, strict=True)]
    coarse = tuple(size + draw(st.integers(0, 5)) for size in smallest)
    deconv = draw(st.booleans())
    i, o = (coarse, fine) if deconv else (fine, coarse)
    dir = draw(st.sampled_from(["FWD_B", "FWD_D", "FWD_I", "BWD_D", "BWD_W", "BWD_WB"]))
    forward = dir.startswith("FWD")
    dt = draw(st.sampled_from(FORWARD_TYPES if forward else DATA_TYPES if dir == "BWD_D" else FLOAT_TYPES))
    modes = ["strict", "relaxed", "any"]
    if dt == ("f16", "f16", "f16") or (dir.startswith("BWD_W") and dt[0] == dt[2] == "f16"):
        modes += ["f16", "f32"]
    bia_dt = "" if dt[0] == "f64" else draw(st.sampled_from(["", "f32", "bf16", "f16"]))
    scales, zero_points = [], []
    if forward:
        policies = [("src", "common"), ("wei", "per_oc"), ("wei", "per_dim_0"), ("dst", "common"), ("dst", "per_dim_1")]
        for argument, policy in draw(st.lists(st.sampled_from(policies), max_size=3, unique_by=lambda pair: pair[0])):
            values = draw(st.floats(2**-9, 2**9, width=32).map(lambda value: (value,)))
            scales.append(
                Quantity(argument, policy, values if policy == "common" else draw(st.just(()) | st.just(values)))
            )
        policies = [("dst", "common"), *([("src", "per_dim_1"), ("wei", "common")] if dt[0] in ("u8", "s8") else [])]
        for argument, policy in draw(st.lists(st.sampled_from(policies), max_size=3, unique=True)):
            values = (draw(st.integers(-128, 127)),) if policy == "common" else ()
            zero_points.append(Quantity(argument, policy, values, draw(st.sampled_from(["s32", "s8"]))))
    scales.sort(key=lambda q: ARGUMENTS.index(q.argument))
    zero_points.sort(key=lambda q: ARGUMENTS.index(q.argument))
    names = st.text(st.characters(blacklist_categories=("C", "Z"), blacklist_characters='"'), min_size=1)
    post_ops = st.one_of(
        st.builds(Eltwise, st.just("relu"), st.floats(width=32, allow_nan=False)),
        st.tuples(*[st.floats(width=32, allow_nan=False)] * 2).map(lambda ab: Eltwise("clip", min(ab), max(ab))),
    )
    activation_tags = ["any", "abx", "axb", "aBx16b", "a" + "cde"[:rank] + "b"]
    return Conv(
        mb=draw(st.integers(0, 9)), ic=g * draw(st.integers(1, 9)), oc=g * draw(st.integers(1, 9)),
        i=i, o=o, k=k, s=s, d=d, p=p, g=g, has_groups=has_groups, deconv=deconv, dir=dir, dt=dt, bia_dt=bia_dt,
        acc_mode=draw(st.sampled_from(modes)),
        scales=tuple(scales), zero_points=tuple(zero_points), stag=draw(st.sampled_from(activation_tags)),
        wtag=draw(st.sampled_from(["any", "abx", "xba"])), dtag=draw(st.sampled_from(activation_tags)),
        post_ops=tuple(draw(st.lists(post_ops, max_size=3 if forward else 0))), name=draw(st.none() | names),
    )  # fmt: skip


@given(problems())
def test_print_and_parse_are_inverse(problem: Conv) -> None:
    assert Conv.parse(str(problem)) == problem
    assert str(Conv.parse(str(problem))) == str(problem)
    canonical = problem.canonical()
    assert canonical == canonical.canonical()
    assert (canonical.src_layout, canonical.wei_layout) == (problem.src_layout, problem.wei_layout)


@pytest.mark.parametrize("deconv", [False, True])
def test_the_least_coarse_size_is_the_number_of_windows_that_fit(deconv: bool) -> None:
    """Every size from there on is legal, and none below; windows are counted one by one."""
    for fine, k, s, d, p in product((1, 2, 5, 8), (1, 2, 4), (1, 2, 3, 6), (0, 2), (0, 1, 4)):
        fit = sum(start + (k - 1) * (d + 1) < fine + p for start in range(0, fine + p, s))
        for coarse in range(1, fit + 3):
            i, o = (coarse, fine) if deconv else (fine, coarse)
            line = f"{'--deconv ' if deconv else ''}mb1ic1iw{i}oc1ow{o}kw{k}sw{s}dw{d}pw{p}"
            if coarse >= fit:
                (back,) = Conv.parse(line).pr
                assert back == (coarse - 1) * s + (k - 1) * (d + 1) + 1 - fine - p, line
            else:
                with pytest.raises(UsageError) as error:
                    Conv.parse(line)
                assert error.value.code == "bad-output-size", line


def test_the_fields_of_a_line() -> None:
    c = Conv.parse('--dir=FWD_B --stag=axb --attr-post-ops=relu:0.5+clip:0:6 g2mb3_ic4ih8iw6_oc6kh3kw1_sh2_ph1n"a b"')
    assert c == Conv(
        mb=3, ic=4, oc=6, i=(8, 6), o=(4, 6), k=(3, 1), s=(2, 1), d=(0, 0), p=(1, 0), g=2, has_groups=True, dir="FWD_B",
        stag="axb", post_ops=(Eltwise("relu", 0.5), Eltwise("clip", 0, 6)), name="a b",
    )  # fmt: skip
    assert c.bias and c.axes == "hw" and c.keff == (3, 1)
    assert (c.src_shape, c.wei_shape, c.dst_shape, c.bias_shape) == ((3, 4, 8, 6), (2, 3, 2, 3, 1), (3, 6, 4, 6), (6,))
    assert c.pr == (0, 0)
    assert c.dims["sh"] == 2 and c.dims["pw"] == 0 and "id" not in c.dims
    assert c.flops_dense == 2 * 3 * 6 * 2 * 3 * 4 * 6
    assert c.flops_real == c.flops_dense * (3 * 4 - 1) // (3 * 4)
    assert str(c) == (
        "--dir=FWD_B --stag=axb --attr-post-ops=relu:0.5+clip:0:6 "
        'g2mb3ic4ih8iw6oc6oh4ow6kh3kw1sh2sw1ph1pw0n"a b"'
    )  # fmt: skip


@pytest.mark.parametrize(
    ("options", "inputs", "outputs"),
    [
        ("--dir=FWD_D", "src:u8 wei:s8", "dst:f32"),
        ("--dir=FWD_I", "src:u8 wei:s8", "dst:f32"),
        ("--dir=FWD_B", "src:u8 wei:s8 bia:f32", "dst:f32"),
        ("--dir=FWD_B --bia-dt=s32", "src:u8 wei:s8 bia:s32", "dst:f32"),
        ("--dir=FWD_B --dt=f64", "src:f64 wei:f64 bia:f64", "dst:f64"),
        ("--dir=BWD_D --dt=bf16:f32:f16", "wei:f32 diff_dst:f16", "diff_src:bf16"),
        ("--dir=BWD_W --dt=bf16:f32:f16", "src:bf16 diff_dst:f16", "diff_wei:f32"),
        ("--dir=BWD_WB --dt=bf16:f32:f16", "src:bf16 diff_dst:f16", "diff_wei:f32 diff_bia:f32"),
        ("--dir=BWD_WB --dt=f32 --bia-dt=bf16", "src:f32 diff_dst:f32", "diff_wei:f32 diff_bia:bf16"),
    ],
)
@pytest.mark.parametrize("kind", ["", "--deconv"])
def test_the_arrays_of_each_direction(kind: str, options: str, inputs: str, outputs: str) -> None:
    types = "" if "--dt" in options else "--dt=u8:s8:f32 "
    problem = Conv.parse(
        f"{kind} {options} {types}--stag=axb --wtag=xba --dtag=aBx16b g2mb3ic4ih8iw6oc6oh8ow6kh3kw1ph1"
    )
    arrays = problem.tensors
    assert " ".join(f"{t.name}:{t.dtype}" for t in arrays) == f"{inputs} {outputs}"
    assert {t.name: t.role for t in arrays} == {
        word.split(":")[0]: role for words, role in ((inputs, "in"), (outputs, "out")) for word in words.split()
    }
    shapes = {"src": (3, 4, 8, 6), "wei": (2, 3, 2, 3, 1), "bia": (6,), "dst": (3, 6, 8, 6)}
    tags = {"src": "axb", "wei": "xba", "bia": "any", "dst": "aBx16b"}
    dims = {
        "src": ("mb", "ic", "ih", "iw"), "wei": ("g", "oc", "ic", "kh", "kw"), "bia": ("oc",),
        "dst": ("mb", "oc", "oh", "ow"),
    }  # fmt: skip
    for tensor in arrays:
        name = tensor.name.removeprefix("diff_")
        assert (tensor.shape, tensor.tag, tensor.dims) == (shapes[name], tags[name], dims[name])
        assert problem.tensor(tensor.name) is tensor
    with pytest.raises(UsageError, match="has no array 'acc'; it has "):
        problem.tensor("acc")
    assert problem.acc == ("s32" if types else "f64" if "f64" in options else "f32")


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("ic3ih5oc4kh3", "mb2ic3ih5oc4oh3kh3ph0"),
        ("mb0ic3ih5oc4kh3", "mb0ic3ih5oc4oh3kh3ph0"),
        ("g1ic3ih5oc4kh3", "g1mb2ic3ih5oc4oh3kh3ph0"),
        ("ic3iw5oc4kw3", "mb2ic3iw5oc4ow3kw3pw0"),
        ("ic3id5oc4kd3pd1", "mb2ic3id5oc4od5kd3pd1"),
        ("ic3ih5iw5oc4kh3kw3ph1pw1", "mb2ic3ih5oc4oh5kh3ph1"),
        ("ic3ih5oc4oh5kh3", "mb2ic3ih5oc4oh5kh3ph1"),
        ("ic3ih5oc4oh4kh3", "mb2ic3ih5oc4oh4kh3ph0"),
        ("ic3ih6oc4oh3kh1sh2", "mb2ic3ih6oc4oh3kh1sh2ph0"),
        ("ic3ih9oc4kh3sh2dh1ph2", "mb2ic3ih9oc4oh5kh3sh2ph2dh1"),
        ("id0od0kd0ic3ih5oc4kh3", "mb2ic3ih5oc4oh3kh3ph0"),
        ("ic3ih0oc4kh1", "mb2ic3ih0oc4oh0kh1ph0"),
        ("--dir=fwd_i --dt=F32 ic3ih5oc4kh3", "--dir=FWD_I mb2ic3ih5oc4oh3kh3ph0"),
        ("--dt=f32:f32:f32 --mb=7 ic3ih5oc4kh3", "mb7ic3ih5oc4oh3kh3ph0"),
        ("--conv --mb=0 mb1ic3ih5oc4kh3nresnet:c_1", 'mb1ic3ih5oc4oh3kh3ph0n"resnet:c_1"'),
        ("--strides=:: ic3ih5oc4kh3", "mb2ic3ih5oc4oh3kh3ph0"),
        ("--deconv ic3ih5oc4kh3", "--deconv mb2ic3ih5oc4oh7kh3ph0"),
        ("--deconv ic3iw5oc4kw3sw2pw1", "--deconv mb2ic3iw5oc4ow9kw3sw2pw1"),
        ("--deconv ic3iw5oc4ow10kw3sw2", "--deconv mb2ic3iw5oc4ow10kw3sw2pw0"),
        ("--deconv ic3iw5oc4kw3dw2", "--deconv mb2ic3iw5oc4ow11kw3pw0dw2"),
        ("--bia_dt=f32 --attr-scales= ic3iw5oc4kw3", "mb2ic3iw5oc4ow3kw3pw0"),
        ("--dir=BWD_D --dt=u8:s8:s8 --attr-scales=wei:common:0.10+src:per_oc ic3iw5oc4kw3",
         "--dir=BWD_D --dt=u8:s8:s8 --attr-scales=src:per_oc+wei:common:0.1 mb2ic3iw5oc4ow3kw3pw0"),
        ("--dt=U8:s8:u8 --attr-zero-points=wei:common:1:s8+src:common:-2* ic3iw5oc4kw3",
         "--dt=u8:s8:u8 --attr-zero-points=src:common:-2+wei:common:1:s8 mb2ic3iw5oc4ow3kw3pw0"),
        ("--strides=100x1x20x4::9x9x3x1 --mb=1 ic3ih5oc1oh3kh3",
         "--stag=a:1:100_c:5:20_d:5:4_b:3:1 --dtag=abcd mb1ic3ih5oc1oh3kh3ph0"),
    ],
)  # fmt: skip
def test_defaults_and_canonical_form(text: str, canonical: str) -> None:
    assert str(Conv.parse(text)) == canonical


def test_odd_totals_put_the_larger_pad_behind() -> None:
    c = Conv.parse("ic1ih4oc1oh4kh4")
    assert (c.p, c.pr) == ((1, 1), (2, 2))


def test_the_back_pad_may_be_negative_or_large() -> None:
    c = Conv.parse("ic1ih6oc1oh2kh1sh3ph0")
    assert c.pr == (-2, -2)
    c = Conv.parse("ic1ih4oc1oh40kh3ph0")
    assert c.pr == (38, 38)
    assert c.flops_real == 2 * 2 * (4 + 3 + 2) ** 2


def test_equal_kernels_have_equal_canonical_problems() -> None:
    lines = ("--dir=FWD_D --stag=nhwc --bia-dt=bf16 --attr-post-ops=add:f32:15+prelu:per_tensor+add:s8:per_oc",
             "--dir=FWD_I --stag=axb --attr-post-ops=add:f32:per_tensor+prelu:15+binary_add:s8:2")  # fmt: skip
    one, other = (Conv.parse(f"{line} mb1ic3ih5oc4kh3n{n}").canonical() for n, line in enumerate(lines))
    assert one == other
    assert Conv.parse("--dir=BWD_WB --bia-dt=bf16 ic3ih5oc4kh3").canonical().bia_dt == "bf16"


@pytest.mark.parametrize(
    ("options", "canonical", "types"),
    [
        ("--dt=f16", "--dt=f16", ("f16", "f16", "f32")),
        ("--dt=f16 --attr-acc-mode=relaxed", "--dt=f16", ("f16", "f16", "f32")),
        ("--dt=f16 --attr-acc-mode=f32", "--dt=f16", ("f16", "f16", "f32")),
        ("--dt=f16 --attr-acc-mode=F16", "--dt=f16 --attr-acc-mode=f16", ("f16", "f16", "f16")),
        ("--dt=f16:f16:s8 --attr-acc-mode=any", "--dt=f16:f16:s8 --attr-acc-mode=f16", ("f16", "f16", "f16")),
        ("--dir=BWD_D --dt=f32:f16:f16 --attr-acc-mode=f16", "", ("f16", "f16", "f16")),
        ("--dir=BWD_W --dt=f16:f32:f16 --attr-acc-mode=f16", "", ("f16", "f16", "f16")),
        ("--dt=f32:f16:f32 --attr-acc-mode=any", "--dt=f32:f16:f32", ("f32", "f16", "f32")),
        ("--dt=bf16 --attr-acc-mode=any", "--dt=bf16", ("bf16", "bf16", "f32")),
        ("--dt=u8:s8:u8 --attr-acc-mode=s32", "--dt=u8:s8:u8", ("u8", "s8", "s32")),
        ("--dt=f64 --attr-acc-mode=strict", "--dt=f64", ("f64", "f64", "f64")),
    ],
)
def test_types_of_sums(options: str, canonical: str, types: tuple[str, str, str]) -> None:
    """`any` and `f16` permit sums in f16 of products of f16; kernels of what permits the same are the same."""
    problem = Conv.parse(f"{options} mb1ic4iw5oc4ow3kw3pw0")
    assert problem.types == types and problem.acc == ("f32" if types[2] == "f16" else types[2])
    assert str(problem.canonical()) == f"{canonical or options} mb1ic4iw5oc4ow3kw3pw0"


@pytest.mark.parametrize("numbers", EDGE_CASES["zero_size_legal"], ids=str)
def test_zero_sizes_are_legal(numbers: list[int]) -> None:
    text = "".join(f"{dim.lower()}{size}" for dim, size in zip(EDGE_CASES["fields"], numbers, strict=True))
    problem = Conv.parse(text)
    assert 0 in problem.src_shape
    assert problem.flops_real == 0
    assert Conv.parse(str(problem)) == problem


@pytest.mark.parametrize(("why", "numbers"), EDGE_CASES["must_be_refused"], ids=str)
def test_illegal_sizes_are_refused(why: str, numbers: list[int]) -> None:
    pairs = list(zip(EDGE_CASES["fields"], numbers, strict=True))
    with pytest.raises(UsageError) as error:
        Conv.parse("".join(f"{dim.lower()}{size}" for dim, size in pairs))
    assert error.value.code == "bad-dim"
    wrong = {f"{dim.lower()}={size} is not legal: expected {dim.lower()} >= {size + 1}" for dim, size in pairs}
    negative = "ic=-4 is not legal: expected ic >= 1"
    assert any(text in str(error.value) for text in wrong | {negative})


@pytest.mark.parametrize(
    ("line", "code", "text"),
    [
        ("", "bad-descriptor", "no descriptor"),
        ("--dir=FWD_B", "bad-descriptor", "no descriptor"),
        ("mb1ic64xy3", "bad-descriptor", "cannot read 'xy3' at position 7; expected one of g mb ic"),
        ("ic3ih5oc4kh", "bad-descriptor", "kh at position 9 has no number"),
        ("ic3ih5oc4kh3ic4", "bad-descriptor", "ic is given twice"),
        ("ih5oc4kh3", "bad-descriptor", "ic is missing"),
        ("ic4ih5kh3", "bad-descriptor", "oc is missing"),
        ("ic4oc4kh3", "bad-descriptor", "ih is missing"),
        ("ic4oc4ih3", "bad-descriptor", "kh is missing"),
        ("ic4oc4", "bad-descriptor", "its spatial axes are none"),
        ("ic4oc4id3kd1iw3kw1", "bad-descriptor", "its spatial axes are dw; legal are w, hw, h"),
        ("ic4oc4ih2kh5", "bad-descriptor", "kh=5 (effective 5) does not fit ih=2 with ph=0"),
        ("ic4oc4ih2kh3dh1ph1", "bad-descriptor", "legal are ih >= 3, or an oh of its own"),
        ("ic4oc4ih5kh99999999999999999999", "bad-descriptor", "too large"),
        ("ic4oc4ih5kh3 --dir=FWD_B", "bad-descriptor", "'--dir=FWD_B' follows the descriptor; legal are options"),
        ("g3ic6ih5oc4kh3", "bad-groups",
         "g=3 does not divide oc=4: legal are the divisors of both ic=6 and oc=4, that is 1, 2"),
        ("g0ic6ih5oc4kh3", "bad-dim", "g=0 is not legal: expected g >= 1"),
        ("ic4ih56oc4oh10kh3ph1", "bad-output-size",
         "oh=10 implies a back pad of -45, which is not above -sh=-1: the smallest legal oh is 55, and there is no"),
        ("ic4ih56oc4oh10kh3ph1", "bad-output-size", "equal pads at both ends give oh=56"),
        ("ic4id9oc4od2kd1sd3pd0", "bad-output-size",
         "od=2 implies a back pad of -5, which is not above -sd=-3: the smallest legal od is 3"),
        ("ic4iw9oc4ow2kw1sw3", "bad-output-size", "with pw=0 the smallest legal ow is 3, and there is no largest"),
        ("-dir=FWD_B ic4ih5oc4kh3", "bad-option", "options are written --name=value"),
        ("--dir ic4ih5oc4kh3", "bad-option", "options are written --name=value"),
        ("--dir=FWD_B --dir=FWD_D ic4ih5oc4kh3", "bad-option", "--dir is given twice"),
        ("--dir=FWD ic4ih5oc4kh3", "bad-option", "'FWD' is unknown; legal: FWD_B, FWD_D, FWD_I, BWD_D"),
        ("--dt=f31 ic4ih5oc4kh3", "bad-option", f"'f31' is unknown; legal: {', '.join(TYPES)}"),
        ("--bia-dt=f31 ic4ih5oc4kh3", "bad-option", "--bia-dt: 'f31' is unknown"),
        ("--matmul ic4ih5oc4kh3", "bad-option", "--matmul is unknown"),
        ("--deconv ic4ih3oc4oh9kh3sh2ph1", "bad-output-size",
         "oh=9 implies a back pad of -3, which is not above -sh=-2: this is output padding that no input size "
         "explains; the largest legal oh is 7, and there is no smallest; equal pads at both ends give oh=5"),
        ("--deconv ic4ih3oc4kh3ph3", "bad-descriptor", "does not fit ih=3 with ph=3 at both ends, so no oh follows; "
         "legal are ih >= 5"),
        ("--deconv ic4ih3oc4oh9kh3sh2", "bad-output-size", "leaves 2 elements of oh=9 unwritten, and without ph the "
         "front pad would be -1"),
        ("--dt=f32:f32 ic4ih5oc4kh3", "bad-option", "expected the types of source, weights and destination"),
        ("--colour=red ic4ih5oc4kh3", "bad-option", "--colour is unknown; legal: --dir"),
        ("--mb=x ic4ih5oc4kh3", "bad-dim", "mb='x' is not a whole number"),
        ("--stag=nwc ic4ih5oc4kh3", "bad-tag", "--stag=nwc: layout tag 'nwc' does not suit a tensor of 4 dims"),
        ("--wtag=nhwc ic4ih5oc4kh3g1", "bad-tag", "--wtag=nhwc"),
        ("--strides=1x2 ic4ih5oc4kh3", "bad-option", "expected SRC:WEI:DST"),
        ("--strides=1x2:: ic4ih5oc4kh3", "bad-option", "'1x2' has 2 strides; legal is one integer for each of"),
        ("--stag=axb --strides=100x1x20x4:: ic4ih5oc4kh3", "bad-option", "--strides and --stag"),
        ("--strides=100x1x20x1:: ic4ih5oc4kh3", "bad-layout", "makes elements share memory"),
        ("mb1152921504606846976ic4ih5oc4kh3", "too-large", "src of shape"),
        ('ic4ih5oc4kh3n"a"b"', "bad-name", "expected printable text without quotes"),
    ],
)  # fmt: skip
def test_bad_lines(line: str, code: str, text: str) -> None:
    with pytest.raises(UsageError) as error:
        Conv.parse(line)
    assert text in str(error.value)
    assert error.value.code == code


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("--dt=f4_e2m1", "f4_e2m1 is not available; available: f32, f64, bf16"),
        ("--dt=f8_e5m2:f16:f16", "the nearest is --dt=f8_e5m2:f8_e5m2:f16"),
        ("--dt=s4:s8:s32", "the nearest is --dt=s8:s8:s32"),
        ("--dt=f64:s4:f64", "the nearest is --dt=f64"),
        ("--dt=s8:f32:f32", "--dt=s8:f32:f32 with --dir=FWD_D is not available; the nearest is --dt=s8:s8:f32"),
        ("--dt=f32:s8:f32", "the nearest is --dt=s8:s8:f32"),
        ("--dt=s32:s8:s32", "the nearest is --dt=s8:s8:s32"),
        ("--dt=bf16:f32:f32", "the nearest is --dt=bf16:bf16:f32"),
        ("--dt=f32:f32:s32", "the nearest is --dt=f32"),
        ("--dt=f64:f32:f32", "the nearest is --dt=f64"),
        ("--dir=BWD_W --dt=u8:s8:s32", "with --dir=BWD_W is not available; the nearest is --dt=f32"),
        ("--dir=BWD_D --dt=f32:f32:s8", "with --dir=BWD_D is not available; the nearest is --dt=f32:s8:s8"),
        ("--dir=FWD_B --bia-dt=f64", "--bia-dt=f64 with --dt=f32 is not available; the nearest is f32"),
        ("--dir=FWD_B --bia-dt=s32", "--bia-dt=s32 with --dt=f32 is not available; the nearest is f32"),
        ("--alg=wino", "--alg is not available; available: --dir"),
        ("--attr-scales=bia:common:2", "bia has none here; available: src, wei, dst"),
        ("--attr-scales=src:per_dim_1", "is not available; available for src: common"),
        ("--attr-scales=wei:per_dim_01", "available for wei: common, per_oc, per_dim_0"),
        ("--attr-scales=src:common:2:f16", "scales of type f16 are not available; the nearest is f32"),
        ("--attr-post-ops=relu+relu_dst", "post-op 'relu_dst' is not available, the nearest is relu; available are"),
        ("--attr-post-ops=select:f32", "post-op 'select' is not available; available are relu[:slope]"),
    ],
)
def test_legal_elsewhere_but_not_built(option: str, text: str) -> None:
    with pytest.raises(UnsupportedError) as error:
        Conv.parse(f"{option} ic4ih5oc4kh3")
    assert text in str(error.value)


def test_fields_are_checked_without_a_descriptor_too() -> None:
    c = Conv.parse("mb1ic4ih5oc4kh3")
    with pytest.raises(UsageError, match="same length"):
        dataclasses.replace(c, k=(3,))
    with pytest.raises(UsageError, match="g=2 needs weights with a group dim"):
        dataclasses.replace(c, g=2)
    with pytest.raises(UsageError, match=r"mb=1\.5 is not a whole number"):
        dataclasses.replace(c, mb=1.5)  # type: ignore[arg-type]


def test_sizes_beyond_32_bits_do_not_wrap() -> None:
    c = Conv.parse("mb1ic1iw4294967301oc1kw3sw2pw1")
    assert c.o == ((4294967301 + 2 - 3) // 2 + 1,)
    assert c.flops_real == 2 * (3 * c.o[0] - 2)
    numpy_sizes = dataclasses.replace(c, mb=np.int32(3), i=(np.int64(4294967301),))  # type: ignore[arg-type]
    assert numpy_sizes.src_layout.size == 3 * 4294967301
