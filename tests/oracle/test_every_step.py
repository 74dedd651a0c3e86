"""Tiny problems of every kind, interpreted after every single rewrite: each must leave the numbers as they are."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from functools import partial
from types import FunctionType, ModuleType

import pytest
from devices import PASSES_OF_DEVICES
from guarded import Array, memories
from kinds_of_kernels import KINDS
from oracles import Oracle, small_target
from problems import random_config, random_convolution, random_problem, with_instruction, with_options

from convsmith.compiler.driver import lower
from convsmith.compiler.rewritten import preparing
from convsmith.diag.errors import ConfigError
from convsmith.ir.intern import interning
from convsmith.ir.stmt import Kernel
from convsmith.machine.base import Machine
from convsmith.machine.x86.levels import LEVELS
from convsmith.passes.manager import Step, run_steps
from convsmith.problem import Problem, parse_problem
from convsmith.schedule.config import Config
from convsmith.schedule.plan import plan
from convsmith.statement.naive import naive
from convsmith.tune.candidates import default_config


def interpret_all(
    problem: Problem, config: Config, target: Machine, seed: int = 0, every: int = 1, turn: int = 0
) -> None:
    """Run the rewrites of the kernel and of its packing kernels, and interpret after each.

    A kernel is interpreted after one rewrite in `every`, beginning at number `turn`, and after the last.
    """
    with interning():
        oracle = Oracle(problem, target, seed)
        made = plan(problem, with_instruction(config, problem, target), target)
        parts = [k for k in made.kernels if k.statement.name == "sums"]
        oracle.finish = naive(problem, parts[0].statement) if parts else None
        oracle.skip = skipping(every, turn, len(made.pipeline))
        kernel = run_steps(made.program.naive(), made.pipeline, [oracle])
        if oracle.finish is not None:
            oracle.skip = lambda number: False
            run_steps(oracle.finish, parts[0].pipeline, [_Finishing(oracle, kernel)])
        memory = memories(problem, oracle.arrays)
        for pack, steps in preparing(made, kernel):
            truth = oracle.prepared(pack, memory)
            memory |= truth
            oracle.skip = skipping(every, turn, len(steps))
            run_steps(pack, steps, [_Packing(oracle, memory, truth)])


def skipping(every: int, turn: int, last: int) -> Callable[[int], bool]:
    """Whether a step of a number is neither the `last` one nor one in `every`, beginning at `turn`."""
    return lambda number: number < last and (number - turn) % every != 0


class _Finishing:
    """The statement that adds up parts must give the same results after every step."""

    def __init__(self, oracle: Oracle, kernel: Kernel) -> None:
        self.oracle, self.kernel = oracle, kernel

    def after(self, number: int, step: Step | None, kernel: Kernel, seconds: float, changed: bool) -> None:
        if changed:
            self.oracle.finish = kernel
            self.oracle.after(number, step, self.kernel, seconds, changed)


class _Packing:
    """The packing kernel too must write the same after every step."""

    def __init__(self, oracle: Oracle, memory: Mapping[str, Array], truth: Mapping[str, Array]) -> None:
        self.oracle, self.memory, self.truth = oracle, memory, truth
        self.is_new = False

    def after(self, number: int, step: Step | None, kernel: Kernel, seconds: float, changed: bool) -> None:
        self.is_new |= changed
        if self.is_new and not self.oracle.skip(number):
            self.is_new = False
            found = self.oracle.prepared(kernel, self.memory)
            same = all(found[name].tobytes() == x.tobytes() for name, x in self.truth.items())
            assert same, f"after {step}:\n{kernel}"


def interpret_kind(kind: str, every: int) -> None:
    line, words = KINDS[kind]
    config = Config.parse(f"--target=generic {words}")
    interpret_all(parse_problem(line), config, small_target(), every=every, turn=list(KINDS).index(kind) % every)


@pytest.mark.sampled(28)
@pytest.mark.parametrize("kind", list(KINDS))
def test_kind(kind: str) -> None:
    """After one rewrite in ten, others for each kind, and after the last: a pass is interpreted for some kinds."""
    interpret_kind(kind, every=10)


@pytest.mark.wide
@pytest.mark.parametrize("kind", list(KINDS))
def test_kind_after_one_rewrite_in_three(kind: str) -> None:
    interpret_kind(kind, every=3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(KINDS))
def test_kind_after_every_rewrite(kind: str) -> None:
    interpret_kind(kind, every=1)


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    "line",
    [
        "--dt=f16 mb1ic5iw5oc33ow5kw3pw1",
        "--dir=FWD_B --dt=f16:f16:f32 --stag=axb --dtag=axb --attr-post-ops=relu mb1ic3ih3iw3oc40oh3ow3kh3kw3ph1pw1",
        "--dt=f16 --stag=axb --dtag=axb mb1ic40iw3oc2ow3kw1",
        "--dir=BWD_D --dt=f16 mb1ic33iw5oc3ow3kw3sw2pw1",
        "--dir=BWD_W --dt=f16 mb2ic3iw5oc33ow5kw3pw1",
        "--dir=BWD_W --dt=f16 --stag=axb --dtag=axb mb1ic3iw9oc5ow9kw3pw1",
        "--dt=f16 g33mb1ic33iw5oc33ow5kw3pw1",
        "--matmul --dt=f16 5x7:7x40",
    ],
)
def test_default_kernels_of_avx512_fp16(line: str) -> None:
    """They add up in f16, with the row's own specification."""
    problem, target = parse_problem(f"--attr-acc-mode=f16 {line}"), next(t for t in LEVELS if t.name == "avx512_fp16")
    assert target.name == "avx512_fp16"
    config = default_config(problem, target)
    interpret_all(problem, config, target)
    with interning():
        assert "vfmadd_ph_512(acc" in str(lower(plan(problem, config, target)).kernel)


