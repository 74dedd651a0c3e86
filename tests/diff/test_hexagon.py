"""100 problems of bytes and of f32 on the levels of Hexagon, emulated, under default configs: exact."""

from __future__ import annotations

import random
import re
from collections import Counter
from functools import cache
from itertools import count, islice

import pytest
from emulated import check_emulated, kinds_of, skip_without_emulator
from problems import exact, random_problem

import convsmith as cs
from convsmith.compiler.driver import build_artifact
from convsmith.compiler.dynamic import at_call
from convsmith.compiler.micro_kernel import micro_kernel_artifact
from convsmith.machine.hexagon.levels import LEVELS
from convsmith.problem import Problem, parse_problem
from convsmith.problem.data import random_arrays
from convsmith.problem.micro_kernel import MicroKernel
from convsmith.schedule.config import Config
from convsmith.statement.micro_kernel import naive_micro_kernel
from convsmith.tune.candidates import default_config

COUNT = 100
OFTEN = 14
"""The part of them that runs in every test run."""
MACS = 30_000
TYPES = {"f32", "s32", "s8", "u8"}
RUN = [t for t in LEVELS if "hvx-ieee-fp" not in t.needs]
"""Levels that qemu has: it computes no floating-point numbers in vectors."""


@cache
def problems() -> tuple[Problem, ...]:
    drawn = (random_problem(random.Random(seed), MACS) for seed in count())
    return tuple(islice((p for p in drawn if {*p.dt} <= TYPES), COUNT))


def case(n: int) -> object:
    return pytest.param(n, id=f"{n}-{RUN[n % len(RUN)].name}", marks=() if n < OFTEN else pytest.mark.slow)


def test_every_kind_is_among_them() -> None:
    """Each comes several times."""
    found = Counter(kind for problem in problems() for kind in kinds_of(problem))
    wanted = {
        "FWD_D", "FWD_B", "BWD_D", "BWD_W", "product", *TYPES, "zero points", "scales", "post-ops", "1D", "2D", "3D",
        "deconvolution", "depthwise", "groups", "strides", "dilations", "pads", "blocks",
    }  # fmt: skip
    assert not {kind for kind in wanted if found[kind] < 3}, found


@pytest.mark.sampled(5)
@pytest.mark.parametrize("n", [case(n) for n in range(COUNT)])
def test_exact(n: int) -> None:
    target, problem = RUN[n % len(RUN)], problems()[n]
    skip_without_emulator(target)
    artifact = build_artifact(problem, default_config(exact(problem), target), target)
    check_emulated(problem, artifact, random_arrays(problem, n))


SMALL = "mb2ic5ih6iw7oc37oh6ow7kh3kw3ph1pw1"
CONFIGS = {
    "pointers": ("--dt=u8:s8:s32", "--lane=oc --register=ow:3,oc:64 --realise=indirection"),
    "pointers, column first": ("", "--lane=oc --register=ow:3,oc:5 --realise=indirection --table=column"),
    "masks": ("--dt=u8:s8:u8 --attr-scales=wei:per_oc", "--lane=oc --register=ow:3,oc:64 --realise=mask"),
    "pixels along lanes": ("--dt=s8:s8:s32", "--lane=ow --register=ow:32,oc:4"),
}
"""Options of a problem, and a config: addresses in tables have 32 bits, lanes are those of short vectors."""


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_is_exact(name: str) -> None:
    target, (options, config) = RUN[0], CONFIGS[name]
    skip_without_emulator(target)
    problem = parse_problem(f"{options} --stag=axb --dtag=axb {SMALL}")
    artifact = build_artifact(problem, Config.parse(f"--target={target.name} {config}"), target)
    check_emulated(problem, artifact, random_arrays(problem, 0))


@pytest.mark.parametrize("types", ["u8:u8", "s8:u8"])
def test_a_form_for_repeated_terms(types: str) -> None:
    """The source's bytes stay in a register of scalars."""
    target = RUN[-1]
    skip_without_emulator(target)
    problem = parse_problem(f"--dt={types}:s32 --stag=axb --dtag=axb mb1ic8ih3oc32oh3kh1")
    artifact = build_artifact(problem, default_config(problem, target), target)
    check_emulated(problem, artifact, random_arrays(problem, 0))
    text = cs.compile(problem, target=target.name, threads=1).asm()
    assert re.search(r"vrmpy\(v\d+\.ub,r\d+\.u?b\)", text)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("options", ["--dt=u8:s8:u8", ""], ids=["bytes", "f32"])
def test_sizes_of_a_call(options: str) -> None:
    """Sizes are words of 32 bits in the argument block, beside pointers into the table of the call's own sizes."""
    target = RUN[0]
    skip_without_emulator(target)
    line = f"{options} --stag=axb --dtag=axb "
    artifact = cs.compile(f"{line}{SMALL}", target=target.name, threads=1, dynamic="mb,ih,iw").artifact
    assert artifact is not None
    assert {a.dtype for a in artifact.entries["main"].arguments if a.role == "size"} == {"s32"}
    for sizes in ("mb1ic5ih4iw9oc37oh4ow9", "mb3ic5ih7iw3oc37oh7ow3"):
        q = parse_problem(f"{line}{sizes}kh3kw3ph1pw1")
        check_emulated(q, at_call(artifact, q), random_arrays(q, 0))


def test_what_a_kernel_keeps_lies_in_the_memory_of_the_vector_units() -> None:
    page = cs.compile(f"--dt=u8:s8:s32 {SMALL}", target=RUN[-1].name, threads=1).explain()
    assert re.search(r"bytes of scratch memory for each of 1 threads in VTCM of 4096 KiB", page)


def test_tensors_that_addresses_do_not_reach() -> None:
    """The reach is that of signed offsets; one element less than it compiles."""
    line = "--dt=u8:s8:u8 --stag=axb --dtag=axb mb{}ic32ih1iw1048576oc32ow1048576kh1kw1"
    with pytest.raises(cs.UnsupportedError) as caught:
        cs.compile(line.format(64), target=RUN[0].name, threads=1)
    assert str(caught.value).startswith(
        f"src has 2147483648 bytes; legal are fewer than 2147483648 on {RUN[0].name}, whose addresses have 32 bits"
    )
    assert cs.compile(line.format(63), target=RUN[0].name, threads=1).asm()


def test_steps_in_tables_of_micro_kernels() -> None:
    """A step of a table is so many bytes: a pointer has four of them."""
    m = MicroKernel.parse("f32_dwconv_up16x9")
    steps = [str(naive_micro_kernel(m, bits)) for bits in (64, 32)]
    assert [re.findall(r"input_stride // (\d)", text) for text in steps] == [["8"], ["4"]]
    (table, *_) = micro_kernel_artifact(m, RUN[0]).entries["main"].arguments
    assert (table.name, table.dtype) == ("input", "ptr32")
