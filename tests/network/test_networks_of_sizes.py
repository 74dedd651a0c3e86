"""Networks of several sizes: plans made at the first call, weights that they share, files, and errors."""

from __future__ import annotations

from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")

from onnx import TensorProto
from onnx_networks import NetworkBuilder, residual_net

import convsmith as cs
from convsmith.network.weights import PackedWeights


def x(n: int, size: int = 16) -> Any:
    return np.random.default_rng(n).integers(-3, 4, (n, 3, size, size)).astype(np.float32)


def pixels() -> Any:
    """A model whose batch, rows and columns are open."""
    b = NetworkBuilder()
    image = b.input("x", "N", 3, "H", "W")
    first = b.op("Relu", b.conv(image, 3, 32, 3))
    return b.model(b.op("GlobalAveragePool", b.op("Add", b.conv(first, 32, 32, 3), first)))


@pytest.fixture(scope="module")
def net() -> cs.NetworkOfSizes:
    found = cs.onnx.compile(residual_net(16), batch=(1, 3), threads=1)
    assert isinstance(found, cs.NetworkOfSizes)
    return found


def test_each_batch_has_a_plan(net: cs.NetworkOfSizes) -> None:
    assert [plan.inputs["x"][0] for plan in net.plans] == [1, 3]
    rows = np.concatenate([net(x(3)[n : n + 1]) for n in range(3)])
    np.testing.assert_array_equal(net(x(3)), rows)
    np.testing.assert_array_equal(net(x=x(3)), rows)
    out = np.zeros_like(rows)
    assert net.run({"x": x(3), next(iter(net.plans[0].outputs)): out}) and (out == rows).all()
    assert len(net.plans) == 2


def test_a_new_size_makes_a_plan_once_and_plans_share_weights() -> None:
    net = cs.onnx.compile(pixels(), sizes="any", threads=1)
    assert isinstance(net, cs.NetworkOfSizes) and net.plans == ()
    sizes = [(1, 16), (2, 16), (1, 20), (2, 16)]
    results = [net(x(n, size)) for n, size in sizes]
    assert len(net.plans) == 3
    np.testing.assert_array_equal(results[1], results[3])
    fixed = cs.onnx.compile(pixels(), {"x": (1, 3, 20, 20)}, threads=1)
    np.testing.assert_array_equal(results[2], fixed(x(1, 20)))
    areas = {plan.image.weights.ctypes.data for plan in net.plans}
    assert len(areas) == 1
    assert max(plan.image.weights.size for plan in net.plans) < 2 * fixed.image.weights.size


def test_calls_at_once_make_one_plan() -> None:
    net = cs.onnx.compile(pixels(), batch="any", inputs={"x": ("N", 3, 16, 16)}, threads=1)
    found: list[Any] = []
    threads = [Thread(target=lambda: found.append(net(x(2)))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(net.plans) == 1 and len(found) == 4
    assert all((y == found[0]).all() for y in found)


def test_plans_are_saved_and_a_file_names_its_sizes(net: cs.NetworkOfSizes, tmp_path: Path) -> None:
    net.save(tmp_path / "net.cs")
    loaded = cs.load(tmp_path / "net.cs")
    assert isinstance(loaded, cs.NetworkOfSizes) and repr(loaded) == repr(net)
    np.testing.assert_array_equal(loaded(x(3)), net(x(3)))
    with pytest.raises(cs.UsageError, match=r"no plan for x 2 x 3 x 16 x 16; available are x 1 x 3 .*; x 3 x 3"):
        loaded(x(2))
    loaded.save(tmp_path / "again.cs")
    assert (tmp_path / "again.cs").read_bytes() == (tmp_path / "net.cs").read_bytes()
    empty = cs.onnx.compile(pixels(), sizes="any")
    with pytest.raises(cs.UnsupportedError, match="has no plan; available are networks after a call"):
        empty.save(tmp_path / "empty.cs")


def test_a_file_keeps_the_name_of_its_model(tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(pixels().SerializeToString())
    net: Any = cs.onnx.compile(tmp_path / "net.onnx", batch=(1,), inputs={"x": ("N", 3, 16, 16)}, threads=1)
    net.save(tmp_path / "net.cs")
    assert repr(cs.load(tmp_path / "net.cs")) == repr(net) and "net.onnx" in repr(net)


def test_one_number_is_a_network_of_that_batch() -> None:
    assert cs.onnx.compile(residual_net(16), batch=2, threads=1).inputs == {"x": (2, 3, 16, 16)}


def test_sizes_with_one_name_are_equal() -> None:
    b = NetworkBuilder()
    model = b.model(b.op("Add", b.input("a", "N", 4), b.input("b", "N", 4, type_=TensorProto.FLOAT)))
    net = cs.onnx.compile(model, sizes="any", threads=1)
    a, c = np.ones((2, 4), np.float32), np.ones((3, 4), np.float32)
    assert net(a, a).shape == (2, 4)
    with pytest.raises(cs.UsageError, match="N is 2 in a and 3 in b; legal is one size"):
        net(a, c)
    with pytest.raises(cs.UsageError, match="b: missing; legal is an array of N x 4"):
        net(a)


@pytest.mark.parametrize(("options", "words"), [
    ({"batch": 0}, "legal are a batch of 1 or more"), ({"batch": ()}, "legal are a batch"),
    ({"batch": "many"}, "legal are a batch"), ({"batch": 2, "sizes": "all"}, "sizes='all'"),
    ({"batch": "any"}, "leaves H of x open; legal is to give its size"),
    ({"sizes": "any", "inputs": {"y": (1,)}}, "has no 'y'; legal are x"),
    ({"sizes": "any", "inputs": {"x": (1, 4, "H", "W")}}, "the shape of x is .* legal is N x 3 x H x W"),
])  # fmt: skip
def test_errors_name_legal_sizes(options: Any, words: str) -> None:
    with pytest.raises(cs.UsageError, match=words):
        cs.onnx.compile(pixels(), **options)


def test_shapes_that_do_not_fit(net: cs.NetworkOfSizes) -> None:
    for array in (x(1)[:, :2], x(1)[0], np.zeros((0, 3, 16, 16), np.float32)):
        with pytest.raises(cs.UsageError, match="legal is batch x 3 x 16 x 16"):
            net(array)


def test_contents_are_those_of_the_area_after_they_are_written() -> None:
    """The memory that was packed is free then, and may change; a larger area has the same contents."""
    weights, first = PackedWeights(shared=True), np.arange(5000, dtype=np.float32)
    held = first.copy()
    offset = weights.stored(held)
    weights.array()
    held[:] = 0
    assert weights.stored(first) == offset
    others = [weights.stored(np.full(50_000, n, np.float32)) for n in range(2)]
    area = weights.array()
    assert area[offset : offset + first.nbytes].tobytes() == first.tobytes()
    assert [area[x : x + 200_000].view(np.float32).tolist() for x in others] == [[n] * 50_000 for n in range(2)]
