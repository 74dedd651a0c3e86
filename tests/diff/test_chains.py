"""Chains as compiled kernels: exact, whichever stages are fused, whether halos are kept or computed again."""

from __future__ import annotations

import random
from itertools import product

import numpy as np
import pytest
from chain_problems import random_chain
from draws import examples
from guarded import Compiled, check_result, expected
from hypothesis import given
from hypothesis import strategies as st

import convsmith as cs
from convsmith.compiler.driver import build_artifact
from convsmith.compiler.rewritten import private_buffers
from convsmith.diag.errors import ConfigError, UsageError
from convsmith.layout.reorder import to_layout
from convsmith.machine.base import Machine
from convsmith.machine.registry import target
from convsmith.measure.verification import verify_kernel
from convsmith.passes.manager import run_steps
from convsmith.problem import Chain, parse_problem
from convsmith.problem.chain import MAX_STAGES
from convsmith.problem.data import random_arrays
from convsmith.problem.fusion import Stages, stages_of
from convsmith.problem.problem import Problem
from convsmith.schedule.config import Config
from convsmith.schedule.plan import plan
from convsmith.tune.candidates import default_config
from convsmith.tune.chains import chain_config, config_of, joints
from convsmith.tune.search.stages_space import MAX_JOINTS, StagesSpace
from convsmith.tune.stage_configs import StageConfigs

INT8 = "--dt=u8:s8:u8"
CHAINS = {
    "depthwise-pointwise": (
        "--stag=axb --attr-post-ops=relu g20mb1ic20ih13oc20oh13kh3ph1 -> --dtag=axb mb1ic20ih13oc36kh1"
    ),
    "inverted-residual": (
        "--stag=axb --attr-post-ops=clip:0:6 mb2ic8ih9iw11oc40oh9ow11kh1kw1 -> --dir=FWD_B --attr-post-ops=clip:0:6 "
        "g40mb2ic40ih9iw11oc40oh9ow11kh3kw3ph1pw1 -> --dtag=axb --dir=FWD_B --attr-post-ops=sum:src "
        "mb2ic40ih9iw11oc8oh9ow11kh1kw1"
    ),
    "tall-depthwise": (
        "--stag=axb mb2ic3ih21oc16kh1 -> g16mb2ic16ih21oc16kh3ph1 -> --dtag=axb mb2ic16ih21oc5kh1"
    ),
    "stride": (
        "mb1ic5ih12oc18kh1 -> --attr-post-ops=relu g18mb1ic18ih12oc18kh3sh2ph1 -> --attr-post-ops=add:f32:per_oc "
        "mb1ic18ih6oc7kh1"
    ),
    "three-windows": (
        "--stag=axb mb2ic3ih9oc8kh3ph1 -> --attr-post-ops=relu mb2ic8ih9oc5kh3ph1 -> --dtag=axb mb2ic5ih9oc8kh3ph1"
    ),
    "four-windows": (
        "--stag=axb mb1ic3ih9oc8kh3ph1 -> --attr-post-ops=relu mb1ic8ih9oc5kh3ph1 -> mb1ic5ih9oc4kh3ph1 -> "
        "--dtag=axb mb1ic4ih9oc8kh5ph2"
    ),
    "dilated-and-strided": (
        "--stag=axb mb1ic4ih16iw9oc16oh14ow7kh3kw3 -> mb1ic16ih14iw7oc17oh14ow7kh3kw3ph2pw2dh1dw1 -> "
        "g17mb1ic17ih14iw7oc17oh5ow7kh5kw1sh3sw1ph2pw0"
    ),
    "windows-apart": "--stag=axb mb1ic4ih16oc16kh3ph1 -> mb1ic16ih16oc16kh1sh3 -> mb1ic16ih6oc16kh3ph1",
    "int8": (
        f"--stag=axb {INT8} --attr-post-ops=relu+linear:0.125 mb1ic16ih10oc48kh1 -> {INT8} "
        f"--attr-post-ops=relu+linear:0.25 g48mb1ic48ih10oc48kh3ph1 -> --dt=u8:s8:u8 --dtag=axb "
        "--attr-post-ops=linear:0.5:3+sum:0.5:1:u8:src mb1ic48ih10oc16kh1"
    ),
    "int8-with-zero-points": (
        "--stag=axb --dt=s8:s8:u8 --attr-zero-points=src:common:3 --attr-post-ops=linear:0.125 mb1ic16ih9oc32kh3ph1 -> "
        "--dt=u8:s8:s8 --attr-zero-points=src:common:7 mb1ic32ih9oc20kh1 -> --dt=s8:s8:f32 --dtag=axb "
        "mb1ic20ih9oc16kh3ph1"
    ),
    "depthwise-post-op-in-a-stage": (
        "--stag=axb --attr-post-ops=relu+dw:k3s1p1 mb1ic6ih8oc20kh1 -> --dtag=axb mb1ic20ih8oc9kh3ph1"
    ),
    "bf16": "--dt=bf16 --stag=axb mb1ic6ih9oc16kh3ph1 -> --dt=bf16:bf16:f32 --dtag=axb mb1ic16ih9oc18kh3ph1",
}  # fmt: skip


