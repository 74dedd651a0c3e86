"""Kernels for devices on the interpreter: an oracle of all kernels of a plan, and random configs."""

from __future__ import annotations

import random

from guarded import canary, check_result, memories
from oracles import Oracle

from convsmith.compiler.rewritten import preparing
from convsmith.diag.errors import ConfigError
from convsmith.ir.intern import interning
from convsmith.ir.stmt import Invoke, Kernel
from convsmith.ir.walk import statements_of
from convsmith.machine.base import Machine
from convsmith.machine.registry import target
from convsmith.passes.manager import run_steps
from convsmith.problem import Problem, parse_problem
from convsmith.schedule.config import Config
from convsmith.schedule.plan import Plan
from convsmith.schedule.planned import plan_for
from convsmith.statement.parts import splits
from convsmith.statement.statement import Statement
from convsmith.statement.views import statement
from convsmith.tune.devices.device_fragments import fragment_choices

KINDS = {
    "padded": (
        "mb1ic3ih2iw3oc3oh2ow3kh3kw3ph1pw1",
        "--lane=ow --register=oc:2,oh:2 --realise=pad_copy --group=oc:4,ow:2,oh:2,ic:2,kh:3,kw:3 --shared=src,wei",
    ),
    "mask": ("mb1ic3iw6oc5ow6kw3pw1", "--lane=oc --realise=mask --group=oc:4,ow:2 --shared=src,wei"),
    "nothing-shared": ("mb1ic3iw6oc5ow6kw3pw1", "--lane=ow --register=oc:2 --realise=mask --group=oc:4,ow:4"),
    "3d": ("mb2ic1id3ih2iw2oc3od3oh1ow2kd2kh2kw1pd1",
           "--lane=oc --realise=pad_copy --group=oc:2,od:2,mb:2 --shared=src"),
    "stride-and-dilation": (
        "mb1ic1ih5iw9oc2oh3ow4kh3kw2sh2sw2dw1ph1", "--lane=ow --realise=pad_copy --group=ow:3,oh:2,kh:3 --shared=src",
    ),
    "fused-pixels": ("mb1ic3ih3iw3oc3oh3ow3kh1kw1", "--lane=oh_ow --fuse=oh+ow --realise=mask --group=oh_ow:8,oc:2"),
    "channels-last": (
        "--stag=axb --dtag=axb mb2ic5iw3oc3ow3kw3pw1",
        "--lane=oc --register=oc:2 --realise=pad_copy --group=oc:6,ow:2,ic:4 --shared=src,wei --pad=wei:1,src:2",
    ),
    "vectors": (
        "--stag=axb --dtag=axb --dir=FWD_B --attr-post-ops=relu mb1ic4iw3oc8ow3kw2pw1",
        "--lane=oc --register=oc:4,ow:2 --realise=pad_copy --group=oc:8,ow:4,ic:4 --shared=src,wei --vectors=oc:2,ic:2 "
        "--pad=wei:2",
    ),
    "operands-of-the-epilogue-first": (
        "--dir=FWD_B --attr-post-ops=sum+relu mb1ic3iw9oc6ow9kw3pw1",
        "--lane=ow --register=oc:2,ow:2 --realise=mask --group=oc:4,ow:8,ic:2 --shared=src,wei --preload=bia,dst",
    ),
    "packed": ("mb1ic4iw6oc5ow6kw3pw1",
               "--pack=wei --lane=oc --register=oc:2 --realise=pad_copy --group=oc:4,ow:2,ic:2 --shared=src,wei"),
    "packed-groups-of-a-strided-gradient": (
        "--dir=BWD_D --wtag=axb g2mb1ic6ih5iw5oc4oh3ow3kh3kw3ph1pw1sh2sw2",
        "--pack=wei --lane=iw --register=ic:3 --realise=mask --group=iw:2,ic:3,oc:2 --shared=diff_dst",
    ),
    "vectors-and-tails": (
        "--stag=axb --dtag=axb mb1ic3iw3oc6ow3kw1",
        "--lane=oc --register=oc:2,ow:2 --realise=pad_copy --group=oc:8,ow:4,ic:2 --shared=src,wei --vectors=oc:2,ic:2",
    ),
    "vectors-of-uneven-loops": (
        "mb1ic3iw7oc3ow7kw3pw1", "--lane=ow --register=ow:4,oc:2 --realise=mask --group=ow:8,oc:2 --vectors=ow:4",
    ),
    "vectors-of-groups": ("--stag=axb --dtag=axb g8mb1ic8ih3iw3oc8oh3ow3kh2kw3pw1",
                          "--lane=g --register=g:4,ow:2 --realise=mask --group=g:8,ow:4 --vectors=g:4"),
    "vectors-of-another-loop": (
        "mb1ic4iw8oc4ow8kw1", "--lane=oc --register=ow:4 --realise=mask --group=oc:4,ow:8 --shared=src --vectors=ow:4"),
    "vectors-of-weights": ("--dir=BWD_W --stag=axb --dtag=axb mb2ic4iw4oc8ow4kw2pw1",
                           "--lane=oc --register=oc:4,ic:2 --realise=pad_copy --group=oc:8,ic:4,ow:2 --vectors=oc:4 "
                           "--shared=src,diff_dst --split=mb:2 --join=atomic"),
    "vectors-of-bytes": ("--stag=axb --dtag=axb --dt=u8:s8:u8 --attr-post-ops=relu mb1ic4iw2oc4ow2kw1",
                         "--lane=oc --register=oc:2 --realise=pad_copy --group=oc:4,ow:2,ic:4 --shared=src,wei "
                         "--vectors=oc:2,ic:4"),
    "carried-offsets": (
        "--stag=axb --dtag=axb mb1ic6iw5oc4ow5kw3pw1",
        "--lane=oc --register=ow:2 --realise=pad_copy --group=oc:4,ow:4,ic:3 --shared=src,wei --buffers=2 --carry=yes",
    ),
    "swizzled": (
        "--stag=axb --dtag=axb mb1ic4iw3oc4ow3kw3pw1",
        "--lane=oc --register=oc:2 --realise=pad_copy --group=oc:4,ic:4,ow:2 --shared=src,wei --swizzle=wei:1,src:2",
    ),
    "two-buffers": (
        "--stag=axb --dtag=axb mb1ic4iw4oc4ow4kw3pw1",
        "--lane=oc --register=oc:2 --realise=pad_copy --group=oc:4,ic:2,ow:2 --shared=src,wei --buffers=2",
    ),
    "steps-in-rounds": (
        "mb1ic8iw4oc4ow4kw3pw1",
        "--lane=ow --register=oc:2 --realise=mask --group=oc:2,ic:2,ow:2 --shared=src,wei --buffers=3 --copies=async"
        " --rounds=yes",
    ),
    "three-buffers": (
        "mb1ic4iw4oc4ow4kw3pw1", "--lane=ow --realise=mask --group=oc:2,ic:2,ow:2 --shared=src,wei --buffers=3",
    ),
    "asynchronous-copies": (
        "--dir=BWD_D --stag=axb --dtag=axb mb1ic2iw5oc4ow3kw3pw1sw2",
        "--lane=ic --realise=pad_copy --group=ic:2,oc:2,iw:2 --shared=diff_dst,wei --buffers=3 --copies=async",
    ),
    "blocked-with-zeros": ("--stag=aBc4b --dtag=aBc4b mb1ic5iw3oc6ow3kw3pw1",
                           "--lane=oc --realise=pad_copy --group=oc:4,ic:2 --shared=src,wei"),
    "groups": ("g3mb1ic6iw3oc6ow3kw3pw1", "--lane=ow --realise=pad_copy --group=ow:4,oc:3,g:2 --shared=src,wei"),
    "depthwise": ("--stag=axb --dtag=axb g5mb1ic5ih3iw3oc5oh3ow3kh2kw3pw1",
                  "--lane=g --register=ow:2 --realise=mask --group=g:4,ow:4"),
    "backward": ("--dir=BWD_D mb1ic2ih3oc3oh2kh3kw2iw4ow2sh2sw2ph1",
                 "--lane=iw --realise=pad_copy --group=iw:4,ih:2,oc:2 --shared=diff_dst,wei"),
    "weights": ("--dir=BWD_W mb2ic3ih2iw3oc3oh2ow3kh2kw2ph1pw1",
                "--lane=oc --register=ic:2 --realise=pad_copy --group=oc:4,ic:2,mb:2,ow:3 --shared=src,diff_dst"),
    "weights-in-parts": ("--dir=BWD_W --dtag=axb mb2ic3iw3oc5ow3kw2pw1",
                         "--lane=oc --register=ic:2 --realise=mask --group=oc:4,ic:2 --shared=src --split=mb:2"),
    "weights-in-parts-that-are-added-atomically": (
        "--dir=BWD_W --dtag=axb mb4ic3iw3oc5ow3kw2pw1",
        "--lane=oc --register=ic:2 --realise=pad_copy --group=oc:4,ic:2,ow:2 --shared=src --split=mb:2 --join=atomic",
    ),
    "taps-and-channels-in-parts": (
        "--dir=FWD_B --attr-post-ops=relu mb1ic4iw3oc3ow3kw3pw1",
        "--lane=ow --register=oc:2 --realise=pad_copy --group=oc:2,ic:2,ow:2 --shared=src,wei --split=kw:3,ic:2",
    ),
    "images-and-rows-that-are-added-atomically": (
        "--dir=BWD_W --dtag=axb mb2ic3ih2iw3oc5oh2ow3kh1kw2pw1",
        "--lane=oc --register=ic:2 --realise=pad_copy --group=oc:4,ic:2,ow:2 --shared=src --split=mb:2,oh:2 "
        "--join=atomic",
    ),
    "weights-and-bias": ("--dir=BWD_WB mb2ic3iw3oc5ow3kw2pw1", "--lane=oc --realise=mask --group=oc:4"),
    "deconvolution": ("--deconv mb1ic2ih2iw2oc2oh3ow3kh3kw3sh2sw2ph1pw1", "--lane=oc --realise=mask --group=oc:4,ow:2"),
    "matmul": ("--matmul --bia-dt=f32 3x5:5x3",
               "--lane=n --register=m:2 --realise=mask --group=m:4,n:4,k:3 --shared=src,wei"),
    "bytes": ("--dt=u8:s8:s32 mb1ic5ih2iw3oc3oh1ow3kh2kw2pw1",
              "--lane=oc --realise=pad_copy --group=oc:4,ic:4 --shared=src,wei"),
    "zero-points": ("--dt=u8:s8:s32 --attr-zero-points=src:common:3+wei:common:2 mb1ic3iw5oc5ow5kw3pw1",
                    "--lane=oc --realise=mask --group=oc:4,ow:2,ic:2 --shared=src,wei"),
    "zero-points-of-sums": (
        "--dt=u8:s8:s32 --attr-zero-points=src:common:3+wei:common:2 mb1ic3iw5oc5ow5kw3pw1",
        "--lane=oc --realise=pad_copy --group=oc:4,ow:2,ic:2 --shared=src,wei --offsets=sums",
    ),
    "bf16": ("--dt=bf16 --dir=FWD_B --attr-post-ops=relu+linear:2:1 mb1ic3iw5oc5ow5kw3pw1",
             "--lane=oc --register=ow:2 --realise=pad_copy --group=oc:4,ow:4,ic:3 --shared=src,wei"),
}  # fmt: skip
"""Problems of every kind, each with a config."""
SPLIT = {
    "first-writes": ("mb1ic4iw4oc4ow4kw3pw1",
                     "--lane=ow --realise=mask --group=oc:2,ic:2,ow:2 --shared=src,wei --buffers=3 --barriers=split"),
    "channels-last": (
        "--stag=axb --dtag=axb mb1ic4iw8oc8ow8kw3pw1",
        "--lane=oc --realise=pad_copy --group=oc:8,ow:8,ic:2 --shared=src,wei --buffers=3 --barriers=split",
    ),
    "gradient": ("--dir=BWD_D mb1ic3iw4oc6ow4kw3pw1",
                 "--lane=iw --realise=mask --group=iw:4,ic:3,oc:2 --shared=diff_dst,wei --buffers=3 --barriers=split"),
}
"""Problems and configs whose threads work between arrival and wait, for devices with barriers in two parts."""


