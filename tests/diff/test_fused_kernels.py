"""A fused depthwise convolution as one compiled kernel: exact, whichever loop computes the rows of the first."""

from __future__ import annotations

import random

import pytest
from emulated import keep_within
from guarded import Compiled, check_result, expected
from legal import legal_problem

from convsmith.codegen.artifact import Artifact
from convsmith.compiler.driver import build_artifact
from convsmith.diag.errors import ConfigError, UnsupportedError
from convsmith.machine.base import Machine
from convsmith.machine.registry import target
from convsmith.problem import Conv, Problem, parse_problem
from convsmith.problem.data import random_arrays
from convsmith.schedule.config import Config
from convsmith.schedule.plan import plan
from convsmith.tune.fused import fused_config

LAST = "--stag=axb --dtag=axb"
LINES = [
    f"{LAST} --attr-post-ops=relu+dw:k3s1p1+relu mb1ic5ih13iw11oc20oh13ow11kh1kw1",
    f"{LAST} --attr-post-ops=relu+dw:k3s2p1 mb2ic3ih12iw9oc17oh12ow9kh1kw1",
    "--attr-post-ops=dw:k5s1p2+sum:2 mb1ic4ih9iw7oc18oh9ow7kh1kw1",
    "--attr-post-ops=dw:k3s1p0+add:f32:per_oc mb2ic4ih9iw7oc5oh5ow4kh1kw1sh2sw2",
    f"--dt=u8:s8:u8 {LAST} --attr-post-ops=relu+dw:k3s1p1:u8+relu mb1ic32ih10iw8oc32oh10ow8kh1kw1",
    f"--dt=s8:s8:s8 {LAST} --attr-zero-points=src:common:2+dst:common:3 --attr-post-ops=dw:k3s2p1:s32 mb1ic8ih9oc9kh1",
    f"--dt=bf16:bf16:f32 {LAST} --attr-post-ops=relu+dw:k3s1p1:bf16 mb1ic4ih7oc16kh1",
    "--attr-post-ops=dw:k3s1p1 g3mb1ic6ih7oc6oh9kh1ph1",
    "--attr-post-ops=dw:k1s1p0 mb1ic3ih5oc4kh1",
]
ROWS = "--lane=oc --register=ow:3,oc:16 --order=mb,oh,ow,oc"
SECOND = "--lane=g --register=oh:2,ow:2,g:16,kh:3,kw:3 --reduce=ic,kh,kw"
CONFIGS = {
    "rows": (f"{ROWS} --compute_at=oh", f"{SECOND} --order=mb,oh,g,ow"),
    "rows-of-channels": (f"{ROWS} --compute_at=oh", f"{SECOND} --order=mb,g,oh,ow"),
    "rows-in-shares": (f"{ROWS} --threads=2 --compute_at=oh", f"{SECOND} --order=mb,oh,g,ow --cache=oh:6 --threads=2"),
    "fused-pixels": ("--lane=oc --fuse=oh+ow --register=oh_ow:4,oc:16 --compute_at=oh", f"{SECOND} --order=mb,oh,ow,g"),
    "images": (f"{ROWS} --compute_at=mb", f"{SECOND} --order=mb,g,oh,ow --resident=wei"),
    "columns": (f"{ROWS} --compute_at=ow", f"{SECOND} --order=mb,oh,ow,g"),
    "channels": (f"{ROWS} --compute_at=g", f"{SECOND} --order=mb,g,oh,ow"),
}


def level() -> Machine:
    return target()


def check(problem: Problem, artifact: Artifact) -> None:
    """Run the entries whole, and in parts."""
    assert list(artifact.steps)[-1] == "main"
    arrays = random_arrays(problem, 1)
    keep_within(artifact.limits, arrays)
    truth = expected(problem, arrays)
    for chunks in (0, Config.parse(artifact.config).threads):
        check_result(problem, Compiled(problem, artifact)(arrays, chunks), truth)


@pytest.mark.sampled(5, "threads")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("line", LINES)
def test_the_default_is_exact(line: str, threads: int) -> None:
    problem = parse_problem(line).canonical()
    assert isinstance(problem, Conv)
    config = fused_config(problem, level(), threads)
    check(problem, build_artifact(problem, config, level()))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", CONFIGS)
def test_rows_are_computed_at_any_loop(name: str) -> None:
    problem = parse_problem(f"{LAST} --attr-post-ops=relu+dw:k3s1p1+relu mb2ic5ih13iw7oc36oh13ow7kh1kw1").canonical()
    first, second = CONFIGS[name]
    config = Config.parse(f"--target={level().name} {first} / --target={level().name} {second}")
    assert Config.parse(str(config)) == config
    check(problem, build_artifact(problem, config, level()))


def test_the_plan_prints_both_statements() -> None:
    problem = parse_problem(LINES[0]).canonical()
    assert isinstance(problem, Conv)
    made = plan(problem, fused_config(problem, level(), 1), level())
    assert "stage1, in a loop of the main one: mid from the sums of src * wei" in str(made)
    assert "conv, in each call: dst from the sums of mid * post_op_1" in str(made)
    assert sum(step.name == "compute_at" for step in made.pipeline) == 1


@pytest.mark.parametrize(
    "config, why",
    [
        ("--target=x --lane=oc", "has 2 statements, and 1 configs are given; legal is one for each, joined by ' / '"),
        ("--target=x --lane=oc --compute_at=oh", "the config of the next statement stands behind ' / '"),
        ("--target=x --lane=oc --compute_at=kh / --target=x --lane=g", "--compute_at=kh"),
        ("--target=x --lane=oc --compute_at=oh / --target=x --lane=g --threads=2", "one --target, one --threads"),
        ("--target=x --lane=oc --compute_at=oh / --target=x --lane=g --offsets=sums", "--offsets=each"),
        ("--target=x --lane=oc --compute_at=oh / --target=x --lane=g --realise=pad_copy", "--realise=mask or peel"),
    ],
)
def test_configs_of_two_statements_are_checked(config: str, why: str) -> None:
    with pytest.raises(ConfigError) as raised:
        plan(parse_problem(LINES[0]).canonical(), Config.parse(config.replace("=x", f"={level().name}")), level())
    assert why in str(raised.value)


@pytest.mark.slow
def test_random_fused_problems_are_exact() -> None:
    rng, done = random.Random(7), 0
    inexact = ("elu", "tanh", "logistic", "swish", "mish", "exp", "log", "sqrt", "pow", "div")
    while done < 60:
        problem = legal_problem(rng)
        if not isinstance(problem, Conv) or problem.depthwise is None or problem.flops_dense > 500_000:
            continue
        sizes = [tensor.layout.size for tensor in problem.tensors]
        if 0 in sizes or sum(sizes) > 100_000 or any(str(op).startswith(inexact) for op in problem.post_ops):
            continue
        problem = problem.canonical()
        try:
            config = fused_config(problem, level(), rng.choice((1, 2, 3)))
        except UnsupportedError:
            continue
        check(problem, build_artifact(problem, config, level()))
        done += 1