def chain_of(name: str) -> tuple[Chain, Stages]:
    chain = parse_problem(CHAINS[name]).canonical()
    assert isinstance(chain, Chain)
    stages = stages_of(chain)
    assert stages is not None
    return chain, stages


def recomputing(config: Config) -> Config:
    return Config.parse(str(config).replace(" --compute_at=", " --halo=recompute --compute_at="))


def check(chain: Chain, config: Config) -> None:
    """Compile, and run the entries whole, and in parts."""
    assert Config.parse(str(config)) == config
    artifact = build_artifact(chain, config, target())
    arrays = random_arrays(chain, 1)
    truth = expected(chain, arrays)
    for chunks in {0, config.threads}:
        check_result(chain, Compiled(chain, artifact)(arrays, chunks), truth)


@pytest.mark.sampled(8, "threads")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", CHAINS)
def test_stages_are_fused_with_every_halo(name: str, threads: int) -> None:
    chain, stages = chain_of(name)
    config = config_of(stages, StageConfigs(target()), threads, [True] * (len(stages) - 1))
    check(chain, config)
    check(chain, recomputing(config))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["inverted-residual", "int8", "three-windows"])
def test_any_stages_are_fused(name: str) -> None:
    chain, stages = chain_of(name)
    for fused in product((True, False), repeat=len(stages) - 1):
        check(chain, config_of(stages, StageConfigs(target()), 2, fused))


def test_rows_are_computed_at_loops_of_any_later_stage() -> None:
    chain, stages = chain_of("inverted-residual")
    config = config_of(stages, StageConfigs(target()), 1, [True, True])
    first = f"--compute_at={config.compute_at}"
    assert config.place[0] == "oh3"
    for at in ("oh3", "mb3", "oh", "mb", "g"):
        check(chain, Config.parse(str(config).replace(first, f"--compute_at={at}", 1)))
    with pytest.raises(ConfigError, match="--compute_at=kh2: no loop of that name is around"):
        plan(chain, Config.parse(str(config).replace(first, "--compute_at=kh", 1)), target())


def test_rows_that_are_kept_are_computed_once() -> None:
    chain, stages = chain_of("three-windows")
    config = config_of(stages, StageConfigs(target()), 1, [True, True])
    kept, again = (list(map(str, plan(chain, c, target()).pipeline)) for c in (config, recomputing(config)))
    assert [step for step in kept if step.startswith("compute_at")] == ["compute_at(mid2, oh3)", "compute_at(mid, oh3)"]
    assert {"compute_at(mid2, oh3, False)", "compute_at(mid, oh3, False)"} <= set(again)


@examples(12)
@given(st.integers(0, 2**32))
def test_random_chains(seed: int) -> None:
    check_random(random.Random(seed))


@pytest.mark.slow
def test_many_random_chains() -> None:
    rng = random.Random(11)
    assert sum(check_random(rng) for _ in range(150)) > 120


def check_random(rng: random.Random) -> bool:
    """Check a random chain under a config of random choices; return whether a kernel could be made."""
    chain = random_chain(rng, macs=15_000).canonical()
    stages = stages_of(chain)
    assert isinstance(chain, Chain) and stages is not None
    fused = [rng.random() < 0.8 for _ in range(len(stages) - 1)]
    config = config_of(stages, StageConfigs(target()), rng.choice((1, 2, 3)), fused)
    try:
        check(chain, recomputing(config) if rng.random() < 0.3 else config)
    except ConfigError as error:
        # One channel, and rows that nobody reads, are not fused by default.
        assert error.code in ("dependence", "compute-at"), error
        return False
    return True


@pytest.mark.parametrize(
    "config, why",
    [
        ("--target=x --lane=oc", "has 3 statements, and 1 configs are given; legal is one for each"),
        ("--target=x --lane=oc --halo=recompute", "--halo=recompute needs --compute_at="),
        ("--target=x --lane=oc --compute_at=oh --halo=some / --target=x --lane=g", "legal are keep, recompute"),
        ("--target=x --lane=oc --split=ic:2 / --target=x --lane=g / --target=x --lane=oc", "has no --split"),
        (
            "--target=x --lane=oc --compute_at=oh / --target=x --lane=g --realise=pad_copy / --target=x --lane=oc",
            "--realise=mask or peel",
        ),
    ],
)
def test_configs_of_chains_are_checked(config: str, why: str) -> None:
    chain, _ = chain_of("inverted-residual")
    with pytest.raises(ConfigError, match=why):
        plan(chain, Config.parse(config.replace("=x", f"={target().name}")), target())


