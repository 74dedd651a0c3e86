"""The memory of a kernel beside its tensors: what is said of it, what is allocated, and kernels within a bound."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest
from drawn_layers import ON_X86, random_chain, random_layer

import convsmith as cs
from convsmith.codegen.memory import KernelMemory
from convsmith.compiler.driver import build_artifact
from convsmith.compiler.memory import bytes_needed, flaw_within, least_bytes, memory_of
from convsmith.diag.errors import ConfigError, UnsupportedError, UsageError
from convsmith.exporter.interface import interface_of
from convsmith.frontend.nothing import has_empty_tensor
from convsmith.ir.intern import interning
from convsmith.machine.registry import host_target, target
from convsmith.measure.verification import verify_kernel
from convsmith.problem.data import random_arrays
from convsmith.problem.lines import parse_problem
from convsmith.runtime import host_block, operand_packing, prepared_call
from convsmith.runtime.arrays import Array, aligned_empty
from convsmith.schedule.config import Config
from convsmith.schedule.planned import plan_for
from convsmith.tune.bounded import bounded_config
from convsmith.tune.candidates import default_config
from convsmith.tune.compile import choose
from convsmith.tune.search.space import Space

TRANSFORMED = "--stag=axb --dtag=axb mb1ic32ih14oc32oh14kh3ph1"
PACKED = "--stag=axb --dtag=axb --accuracy=strict mb1ic32ih14oc32oh14kh3ph1"
CHAIN = "--stag=axb mb1ic8ih9oc16oh9kh1 -> --dtag=axb g16mb1ic16ih9oc16oh9kh3ph1"
LINES = {
    "transform": TRANSFORMED, "packed": PACKED, "chain": CHAIN, "bf16": "--dt=bf16 mb1ic24ih9oc16kh3ph1",
    "bytes": "--dt=u8:s8:u8 --stag=axb --dtag=axb mb1ic16ih9oc16kh3ph1",
    "by-data": "--dir=BWD_D --stag=axb --dtag=axb mb1ic16ih14oc16oh7kh3sh2ph1",
    "by-weights": "--dir=BWD_W mb2ic8ih9oc16kh3ph1", "by-weights-bf16": "--dt=bf16 --dir=BWD_W mb2ic32ih9oc32kh3ph1",
    "depthwise-behind": "--attr-post-ops=dw:k3s1p1 --stag=axb --dtag=axb mb1ic8ih12oc16kh1",
}  # fmt: skip


def bounds_of(whole: int) -> Iterator[int]:
    """Bounds at which other choices are made, where a default needs memory at all."""
    yield from (max(whole - 1, 0), whole // 4)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("number", range(20))
def test_what_the_plan_says_is_what_the_artifact_says(number: int) -> None:
    rng = random.Random(number)
    problem = (random_chain if number % 4 == 3 else random_layer)(rng).canonical()
    _, machine = rng.choice(ON_X86)
    threads = rng.randint(1, 3)
    if has_empty_tensor(problem):
        return
    with interning():
        try:
            config = choose(problem, machine, threads, False)
            made = plan_for(problem, config, machine)
        except UnsupportedError:
            return
        memory, artifact = memory_of(made), build_artifact(problem, config, machine)
        assert memory == KernelMemory.of(artifact)
        assert memory.tensors == sum(t.nbytes for t in problem.tensors)
        assert least_bytes(made) <= memory.whole <= bytes_needed(made)
        of_c = interface_of("k", artifact, [t.name for t in problem.tensors])
        assert of_c.workspace <= memory.call
        assert max((p.workspace for p in of_c.packings), default=0) <= memory.packing


@pytest.mark.sampled(6)
@pytest.mark.parametrize("threads", (1, 2))
@pytest.mark.parametrize("name", LINES)
def test_a_kernel_allocates_what_it_says(name: str, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def counted(nbytes: int) -> Array:
        sizes.append(-(-nbytes // 128) * 128)
        return aligned_empty(nbytes)

    for module in (host_block, operand_packing, prepared_call):
        monkeypatch.setattr(module, "aligned_empty", counted)
    kernel = cs.compile(LINES[name], threads=threads)
    memory, arrays = KernelMemory.of(kernel.artifact), random_arrays(kernel.problem)
    kernel.run(**arrays)
    packs = sum(-(-a.nbytes // 128) * 128 for a in memory.packed)
    assert sum(sizes) <= packs + memory.packing + memory.call
    assert memory.scratch.whole <= memory.call <= memory.whole - packs


@pytest.mark.sampled(9)
@pytest.mark.parametrize("name", LINES)
def test_kernels_within_a_bound_compute_the_same(name: str) -> None:
    line = LINES[name]
    default = cs.compile(line, threads=1)
    for bound in bounds_of(KernelMemory.of(default.artifact).whole):
        try:
            kernel = cs.compile(line, threads=1, workspace=bound)
        except ConfigError as error:
            assert error.code == "workspace"
            least = int(error.message.rpartition("--workspace=")[2])
            assert least > bound
            kernel = cs.compile(line, threads=1, workspace=least)
            bound = least
        assert KernelMemory.of(kernel.artifact).whole <= bound
        verdict = verify_kernel(kernel)
        assert verdict.ok, verdict.detail


def test_packing_counts() -> None:
    """The transformed weights, before they are packed, are as large as the packed ones."""
    config = "--target=generic --lane=oc --register=oc:8 --pack=wei_w --winograd=oh:4,ow:4"
    memory = KernelMemory.of(cs.compile("mb1ic32ih4oc32kh3ph1", config=config, threads=1).artifact)
    assert memory.packing > memory.call
    assert memory.whole == sum(a.nbytes for a in memory.packed) + memory.packing


def test_a_bound_that_does_not_bind_changes_nothing() -> None:
    whole = KernelMemory.of(cs.compile(TRANSFORMED, threads=1).artifact).whole
    for bound in (whole, 1 << 40, "1T"):
        assert cs.compile(TRANSFORMED, threads=1, workspace=bound).config == cs.compile(TRANSFORMED, threads=1).config


def test_a_bound_is_part_of_the_line() -> None:
    kernel = cs.compile(PACKED, workspace="64K", threads=1)
    assert "--workspace=65536" in str(kernel.problem)
    assert parse_problem(str(kernel.problem)) == kernel.problem
    assert "--workspace" not in str(kernel.problem.unbounded())
    chain = parse_problem(f"--workspace=1M {CHAIN}")
    assert chain.workspace == 1 << 20 and parse_problem(str(chain)) == chain


def test_a_config_beyond_the_bound_is_refused_with_the_numbers() -> None:
    config = cs.compile(PACKED, threads=1).config
    with pytest.raises(ConfigError) as caught:
        cs.compile(PACKED, config=str(config), workspace=1000)
    assert caught.value.code == "workspace"
    needed = KernelMemory.of(cs.compile(PACKED, threads=1).artifact).whole
    assert caught.value.message == (
        f"--workspace=1000: {config} needs {needed} bytes beside the tensors: {needed} of wei_p; legal is "
        f"--workspace={needed}"
    )


def test_a_decision_within_the_bound_is_kept() -> None:
    kernel = cs.compile(PACKED, config="--reduce=ic,kh,kw", workspace=0, threads=1)
    assert kernel.config.reduce == ("ic", "kh", "kw") and KernelMemory.of(kernel.artifact).whole == 0


def test_the_kernel_for_weights_beyond_a_limit_is_within_the_bound_too() -> None:
    line, config = "mb1ic8ih6oc16kh3ph1", "--target=generic --lane=oc --register=ow:3,oc:8 --realise=pad_copy"
    with interning():
        made = plan_for(parse_problem(line).canonical(), Config.parse(config), target("generic"))
        bound = bytes_needed(made)
    kernel = cs.compile(line, config=config, workspace=bound)
    weights = np.full((16, 8, 3, 3), np.inf, np.float32)
    assert np.isinf(kernel(np.ones((1, 8, 6, 6), np.float32), kernel.pack(weights))).all()


def test_wider_products_of_weights_beyond_a_limit_count() -> None:
    """Their packed weights are words, where those of the kernel are bytes."""
    config = Config.parse("--target=avx2 --lane=oc --register=ow:3,oc:16 --instruction=vpmaddubsw_256 --k_step=ic:4")
    with interning():
        problem = parse_problem("--dt=u8:s8:s32 --stag=axb mb1ic16ih6oc64kh1").canonical()
        made = plan_for(problem, config, target("avx2"))
        assert bytes_needed(made) >= 2 * memory_of(made).whole > 0


@pytest.mark.parametrize("line", (TRANSFORMED, PACKED))
def test_a_search_stays_within_the_bound(line: str) -> None:
    machine = host_target(None)
    with interning():
        free = parse_problem(line).canonical()
        whole = memory_of(plan_for(free, default_config(free, machine), machine)).whole
        problem = parse_problem(f"--workspace={whole - 1} {line}").canonical()
        space = Space(problem, machine, 1)
        assert space.seeds
        assert all(flaw_within(problem, config, machine) is None for config in space.seeds)
        assert space.refusal(default_config(free, machine)) == "workspace"


def test_a_device_packs_nothing_without_memory() -> None:
    machine = target("sm_90a")
    problem = parse_problem("--workspace=0 --dt=bf16 --stag=axb --dtag=axb mb1ic64ih8oc64kh1").canonical()
    with interning():
        config = bounded_config(problem, machine, 1)
        assert memory_of(plan_for(problem, config, machine)).whole == 0


@pytest.mark.parametrize("value", (-1, "x", "-3", 1.5, True, ""))
def test_values_that_are_no_sizes(value: object) -> None:
    with pytest.raises(UsageError):
        cs.compile(PACKED, workspace=value)  # type: ignore[arg-type]


def test_two_bounds_contradict_each_other() -> None:
    with pytest.raises(UsageError, match="says --workspace=5, the keyword 6; legal is one of them"):
        cs.compile(f"--workspace=5 {PACKED}", workspace=6)
    one, two = CHAIN.split(" -> ")
    with pytest.raises(UsageError, match="--workspace=5 and --workspace=6; legal is one bound of the whole chain"):
        parse_problem(f"--workspace=5 {one} -> --workspace=6 {two}")


def test_sizes_of_a_call_have_no_bound() -> None:
    with pytest.raises(UnsupportedError, match="bounds the memory of a kernel"):
        cs.compile(PACKED, dynamic="ih,iw", workspace=0)
