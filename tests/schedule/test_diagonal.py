"""Groups side by side in one product: a packed block-diagonal matrix of weights, with zeros beside the diagonal."""

from __future__ import annotations

import pytest
from devices import check_fragments
from ptx.hopper_configs import forward
from ptx.test_convolutions import check

from convsmith.diag.errors import ConfigError
from convsmith.ir.intern import one_table
from convsmith.machine.registry import target
from convsmith.passes.manager import run_steps
from convsmith.problem import parse_problem
from convsmith.schedule.config import Config
from convsmith.schedule.planned import plan_for, without_limits
from convsmith.statement.diagonal import diagonal, grouped_channels
from convsmith.statement.views import statement
from convsmith.tune.devices.device import device_config

LAST = "--stag=axb --dtag=axb"
BF16 = f"{LAST} --dt=bf16"
ENGINE = f"--target=sm_90a --realise=hardware --pack=wei {forward(k=16)}"
DATA = (
    "--target=sm_90a --realise=hardware --pack=wei --lane=ic --fuse=mb+ih,mb_ih+iw --reduce=kh,kw,oc "
    "--register=mb_ih_iw:64,ic:16 --group=mb_ih_iw:64,ic:16,oc:16 --shared=diff_dst,wei --buffers=2 "
    "--instruction=wgmma_m64n16k16_bf16"
)
WARPS = (
    "--target=sm_80 --lane=oc --instruction=mma_m16n8k16_bf16 --realise=pad_copy --pack=wei --shared=src,wei "
    "--register=oc:8,ow:16 --group=oc:16,ow:16,ic:16"
)
BYTES = f"--target=sm_90a --realise=hardware --pack=wei {forward(k=32, row='wgmma_m64n16k32_s8')}"
KINDS = {
    "four a group": (f"{BF16} g8mb1ic32ih5oc32oh5kh3ph1", f"{ENGINE} --diagonal=g:4"),
    "all groups": (f"{BF16} g4mb1ic16ih5oc16oh5kh3ph1", f"{ENGINE} --diagonal=g:4"),
    "eight a group": (f"{BF16} g4mb1ic32ih5oc32oh5kh1", f"{ENGINE} --diagonal=g:2"),
    "more columns than terms": (f"{BF16} g4mb1ic16ih5oc32oh5kh1", f"{ENGINE} --diagonal=g:4"),
    "epilogue": (f"--dir=FWD_B --attr-post-ops=sum+relu {BF16} g8mb1ic32ih5oc32oh5kh1", f"{ENGINE} --diagonal=g:4"),
    "by data": (f"--dir=BWD_D {BF16} g8mb1ic32ih5oc32oh5kh3ph1", f"{DATA} --diagonal=g:4"),
    "bytes": (f"{LAST} --dt=s8:s8:s32 --accuracy=strict g8mb1ic64ih5oc64oh5kh1", f"{BYTES} --diagonal=g:4"),
    "warps": (f"{BF16} g8mb1ic32iw17oc32ow17kw3pw1", f"{WARPS} --diagonal=g:4"),
    "one channel a group": (f"{LAST} g4mb1ic4iw33oc8ow33kw3pw1",
                            "--target=sm_80 --lane=oc --realise=mask --pack=wei --group=oc:4,ow:8 --diagonal=g:2"),
    "threads": (f"{LAST} g4mb1ic8iw33oc8ow33kw3pw1",
                "--target=sm_80 --lane=oc --realise=mask --pack=wei --group=oc:4,ow:8 --diagonal=g:2"),
}  # fmt: skip


@pytest.mark.sampled(9)
@pytest.mark.parametrize("kind", KINDS)
def test_kernels_are_exact(kind: str) -> None:
    line, words = KINDS[kind]
    check(line, words, words.split()[0].removeprefix("--target="))


def test_every_rewrite_keeps_the_values() -> None:
    words = WARPS.removeprefix("--target=sm_80 ")
    check_fragments(f"{BF16} g4mb1ic8iw9oc8ow9kw1", f"{words} --diagonal=g:4", "sm_80")


