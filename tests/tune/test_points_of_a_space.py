"""Every config that a space accepts makes a kernel, and a step from any config raises no error."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from convsmith.codegen.object_symbols import undefined_symbols
from convsmith.compiler.driver import build_artifact
from convsmith.diag.errors import ConfigError
from convsmith.ir.intern import interning
from convsmith.machine.registry import target
from convsmith.problem import parse_problem
from convsmith.schedule.config import Config
from convsmith.schedule.plan import plan
from convsmith.tune.search.config_space import ConfigSpace
from convsmith.tune.search.device_space import space_of

LINES = {
    "two stages of one row": "--dt=bf16 --accuracy=strict mb1_ic4oc16_ih3oh11kh1sh1ph4_iw3ow2kw1sw2pw0 -> "
    "--dt=bf16:bf16:f32 --accuracy=strict mb1_ic16oc8_ih11oh14kh3sh1ph4_iw2ow1kw1sw3pw0",
    "residue classes": "--dir=BWD_D mb3ic15oc64ih3oh3kh2sh3ph3",
    "groups": "--stag=axb --dtag=axb --accuracy=strict g16mb1ic16iw3oc16ow3kw1",
}
LEVELS = ("avx2", "avx512")
COUNT = 6
"""Points of a space that are compiled."""


@pytest.fixture(autouse=True)
def _one_table() -> Iterator[None]:
    with interning():
        yield


def walk(of: ConfigSpace, start: Config, rng: random.Random) -> Config:
    """Return a legal config at most three steps from ``start``."""
    config = start
    for _ in range(3):
        dimension = rng.choice(of.dimensions)
        near = [c for c in of.neighbours(config, dimension)]
        rng.shuffle(near)
        config = next((c for c in near[:8] if not of.refusal(c)), config)
    return config


@pytest.mark.sampled(2, "level", "name")
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", LINES)
def test_points_compile(name: str, level: str) -> None:
    problem, machine, rng = parse_problem(LINES[name]).canonical(), target(level), random.Random(name + level)
    of = space_of(problem, machine, 2)
    assert of.seeds
    for config in {walk(of, rng.choice(of.seeds), rng) for _ in range(COUNT)}:
        build_artifact(problem, config, machine)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", LINES)
def test_every_dimension_of_every_seed_has_steps_or_none(name: str, level: str) -> None:
    """A census raises nothing: stages that cannot be joined, and loops that lie unevenly, count as refused."""
    of = space_of(parse_problem(LINES[name]).canonical(), target(level), 2)
    for seed in of.seeds[:2]:
        found = of.census(seed)
        assert set(found) == set(of.dimensions) and sum(len(legal) for legal, _ in found.values()) > 0


def test_residue_classes_along_lanes_have_steps() -> None:
    of = space_of(parse_problem(LINES["residue classes"]).canonical(), target("avx512"), 1)
    config = Config.parse(
        "--target=avx512 --lane=rw --register=rw:16 --order=mb,ih,iw,rh,rw,ic --reduce=kh,kw,oc --phases=ih,iw"
    )
    assert len(of.census(config)["order"][0]) > 0


HELD = "--lane=g --register=ow:3,g:16 --pack={} --resident=wei"


@pytest.mark.parametrize("level", LEVELS)
def test_held_operands_have_lanes_along_their_innermost_dim(level: str) -> None:
    """Registers hold vectors of an operand along the innermost dim of its memory; others are packed."""
    problem, machine = parse_problem(LINES["groups"]).canonical(), target(level)
    with pytest.raises(ConfigError, match=r"lanes along g are not innermost in the memory of wei.*--pack=wei"):
        plan(problem, Config.parse(f"--target={level} {HELD.format('')}"), machine)
    artifact = build_artifact(problem, Config.parse(f"--target={level} {HELD.format('wei')}"), machine)
    assert undefined_symbols(artifact.code) == ()


REFUSED = (
    ("avx512_amx", "--dt=bf16 --stag=axb --dtag=axb mb1ic64ih14oc32kh1",
     "contiguous in packed wei; legal is --pack=wei",
     "--lane=oc --register=ow:14,oc:32 --reduce=kh,kw,ic --instruction=tdpbf16ps_16 --k_step=ic:32 --pack="),
    ("avx512_amx", "--dt=u8:s8:s32 mb1ic64ih14oc32kh1", "a table points to single pixels",
     "--lane=oh_ow --fuse=oh+ow --register=oc:16,oh_ow:32 --order=mb,oh_ow,oc --reduce=kh,kw,ic "
     "--instruction=tdpbsud_16 --k_step=ic:64 --realise=indirection --pack=src,wei"),
    ("avx512_amx", "--dir=BWD_W --dt=bf16 mb1ic64ih6oc64kh1", "a table points to single pixels",
     "--lane=oc --fuse=mb+oh,mb_oh+ow --register=oc:32,ic:32 --order=kw,oc,ic,kh --reduce=mb_oh_ow "
     "--instruction=tdpbf16ps_12 --k_step=mb_oh_ow:24 --realise=indirection --pack=src,diff_dst"),
)  # fmt: skip
"""Points that a pass would refuse after the plan accepts them, or that would compute something else: fragments of
weights that are not packed, and of pixels to which a table points one by one.
"""


@pytest.mark.parametrize(("level", "line", "text", "words"), REFUSED)
def test_the_plan_refuses_what_a_pass_would(level: str, line: str, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=text):
        plan(parse_problem(line).canonical(), Config.parse(f"--target={level} {words}"), target(level))


COPIES_OF_WINDOWS = {
    "windows of some rows": "--lane=oc --fuse=kw+ic --register=ow:16,oc:16 --order=mb,oh,ow,oc --reduce=kh,kw_ic "
    "--instruction=tdpbf16ps_12 --k_step=kw_ic:24 --cache=oh:16 --realise=window_copy",
    "whole windows": "--lane=oc --fuse=oh+ow,kh+kw,kh_kw+ic --register=oh_ow:16,oc:16 --order=mb,oc,oh_ow "
    "--reduce=kh_kw_ic --instruction=tdpbf16ps_16 --k_step=kh_kw_ic:32 --realise=window_copy",
}


@pytest.mark.parametrize("name", COPIES_OF_WINDOWS)
def test_copies_of_windows_have_steps_along_every_dimension(name: str) -> None:
    """The model prices each step, such as another instruction, which adds up other terms, or tiles of fused rows."""
    of = space_of(parse_problem("--dt=bf16 --stag=axb --dtag=axb mb1ic3ih40oc32oh20kh7sh2ph3").canonical(),
                  target("avx512_amx"), 1)  # fmt: skip
    config = Config.parse(f"--target=avx512_amx {COPIES_OF_WINDOWS[name]}")
    assert not of.refusal(config)
    steps = [near for dimension in of.dimensions for near in of.neighbours(config, dimension)]
    assert all(of.cycles(near) > 0 for near in steps) and len(steps) > 50


ON_FRAGMENTS = {
    "a gradient whose blocks are packed": (
        "--dir=BWD_W --dt=bf16 mb32ic32ih11oc32oh11kh3ph1",
        "--lane=oc --register=ic:16,oc:16 --order=kw,oc,ic,kh --reduce=mb,oh,ow --instruction=tdpbf16ps_8 "
        "--k_step=ow:16 --cache=mb:2 --realise=pad_copy --pack= --pack_at=src+mb,diff_dst+mb",
    ),
    "windows of channels that lie apart": (
        "--dt=u8:s8:s32 mb1ic3ih40oc64oh20kh7sh2ph3",
        "--lane=oc --fuse=kw+ic --register=ow:16,oc:32 --order=mb,oh,ow,oc --reduce=kh,kw_ic --instruction=tdpbusd_8 "
        "--k_step=kw_ic:32 --cache=oh:16 --realise=window_copy",
    ),
}


@pytest.mark.parametrize("name", ON_FRAGMENTS)
def test_the_model_prices_two_steps_from_a_config_on_fragments(name: str) -> None:
    """A step may lead to windows of a single tap, or to a second register tile, which no fragment has."""
    line, words = ON_FRAGMENTS[name]
    of = space_of(parse_problem(line).canonical(), target("avx512_amx"), 1)
    start = Config.parse(f"--target=avx512_amx {words}")
    assert not of.refusal(start)
    near = [c for dimension in of.dimensions for c in of.neighbours(start, dimension)]
    places = ("fuse", "k_step", "register", "instruction", "realise")
    further = [c for one in near for dimension in places if dimension in of.dimensions
               for c in of.neighbours(one, dimension)]  # fmt: skip
    assert all(of.cycles(config) > 0 for config in (*near, *further)) and len(further) > 100
