"""Instructions that compute the products of a statement, and statements that dot products cannot serve."""

from __future__ import annotations

import pytest

from convsmith.diag.errors import ConfigError
from convsmith.ir.intern import interning
from convsmith.machine.x86.levels import LEVELS
from convsmith.problem import parse_problem
from convsmith.schedule.config import Config
from convsmith.schedule.plan import plan
from convsmith.schedule.product_shape import ProductShape
from convsmith.statement.offsets import summed
from convsmith.statement.views import statement
from convsmith.tune.candidates import default_config

TARGETS = {t.name: t for t in LEVELS}
LAYER = "mb1ic8ih6oc32oh6kh3ph1"

UNITS = {
    "f32": (LAYER, "avx512", (16, 1, False)),
    "f64": (f"--dt=f64 {LAYER}", "avx512", (8, 1, False)),
    "f64-256": (f"--dt=f64 {LAYER}", "avx2", (4, 1, False)),
    "bytes": (f"--dt=u8:s8:s32 {LAYER}", "avx512_vnni", (16, 4, True)),
    "bytes-signed": (f"--dt=s8:s8:s32 {LAYER}", "avx512_vnni", (16, 2, True)),
    "narrow": (f"--dt=u8:s8:s32 {LAYER}", "avx2", (8, 4, True)),
    "words": (f"--dt=s8:s8:s32 {LAYER}", "avx2", (8, 2, True)),
    "bf16": (f"--dt=bf16 {LAYER}", "avx512_bf16", (16, 2, True)),
    "bf16-converted": (f"--dt=bf16 {LAYER}", "avx512_vnni", (16, 1, False)),
    "by-data": (f"--dir=BWD_D --dt=bf16 {LAYER}", "avx512_bf16", (16, 2, True)),
    "by-weights": (f"--dir=BWD_W --dt=bf16 {LAYER}", "avx512_bf16", (16, 1, False)),
    "bf16-of-channels": ("--dt=bf16 --stag=axb --dtag=axb g32ic32oc32ih6kh3ph1", "avx512_bf16", (16, 1, False)),
    "f16": (f"--dt=f16 {LAYER}", "avx512_fp16", (16, 1, False)),
    "f16-sums": (f"--dt=f16:f16:f32 --attr-acc-mode=any {LAYER}", "avx512_fp16", (32, 1, False)),
    "f16-sums-by-data": (f"--dir=BWD_D --dt=f16 --attr-acc-mode=f16 {LAYER}", "avx512_fp16", (32, 1, False)),
    "f16-sums-by-weights": (f"--dir=BWD_W --dt=f16 --attr-acc-mode=f16 {LAYER}", "avx512_fp16", (32, 1, False)),
    "f16-sums-without-a-row": (f"--dt=f16 --attr-acc-mode=f16 {LAYER}", "avx512_bf16", (16, 1, False)),
    "zero-points": (f"--dt=u8:s8:s32 --attr-zero-points=src:common:3 {LAYER}", "avx512_vnni", (16, 1, False)),
    "zero-point-behind": (f"--dt=u8:s8:u8 --attr-zero-points=dst:common:3 {LAYER}", "avx512_vnni", (16, 4, True)),
    "one-channel": (f"--dt=u8:s8:s32 {LAYER.replace('ic8', 'ic1')}", "avx512_vnni", (16, 1, False)),
    "product": ("--matmul --dt=u8:s8:s32 8x8:8x32", "avx512_vnni", (16, 4, True)),
    "product-of-columns": ("--matmul --dt=u8:s8:s32 8x1:1x32", "avx512_vnni", (16, 1, False)),
}  # fmt: skip


@pytest.mark.parametrize("name", UNITS)
def test_unit(name: str) -> None:
    line, isa, (lanes, terms, dot) = UNITS[name]
    with interning():
        st = statement(parse_problem(line), TARGETS[isa])
        unit = ProductShape.choices(st, TARGETS[isa])[0]
    assert (unit.lanes, unit.terms, unit.dot, unit.rows, unit.group) == (lanes, terms, dot, 1, 1)


