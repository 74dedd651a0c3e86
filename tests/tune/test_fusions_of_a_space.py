"""Steps that fuse loops, and steps of several stages: that they are exact, and that a search takes them."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tune.test_search import fake

import convsmith as cs
from convsmith.ir.intern import interning
from convsmith.machine.registry import target
from convsmith.measure.verification import verify_kernel
from convsmith.problem import parse_problem
from convsmith.schedule.config import Config
from convsmith.tune.records.database import Database
from convsmith.tune.search.search import search
from convsmith.tune.search.space import Space
from convsmith.tune.search.stages_space import StagesSpace

POINTWISE = "--stag=axb --dtag=axb mb2ic8ih6oc40oh6kh1"
CHAIN = (
    "--stag=axb --attr-post-ops=clip:0:6 mb2ic8ih9iw11oc40oh9ow11kh1kw1 -> --dir=FWD_B --attr-post-ops=clip:0:6 "
    "g40mb2ic40ih9iw11oc40oh9ow11kh3kw3ph1pw1 -> --dtag=axb --dir=FWD_B mb2ic40ih9iw11oc8oh9ow11kh1kw1"
)
DEPTHWISE = "--stag=axb --dtag=axb --attr-post-ops=relu+dw:k3s1p1 mb1ic6ih12oc40oh12kh1"


@pytest.fixture(autouse=True)
def _one_table() -> Iterator[None]:
    with interning():
        yield


def space(line: str) -> Space:
    return Space(parse_problem(line).canonical(), target(), 1)


def test_fused_loops_are_parted_and_fused_again() -> None:
    of = space(POINTWISE)
    first = of.seeds[0]
    assert first.fuse == (("oh", "ow"), ("mb", "oh_ow"))
    parted = next(of.neighbours(first, "fuse"))
    assert parted.fuse == (("oh", "ow"),) and not of.refusal(parted)
    assert first in list(of.neighbours(parted, "fuse"))
    assert of.cycles(parted) > 0


@pytest.mark.parametrize("tile, parts", [(12, "oh:2,ow:6"), (5, "ow:5"), (7, "ow:6")])
def test_the_tile_of_a_fused_loop_becomes_one_of_its_parts(tile: int, parts: str) -> None:
    config = Config.parse(
        f"--target={target().name} --lane=oc --fuse=oh+ow --register=oh_ow:{tile},oc:32 --order=mb,oh_ow,oc"
    )
    (near,) = (c for c in space(POINTWISE).neighbours(config, "fuse") if not c.fuse)
    assert f"--register={parts},oc:32 --order=mb,oh,ow,oc" in str(near)


def test_loops_that_borders_make_uneven_are_refused_and_counted() -> None:
    of = space("--stag=axb --dtag=axb --accuracy=strict mb2ic8ih6oc40oh6kh3ph1")
    assert not [c for c in of.neighbours(of.seeds[0], "fuse") if ("oh", "ow") in c.fuse]
    assert of.refused["fuse"] >= 2


def legal(of: Space | StagesSpace, dimension: str) -> list[Config]:
    return [c for c in of.neighbours(of.seeds[0], dimension) if not of.refusal(c)]


@pytest.mark.parametrize("line", [POINTWISE, f"--dir=BWD_W {POINTWISE}", f"--dir=BWD_D {POINTWISE}"])
def test_steps_along_fused_loops_are_exact(line: str) -> None:
    found = legal(space(line), "fuse")
    assert found
    for config in found:
        assert verify_kernel(cs.compile(line, config=str(config), threads=1)).detail == "exact", config


def chain_space(line: str) -> tuple[StagesSpace, Config]:
    """Return the space of several stages, and a seed that fuses all of them."""
    of = StagesSpace(parse_problem(line).canonical(), target(), 1)
    return of, next(c for c in of.seeds if str(c).count("--compute_at=") == len(c.stages) - 1)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("line, dimensions", [
    (CHAIN, ("joint", "rows", "halo", "tile", "order", "fuse")), (DEPTHWISE, ("joint", "halo", "order")),
])  # fmt: skip
def test_steps_of_several_stages_are_exact(line: str, dimensions: tuple[str, ...]) -> None:
    """The last legal step along each dimension, of the stages together and of one of them, from all stages fused."""
    of, fused = chain_space(line)
    for dimension in dimensions:
        *_, config = (c for c in of.neighbours(fused, dimension) if not of.refusal(c))
        kernel = cs.compile(line, config=str(config), threads=1)
        assert verify_kernel(kernel).detail == "exact", (dimension, config)


def test_the_space_of_two_convolutions_contains_the_blocked_chain() -> None:
    """Steps along rows, channels and the halo lead to tiles of both stages that pack what they read."""
    line = "--stag=axb mb1ic8ih10oc32oh8kh3ph0 -> --dtag=axb mb1ic32ih8oc64oh8kh1"
    of = StagesSpace(parse_problem(line).canonical(), target("avx2"), 1)
    fused = next(c for c in of.seeds if "--compute_at=" in str(c))
    rows = next(c for c in of.neighbours(fused, "rows") if "--compute_at=oh:4" in str(c))
    found = [next(of.neighbours(c, "halo")) for c in of.neighbours(rows, "channels")]
    for config in found:
        assert verify_kernel(cs.compile(line, config=str(config), threads=1, target="avx2")).detail == "exact", config
    one = r"--cache=oh:4,oc:16 --pack= --pack_at=src\+oh:4,wei\+oc:16 --compute_at=oh:4 --halo=recompute"
    two = r"--cache=oc:24,oh:4 --pack= --pack_at=wei\+oc:24"
    assert re.search(f"{one} / .* {two}$", str(found[-1]))


def test_tiles_of_channels_stand_around_register_tiles_of_several_rows() -> None:
    """Rows of a cache tile are whole register tiles, as no config is legal otherwise."""
    line = "--stag=axb mb1ic8ih10oc32oh8kh3ph0 -> --dtag=axb mb1ic32ih8oc64oh8kh1"
    of = StagesSpace(parse_problem(line).canonical(), target("avx2"), 1)
    fused = next(c for c in of.seeds if "--compute_at=" in str(c))
    tiled = next(c for c in of.neighbours(fused, "tile") if c.stages[0].size("oh") == 3)
    *_, config = of.neighbours(tiled, "channels")
    assert "--pack_at=src+oh:3,wei+oc:" in str(config) and not of.refusal(config)
    assert verify_kernel(cs.compile(line, config=str(config), threads=1, target="avx2")).detail == "exact"


def test_channels_have_steps_from_any_config() -> None:
    """A step that contradicts what earlier steps have led to is refused and counted, and ends no search."""
    of = StagesSpace(parse_problem("--stag=axb mb2ic8ih8oc32oh8kh3ph1 -> --dtag=axb mb2ic32ih8oc40oh4kh3ph1sh2"),
                     target("avx2"), 2)  # fmt: skip
    rng, fused = random.Random(5), next(c for c in of.seeds if "--compute_at=" in str(c))
    for _ in range(25):
        config = fused
        for _ in range(4):
            dimension = rng.choice(("rows", "halo", "channels", "cache", "tile"))
            config = rng.choice([config, *of.neighbours(config, dimension)])
            assert all(len(c.stages) == 2 for c in of.neighbours(config, "channels"))
    assert of.refused["cache"]


def test_steps_that_several_stages_cannot_take_are_refused_and_counted() -> None:
    """No stage packs the result of another one before it runs, and none that reads rows has a padded copy of them."""
    of, fused = chain_space(CHAIN)
    steps = [c for dimension in ("pack", "realise") for c in of.neighbours(fused, dimension)]
    illegal = [c for c in steps if any("src" in s.staged("pack") or s.realise == "pad_copy" for s in c.stages[1:])]
    assert illegal and {of.refusal(c) for c in illegal} == {"consumer"}
    assert of.refused["consumer"] >= len(illegal)


def test_a_joint_keeps_the_steps_of_other_stages() -> None:
    of = StagesSpace(parse_problem(CHAIN).canonical(), target(), 1)
    alone = next(c for c in of.seeds if "--compute_at=" not in str(c))
    changed = next(c for c in of.neighbours(alone, "code") if c.stages[0] != alone.stages[0])
    first, second = of.neighbours(changed, "joint")
    assert [bool(at) for at in (first.compute_at, second.compute_at)] == [True, False]
    assert second.stages[0] == changed.stages[0] and first.stages[0] != changed.stages[0]
    assert second.consumer is not None and second.consumer.place[0] == "oh"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("line, step", [(POINTWISE, "--fuse=oh+ow --register"), (CHAIN, "--reduce=ic,kw,kh")])
def test_a_search_takes_them(line: str, step: str, tmp_path: Path) -> None:
    problem = parse_problem(line).canonical()
    with Database(tmp_path / "m.db") as database, fake(f'{{"{step}": 0.5}}') as workers:
        outcome = search(problem, target(), 1, 20.0, database, workers)
    assert outcome.best is not None and step in outcome.best.config and outcome.best.ratio == 0.5
