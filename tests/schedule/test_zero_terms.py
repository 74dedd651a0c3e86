"""Terms beyond those of a reduction loop, whose packed weights are zeros: steps of a few channels and several taps."""

from __future__ import annotations

import pytest
from devices import check_fragments
from ptx.test_convolutions import check, made

from convsmith.diag.errors import ConfigError
from convsmith.ir.intern import one_table
from convsmith.machine.registry import target
from convsmith.passes.manager import run_steps
from convsmith.problem import parse_problem
from convsmith.schedule.config import Config
from convsmith.schedule.planned import plan_for, without_limits
from convsmith.statement.statement import Statement
from convsmith.statement.views import statement
from convsmith.statement.zero_terms import takes_zero_terms, with_zero_terms
from convsmith.tune.devices.device import device_config

LAST = "--stag=axb --wtag=axb --dtag=axb"
BF16 = f"{LAST} --dt=bf16"


def warps(row: str = "m16n8k16_bf16", lane: str = "oc", shared: str = "src,wei") -> str:
    """Return the words of a config of warps, without its tiles and its terms."""
    return f"--lane={lane} --instruction=mma_{row} --realise=pad_copy --pack=wei --shared={shared}"


STEM = f"{warps()} --register=oc:16,ow:8,oh:2 --group=oc:16,ow:8,oh:4,ic:4,kw:8,kh:7 --zeros=ic:4,kw:8"
KINDS = {
    "stem": (f"{BF16} mb1ic3ih16oc16oh8kh7sh2ph3", STEM, "sm_80"),
    "asynchronous copies": (f"{BF16} mb1ic3ih16oc16oh8kh7sh2ph3", f"{STEM} --copies=async", "sm_90a"),
    "no padding": (f"{BF16} --dir=FWD_B --attr-post-ops=relu mb2ic3ih13oc12oh4kh7sh2ph0", STEM, "sm_80"),
    "one channel": (f"{BF16} mb1ic1ih9oc8oh9kh3ph1", f"{warps()} --register=oc:8,ow:8,oh:2 "
                    "--group=oc:8,ow:8,oh:4,ic:2,kw:4,kh:4 --zeros=ic:2,kw:4,kh:4", "sm_80"),
    "channels alone": (f"{BF16} mb1ic20ih6oc12oh6kh3ph1", f"{warps()} --register=oc:8,ow:8,oh:2 "
                       "--group=oc:16,ow:8,oh:2,ic:32 --zeros=ic:32 --buffers=2 --copies=async", "sm_80"),
    "bytes": (f"{LAST} --dt=s8:s8:s32 --accuracy=strict mb1ic3ih9oc8oh9kh3ph1", f"{warps('m16n8k32_s8')} "
              "--register=oc:8,ow:8,oh:2 --group=oc:8,ow:8,oh:4,ic:4,kw:4,kh:4 --zeros=ic:4,kw:4,kh:4", "sm_80"),
    "halves of sm_70": (f"{LAST} --dt=f16 mb1ic3ih8oc8oh8kh3ph1", f"{warps('m8n8k4_f16')} --register=oc:8,ow:8,oh:4 "
                        "--group=oc:8,ow:8,oh:4,ic:4,kw:3,kh:3 --zeros=ic:4", "sm_70"),
    "by data": (f"--dir=BWD_D {BF16} mb1ic16ih7oc3oh7kh3ph1", f"{warps(lane='ic', shared='diff_dst,wei')} "
                "--register=ic:8,iw:8,ih:2 --group=ic:16,iw:8,ih:4,oc:4,kw:4,kh:3 --zeros=oc:4,kw:4", "sm_80"),
    "dilation": (f"{BF16} mb1ic3ih10oc8oh6kh3ph0dh1", f"{warps()} --register=oc:8,ow:4,oh:4 "
                 "--group=oc:8,ow:8,oh:4,ic:4,kw:4,kh:3 --zeros=ic:4,kw:4", "sm_80"),
}  # fmt: skip


@pytest.mark.sampled(12)
@pytest.mark.parametrize("kind", KINDS)
def test_kernels_are_exact(kind: str) -> None:
    check(*KINDS[kind])


@pytest.mark.wide
def test_every_rewrite_keeps_the_values() -> None:
    words = f"{warps()} --register=oc:8,ow:8,oh:2 --group=oc:8,ow:8,oh:2,ic:4,kw:4,kh:3 --zeros=ic:4,kw:4"
    check_fragments(f"{BF16} mb1ic3ih3iw5oc8oh3ow5kh3kw3ph1pw1", words, "sm_80")