@pytest.mark.parametrize("tile, isa, fits", [(13, "avx2", True), (14, "avx2", False), (14, "avx2_vnni", True)])
def test_a_sum_that_a_further_instruction_adds_takes_a_register(tile: int, isa: str, fits: bool) -> None:
    """vpmaddwd leaves its sums in a register of their own, vpdpwssd adds them."""
    problem, target = parse_problem("--dt=s8:s8:s32 mb1ic8iw28oc32kw3pw1"), TARGETS[isa]
    row = next(row for row in target.instructions if row.types == ("s8", "s8", "s32"))
    words = f"--target={isa} --lane=oc --register=ow:{tile},oc:8 --k_step=ic:2 --instruction={row.name}"
    with interning():
        if fits:
            assert plan(problem, Config.parse(words), target).main.registers.needed <= 16
        else:
            with pytest.raises(ConfigError, match=r"14 accumulators \+ 1 weights \+ 1 source \+ 1 temporary"):
                plan(problem, Config.parse(words), target)


@pytest.mark.parametrize("tile, fits", [(12, True), (13, False)])
def test_zeros_beside_bytes_take_a_register(tile: int, fits: bool) -> None:
    """vpmaddwd multiplies words: bytes without a sign become words by interleaving them with zeros."""
    problem, target = parse_problem("--dt=u8:s8:s32 mb1ic8iw28oc32kw3pw1"), TARGETS["avx2"]
    words = f"--target=avx2 --lane=oc --register=ow:{tile},oc:8 --k_step=ic:2 --instruction=vpmaddwd_256_u8"
    with interning():
        if fits:
            assert plan(problem, Config.parse(words), target).main.registers.needed == 16
        else:
            with pytest.raises(ConfigError, match=r"13 accumulators \+ 1 weights \+ 1 source \+ 2 temporary"):
                plan(problem, Config.parse(words), target)


@pytest.mark.parametrize(
    ("mode", "isa", "acc"),
    [
        ("strict", "avx512_fp16", "f32"), ("relaxed", "avx512_fp16", "f32"), ("any", "avx512_fp16", "f16"),
        ("f16", "avx512_fp16", "f16"), ("f16", "avx512_bf16", "f32"), ("any", "avx2", "f32"),
    ],
)  # fmt: skip
def test_the_type_of_sums(mode: str, isa: str, acc: str) -> None:
    for kind in ("--dt=f16", "--dir=BWD_D --dt=f16", "--dir=BWD_W --dt=f16"):
        with interning():
            st = statement(parse_problem(f"{kind} --attr-acc-mode={mode} {LAYER}"), TARGETS[isa])
            assert st.acc == acc
    with interning():
        assert statement(parse_problem(f"--dt=bf16 --attr-acc-mode=any {LAYER}"), TARGETS[isa]).acc == "f32"


SUMMED = {
    "zero-points": (f"--dt=u8:s8:s32 --attr-zero-points=src:common:3+wei:per_oc {LAYER}", "", (16, 4, True)),
    "unsigned-weights": (f"--dt=u8:u8:s32 {LAYER}", "wei", (16, 4, True)),
    "unsigned-weights-as-they-are": (f"--dt=u8:u8:s32 --attr-zero-points=wei:common:1 {LAYER}", "", (16, 1, False)),
    "signed-source": (f"--dt=s8:s8:s32 {LAYER}", "src", (16, 4, True)),
    "both": (f"--dt=s8:u8:s32 --attr-zero-points=wei:common:128 {LAYER}", "src,wei", (16, 4, True)),
    "weights-of-both": (f"--dt=s8:u8:s32 --attr-zero-points=wei:common:128 {LAYER}", "wei", (16, 2, True)),
    "signed-weights": (f"--dt=u8:s8:s32 --attr-zero-points=wei:common:128 {LAYER}", "wei", None),
    "each-source-channel": (f"--dt=s8:s8:s32 --attr-zero-points=src:per_dim_1 {LAYER}", "src", None),
    "no-zero-points": (f"--dt=u8:s8:s32 {LAYER}", "", None),
    "by-data": (f"--dir=BWD_D --dt=s32:s8:s8 {LAYER}", "", None),
    "zero-point-behind": (f"--dt=u8:s8:s8 --attr-zero-points=dst:common:3 {LAYER}", "", None),
    "many-cases": ("--dt=u8:s8:s32 --attr-zero-points=src:common:3 mb1ic4ih64oc64kh41ph20", "", None),
}


