"""Packed weights on a device of OpenCL: a kernel of the device packs them in the order that the nest reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from opencl_driver import require_opencl

import convsmith as cs
from convsmith.diag.errors import ConfigError
from convsmith.ir.intern import interning
from convsmith.machine.registry import target
from convsmith.passes.manager import run_steps
from convsmith.problem import parse_problem
from convsmith.schedule.config import Config
from convsmith.schedule.packing import packing_steps
from convsmith.schedule.planned import plan_for

HEAD = "--target=opencl --pack=wei"
WORDS = "--lane=oc --realise=pad_copy --group=oc:4,ow:4,ic:2 --shared=src,wei"
LAST = "--stag=axb --dtag=axb --dir=FWD_B mb1ic4iw9oc6ow9kw3pw1"


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).integers(-4, 5, shape).astype(np.float32)


def test_weights_are_packed_once_saved_and_loaded(tmp_path: Path) -> None:
    require_opencl()
    k, wider = (cs.compile(LAST, config=f"{HEAD} {words}", threads=1) for words in (WORDS, f"{WORDS} --pad=wei:1"))
    x, w, b = numbers(1, 4, 9), numbers(6, 4, 3), numbers(6)
    truth = cs.compile(LAST, target="generic", threads=1)(x, w, b)
    packed = k.pack(w, b)
    np.testing.assert_array_equal(packed.buffer.reshape(3, 4, 6), w.transpose(2, 1, 0))
    packed.save(tmp_path / "w.npz")
    for weights in (packed, cs.load_packed(tmp_path / "w.npz")):
        np.testing.assert_array_equal(k(x, weights), truth)
        np.testing.assert_array_equal(wider(x, weights), truth)
    np.testing.assert_array_equal(k(x, w, b), truth)
    out = np.empty_like(truth)
    k.bind(x, packed, out)()
    np.testing.assert_array_equal(out, truth)
    w[0, 0, 0] = np.inf
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(k(x, k.pack(w, b)), cs.compile(LAST, target="generic", threads=1)(x, w, b))


def test_stages_of_a_chain_pack_their_weights() -> None:
    require_opencl()
    line = "mb1ic4ih6oc8oh6kh1 -> mb1ic8ih6oc4oh6kh3ph1"
    words = f"{HEAD} --lane=oc --realise=mask --group=oc:4,ow:2"
    k = cs.compile(line, config=f"{words} / {words}", threads=1)
    x, weights = numbers(1, 4, 6, 6), {"wei_1": numbers(8, 4, 1, 1), "wei_2": numbers(4, 8, 3, 3)}
    truth = cs.compile(line, target="generic", threads=1).run(src=x, **weights)["dst"]
    np.testing.assert_array_equal(k.run(src=x, **k.pack_each(**weights))["dst"], truth)
    np.testing.assert_array_equal(k.run(src=x, **weights)["dst"], truth)


@pytest.mark.parametrize(("level", "line", "words", "order"), [
    ("opencl", "g2mb1ic4ih6oc6oh6kh3ph1", "--lane=ow --realise=mask --reduce=ic", "g oc ic kh kw"),
    ("opencl", "--dir=BWD_D mb1ic4iw6oc6ow6kw3pw1", "--lane=ic --realise=mask", "kw oc ic"),
    ("opencl", "--matmul 4x6:6x8", "--lane=n --realise=mask", "k n"),
    ("sm_80", "--stag=axb --dtag=axb --dt=bf16 mb1ic16iw16oc8ow16kw3pw1",
     "--lane=oc --instruction=mma_m16n8k16_bf16 --register=oc:8,ow:16 --group=ic:16 --realise=pad_copy "
     "--reduce=kw,ic --shared=src,wei", "oc kw ic"),
])  # fmt: skip
def test_the_order_is_that_of_steps_and_lanes_or_of_fragments(level: str, line: str, words: str, order: str) -> None:
    """The packing kernel writes in a thread for each element."""
    machine = target(level)
    with interning():
        config = Config.parse(f"--target={level} --pack=wei {words}")
        config = Config.parse(str(config).replace("--group=ic", "--group=oc:8,ow:16,ic"))
        plan = plan_for(parse_problem(line), config, machine)
        kernel = plan.pipeline[0](plan.naive())
        (pack,) = kernel.packs
        assert pack.params[-1].name == "wei_p"
        assert [str(x) for x in next(iter(plan.pipeline)).args[-1]] == order.split()
        assert "#group" in str(run_steps(pack, packing_steps(pack, machine)))


@pytest.mark.parametrize(("level", "line", "words", "text"), [
    ("opencl", "mb1ic4iw9oc6ow9kw3pw1", "--pack=src --realise=mask", "--pack=src: opencl packs operands that"),
    ("opencl", "--dir=BWD_W mb1ic4iw9oc6ow9kw3pw1", "--pack=diff_dst --realise=mask", "legal are none here"),
    ("opencl", "--dt=s8:s8:s32 --attr-zero-points=src:common:3 mb1ic4iw9oc6ow9kw3pw1",
     "--pack=wei --realise=mask --offsets=sums", "whose entries no kernel of a call adds up; legal are none here"),
])  # fmt: skip
def test_operands_that_are_not_packed(level: str, line: str, words: str, text: str) -> None:
    with interning(), pytest.raises(ConfigError) as raised:
        plan_for(parse_problem(line), Config.parse(f"--target={level} --lane=oc {words}"), target(level))
    assert raised.value.code == "pack" and text in str(raised.value)