def test_the_default_fuses_what_caches_do_not_hold() -> None:
    block = (
        "mb1ic16ih112oc96kh1 -> g96mb1ic96ih112oc96kh3sh2ph1 -> mb1ic96ih56oc24kh1",  # larger than L2
        "mb1ic24ih56oc144kh1 -> g144mb1ic144ih56oc144kh3sh2ph1 -> mb1ic144ih28oc32kh1",  # the second fits L2
        "mb1ic32ih28oc192kh1 -> g192mb1ic192ih28oc192kh3ph1 -> mb1ic192ih28oc32kh1",  # within L2
        "mb1ic4ih8oc8kh1 -> g8mb1ic8ih8oc8kh3ph1 -> mb1ic8ih8oc4kh1",  # within L1
        "mb1ic8ih4iw9000oc64oh4ow9000kh1kw1 -> mb1ic64ih4iw9000oc8oh4ow9000kh3kw3ph1pw1",  # rows larger than L2
        "--matmul 64x32:32x99 -> --matmul 64x99:99x5",  # no rows
    )
    level = target("avx512")
    choices = []
    for line in block:
        chain = parse_problem(line).canonical()
        stages = stages_of(chain)
        assert stages is not None
        choices.append([joint.fused for joint in joints(stages, StageConfigs(level))])
        config = chain_config(chain, level, 1)
        text = str(config)
        assert [bool(link) for link in text.split(" / ")] and text.count("--compute_at=") == sum(choices[-1])
    assert choices == [[True, True], [True, True], [False, False], [False, False], [False], [False]]


def test_a_choice_ranks_the_candidates_of_each_row_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ranked: list[Problem] = []

    def counted(problem: Problem, machine: Machine, threads: int) -> Config:
        ranked.append(problem)
        return default_config(problem, machine, threads)

    monkeypatch.setattr("convsmith.tune.chains.StageConfigs", lambda machine: StageConfigs(machine, counted))
    chain = parse_problem("mb1ic16ih112oc96kh1 -> g96mb1ic96ih112oc96kh3sh2ph1 -> mb1ic96ih56oc24kh1").canonical()
    level = target("avx512")
    assert str(chain_config(chain, level, 1)).count("--compute_at=") == 2
    assert len(ranked) == 5  # each stage alone, and a row of the dense ones
    window = "mb1ic64ih224oc64kh3ph1"
    same = parse_problem(f"--stag=axb --dtag=axb {window} -> {window}").without_transforms().canonical()
    ranked.clear()
    assert str(chain_config(same, level, 1)).count("--compute_at=") == 1
    assert len(ranked) == 4