VNNI = [isa for isa in TARGETS if ("vnni" in isa and isa != "avx2_vnni_int8") or isa.startswith("avx512_")]
FLIPPED = {
    "u8:s8:s32": {}, "u8:u8:s32": {isa: ("wei",) for isa in TARGETS}, "f32": {},
    "s8:s8:s32": {isa: ("src",) for isa in (*VNNI, "avx512", "avx2")},
    "s8:u8:s32": {isa: ("src", "wei") for isa in VNNI}
    | {isa: ("wei",) for isa in ("avx512", "avx2", "avx2_vnni_int8")},
}  # fmt: skip


@pytest.mark.parametrize("isa", TARGETS)
@pytest.mark.parametrize("dt", FLIPPED)
def test_what_is_flipped_by_default(dt: str, isa: str) -> None:
    """As little as the instruction with most terms asks for."""
    config = default_config(parse_problem(f"--dt={dt} --accuracy=strict {LAYER}"), TARGETS[isa])
    assert config.flip == FLIPPED[dt].get(isa, ())
    assert config.offsets == ("sums" if config.flip else "each")


@pytest.mark.parametrize("dt", ["u8:u8:s32", "s8:s8:s32", "s8:u8:s32"])
def test_fragments_take_bytes_of_any_signs(dt: str) -> None:
    config = default_config(parse_problem(f"--dt={dt} {LAYER.replace('ic8', 'ic64')}"), TARGETS["avx512_amx"])
    assert config.flip == () and dict(config.tiles_at("k_step")) == {"ic": 64}


@pytest.mark.parametrize("name", SUMMED)
def test_unit_where_zero_points_are_taken_off_the_sums(name: str) -> None:
    line, flip, unit = SUMMED[name]
    with interning():
        problem = parse_problem(line)
        target = TARGETS["avx512_vnni"]
        st = summed(problem, statement(problem, target), tuple(flip.split(",")) if flip else ())
        assert (st is None) == (unit is None)
        if st is not None and unit is not None:
            found = ProductShape.choices(st, target)[0]
            assert (found.lanes, found.terms, found.dot, found.rows, found.group) == (*unit, 1, 1)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("--lane=oc --k_step=ic:4", ""),
        ("--lane=oc --k_step=kh:4", ""),
        ("--lane=oc", "it adds up 4 products; legal is --k_step=ic:4"),
        ("--lane=oc --k_step=ic:2", "it adds up 4 products; legal is --k_step=ic:4"),
        ("--lane=ic --k_step=kh:4", "its lanes are channels; legal is --lane=oc"),
        ("--lane=oh --k_step=ic:4", "its lanes are channels; legal is --lane=oc"),
    ],
)
def test_a_config_names_the_instruction(words: str, error: str) -> None:
    with interning():
        target = TARGETS["avx512_vnni"]
        st = statement(parse_problem(f"--dt=u8:s8:s32 {LAYER}"), target)
        config = Config.parse(f"--target=avx512_vnni {words}")
        assert not ProductShape.of(st, target, config).dot
        named = config.changed(instruction="vpdpbusd_512")
        if not error:
            assert ProductShape.of(st, target, named) == ProductShape(16, 4, True, name="vpdpbusd_512", bits=512)
            return
        with pytest.raises(ConfigError) as caught:
            ProductShape.of(st, target, named)
        assert str(caught.value) == f"--instruction=vpdpbusd_512: {error}"
        with pytest.raises(ConfigError, match="legal for products of u8:s8:s32 on avx512_vnni are vpdpbusd_512"):
            ProductShape.of(st, target, config.changed(instruction="vdpbf16ps_512"))