class DeviceOracle(Oracle):
    """Interprets every kernel on the line, between the kernels of its plan that stand around it."""

    def __init__(self, plan: Plan, target: Machine, seed: int = 0) -> None:
        super().__init__(plan.problem, target, seed)
        self.plan = plan
        self.after_it = [run_steps(k, steps) for k, steps in plan.finishing()]
        self._before: dict[Kernel, Kernel] = {}

    def check(self, kernel: Kernel) -> None:
        memory = memories(self.problem, self.arrays)
        call = self.call(memory, canary)
        for k, steps in preparing(self.plan, kernel):
            if k not in self._before:
                self._before[k] = run_steps(k, steps)
            call.run(self._before[k])
        for k in (kernel, *self.after_it):
            call.run(k)
        check_result(self.problem, memory, self.truth)


def check_fragments(line: str, words: str, level: str) -> None:
    """Interpret the kernel of a config after each pass that knows of fragments, and after those that follow them; the
    row that the config names computes.
    """
    with interning():
        config = Config.parse(f"--target={level} --pack= {words}")
        plan = plan_for(parse_problem(line), config, target(level))
        oracle = DeviceOracle(plan, target(level))
        steps = plan.pipeline
        first = next(n for n, step in enumerate(steps) if step.name == "hold_fragments")
        kernel = run_steps(plan.naive(), steps[:first])
        for step in steps[first:]:
            before, kernel = kernel, run_steps(kernel, [step])
            if kernel is not before:
                oracle.check(kernel)
        invoked = {s.instruction for s in statements_of(kernel.body) if isinstance(s, Invoke)}
    assert config.instruction in invoked