def test_weights_beside_the_diagonal_are_packed_as_zeros() -> None:
    line, words = KINDS["four a group"]
    with one_table():
        plan = plan_for(parse_problem(line), Config.parse(words), target("sm_90a"))
        (pack,) = run_steps(plan.naive(), plan.pipeline).packs
    assert "wei_p[g, oc, kh, kw, ic] = (wei[g * 4 + oc // 4, oc % 4, ic % 4, kh, kw] if" in str(pack).replace("\n", " ")


def test_the_statement_has_fewer_groups_of_more_channels() -> None:
    st = statement(parse_problem(f"{BF16} g8mb1ic32ih5oc64oh5kh3ph1"), target("sm_90a"))
    made = diagonal(st, "g", 4)
    assert {d.name: d.size for d in made.dims if d.name in ("g", "oc", "ic")} == {"g": 2, "oc": 32, "ic": 16}
    assert (str(made.a.coords[1]), str(made.c.coords[1])) == ("g * 16 + ic", "g * 32 + oc")


@pytest.mark.parametrize("line", [
    f"{BF16} mb1ic32ih5oc32oh5kh3ph1", f"--dir=BWD_W {BF16} g8mb1ic32ih5oc32oh5kh3ph1",
    "--matmul --dt=bf16 32x32:32x32", "--matmul --dt=bf16 4x32x32:4x32x32",
])  # fmt: skip
def test_other_statements_have_no_groups_to_join(line: str) -> None:
    assert grouped_channels(statement(parse_problem(line), target("sm_90a"))) is None


@pytest.mark.parametrize(("line", "words", "code"), [
    (f"{BF16} g8mb1ic32ih5oc32oh5kh3ph1", f"{ENGINE} --diagonal=g:3", "diagonal"),
    (f"{BF16} g8mb1ic32ih5oc32oh5kh3ph1", f"{ENGINE} --diagonal=oc:4", "diagonal"),
    (f"{BF16} mb1ic32ih5oc32oh5kh3ph1", f"{ENGINE} --diagonal=g:4", "diagonal"),
    (f"{BF16} g8mb1ic32ih5oc32oh5kh3ph1", f"{ENGINE.replace('--pack=wei', '--pack=')} --diagonal=g:4", "diagonal"),
    (f"{BF16} --accuracy=strict g8mb1ic32ih5oc32oh5kh3ph1", f"{ENGINE} --diagonal=g:4", "accuracy"),
])  # fmt: skip
def test_other_groups_are_refused(line: str, words: str, code: str) -> None:
    with one_table(), pytest.raises(ConfigError) as raised:
        plan_for(parse_problem(line), Config.parse(words), target("sm_90a"))
    assert raised.value.code == code and "--diagonal=" in str(raised.value)


def test_the_kernel_for_infinite_weights_reads_the_same_packed_weights() -> None:
    line, words = KINDS["four a group"]
    with one_table():
        found = [
            plan_for(parse_problem(line), config, target("sm_90a"))
            for config in (Config.parse(words), without_limits(Config.parse(words), target("sm_90a")))
        ]
        packs = [str(run_steps(plan.naive(), plan.pipeline).packs[0].body) for plan in found]
    assert packs[0] == packs[1]


# -- the first choice
@pytest.mark.sampled(2, "channels", "pixels", "count")
@pytest.mark.parametrize("direction", ["", "--dir=BWD_D "])
@pytest.mark.parametrize(("channels", "pixels", "count"), [(128, 56, 16), (256, 28, 8), (512, 14, 4)])
def test_rows_of_a_copy_hold_the_channels_of_several_groups(
    direction: str, channels: int, pixels: int, count: int
) -> None:
    line = f"{direction}{BF16} g32mb32ic{channels}ih{pixels}oc{channels}oh{pixels}kh3ph1"
    with one_table():
        config = device_config(parse_problem(line), target("sm_90a"))
        strict = device_config(parse_problem(f"--accuracy=strict {line}"), target("sm_90a"))
    assert dict(config.tiles_at("diagonal")) == {"g": count} and config.realise == "hardware"
    assert not strict.tiles_at("diagonal")


def test_groups_of_a_channel_stay_apart() -> None:
    with one_table():
        config = device_config(parse_problem(f"{BF16} g128mb32ic128ih28oc128oh28kh3ph1"), target("sm_90a"))
    assert not config.tiles_at("diagonal")