def passes_of(*modules: ModuleType) -> set[str]:
    """The passes that modules name."""
    return {
        value.__name__
        for module in modules
        for value in vars(module).values()
        if getattr(value, "__module__", "").startswith("convsmith.passes.") and _makes_kernels(value)
    }


def _makes_kernels(value: object) -> bool:
    return isinstance(value, FunctionType) and value.__annotations__.get("return") == "Kernel"


@pytest.mark.wide
def test_the_kinds_use_every_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every pass that a schedule or a packing pipeline names changes some kernel above."""
    import convsmith.schedule.copy_nest
    import convsmith.schedule.lower
    import convsmith.schedule.order
    import convsmith.schedule.packing
    import convsmith.schedule.pipeline
    import convsmith.schedule.read
    import convsmith.schedule.schedule
    import convsmith.schedule.transposed_copies
    import convsmith.schedule.transposed_results

    monkeypatch.setattr(convsmith.schedule.copy_nest, "SHORT_COPY", 0)
    schedule = convsmith.schedule
    used = passes_of(
        schedule.order, schedule.read, schedule.lower, schedule.packing, schedule.copy_nest, schedule.transposed_copies,
        schedule.transposed_results, schedule.pipeline, schedule.schedule,
    )  # fmt: skip
    used -= PASSES_OF_DEVICES  # tests/schedule/test_device_plans.py
    used -= {"pieces", "clip", "inline_indices", "gather_guards"}  # of loops whose bounds are given at the call
    used -= {"interleave"}  # on machines whose fragments have a unit of their own (tests/passes/test_interleave.py)
    used -= {"scale", "near_pointers"}  # on machines whose vectors are scalable (test_scalable_steps.py)
    used -= {"merge_terms"}  # on machines that add up products of two taps (tests/passes/test_merge_terms.py)
    used -= {"share_terms"}  # on machines that interleave pixels (tests/passes/test_share_terms.py)
    used -= {"split_fma"}  # on machines without multiply-adds (tests/passes/test_split_fma.py)
    used -= {"unvectorise"}  # on machines without vectors of some types (test_unvectorise.py)
    of_packs = passes_of(schedule.packing, schedule.copy_nest, schedule.transposed_copies)
    changed: set[str] = set()

    class Changes:
        def after(self, number: int, step: Step | None, kernel: Kernel, seconds: float, new: bool) -> None:
            if new and step is not None:
                changed.add(step.name)

    target = small_target()
    for line, words in reversed(KINDS.values()):
        if used <= changed:
            break
        with interning():
            problem, config = parse_problem(line), Config.parse(f"--target=generic {words}")
            made = plan(problem, with_instruction(config, problem, target), target)
            if not (used - changed) & (of_packs | {step.name for step in made.pipeline}):
                continue
            kernel = run_steps(made.program.naive(), made.pipeline, [Changes()])
            for pack, steps in preparing(made, kernel):
                run_steps(pack, steps, [Changes()])
    assert used - changed == set()


def random_case(seed: int, lanes: int) -> bool:
    rng = random.Random(seed)
    target = small_target(lanes)
    problem = with_options(random_convolution(rng, macs=700), rng) if seed % 3 == 0 else random_problem(rng, macs=400)
    config = random_config(rng, problem, target, rng.choice((1, 1, 2)))
    try:
        interpret_all(problem, config, target, seed)
    except ConfigError:
        return False
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {problem} under {config}: {error}") from error
    return True


@pytest.mark.sampled(12, wide=1, every="lanes")
@pytest.mark.parametrize("lanes", [2, 4])
@pytest.mark.parametrize("chunk", range(6))
def test_random_config(chunk: int, lanes: int) -> None:
    legal = sum(map(partial(random_case, lanes=lanes), range(chunk * 10, (chunk + 1) * 10)))
    assert legal > 3


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(50))
def test_random_config_at_length(chunk: int) -> None:
    for seed in range(chunk * 40, (chunk + 1) * 40):
        random_case(10_000 + seed, 2 + 2 * (seed % 2))
