"""Plans for devices: tiny problems of every kind, interpreted as grids of groups of threads."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import takewhile
from math import prod

import pytest
from devices import KINDS, PASSES_OF_DEVICES, SPLIT, DeviceOracle, random_group_config
from problems import random_problem

from convsmith.arith.evaluate import evaluate
from convsmith.diag.errors import ConfigError, UnsupportedError
from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Var
from convsmith.ir.intern import interning
from convsmith.ir.stmt import Alloc, AtomicAdd, Barrier, For, Kernel, Store
from convsmith.ir.walk import loops_of, statements_of, variables_of
from convsmith.machine.base import Machine
from convsmith.machine.registry import target
from convsmith.passes.flatten import flatten, offset
from convsmith.passes.manager import Step, run_steps
from convsmith.problem import parse_problem
from convsmith.schedule.config import Config
from convsmith.schedule.plan import Plan
from convsmith.schedule.planned import plan_for
from convsmith.tune.devices.device import device_candidates, device_config

HEAD = "--target=opencl --pack="


def machine() -> Machine:
    return target("opencl")


def before_lowering(plan: Plan) -> list[Step]:
    """The rewrites of the main kernel that keep its arrays' dims."""
    return [*takewhile(lambda step: step.run is not flatten, plan.pipeline)]


def interpreted(plan: Plan, every: bool) -> Kernel:
    """The main kernel after all rewrites, interpreted after every one of them, or after the last."""
    naive = plan.naive()
    oracle = DeviceOracle(plan, plan.machine)
    oracle.skip = lambda number: not every and number != len(plan.pipeline)
    return run_steps(naive, plan.pipeline, [oracle])


@pytest.mark.sampled(12)
@pytest.mark.parametrize("kind", KINDS)
def test_every_step_computes_the_same(kind: str) -> None:
    problem, config = KINDS[kind]
    with interning():
        plan = plan_for(parse_problem(problem), Config.parse(f"{HEAD} {config}"), machine())
        kernel = interpreted(plan, every=True)
    kinds = [x.kind for x in loops_of(kernel.body)]
    assert 1 <= kinds.count("grid") <= 3 and "group" in kinds
    assert not any(s.buffer.scope == "cache" for s in statements_of(kernel.body) if isinstance(s, Alloc))


@pytest.mark.parametrize("carries", (False, True))
def test_loops_carry_offsets(carries: bool) -> None:
    problem, config = KINDS["carried-offsets"]
    with interning():
        made = Config.parse(f"{HEAD} {config}").changed(carry=carries)
        plan = plan_for(parse_problem(problem), made, machine())
        kernel = run_steps(plan.naive(), plan.pipeline)
    assert any(x.carried for x in loops_of(kernel.body)) == carries


@pytest.mark.sampled(3, "level")
@pytest.mark.parametrize("level", ["sm_80", "xe_lp"])
@pytest.mark.parametrize("kind", SPLIT)
def test_barriers_are_in_two_parts(kind: str, level: str) -> None:
    """On levels that have both; others refuse them."""
    (problem, config), device = SPLIT[kind], target(level)
    with interning():
        plan = plan_for(parse_problem(problem), Config.parse(f"--target={level} --pack= {config}"), device)
        kernel = interpreted(plan, every=True)
    assert {s.part for s in statements_of(kernel.body) if isinstance(s, Barrier)} >= {"arrive", "wait"}


@pytest.mark.parametrize("level", ["sm_70", "opencl"])
def test_barriers_in_two_parts_are_refused(level: str) -> None:
    problem, config = SPLIT["channels-last"]
    with pytest.raises(ConfigError) as caught, interning():
        plan_for(parse_problem(problem), Config.parse(f"--target={level} --pack= {config}"), target(level))
    assert caught.value.code == "barriers" and str(caught.value) == (
        f"--barriers=split: {level} has no instruction by which a thread arrives at a barrier and goes on; legal is "
        "--barriers=whole"
    )