PIXELS = "its rows are pixels along ow: legal is a register tile of that loop alone, beside oc"


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("--lane=oc --register=ow:6,oc:16 --realise=pad_copy --k_step=ic:32", ""),
        ("--lane=oc --fuse=oh+ow --register=oh_ow:6,oc:16 --realise=pad_copy --k_step=ic:32", ""),
        ("--lane=oc --register=oh:6,oc:16 --realise=pad_copy --k_step=ic:32", PIXELS),
        ("--lane=oc --register=oh:2,ow:6,oc:16 --realise=pad_copy --k_step=ic:32", PIXELS),
        ("--lane=oc --fuse=mb+oh --register=mb_oh:6,oc:16 --realise=pad_copy --k_step=ic:32", PIXELS),
        ("--lane=oc --register=oc:16 --realise=pad_copy --k_step=ic:32", PIXELS),
        ("--lane=ow --register=oc:16 --realise=pad_copy --k_step=ic:32", "its lanes are channels; legal is --lane=oc"),
        ("--lane=oc --register=ow:6,oc:16 --realise=pad_copy --k_step=ic:16",
         "it adds up 32 products; legal is --k_step=ic:32"),
        ("--lane=oc --register=ow:6,oc:16 --realise=pad_copy --k_step=kh:32",
         "it adds up 32 products; legal is --k_step=ic:32"),
        ("--lane=oc --register=ow:6,oc:16 --k_step=ic:32",
         "src lies unevenly in memory, or has absent elements; legal is --realise=pad_copy"),
        ("--lane=oc --register=ow:6,oc:16 --realise=pad_copy --k_step=ic:32 --pack=",
         "its terms are contiguous in packed wei; legal is --pack=wei"),
    ],
)  # fmt: skip
def test_a_config_of_fragments(words: str, error: str) -> None:
    """The loop of the pixels may be fused, if the innermost of its dims is that of the columns."""
    with interning():
        target = TARGETS["avx512_amx"]
        st = statement(parse_problem("--dt=bf16 mb2ic32ih6oc32oh6kh3ph1"), target)
        config = Config.parse(f"--target=avx512_amx --instruction=tdpbf16ps_16 {words}")
        if not error:
            unit = ProductShape.of(st, target, config)
            assert (unit.lanes, unit.terms, unit.dot, unit.rows, unit.group) == (16, 32, True, 16, 2)
            return
        with pytest.raises(ConfigError) as caught:
            ProductShape.of(st, target, config)
    assert str(caught.value) == f"--instruction=tdpbf16ps_16: {error}"


@pytest.mark.parametrize(
    ("line", "classes"),
    [
        (LAYER, {}),
        ("mb1ic8ih7oc8oh3kh3sh2", {}),
        ("--dir=BWD_D mb1ic8iw7oc8ow3kw3sw2", {"iw": 2, "kw": 2}),
        ("--dir=BWD_D mb1ic8iw9oc8ow3kw3sw2dw1", {"iw": 2}),
        ("--dir=BWD_D mb1ic8iw20oc8ow3kw3sw6dw3", {"iw": 6, "kw": 3}),
        ("--deconv mb1ic8ih3iw3oc8oh6ow7kh2kw3sh3sw2pw0", {"oh": 3, "kh": 3, "ow": 2, "kw": 2}),
        ("--dir=BWD_W mb1ic8ih7oc8oh3kh3sh2", {}),
        ("--dir=BWD_D mb1ic8ih9iw7oc8oh3ow1kh7kw7", {"iw": 7, "kw": 7}),
        ("--dir=BWD_D mb1ic8iw7oc8ow1kw4dw1", {}),
    ],
)
def test_residues(line: str, classes: dict[str, int]) -> None:
    with interning():
        assert statement(parse_problem(line), TARGETS["avx512"]).residues == classes
