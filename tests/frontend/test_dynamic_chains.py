"""One kernel of a chain for any batch and extents of its source."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from chain_problems import random_chain
from guarded import Compiled, check_result, expected

import convsmith as cs
from convsmith.compiler.driver import build_artifact
from convsmith.compiler.dynamic import at_call
from convsmith.diag.errors import ConfigError, UnsupportedError, UsageError
from convsmith.frontend.call_sizes import problem_of_call
from convsmith.layout.reorder import to_layout
from convsmith.machine.registry import target
from convsmith.problem import Chain, parse_problem
from convsmith.problem.data import random_arrays
from convsmith.problem.fusion import stages_of
from convsmith.tune.chains import config_of
from convsmith.tune.dynamic import dynamic_config
from convsmith.tune.stage_configs import StageConfigs

BLOCK = (
    "--stag=axb --dir=FWD_B --attr-post-ops=clip:0:6 mb1ic8ih12oc40kh1 -> --attr-post-ops=relu "
    "g40mb1ic40ih12oc40kh3ph1 -> --dtag=axb --attr-post-ops=sum:src mb1ic40ih12oc8kh1"
)
LINES = {
    "block": BLOCK,
    "strided": "--stag=axb mb1ic5ih12oc18kh3sh2ph1 -> --attr-post-ops=add:f32:per_tensor mb1ic18ih6oc7kh3ph1",
    "blocked": "--stag=aBcd16b mb1ic20ih9oc36kh3ph1 -> --dtag=aBcd16b mb1ic36ih9oc17kh3dh1ph2",
    "int8": (
        "--stag=axb --dt=s8:s8:u8 --attr-zero-points=src:common:3 --attr-post-ops=linear:0.125 mb1ic16ih9oc32kh3ph1 -> "
        "--dt=u8:s8:s8 --attr-zero-points=src:common:7 mb1ic32ih9oc20kh1 -> --dt=s8:s8:f32 --dtag=axb "
        "mb1ic20ih9oc16kh3ph1"
    ),
    "volume": (
        "--stag=axb mb1ic3id5ih6iw6oc9kd3kh3kw3pd1ph1pw1 -> --dtag=axb --attr-post-ops=relu "
        "g9mb1ic9id5ih6iw6oc9kd3kh3kw3"
    ),
    "products": "--matmul 5x7:7x16 -> --matmul --attr-post-ops=relu 5x16:16x9",
}  # fmt: skip


def dims_of(chain: Chain) -> str:
    return "m" if chain.rank == 0 or "m_1" in chain.dims else ",".join(n for n in chain.tensor("src").dims if n != "ic")


def at(chain: Chain, rng: random.Random) -> Chain:
    """The chain at sizes of its own."""
    source = chain.tensor("src")
    free = dims_of(chain).split(",")
    while True:
        shape = tuple(rng.randrange(1, 19) if name in free else n for name, n in zip(source.dims, source.shape))
        plain = replace(chain, stages=(replace(chain.stages[0], stag="any"), *chain.stages[1:]), stag="any")
        try:
            found = problem_of_call(plain, {}, {"src": shape}, None)
        except UsageError:
            continue
        if all(0 not in t.shape for stage in found.stages for t in stage.tensors):
            return replace(found, stag=chain.stag)


def inputs(chain: Chain, arrays: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, Any]:
    return {t.name: to_layout(arrays[t.name], t.layout) for t in chain.inputs}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", LINES)
def test_any_sizes(name: str) -> None:
    chain = parse_problem(LINES[name])
    kernel = cs.compile(chain, dynamic=dims_of(chain), threads=1 + (name == "block"))
    rng = random.Random(7)
    for number in range(4):
        q = at(kernel.problem, rng)
        arrays = random_arrays(q, number)
        given = inputs(q, arrays)
        truth = expected(q, arrays)["dst"]
        packed = {n: x for n, x in given.items() if n.startswith("wei")}
        for weights in (packed, kernel.pack_each(**packed)):
            result = kernel.run(**{**given, **weights})["dst"]
            np.testing.assert_array_equal(result, to_layout(truth, q.outputs[0].layout))
        artifact = at_call(kernel.artifact, q)
        for chunks in {0, kernel.config.threads}:
            check_result(q, Compiled(q, artifact)(arrays, chunks), expected(q, arrays))


@pytest.mark.sampled(6)
@pytest.mark.parametrize("number", range(8))
def test_random_chains(number: int) -> None:
    rng = random.Random(number)
    chain = random_chain(rng)
    try:
        kernel = cs.compile(chain, dynamic="mb,ih,iw", threads=1)
    except UnsupportedError as refused:
        assert "adds its source" in str(refused)
        return
    for again in range(3):
        q = at(kernel.problem, rng)
        arrays = random_arrays(q, again)
        check_result(q, Compiled(q, at_call(kernel.artifact, q))(arrays, 0), expected(q, arrays))


def test_lines_that_differ_in_sizes_only_have_the_same_kernel() -> None:
    one, two = (cs.compile(line, dynamic="mb,ih,iw") for line in (BLOCK, BLOCK.replace("ih12", "ih31")))
    assert one.artifact == two.artifact


def test_no_rows_and_no_images() -> None:
    kernel = cs.compile("--stag=axb mb1ic4ih8oc8kh3 -> --dtag=axb --dir=FWD_B mb1ic8ih6oc5kh3ph1", dynamic="mb,ih,iw")
    for shape in ((0, 4, 8, 8), (2, 4, 2, 8)):
        q = problem_of_call(kernel.problem, {}, {"src": shape}, None)
        arrays = random_arrays(q, 1)
        given = inputs(q, arrays)
        if not shape[0]:  # nothing reads them
            given |= kernel.pack_each(wei_1=arrays["wei_1"], wei_2=arrays["wei_2"])
        np.testing.assert_array_equal(kernel.run(**given)["dst"], expected(q, arrays)["dst"])


def test_weights_that_are_not_finite() -> None:
    kernel = cs.compile(BLOCK, dynamic="mb,ih,iw")
    q = problem_of_call(kernel.problem, {}, {"src": (1, 8, 5, 6)}, None)
    arrays = random_arrays(q, 1)
    arrays["wei_2"][3, 0, 0, 0, 0] = np.inf
    assert "wei_2" in kernel.artifact.limits
    result = kernel.run(**inputs(q, arrays))["dst"]
    np.testing.assert_array_equal(result, expected(q, arrays)["dst"])
    with pytest.raises(UnsupportedError, match="wei_2 hold infinities or NaN"):
        kernel.pack_each(wei_2=arrays["wei_2"])


def test_a_bound_call() -> None:
    kernel = cs.compile(BLOCK, dynamic="mb,ih,iw")
    q = problem_of_call(kernel.problem, {}, {"src": (2, 8, 5, 6)}, None)
    arrays = random_arrays(q, 1)
    given = inputs(q, arrays)
    out = np.zeros_like(given["src"])
    kernel.bind_each(**given, dst=out)()
    np.testing.assert_array_equal(out, expected(q, arrays)["dst"])


@pytest.mark.parametrize(
    ("line", "dims", "kind", "text"),
    [
        (BLOCK, "ic", UsageError, "'ic' is fixed; legal are mb, ih, iw"),
        ("mb1ic4ih8oc4kh2ph0oh8 -> --attr-post-ops=sum:src mb1ic4ih8oc4kh1", "ih", UnsupportedError, "adds its source"),
        ("--attr-post-ops=dw:k3s1p1 mb1ic4ih8oc4kh1 -> mb1ic4ih8oc4kh1", "ih", UnsupportedError, "stages of a chain"),
        ("mb1ic4iw8oc4kw1 -> --matmul 1x4x8:1x8x3", "iw", UnsupportedError, "whose size is fixed"),
    ],
)  # fmt: skip
def test_what_is_refused(line: str, dims: str, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        cs.compile(line, dynamic=dims)


def test_pads_and_shapes_of_a_call() -> None:
    kernel = cs.compile(BLOCK, dynamic="mb,ih")
    arrays = random_arrays(kernel.problem, 1)
    given = inputs(kernel.problem, arrays)
    with pytest.raises(UsageError, match="stages of a chain have those of its line"):
        kernel.run(**given, pads=1)
    with pytest.raises(UsageError, match="src has iw=11; the kernel is for iw=12"):
        kernel.run(**{**given, "src": given["src"][..., :11]})


def test_fused_stages_are_refused() -> None:
    chain = parse_problem(BLOCK).canonical()
    stages = stages_of(chain)
    assert stages is not None
    config = config_of(stages, StageConfigs(target()), 1, (True, True))
    with pytest.raises(ConfigError, match="length of a row is known at the call"):
        cs.compile(BLOCK, dynamic="mb,ih,iw", config=config)


def test_a_chain_of_fixed_sizes_passes_on_no_rows() -> None:
    kernel = cs.compile("mb1ic4ih2oc8oh0kh3ph0 -> --dir=FWD_B mb1ic8ih0oc5oh2kh3ph2")
    arrays = random_arrays(kernel.problem, 1)
    truth = expected(kernel.problem, arrays)["dst"]
    np.testing.assert_array_equal(kernel.run(**inputs(kernel.problem, arrays))["dst"], truth)
    assert truth.any()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("form", ("row", "column", "compressed", "sections"))
def test_each_stage_may_read_through_a_table(form: str) -> None:
    chain = parse_problem(LINES["int8"]).canonical()
    config = dynamic_config(chain, target("avx2")).of_each(table=form)
    arrays, artifact = random_arrays(chain, 1), build_artifact(chain, config, target("avx2"))
    check_result(chain, Compiled(chain, artifact)(arrays, 0), expected(chain, arrays))