AHEAD = ("--stag=axb --wtag=axb --dtag=axb --dt=bf16 mb2ic128ih8oc64oh8kh3ph1", "--lane=oc --realise=pad_copy "
         "--instruction=mma_m16n8k16_bf16 --register=oc:16,oh:2,ow:8 --group=oc:32,oh:2,ow:8,ic:{} --shared=src,wei")
"""A layer with a config, but for the terms of a step."""


@pytest.mark.parametrize(
    ("problem", "words", "message"),
    [
        (*AHEAD, "--load_ahead=yes: products use two sets of registers in turn; legal are steps, or with --rounds=yes "
         "rounds, of an even number of products of mma_m16n8k16_bf16, found 1"),
        ("mb1ic4iw4oc4ow4kw3pw1", "--lane=ow --realise=mask --group=oc:2,ic:2,ow:2 --shared=src",
         "--load_ahead=yes: legal is an --instruction= on fragments, with at most 64 products of a fragment in a step, "
         "found none"),
        ("mb1ic4iw4oc4ow4kw3pw1", "--lane=ow --realise=mask --group=oc:2,ic:2,ow:2",
         "--load_ahead=yes: factors are loaded from shared memory; needs --shared="),
    ],
)  # fmt: skip
def test_factors_that_are_not_loaded_ahead(problem: str, words: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught, interning():
        config = Config.parse(f"--target=sm_80 --pack= {words.format(16)} --load_ahead=yes")
        plan_for(parse_problem(problem), config, target("sm_80"))
    assert caught.value.code == "load_ahead" and str(caught.value) == message


def test_a_round_needs_several_slots() -> None:
    with pytest.raises(ConfigError, match="--rounds=yes: a round uses each of several copies once; needs --buffers="):
        Config.parse("--target=sm_80 --lane=oc --shared=src --rounds=yes")


@pytest.mark.parametrize("word", ["rounds", "load_ahead"])
def test_factors_of_a_copy_engine_stay_in_shared_memory(word: str) -> None:
    words = ("--target=sm_90a --lane=oc --fuse=mb+oh,mb_oh+ow --register=mb_oh_ow:64,oc:16 --reduce=kh,kw,ic --pack= "
             "--realise=hardware --instruction=wgmma_m64n16k16_bf16 --group=mb_oh_ow:64,oc:16,ic:64 --shared=src,wei "
             f"--buffers=2 --{word}=yes")  # fmt: skip
    with pytest.raises(ConfigError) as caught, interning():
        plan_for(parse_problem(AHEAD[0]), Config.parse(words), target("sm_90a"))
    assert caught.value.code == word and f"legal is no --{word}=" in str(caught.value)


REGISTERS = {
    "sums of threads": ("sm_80", "mb1ic16iw256oc256ow256kw1",
                        "--lane=ow --realise=mask --register=oc:{} --group=oc:256,ow:32", 128,
                        "needs 256 registers of a lane (256 for sums), sm_80 has 255"),
    "fragments": (
        "xe_hpc", "--stag=axb --dtag=axb --dt=bf16:bf16:f32 mb1ic256iw256oc256ow256kw1",
        "--lane=oc --instruction=dpas_m8n16k16_bf16 --realise=pad_copy --shared=src,wei --register=oc:{},ow:32 "
        "--group=oc:256,ow:32,ic:16", 32,
        "needs 656 registers of a lane (512 for sums, 144 for factors), xe_hpc has 128",
    ),
}  # fmt: skip
"""A level, a problem and a config; the largest legal tile that divides 256, and what the plan says to one of 256."""


@pytest.mark.parametrize("kind", REGISTERS)
def test_registers_are_counted(kind: str) -> None:
    level, line, words, legal, why = REGISTERS[kind]
    problem, device = parse_problem(line), target(level)
    with interning():
        plan_for(problem, Config.parse(f"--target={level} --pack= {words.format(legal)}"), device)
        with pytest.raises(ConfigError) as caught:
            plan_for(problem, Config.parse(f"--target={level} --pack= {words.format(256)}"), device)
    assert caught.value.code == "registers"
    assert str(caught.value) == f"{why}; legal are smaller tiles of --register="


def test_the_threads_of_a_group_share_the_registers_of_a_unit() -> None:
    problem = parse_problem("mb1ic16iw1024oc128ow1024kw1")
    with interning(), pytest.raises(ConfigError) as caught:
        words = "--target=sm_80 --pack= --lane=ow --realise=mask --register=oc:128 --group=oc:128,ow:1024"
        plan_for(problem, Config.parse(words), target("sm_80"))
    assert caught.value.code == "registers" and str(caught.value) == (
        "needs 128 registers of a lane (128 for sums), sm_80 has 64 for each of 1024 threads; legal are smaller "
        "tiles of --register="
    )


def random_device_problem(seed: int) -> None:
    """One with a random config, every fourth one with the default config, and every fourth one with barriers that may
    be in two parts.
    """
    rng, machine = random.Random(seed), target("sm_80" if seed % 4 == 3 else "opencl")
    problem = random_problem(rng, 300)
    with interning():
        config = random_group_config(rng, problem, machine) if seed % 4 else device_config(problem, machine)
        assert Config.parse(str(config)) == config
        plan = plan_for(problem, config, machine)
        kernel = interpreted(plan, every=False)
        shared = sum(b.size * b.dtype.bytes for b in shared_buffers(kernel))
        assert shared <= sum(plan.main.shared.values())


def shared_buffers(kernel: Kernel) -> list[Buffer]:
    """The buffers of a kernel that the threads of a group share."""
    return [s.buffer for s in statements_of(kernel.body) if isinstance(s, Alloc) and s.buffer.scope == "shared"]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("seed", range(24))
def test_random_problems(seed: int) -> None:
    random_device_problem(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(24, 500))
def test_more_random_problems(seed: int) -> None:
    random_device_problem(seed)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("problem", [
    "--stag=axb --dtag=axb mb32ic64ih56oc64oh56kh3ph1", "--stag=axb --dtag=axb g96mb8ic96ih112oc96oh112kh3ph1",
    "--dir=BWD_D --stag=axb --dtag=axb mb32ic64ih56oc64oh28kh3ph1sh2", "--matmul 1024x512:512x768",
])  # fmt: skip
def test_default_configs_fill_the_device(problem: str) -> None:
    """Every unit has groups of whole warps, and a thread several sums for each element that it loads."""
    device = machine().device
    assert device is not None
    with interning():
        parsed = parse_problem(problem)
        nest = plan_for(parsed, device_config(parsed, machine()), machine()).main.nest
    assert nest.size % 32 == 0 and prod(x.extent for x in nest.grid) >= device.units.count
    assert prod(x.extent for x in nest.accumulators) >= 16


def test_copies_hold_no_more_than_a_group_reads() -> None:
    """The example of document 002: 16 x 16 outputs of a 7 x 7 window with stride 2 read 37 x 37 inputs."""
    config = Config.parse(f"{HEAD} --lane=ow --realise=pad_copy --group=ow:16,oh:16,oc:64,kh:7,kw:7 --register=oc:64 "
                          "--shared=src,wei")  # fmt: skip
    with interning():
        plan = plan_for(parse_problem("mb1ic1ih224oc64oh112kh7ph3sh2"), config, machine())
        kernel = run_steps(plan.naive(), before_lowering(plan))
    shapes = {s.buffer.name: s.buffer.shape for s in statements_of(kernel.body) if isinstance(s, Alloc)}
    assert shapes["src_s"] == (1, 1, 37, 37) and shapes["wei_s"] == (64, 1, 7, 7)
    assert plan.main.shared == {"src": 37 * 37 * 4, "wei": 64 * 49 * 4}


@pytest.mark.parametrize("sums", [2, 4])
@pytest.mark.parametrize("terms, loops", [(8, ["ic.g"]), (128, ["ic.g"]), (129, ["ic.g", "ic.i"])])
def test_a_straight_line_holds_the_terms_that_fit(terms: int, loops: list[str], sums: int) -> None:
    """A thread has at most 512 products in a straight line, and 128 terms of each sum."""
    words = f"{HEAD} --lane=oc --register=ow:{sums} --realise=mask --group=oc:32,ow:4,ic:{terms}"
    with interning():
        problem = parse_problem(f"--stag=axb --dtag=axb mb1ic{2 * terms}iw8oc64ow8kw1")
        plan = plan_for(problem, Config.parse(words), machine())
        kernel = run_steps(plan.naive(), plan.pipeline)
    assert [str(x.var) for x in loops_of(kernel.body) if x.kind == "serial"] == loops


def test_five_dims_are_packed_into_three() -> None:
    config = Config.parse(f"{HEAD} --lane=ow --realise=mask --group=ow:2")
    with interning():
        plan = plan_for(parse_problem("g2mb3ic4ih5iw6oc4oh5ow6kh1kw1"), config, machine())
        kernel = run_steps(plan.naive(), before_lowering(plan))
    grid = [(str(x.var), int(x.hi)) for x in loops_of(kernel.body) if isinstance(x, For) and x.kind == "grid"]
    assert grid == [("g", 2), ("oc", 2), ("x", 3 * 5 * 3)]


@pytest.mark.parametrize("words", ["", "--pad=wei:1", "--swizzle=wei:1"])
def test_rows_of_shared_copies(words: str) -> None:
    """Threads read a row of weights side by side, and write a column of it: longer or rotated rows spread it."""
    config = Config.parse(f"{HEAD} --lane=oc --realise=mask --group=oc:32,ic:8 --shared=wei {words}")
    with interning():
        plan = plan_for(parse_problem("--stag=axb --dtag=axb mb1ic8iw1oc32ow1kw1"), config, machine())
        kernel = run_steps(plan.naive(), before_lowering(plan))
        (store,) = (s for s in statements_of(kernel.body) if isinstance(s, Store) and s.buffer.name == "wei_s")
        turn, thread = Var("wei_s.e"), Var("t") if Var("t") in variables_of(store.index[0]) else Var("oc.t")
        places = [int(evaluate(offset(store.buffer, store.index), {turn: 0, thread: n})) for n in range(8)]
    banks = {place % 32 for place in places}
    assert len(banks) == (8 if words else 1)


def test_a_stride_divides_the_work() -> None:
    """A gradient of the source with stride 2 has four classes of pixels, each of which runs its own taps alone."""
    config = Config.parse(f"{HEAD} --lane=iw --realise=pad_copy --group=iw:4,ih:2,oc:2 --shared=diff_dst,wei")
    with interning():
        plan = plan_for(parse_problem("--dir=BWD_D mb1ic2ih8oc4oh4kh4sh2ph1"), config, machine())
        kernel = run_steps(plan.naive(), before_lowering(plan))
    loops = {str(x.var): x for x in loops_of(kernel.body)}
    assert [str(loops[n].hi) for n in ("ih.r", "iw.r", "kh", "kw")] == ["2", "2", "2", "2"]
    assert loops["ih.r"].kind == loops["iw.r"].kind == "grid"


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        ("--lane=ic", "lane", "--lane=ic: a reduction loop; legal on opencl are oc, mb, oh, ow"),
        ("--lane=oz", "unknown-loop", "config names loop 'oz'"),
        ("--lane=oc --group=oc:512", "threads", "needs 512 threads in a group, opencl has 256 (oc:512)"),
        ("--lane=ow --group=ow:32,oh:3,ic:64,kh:3,kw:3 --shared=src", "shared",
         "needs 43520 bytes of shared memory, a group on opencl has 32768 (src 43520)"),
        ("--lane=ow --shared=dst", "shared", "--shared=dst: legal are src, wei"),
        ("--lane=ow --realise=pad_copy", "stage", "pads a copy in shared memory; needs --shared=src"),
        ("--lane=ow --realise=peel", "realise", "--realise=peel: legal on opencl are mask, pad_copy"),
        ("--lane=ow --spill_sums=yes", "spill_sums", "--spill_sums=: opencl runs groups of threads; legal is no"),
        ("--lane=ow --join=atomic", "join", "--join=atomic needs --split="),
        ("--lane=ow --split=ic:3 --join=atomic", "split", "a reduction loop and a divisor of it: kh (3), kw (3), ic"),
        ("--lane=ow --buffers=2", "buffers", "--buffers=2 --copies=wait: nothing without --shared="),
        ("--lane=ow --pad=wei:1", "pad", "--pad=wei:1: legal are operands of --shared="),
        ("--lane=ow --shared=wei --pad=wei:1 --swizzle=wei:4", "pad", "in one of --pad=, --swizzle= and --fragments="),
    ],
)  # fmt: skip
def test_illegal_configs_name_what_is_wrong(words: str, code: str, text: str) -> None:
    realised = "" if "realise" in words else " --realise=mask"
    with interning(), pytest.raises(ConfigError) as raised:
        config = Config.parse(f"{HEAD} {words}{realised}")
        plan_for(parse_problem("mb2ic64ih56oc512oh56kh3ph1"), config, machine())
    assert raised.value.code == code and text in str(raised.value)


