"""Chains: text, names of arrays, errors, and a reference that is the composition of those of the stages."""

from __future__ import annotations

import random
import re
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from chain_problems import composed, random_chain
from draws import examples
from hypothesis import given
from hypothesis import strategies as st

from convsmith.diag.errors import UsageError
from convsmith.measure.bounds import intervals, within
from convsmith.problem import Chain, Conv, Matmul, Problem, parse_problem, reference
from convsmith.problem.attributes import SCALES, ZERO_POINTS, parse_quantities
from convsmith.problem.batch import parse_problems
from convsmith.problem.data import random_arrays
from convsmith.problem.fusion import stages_of
from convsmith.problem.post_ops import parse_post_ops
from convsmith.problem.reference import sums_and_steps

EXPAND = "--stag=axb --attr-post-ops=relu mb1ic4ih6oc8kh1"
DEPTHWISE = "--dir=FWD_B --attr-post-ops=clip:0:6 g8mb1ic8ih6oc8kh3ph1"
PROJECT = "--dtag=axb --attr-post-ops=sum:src mb1ic8ih6oc4kh1"
BLOCK = f"{EXPAND} -> {DEPTHWISE} -> {PROJECT}"


@given(st.integers(0, 2**32))
@examples(50)
def test_print_and_parse_are_inverse(seed: int) -> None:
    chain = random_chain(random.Random(seed))
    assert parse_problem(str(chain)) == chain
    assert parse_problem(str(chain.canonical())) == chain.canonical() == chain.canonical().canonical()


def test_arrays_are_named_by_stage() -> None:
    chain = parse_problem(BLOCK)
    assert isinstance(chain, Chain)
    assert [t.name for t in chain.tensors] == ["src", "wei_1", "wei_2", "bia_2", "wei_3", "dst"]
    assert (chain.tensor("src").tag, chain.tensor("dst").tag) == ("axb", "axb")
    assert (chain.tensor("wei_2").shape, chain.tensor("bia_2").shape) == ((8, 1, 1, 3, 3), (8,))
    assert chain.names(2)["post_op_0"] == "src"
    assert chain.flops_dense == sum(stage.flops_dense for stage in chain.stages)


def test_the_ends_of_a_chain_are_those_of_its_first_and_last_stage() -> None:
    line = "--stag=axb --dt=u8:s8:s8 mb1ic4ih6oc8kh1 -> --dtag=aBx16b --dt=s8:s8:f32 mb1ic8ih6oc4kh1"
    chain = parse_problem(line)
    assert (chain.stag, chain.dtag, chain.dt) == ("axb", "aBx16b", ("u8", "s8", "f32"))


def test_an_arrow_in_a_name_joins_no_stages() -> None:
    one = parse_problem('mb1ic4ih6oc8kh1n"a -> b"')
    assert isinstance(one, Conv) and one.name == "a -> b"
    assert isinstance(parse_problem(f'mb1ic4ih6oc8kh1n"a -> b" -> {DEPTHWISE}'), Chain)


def test_products_are_stages() -> None:
    chain = parse_problem("--matmul --attr-post-ops=relu 3x4:4x5 -> --matmul --bia-dt=f32 3x5:5x6")
    assert isinstance(chain, Chain) and all(isinstance(stage, Matmul) for stage in chain.stages)
    arrays = random_arrays(chain)
    middle = np.maximum(arrays["src"] @ arrays["wei_1"], 0)
    result = middle @ arrays["wei_2"] + arrays["bia_2"]
    np.testing.assert_array_equal(reference(chain, arrays)["dst"], result)


@given(st.integers(0, 2**32))
@examples(50)
def test_the_reference_is_the_composition_of_the_stages(seed: int) -> None:
    chain = random_chain(random.Random(seed))
    arrays = random_arrays(chain, seed)
    result = reference(chain, arrays, np.float32)["dst"]
    np.testing.assert_array_equal(result, composed(chain, arrays))
    assert within(result, intervals(chain, arrays, chain.acc, True)["dst"], chain.dst_type).all()


def test_a_residual_adds_the_source_of_the_chain() -> None:
    chain = parse_problem(BLOCK)
    assert isinstance(chain, Chain)
    plain = replace(chain, stages=(*chain.stages[:2], replace(chain.stages[2], post_ops=())))
    arrays = random_arrays(chain)
    np.testing.assert_array_equal(
        reference(chain, arrays)["dst"], reference(plain, arrays)["dst"] + arrays["src"]
    )  # fmt: skip