TALL = (
    "--target=avx2 --lane=oc --register=ow:5,oc:16 --reduce=kh,kw,ic {words} --compute_at=oh3:4 / "
    "--target=avx2 --lane=g --register=oh:4,ow:1,g:16,kh:3,kw:3 --order=mb,oh,ow,g,oc {words} --compute_at=oh:4 / "
    "--target=avx2 --lane=oc --register=ow:5,oc:16 --order=mb,oh,ow,oc --cache={tiles} {threads}"
)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("threads", "tiles"), [(1, "mb:1,oh:4"), (2, "oh:12,mb:1,oh:4")])
@pytest.mark.parametrize("halo", ("", "--halo=recompute"))
def test_several_rows_are_computed_at_once(halo: str, threads: int, tiles: str) -> None:
    chain, _ = chain_of("tall-depthwise")
    words = f"--threads={threads}"
    config = Config.parse(TALL.format(words=f"{words} {halo}", tiles=tiles, threads=words))
    made = plan(chain, config, target("avx2"))
    rows = {b.name: b.size // (16 * 21) for b in private_buffers(run_steps(made.naive(), made.pipeline))}
    # Four rows of the result read six of the depthwise stage's source, in a circular buffer of a power of two.
    assert rows == {"mid2": 4, "mid": 6 if halo else 8}
    check(chain, config)


def test_a_tile_of_rows_that_is_none() -> None:
    chain, _ = chain_of("tall-depthwise")
    config = TALL.format(words="", tiles="mb:1,oh:4", threads="")
    with pytest.raises(ConfigError, match=r"--compute_at=oh3:5: no loop of that name .* legal are mb3, oh3:4, oh3, "):
        plan(chain, Config.parse(config.replace("oh3:4", "oh3:5")), target("avx2"))
    with pytest.raises(ConfigError, match="--compute_at=oh3:x: legal behind the colon are the iterations of a"):
        Config.parse(config.replace("oh3:4", "oh3:x"))


def test_a_search_starts_from_every_choice_of_fused_stages() -> None:
    chain, _ = chain_of("inverted-residual")
    space = StagesSpace(chain, target(), 1)
    assert space.seeds[0] == chain_config(chain, target(), 1)
    assert sorted(str(c).count("--compute_at=") for c in space.seeds) == [0, 1, 1, 2]
    assert not any(map(space.refusal, space.seeds))
    products = parse_problem("--matmul 9x20:20x33 -> --matmul 9x33:33x7").canonical()
    assert len(StagesSpace(products, target(), 1).seeds) == 1


@pytest.mark.parametrize("stage, fusible", [("ic8ih4oc8oh4kh3ph1", True), ("ic8iw4oc8ow4kw3pw1", False)])
def test_a_search_of_a_long_chain_starts_from_few_choices(stage: str, fusible: bool) -> None:
    """Every choice would double with each stage; those that no rows permit would still be visited."""
    for count in (MAX_JOINTS + 1, MAX_STAGES):
        chain = parse_problem(" -> ".join([f"--stag=axb --dtag=axb mb1{stage}"] * count)).canonical()
        seeds = StagesSpace(chain, target("avx2"), 1).seeds
        every = 2**MAX_JOINTS if count == MAX_JOINTS + 1 else count + 1
        assert len(seeds) == (every if fusible else 1)


def test_products_run_one_after_the_other() -> None:
    chain = parse_problem("--matmul --attr-post-ops=relu 9x20:20x33 -> --matmul --bia-dt=f32 9x33:33x7").canonical()
    assert isinstance(chain, Chain)
    check(chain, chain_config(chain, target(), 2))


def test_a_chain_is_called_by_names_with_packed_weights() -> None:
    kernel = cs.compile(CHAINS["inverted-residual"], threads=1)
    assert verify_kernel(kernel).detail == "exact"
    chain = kernel.problem
    arrays = {t.name: to_layout(x, t.layout) for t, x in zip(chain.inputs, random_arrays(chain).values())}
    plain = kernel.run(**arrays)["dst"]
    packed = kernel.pack_each(**{name: arrays[name] for name in ("wei_1", "wei_2", "wei_3")})
    np.testing.assert_array_equal(kernel.run(**{**arrays, **packed})["dst"], plain)
    out = np.empty_like(plain)
    call = kernel.bind_each(**{**arrays, **packed, "dst": out})
    for scale in (1, 2):
        arrays["src"] *= scale
        call()
        np.testing.assert_array_equal(out, kernel.run(**{**arrays, **packed})["dst"])
    with pytest.raises(UsageError, match="wei_2: packed for another kernel"):
        kernel.run(**{**arrays, "wei_2": packed["wei_1"]})
    with pytest.raises(UsageError, match="src: not packed alone; legal are wei_1, wei_2, wei_3"):
        kernel.pack_each(src=arrays["src"])
    with pytest.raises(UsageError, match="a call takes src, wei and bia"):
        kernel(arrays["src"], arrays["wei_1"])


def test_rows_that_fit_no_cache_are_not_fused_and_explain_says_so() -> None:
    page = cs.compile(
        "mb1ic8ih4iw9000oc64oh4ow9000kh1kw1 -> mb1ic64ih4iw9000oc8oh4ow9000kh3kw3ph1pw1", target="avx512"
    ).explain()
    assert "written as a whole, and stage 2 starts when it is done; rows of 9000 KiB fill more than 1 / 2 of L2" in page


def test_explain_says_what_fusion_saves() -> None:
    page = cs.compile(
        "--stag=axb mb1ic16ih112oc96kh1 -> g96mb1ic96ih112oc96kh3sh2ph1 -> --dtag=axb mb1ic96ih56oc24kh1",
        target="avx512", threads=2,
    ).explain()  # fmt: skip
    assert "12,856 KiB are written and read without fusion, 1,096 KiB with it" in page
    assert "f32, 4,704 KiB: computed at loop oh3, 4 iterations at a time in 672 KiB for each thread" in page
    assert "0.9% of its rows are computed twice; it is larger than L2 of 1024 KiB, and its rows fit there" in page
    page = cs.compile("mb1ic4ih8oc8kh1 -> mb1ic8ih8oc4kh3ph1", threads=1).explain()
    assert "written as a whole, and stage 2 starts when it is done; it fits L1" in page