def stem() -> Statement:
    return statement(parse_problem(f"{BF16} mb1ic3ih13oc12oh4kh7sh2ph0"), target("sm_80"))


def test_weights_beyond_the_terms_are_packed_as_zeros() -> None:
    """The kernel reads them without a test."""
    st = with_zero_terms(stem(), (("ic", 4), ("kw", 8)))
    assert {d.name: d.size for d in st.of("k")} == {"ic": 4, "kh": 7, "kw": 8}
    assert {"-kw + 6 >= 0", "-ic + 2 >= 0"} <= {*str(st.b.mask).split(" and ")}
    line, words, level = KINDS["stem"]
    with one_table():
        plan = plan_for(parse_problem(line), Config.parse(f"--target={level} {words}"), target(level))
        kernel = run_steps(plan.naive(), plan.pipeline)
    assert kernel.packs[0].params[-1].size == 16 * 7 * 8 * 4 and "wei_p[" in str(kernel.body)
    assert not any("if" in x.partition("wei_p[")[2] for x in str(kernel.body).splitlines() if "wei_p[" in x)


def test_elements_beyond_the_end_of_a_row_are_absent() -> None:
    """Without padding, the taps of the last pixel end with the row."""
    st = with_zero_terms(stem(), (("ic", 4), ("kw", 8)))
    assert {*str(st.a.mask).split(" and ")} == {"-kw - ow * 2 + 12 >= 0", "-ic + 2 >= 0"}


@pytest.mark.parametrize(("line", "words", "code"), [
    (f"{BF16} mb1ic3ih16oc16oh8kh7sh2ph3", f"{STEM},kh:6", "zeros"),
    (f"{BF16} mb1ic3ih16oc16oh8kh7sh2ph3", f"{STEM},ow:8", "zeros"),
    (f"{BF16} mb1ic3ih16oc16oh8kh7sh2ph3", f"{STEM},ic:8", "zeros"),
    (f"{BF16} mb1ic3ih16oc16oh8kh7sh2ph3", STEM.replace("--pack=wei", "--pack="), "zeros"),
    (f"{BF16} --accuracy=strict mb1ic3ih16oc16oh8kh7sh2ph3", STEM, "accuracy"),
])  # fmt: skip
def test_other_terms_are_refused(line: str, words: str, code: str) -> None:
    with one_table(), pytest.raises(ConfigError) as raised:
        plan_for(parse_problem(line), Config.parse(f"--target=sm_80 {words}"), target("sm_80"))
    assert raised.value.code == code and "--zeros=" in str(raised.value)


@pytest.mark.parametrize("line", [
    f"--dir=BWD_W {BF16} mb1ic3ih16oc16oh8kh7sh2ph3",
    f"{LAST} --dt=u8:s8:s32 --attr-zero-points=src:common:3 mb1ic3ih5oc8oh5kh3ph1",
])  # fmt: skip
def test_other_statements_take_no_zero_terms(line: str) -> None:
    assert not takes_zero_terms(statement(parse_problem(line), target("sm_80")))


def test_the_kernel_for_infinite_weights_reads_the_same_packed_weights() -> None:
    line, words, level = KINDS["stem"]
    config = Config.parse(f"--target={level} {words}")
    with one_table():
        configs = config, without_limits(config, target(level))
        found = [plan_for(parse_problem(line), x, target(level)) for x in configs]
        packs = [str(run_steps(plan.naive(), plan.pipeline).packs[0].body) for plan in found]
    assert packs[0] == packs[1]


# -- the first choice
@pytest.mark.sampled(2)
@pytest.mark.parametrize("level", ["sm_80", "sm_90a"])
def test_a_stem_packs_zeros_where_infinities_may_spread(level: str) -> None:
    line = f"{BF16} mb32ic3ih224oc64oh112kh7sh2ph3"
    with one_table():
        config = device_config(parse_problem(line), target(level))
        strict = device_config(parse_problem(f"--accuracy=strict {line}"), target(level))
    assert dict(config.tiles_at("zeros")) == {"ic": 4, "kw": 8} and config.copies == "async"
    assert not strict.tiles_at("zeros")


def test_copies_of_packed_weights_are_asynchronous() -> None:
    line, words, level = KINDS["asynchronous copies"]
    ptx = made(line, words, level).notes["ptx"]
    assert "cp.async.ca.shared.global" in ptx
