"""Random modules beside eager: values, structures and types of results, writes to arguments and to buffers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", exc_type=ImportError)

from drawn_modules import DrawnModule  # noqa: E402
from torch import Tensor  # noqa: E402
from torch.utils import _pytree as pytree  # noqa: E402

from convsmith.torch import optimize  # noqa: E402


def _assert_alike(ours: Any, theirs: Any) -> None:
    """Compare results within the rounding of some ten operators, which norms and quotients enlarge."""
    (a, one), (b, other) = pytree.tree_flatten(ours), pytree.tree_flatten(theirs)
    assert one == other
    for x, y in zip(a, b):
        if not isinstance(y, Tensor):
            assert x == y
            continue
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
        part = {torch.float32: 2e-4, torch.float64: 2e-4, torch.float16: 1e-2, torch.bfloat16: 3e-2}.get(y.dtype, 0)
        away, most = ((z.double().abs().max() if z.numel() else 0) for z in (x.double() - y.double(), y))
        assert away <= part * max(float(most), 1e-2)


def _compare(ours: Callable[..., Any], module: DrawnModule) -> None:
    """Call both three times, with other numbers each time."""
    theirs = copy.deepcopy(module)
    for factor in (1.0, -1.0, 0.5):
        called = []
        for network in (ours, theirs):
            args, kwargs = copy.deepcopy((module.args, module.kwargs))
            for x in pytree.tree_leaves((args, kwargs)):
                if isinstance(x, Tensor):
                    x.mul_(factor)
            called.append((network(*args, **kwargs), args, kwargs))
        _assert_alike(*called)


@pytest.mark.sampled(100, wide=5)
@pytest.mark.parametrize("seed", range(200))
@torch.no_grad()
def test_random_modules_are_optimized(seed: int) -> None:
    module = DrawnModule(seed)
    state = copy.deepcopy(module.state_dict())
    made = optimize(module, module.args, example_kwargs=module.kwargs, threads=1, keep_faster=False)
    assert all(map(torch.equal, module.state_dict().values(), state.values())), "the model is not changed"
    _compare(made, module)


@pytest.mark.sampled(60, wide=5)
@pytest.mark.parametrize("seed", range(1000, 1060))
@pytest.mark.filterwarnings("ignore")
@torch.no_grad()
def test_random_modules_are_compiled(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eager runs the graphs that have no functions, because inductor's C++ compiler takes seconds."""
    import convsmith.torch.compile_backend as backend

    monkeypatch.setattr("convsmith.torch.choice.LEFT", 0.0)  # functions run, whatever they take
    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", lambda graph, inputs: graph)
    torch._dynamo.reset()
    module = DrawnModule(seed)
    own = copy.deepcopy(module)
    _compare(torch.compile(own, backend=backend.NAME), module)