def test_operands_of_the_epilogue_are_loaded_before_the_first_barrier() -> None:
    """The thread loads the bias and the summand before the products, with the condition of its stores."""
    problem, config = KINDS["operands-of-the-epilogue-first"]
    with interning():
        plan = plan_for(parse_problem(problem), Config.parse(f"{HEAD} {config}"), machine())
        text = str(run_steps(plan.naive(), plan.pipeline))
    before, _, after = text.partition("barrier")
    assert before.count("= (bia[") == 2 and before.count("= (dst[") == 4
    assert not any(x in line.partition("=")[2] for line in after.splitlines() for x in ("bia[", "dst["))


@pytest.mark.parametrize(("level", "words", "text"), [
    ("opencl", "--preload=src --realise=mask", "--preload=src; legal are operands that are read with the sums: bia"),
    ("sm_90a", "--preload=bia --realise=hardware", "--preload=bia: --realise=hardware has the registers"),
])  # fmt: skip
def test_operands_that_cannot_be_loaded_first(level: str, words: str, text: str) -> None:
    config = Config.parse(f"--target={level} --lane=oc --pack= {words}")
    with interning(), pytest.raises(ConfigError) as raised:
        plan = plan_for(parse_problem("--dir=FWD_B mb1ic4ih6oc8oh6kh1"), config, target(level))
        run_steps(plan.naive(), plan.pipeline)
    assert raised.value.code == "preload" and text in str(raised.value)