def random_group_config(rng: random.Random, problem: Problem, target: Machine) -> Config:
    """A config for a device that is mostly legal; one that is not shall raise ConfigError."""
    with interning():
        st = statement(problem, target)
    kinds = {d.name: d.kind for d in st.dims}
    register = {n: 1 if k == "k" else rng.choice((1, 1, 1, 2, 3)) for n, k in kinds.items()}
    group = {n: register[n] * rng.choice((1, 1, 2, 3, 4)) for n in kinds}
    lane = rng.choice([n for n, k in kinds.items() if k != "k"])
    shared = tuple(v.name for v in st.factors if rng.random() < 0.6)
    padded = st.a.name in shared and not st.shifted and rng.random() < 0.7
    ways = [(d.name, n) for d in st.of("k") for n in (2, 3) if not d.size % n and splits(st)]
    split = tuple(rng.sample(ways, 1)) if ways and rng.random() < 0.5 else ()
    atomic = problem.dir == "BWD_W" and st.c.dtype == st.acc in ("f32", "s32") and not problem.scales
    return Config(
        target.name, lane, register=tuple((n, s) for n, s in register.items() if s > 1), pack=(),
        group=tuple((n, s) for n, s in group.items() if s > 1), shared=shared,
        order=_shuffled(rng, st, "batch", "n", "m"),
        split=split,
        buffers=rng.choice((1, 1, 2, 3)) if shared else 1, barriers=rng.choice(_barriers(target)),
        copies=rng.choice(("wait", "async")) if shared else "wait",
        join="atomic" if atomic and split and rng.random() < 0.7 else "ordered",
        pad=tuple((name, 1) for name in shared if rng.random() < 0.3), realise="pad_copy" if padded else "mask",
    )  # fmt: skip