def test_layouts_of_a_chain_are_those_of_its_ends() -> None:
    chain = parse_problem("mb1ic4ih6oc8kh1 -> mb1ic8ih6oc4kh1")
    tagged = replace(chain, stag="axb", dtag="aBcd4b")
    assert str(tagged) == "--stag=axb mb1ic4ih6oc8oh6kh1ph0 -> --dtag=aBcd4b mb1ic8ih6oc4oh6kh1ph0"
    with pytest.raises(UsageError, match=r"--stag=axb in .*legal is one of them"):
        replace(tagged, stag="abx")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("mb1ic4ih6oc8kh1 -> mb1ic7ih6oc8kh1", "computes 1x8x6x6 .* reads 1x7x6x6 .*; legal is the same shape"),
        ("mb1ic4ih6oc8kh3 -> mb1ic8ih6oc8kh1", "computes 1x8x4x4 .* reads 1x8x6x6 "),
        ("--dt=u8:s8:s8 mb1ic4ih6oc8kh1 -> --dt=u8:s8:u8 mb1ic8ih6oc8kh1", "computes s8, .* reads u8; legal is"),
        ("--dtag=axb mb1ic4ih6oc8kh1 -> --stag=aBcd4b mb1ic8ih6oc8kh1", "--dtag=axb, .* --stag=aBcd4b; legal is"),
        ("--attr-post-ops=sum mb1ic4ih6oc8kh1 -> mb1ic8ih6oc8kh1", "sum in stage 1, .*; legal is sum in the last"),
        ("--dir=BWD_D mb1ic4ih6oc8kh1 -> mb1ic8ih6oc8kh1", "stage 1 is --dir=BWD_D .*: legal are forward"),
        ("mb1ic4ih6oc8kh1 -> --deconv mb1ic8ih6oc8kh1", "stage 2 is --deconv .*: legal are forward"),
        ("mb1ic4ih6oc8kh1 -> --attr-post-ops=sum:src mb1ic8ih6oc8kh1", "adds the source, 1x4x6x6, .* 1x8x6x6; legal"),
        (
            "--dt=u8:s8:u8 mb1ic4ih6oc8kh1 -> --dt=u8:s8:f32 --attr-post-ops=sum:src mb1ic8ih6oc4kh1",
            "sum:src reads f32, and the source is u8; legal is sum:1:0:u8:src",
        ),
        ("mb1ic4ih6oc8kh1 -> ", "no descriptor in ''"),
    ],
)  # fmt: skip
def test_stages_that_do_not_connect(line: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        parse_problem(line)


def test_chains_have_two_stages_and_no_options_of_stages() -> None:
    stage = parse_problem(EXPAND)
    with pytest.raises(UsageError, match="has 1 stages: legal are 2 to 64"):
        Chain(stages=(stage,))
    with pytest.raises(UsageError, match="wtag='axb' is that of a stage"):
        Chain(stages=(stage, parse_problem("mb1ic8ih6oc8kh1")), wtag="axb")


CHANGED = {
    "stag": "axb", "wtag": "abx", "dtag": "axb", "bia_dt": "bf16", "acc_mode": "any", "accuracy": "strict",
    "scales": parse_quantities(SCALES, "src:common:2"), "zero_points": parse_quantities(ZERO_POINTS, "src:common:1"),
    "post_ops": parse_post_ops("relu"), "name": "x", "workspace": 5,
}  # fmt: skip
"""For each field of a problem but its types, which follow from the stages, another value than the default."""


@pytest.mark.parametrize("field", [f.name for f in fields(Problem) if f.name != "dt"])
def test_every_field_of_a_chain_holds_for_its_stages_or_is_refused(field: str) -> None:
    """A kernel is made from stages in canonical form: what they do not know is lost."""
    first, last = parse_problem("mb1ic4ih6oc8kh1"), parse_problem("mb1ic8ih6oc8kh1")
    given: dict[str, Any] = {field: CHANGED[field]}
    try:
        chain = Chain(stages=(first, last), **given)
    except UsageError as error:
        assert f"{field}=" in str(error) and "is that of a stage" in str(error)
    else:
        own = {getattr(stage, field) for stage in chain.stages}
        assert given[field] in own or (field == "workspace" and own == {None} and chain.canonical().workspace == 5)
        assert chain.canonical() != Chain(stages=(first, last)).canonical()


def test_accuracy_is_that_of_every_stage() -> None:
    chain = parse_problem(f"{EXPAND} -> --attr-post-ops=dw:k3s1p1 mb1ic8ih6oc8kh1")
    for accuracy in ("strict", "any", "relaxed"):
        of = stages_of(chain.with_accuracy(accuracy))
        assert of is not None and {stage.accuracy for stage in of.problems} == {accuracy}


def test_lists_of_problems_hold_chains() -> None:
    text = f"--dt=bf16,f32\n{BLOCK}\nmb1ic4ih6oc8kh1\n"
    with pytest.raises(UsageError, match=re.escape("here:2: chain: stage 1 computes bf16, and stage 2 reads f32")):
        parse_problems(text, "here")
    first, second = parse_problems(f"{BLOCK} # inverted residual\n--dt=f16 mb1ic4ih6oc8kh1\n", "here")
    assert first == parse_problem(BLOCK)
    assert isinstance(second, Conv) and second.stag == "axb" and second.dt[0] == "f16"
    with pytest.raises(UsageError, match="no descriptor follows ->"):
        parse_problems("mb1ic4ih6oc8kh1 ->", "here")


def test_steps_know_how_many_products_a_sum_has() -> None:
    chain = parse_problem("mb1ic2ih6oc4kh1 -> g2mb1ic4ih6oc6kh3ph1 -> --attr-post-ops=dw:k3s1p1 mb1ic6ih6oc5kh1")
    _, steps = sums_and_steps(chain, random_arrays(chain))
    assert [step.terms for step in steps if step.spread is not None] == [2 * 9, 6, 9]