def test_a_device_without_room_names_it() -> None:
    device = machine().device
    assert device is not None
    small = replace(machine(), device=replace(device, grid=(100, 10, 10)))
    with interning(), pytest.raises(ConfigError, match="needs 3136 groups along a dim of the grid, opencl has 100"):
        plan_for(parse_problem("mb2ic4ih56oc4oh56kh1ph0"), Config.parse(f"{HEAD} --lane=ow --realise=mask"), small)


CHAIN = "mb1ic4ih6oc8oh6kh1 -> g8mb1ic8ih6oc8oh6kh3ph1"


@pytest.mark.parametrize(("words", "text"), [
    ("--lane=oc --compute_at=oh / --lane=g", "runs a kernel for each stage"),
    ("--lane=oc / --lane=g --split=kh:3", "--split"),
    ("--lane=oc --realise=mask", "has 2 statements, and 1 configs are given"),
])  # fmt: skip
def test_configs_of_chains_that_are_illegal(words: str, text: str) -> None:
    config = Config.parse(" / ".join(f"{HEAD} --realise=mask {x}" for x in words.split(" / ")))
    with interning(), pytest.raises(ConfigError) as raised:
        plan_for(parse_problem(CHAIN), config, machine())
    assert raised.value.code == "consumer" and text in str(raised.value)