def _barriers(target: Machine) -> tuple[str, ...]:
    assert target.device is not None
    dialect = target.device.dialect
    return ("whole", "whole", "whole" if dialect is None or dialect.split_barrier is None else "split")


def _shuffled(rng: random.Random, st: Statement, *kinds: str) -> tuple[str, ...]:
    """Some order of the loops of these kinds, or none."""
    names = [d.name for d in st.dims if d.kind in kinds]
    rng.shuffle(names)
    return tuple(names) if rng.random() < 0.3 else ()

PASSES_OF_DEVICES = {
    "rotate", "trade_lanes",
    "async_copies", "block_messages", "delay_barriers", "distribute_copy", "extend", "form_fma", "load_ahead",
    "load_matrices", "load_once",
    "stage_results", "store_matrices",
    "map_to_threads", "multicast", "pipeline_copies", "share_registers", "signal_steps", "split_barriers",
    "spread_lanes", "take_turns", "tensor_copies", "unswitch_uniform",
}  # fmt: skip
"""Passes that only kernels of devices run."""


def fragment_config(problem: Problem, machine: Machine, rng: random.Random) -> Config | None:
    """One of the configs whose sub-groups compute fragments, None where there is none."""
    with interning():
        st = statement(problem, machine)
        lanes = [d.name for d in st.dims if d.kind in ("m", "n")]
        rng.shuffle(lanes)
        for lane in lanes:
            found = [x.config for x in fragment_choices(st, machine, lane)]
            if not found:
                continue
            config = rng.choice(found)
            if rng.random() < 0.3:
                config = config.changed(pad=(), buffers=1)
            try:
                plan_for(problem, config, machine)
            except ConfigError:
                continue
            return config
    return None
