"""Networks and parts of them by how they are called: each keeps its signature, its attributes and the class of its
result, and runs on our kernels as far as it can be traced.
"""

from __future__ import annotations

import copy
import pickle
import warnings
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch", exc_type=ImportError)

from optimized import assert_alike, check  # noqa: E402
from torch import Tensor, nn  # noqa: E402

from convsmith.torch import optimize  # noqa: E402
from convsmith.torch.part_forward import OtherCallsWarning  # noqa: E402


@pytest.fixture(autouse=True)
def no_warnings() -> Any:
    """PyTorch computing would cause a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", OtherCallsWarning)
        yield


class Pair(NamedTuple):
    one: Tensor
    two: Tensor


@dataclass
class Record:
    one: Tensor
    name: str
    two: Tensor | None = None


@dataclass(frozen=True)
class Frozen:
    one: Tensor


class Dictionary(OrderedDict):  # type: ignore[type-arg]
    """A class of results that torch's trees do not know."""


class Block(nn.Module):
    """Takes arguments in every way, and returns one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.other, self.scale = nn.Conv2d(4, 4, 1, stride=1), nn.Conv2d(4, 4, 3, padding=1), 2.0

    def forward(
        self, x: Any, t: Any = None, *more: Tensor, flag: bool = False, factor: float = 1.0, **named: Any
    ) -> Any:
        if isinstance(x, dict):
            x = x["x"]
        if isinstance(x, tuple | list | Pair):
            x = x[0] + x[1]
        if isinstance(x, Record | Frozen):
            x = x.one
        y = self.other(self.conv(x)) if flag else self.conv(x)
        y = y if t is None else y + t
        for z in (*more, *named.values()):
            y = y + z
        return y * factor

    def twice(self, x: Tensor) -> Tensor:
        return self(self(x))


CALLS: dict[str, Callable[[Any, Tensor], Any]] = {
    "one tensor": lambda b, x: b(x),
    "two": lambda b, x: b(x, x),
    "three": lambda b, x: b(x, x, x),
    "by name": lambda b, x: b(x=x),
    "both": lambda b, x: b(x, t=x),
    "names in another order": lambda b, x: b(t=x, x=b(x=x, t=x)),
    "none": lambda b, x: b(x, None),
    "flag": lambda b, x: b(x, flag=True),
    "both flags": lambda b, x: b(b(x, flag=False), flag=True),
    "number": lambda b, x: b(x, factor=3.0),
    "integer": lambda b, x: b(x, 2),
    "other names": lambda b, x: b(x, u=x, v=x),
    "tuple": lambda b, x: b((x, x)),
    "list": lambda b, x: b([x, x]),
    "named tuple": lambda b, x: b(Pair(x, x)),
    "dict": lambda b, x: b({"x": x}),
    "dataclass": lambda b, x: b(Record(x, "a")),
    "frozen dataclass": lambda b, x: b(Frozen(x)),
    "forward": lambda b, x: b.forward(x),
    "method": lambda b, x: b.twice(x),
    "first alone, then two": lambda b, x: b(b(x), x),
    "other sizes": lambda b, x: b(x) + b(x[:, :, :1, :1]),
    "attribute": lambda b, x: b(x) * b.scale,
    "attribute of a convolution": lambda b, x: b(x) * b.conv.stride[0],
    "dtype of a weight": lambda b, x: b(x.to(b.conv.weight.dtype)),
    "a convolution inside": lambda b, x: b.conv(x) + b.other(input=x),
    "in a loop": lambda b, x: [x := b(x, factor=0.5) for _ in range(3)][-1],
}


class Net(nn.Module):
    def __init__(self, call: Callable[[Any, Tensor], Any], traceable: bool) -> None:
        super().__init__()
        self.blocks, self.call, self.traceable = nn.ModuleList([Block()]), call, traceable

    def forward(self, x: Tensor) -> Any:
        return self.call(self.blocks[0], x) if self.traceable or x.sum() != 12345 else x


@pytest.mark.sampled(9)
@pytest.mark.parametrize("traceable", [True, False])
@pytest.mark.parametrize("call", CALLS)
def test_calls_of_every_kind_run_on_kernels(call: str, traceable: bool) -> None:
    torch.manual_seed(0)
    model, x = Net(CALLS[call], traceable).eval(), torch.randn(1, 4, 6, 6)
    made = check(model, x)
    assert made.blocks[0].scale == 2.0 and made.blocks[0].conv.weight.shape == (4, 4, 1, 1)
    report = made.convsmith_report
    assert report.ours > 0 and ("" in report.divided) is not traceable
    assert {row.why for row in report.rows} <= {"", "the example does not call it"}


RESULTS: dict[str, Callable[[Tensor], Any]] = {
    "tuple": lambda y: (y, y + 1),
    "list": lambda y: [y],
    "dict": lambda y: {"y": y},
    "ordered dict": lambda y: OrderedDict(b=y, a=y + 1),
    "named tuple": lambda y: Pair(y, y + 1),
    "dataclass": lambda y: Record(y, "name", y + 1),
    "frozen dataclass": lambda y: Frozen(y),
    "nested": lambda y: {"a": [y, (y + 1, None)], "n": 3, "t": "text", "type": y.new_ones(()).dtype},
    "none": lambda y: None,
    "size": lambda y: y.shape[0],
    "unknown class": lambda y: Dictionary(y=y),
}


@pytest.mark.sampled(4, "result", "inside")
@pytest.mark.parametrize("result", RESULTS)
@pytest.mark.parametrize("inside", [False, True])
def test_results_keep_their_class(result: str, inside: bool) -> None:
    class Of(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(4, 4, 1)

        def forward(self, x: Tensor) -> Any:
            return RESULTS[result](self.conv(x))

    class Around(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = Of()

        def forward(self, x: Tensor) -> Any:
            return self.part(x) if x.sum() != 12345 else x

    torch.manual_seed(0)
    made = check((Around() if inside else Of()).eval(), torch.randn(1, 4, 6, 6))
    assert made.convsmith_report.ours == 1


ARGUMENTS: dict[str, tuple[tuple[Any, ...], tuple[str, ...]]] = {
    "positional": ((Tensor, Tensor), ()),
    "by name": ((), ("x", "t")),
    "both": ((Tensor,), ("t",)),
    "numbers": ((Tensor, 3), ("factor",)),
    "a dict": (({"x": Tensor},), ()),
    "a tuple": (((Tensor, Tensor),), ()),
    "a dataclass": ((Record,), ()),
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("kind", ARGUMENTS)
def test_examples_of_every_kind(kind: str) -> None:
    torch.manual_seed(0)
    places: dict[Any, Any] = {Tensor: torch.randn(1, 4, 6, 6), Record: Record(torch.randn(1, 4, 6, 6), "n")}

    def filled(x: Any) -> Any:
        if isinstance(x, tuple):
            return tuple(map(filled, x))
        return {k: filled(v) for k, v in x.items()} if isinstance(x, dict) else places.get(x, x)

    given, names = ARGUMENTS[kind]
    kwargs = {name: 0.5 if name == "factor" else torch.randn(1, 4, 6, 6) for name in names}
    made = check(Block().eval(), *filled(given), **kwargs)
    assert made.convsmith_report.ours == 1


def test_an_example_may_be_a_dict_of_arguments() -> None:
    model, x = Block().eval(), torch.randn(1, 4, 6, 6)
    made = optimize(model, {"x": x, "flag": True}, threads=1, keep_faster=False)
    assert made.convsmith_report.ours == 2
    with torch.no_grad():
        assert_alike(made(x=x, flag=True), model(x=x, flag=True))
        assert_alike(made(flag=True, x=x), model(x=x, flag=True))
        with pytest.warns(OtherCallsWarning, match="Block is called with other arguments than in the example"):
            assert_alike(made(x), model(x))
        assert_alike(made(x=x, flag=False), model(x=x, flag=False))


def test_numbers_may_have_other_values() -> None:
    model, x = Block().eval(), torch.randn(1, 4, 6, 6)
    made = optimize(model, (x, 2), example_kwargs={"factor": 0.5}, threads=1, keep_faster=False)
    with torch.no_grad():
        assert_alike(made(x, 3, factor=0.25), model(x, 3, factor=0.25))
        with pytest.warns(OtherCallsWarning):  # another type of number
            assert_alike(made(x, 3.5, factor=0.25), model(x, 3.5, factor=0.25))


def test_an_argument_that_is_an_object_leaves_the_modules_inside() -> None:
    class Cache:
        def __init__(self) -> None:
            self.calls = 0

    class Cached(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = Block()

        def forward(self, x: Tensor, cache: Cache) -> Tensor:
            cache.calls += 1
            return self.block(x) * cache.calls

    torch.manual_seed(0)
    model, x, cache = Cached().eval(), torch.randn(1, 4, 6, 6), Cache()
    made = optimize(model, (x, cache), threads=1, keep_faster=False)
    assert cache.calls == 0 and made.convsmith_report.ours == 1
    assert made.convsmith_report.divided == {"": "an argument is an object of class Cache"}
    other = Cache()
    with torch.no_grad():
        for _ in range(3):
            assert_alike(made(x, cache), model(x, other))


def test_copies_of_parts_compute_the_same() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(Block(), Hooked()).eval(), torch.randn(1, 4, 6, 6)
    made = optimize(model, x, threads=1, keep_faster=False)
    with torch.no_grad():
        for again in (copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
            assert again is not made and type(again) is type(made)
            assert_alike(again(x), model(x))
            assert str(again.convsmith_report) == str(made.convsmith_report)
            assert again.forward is not made.forward and again.forward._own is again
            assert_alike(again[0](x, x), model[0](x, x))


def double(module: nn.Module, args: Any, result: Tensor) -> Tensor:
    return result * 2


class Hooked(nn.Module):
    """A module whose hooks change its result, and the result of a convolution in it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 1)
        self.conv.register_forward_hook(double)
        self.register_forward_hook(double)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x) + 1