def test_each_stage_of_a_chain_is_a_kernel() -> None:
    with interning():
        plan = plan_for(parse_problem(CHAIN), device_config(parse_problem(CHAIN), machine()), machine())
    assert [k.statement.name for k in plan.kernels] == ["stage1", "conv"] and plan.each_call >= {"stage1"}


def test_transforms_are_refused() -> None:
    config = Config.parse(f"{HEAD} --lane=oc --winograd=oh:4,ow:4")
    with interning(), pytest.raises(UnsupportedError, match="--winograd=oh:4,ow:4: opencl has kernels that sum"):
        plan_for(parse_problem("mb1ic4ih8oc4oh8kh3ph1"), config, machine())


@pytest.mark.parametrize("level", ["sm_80", "sm_90a", "xe_hpc"])
def test_sums_in_fragments_are_joined_atomically(level: str) -> None:
    """The first choice on fragments of a gradient, with its reduction in parts that groups add to the result."""
    machine = target(level)
    problem = parse_problem("--dir=BWD_W --dt=f16:f32:f16 --stag=axb --dtag=axb mb4ic64ih8oc64kh1").canonical()
    config = next(x for x in device_candidates(problem, machine) if any(y in x.instruction for y in ("mma", "dpas")))
    config = config.changed(split=(("mb_oh_ow" if config.realise == "hardware" else "mb", 2),), join="atomic")
    with interning():
        plan = plan_for(problem, config, machine)
        assert [k.statement.name for k in plan.kernels] == ["conv"]
        kernel = run_steps(plan.naive(), before_lowering(plan))
    assert any(isinstance(x, AtomicAdd) for x in statements_of(kernel.body))


def test_kernels_of_devices_run_all_passes_of_devices() -> None:
    """Those that kernels of CPUs run too are checked with them (tests/oracle/test_every_step.py)."""
    half, words = "--dt=f16 --stag=axb --dtag=axb mb1ic64ih14oc64kh3ph1", "mb1ic20ih16oc40kh3ph1"
    strided = "--dir=BWD_D --dt=f16 --stag=axb --wtag=axb --dtag=axb mb8ic64ih14oc64oh7kh3ph1sh2"
    run: set[str] = set()
    stored = "--dt=bf16 --stag=axb --wtag=axb --dtag=axb mb32ic64ih56oc256kh1"
    levels = ("sm_80", half), ("sm_90a", half), ("sm_90a", strided), ("sm_90a", stored), ("xe_hpc", half)
    for level, line in (*levels, ("opencl", words)):
        with interning():
            problem, device = parse_problem(line), target(level)
            config = device_config(problem, device)
            if line == stored:
                run |= {step.name for step in plan_for(problem, config, device).pipeline}
                wide = dict(
                    register=(("mb_oh_ow", 64), ("oc", 256)), group=(("mb_oh_ow", 192), ("oc", 256), ("ic", 64)),
                    instruction="wgmma_m64n128k16_bf16", shared=("src", "wei"),
                )  # fmt: skip
                teams = dict(
                    register=(("mb_oh_ow", 64), ("oc", 128)), group=(("mb_oh_ow", 128), ("oc", 128), ("ic", 64)),
                    teams=2,
                )  # fmt: skip
                for change in (wide, wide | teams):
                    run |= {step.name for step in plan_for(problem, config.changed(**change), device).pipeline}
                config = config.changed(shared=("src", "wei"), cluster=(("mb_oh_ow", 2),))
            if level == "xe_hpc":
                config = config.changed(barriers="split")
            run |= {step.name for step in plan_for(problem, config, device).pipeline}
    assert PASSES_OF_DEVICES <= run
