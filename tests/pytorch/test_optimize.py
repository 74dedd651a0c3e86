"""`optimize`: networks compute what they computed, on our kernels, and each layer that stays torch's is named."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from callers import on_threads
from rich.console import Console

torch = pytest.importorskip("torch")

from optimized import functions  # noqa: E402
from torch import Tensor, fx, nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import convsmith as cs  # noqa: E402
from convsmith.machine.registry import host_targets  # noqa: E402
from convsmith.torch import choice, native, optimize  # noqa: E402


def whole(*shape: int) -> Tensor:
    """Return small whole numbers, whose sums of products are exact in f32."""
    return torch.randint(-2, 3, shape).float()


def exact(model: nn.Module) -> nn.Module:
    """Return the model in eval mode, with parameters whose arithmetic is exact: norms multiply by powers of two."""
    torch.manual_seed(0)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d):
                module.eps = 0.0
                module.running_var.copy_(4.0 ** torch.randint(-1, 2, module.running_var.shape))
                module.running_mean.copy_(whole(*module.running_mean.shape))
                for x in (module.weight, module.bias):
                    x.copy_(whole(*x.shape))
            else:
                for x in module.parameters(recurse=False):
                    x.copy_(whole(*x.shape))
    return model.eval()


def graph_of(model: nn.Module) -> fx.GraphModule:
    """Return the graph of a network that is one."""
    assert list(model.convsmith_graphs) == [""]
    (graph,) = model.convsmith_graphs[""]
    return graph


def check(model: nn.Module, *inputs: Tensor, ours: int, runs: int | None = None) -> nn.Module:
    """Optimize an exact model, compare it with eager twice, and count the layers on our kernels and their runs."""
    model = exact(model)
    made = optimize(model, inputs, threads=1, keep_faster=False)
    for given in (inputs, tuple(x + 1 for x in inputs)):
        with torch.no_grad():
            expected = model(*given)
        for a, b in zip(*((y,) if isinstance(y, Tensor) else y for y in (made(*given), expected))):
            assert torch.equal(a, b)
    report = made.convsmith_report
    assert (report.ours, report.difference) == (ours, 0.0)
    assert runs is None or len(functions(made)) == runs
    return made


class Shortcut(nn.Module):
    """Adds its source to what `main` makes of it; `tail` follows."""

    def __init__(self, main: nn.Module, tail: nn.Module, in_place: bool) -> None:
        super().__init__()
        self.main, self.tail, self.in_place = main, tail, in_place

    def forward(self, x: Tensor) -> Tensor:
        y = self.main(x)
        if self.in_place:
            y += x
        else:
            y = x + y
        return self.tail(y)


def block(ic: int, wide: int, in_place: bool) -> Shortcut:
    main = nn.Sequential(
        nn.Conv2d(ic, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU(inplace=True),
        nn.Conv2d(wide, wide, 3, padding=1, groups=wide, bias=False), nn.BatchNorm2d(wide), nn.ReLU6(inplace=True),
        nn.Conv2d(wide, ic, 1, bias=False), nn.BatchNorm2d(ic),
    )  # fmt: skip
    return Shortcut(main, nn.ReLU(inplace=True), in_place)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("in_place", [True, False])
def test_blocks_with_norms_and_residuals_are_one_run(in_place: bool) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), block(8, 16, in_place), block(8, 16, in_place))
    made = check(model, whole(2, 3, 10, 10), ours=7, runs=1)
    assert [n.op for n in graph_of(made).graph.nodes] == ["placeholder", "call_module", "output"]


def test_a_residual_that_is_an_input_or_read_later_stays() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = (nn.Conv2d(4, 4, 1) for _ in range(3))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            y = self.a(x) + x
            z = self.b(x) + y
            return self.c(z) + y, z

    check(Twice(), whole(1, 4, 5, 5), ours=3, runs=1)


def test_layouts_of_the_source_and_torch_layers_between() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(8, 4, (1, 3), padding="same", dilation=2)
            self.up = nn.ConvTranspose2d(4, 6, 2, 2, groups=2)

        def forward(self, x: Tensor) -> Tensor:
            y = functional.relu(self.a(x))
            y = torch.cat([functional.max_pool2d(y, 1), y], 1)
            return self.up(self.b(y))

    made = check(Net(), whole(1, 3, 6, 6), ours=3, runs=1)
    x = whole(1, 3, 6, 6)
    assert torch.equal(made(x), made(x.contiguous(memory_format=torch.channels_last)))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("rank", [1, 3])
def test_signals_and_volumes(rank: int) -> None:
    conv, norm = (nn.Conv1d, nn.BatchNorm1d) if rank == 1 else (nn.Conv3d, nn.BatchNorm3d)
    up = nn.ConvTranspose1d if rank == 1 else nn.ConvTranspose3d
    model = nn.Sequential(conv(3, 4, 3, 2, 1, bias=False), norm(4), nn.ReLU(), up(4, 2, 3, 2, 1, 1), norm(2))
    check(model, whole(2, 3, *[6] * rank), ours=2, runs=1)


ACTIVATIONS: list[nn.Module] = [
    nn.ReLU(), nn.ReLU6(), nn.Hardtanh(-0.5, 0.25), nn.Hardswish(), nn.Hardsigmoid(), nn.SiLU(), nn.GELU(),
    nn.GELU(approximate="tanh"), nn.Sigmoid(), nn.Tanh(), nn.Mish(), nn.LeakyReLU(0.1), nn.ELU(0.5),
]  # fmt: skip


@pytest.mark.sampled(7)
@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
def test_activations_are_folded(activation: nn.Module) -> None:
    torch.manual_seed(1)
    model, x = nn.Sequential(nn.Conv2d(4, 8, 1), activation).eval(), torch.randn(1, 4, 8, 8)
    made = optimize(model, x, threads=1, keep_faster=False)
    assert len(functions(made)[0].steps) == 1
    torch.testing.assert_close(made(x), model(x), rtol=2e-6, atol=2e-6)


FUNCTIONS: list[Callable[[Tensor], Tensor]] = [
    lambda x: functional.relu(x, inplace=True), torch.relu, Tensor.relu, functional.hardtanh,
    lambda x: functional.leaky_relu(x, 0.3), functional.gelu, lambda x: functional.gelu(x, approximate="tanh"),
    torch.sigmoid, Tensor.sigmoid, torch.tanh, functional.silu, functional.elu,
]  # fmt: skip


@pytest.mark.sampled(9)
@pytest.mark.parametrize("n", range(len(FUNCTIONS)))
def test_functions_are_folded(n: int) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(8, 4, 1, 1))

        def forward(self, x: Tensor) -> Tensor:
            y = functional.conv2d(x, self.weight, None, 1)
            # fx sees the method of a tensor as a call of a method.
            return y.relu() if n == 2 else y.sigmoid() if n == 8 else FUNCTIONS[n](y)

    torch.manual_seed(1)
    model, x = Net().eval(), torch.randn(1, 4, 8, 8)
    made = optimize(model, x, threads=1, keep_faster=False)
    called = [node.op for node in graph_of(made).graph.nodes if node.op != "get_attr"]
    assert called == ["placeholder", "call_module", "output"]
    torch.testing.assert_close(made(x), model(x), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_data_types(dtype: Any) -> None:
    model = exact(nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 2, 1))).to(dtype)
    x = whole(1, 4, 5, 5).to(dtype) / 4
    made = optimize(model, x, threads=1, keep_faster=False)
    assert made.convsmith_report.ours == 2
    tolerance = {torch.float64: 0.0, torch.bfloat16: 2**-7, torch.float16: 2**-10}[dtype]
    torch.testing.assert_close(made(x), model(x), rtol=tolerance, atol=tolerance)


def test_writes_to_what_another_layer_reads_keep_their_order() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = (nn.Conv2d(4, 4, 1) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            y = self.a(x)
            z = self.b(y)  # reads y before it is written to
            short = functional.relu(y, inplace=True)
            return self.c(z + short) + y

    check(Net(), whole(1, 4, 5, 5), ours=3)


@pytest.mark.parametrize("function", [functional.conv2d, functional.conv_transpose2d])
def test_what_a_function_has_just_made_may_be_written(function: Any) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.weight = nn.Conv2d(4, 4, 1), nn.Parameter(torch.randn(4, 4, 1, 1))

        def forward(self, x: Tensor) -> Tensor:
            y = self.conv(x)
            return y + functional.relu(function(x, self.weight), inplace=True)

    check(Net(), whole(1, 4, 5, 5), ours=2, runs=1)


def test_a_norm_behind_an_activation_stays() -> None:
    check(nn.Sequential(nn.Conv2d(4, 8, 1), nn.ReLU(), nn.BatchNorm2d(8)), whole(1, 4, 5, 5), ours=1, runs=1)


def test_what_stays_torchs_is_named() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.reflect = nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect")
            self.hooked, self.broken, self.ours = (nn.Conv2d(4, 4, 1) for _ in range(3))
            self.hooked.register_forward_hook(lambda *_: None)

        def forward(self, x: Tensor) -> Tensor:
            x = self.ours(self.broken(self.hooked(self.reflect(x))))
            return functional.conv2d(x.to(torch.int32), torch.ones(4, 4, 1, 1, dtype=torch.int32))

    model = Net().eval()
    with torch.no_grad():
        model.broken.weight[0] = float("inf")
    report = optimize(model, torch.ones(4, 4, 5, 5), threads=1, keep_faster=False).convsmith_report
    why = {row.names[0]: row.why for row in report.rows}
    assert why.pop("ours") == why.pop("hooked") == why.pop("reflect") == ""
    assert why.pop("broken") == "its weights hold infinities or NaN"
    assert "has elements of s32; available are f32, f64" in why.pop("conv2d")
    assert (why, report.ours, report.convolutions) == ({}, 3, 5)


def test_illegal_calls_are_refused_in_words() -> None:
    model, x = nn.Sequential(nn.Conv2d(4, 4, 1)), torch.ones(1, 4, 5, 5)
    with pytest.raises(cs.UsageError, match=r"training mode; legal is model\.eval\(\)"):
        optimize(model, x)
    with pytest.raises(cs.UsageError, match=r"expected a torch\.nn\.Module, got function"):
        optimize(lambda x: x, x)  # type: ignore[arg-type]
    for wrong, got in ((None, "NoneType"), ((1, 4), r"\(1, 4\)"), (x.numpy(), "ndarray"), ({"x": 1}, r"\{'x': 1\}")):
        with pytest.raises(cs.UsageError, match=f"example_inputs: expected a tensor, a tuple of .*, got {got}"):
            optimize(model.eval(), wrong)  # type: ignore[arg-type]
    made = optimize(model.eval(), x, threads=1, keep_faster=False)
    with pytest.raises(cs.UsageError, match="requires a gradient"):
        made(x.clone().requires_grad_())
    with pytest.raises(cs.UsageError, match=r"torch\.float64 on cpu; legal is torch\.float32 on cpu"):
        made(x.double())
    with pytest.raises(cs.UsageError, match=r"torch\.float32 on meta; legal is torch\.float32 on cpu"):
        made(x.to("meta"))
    with pytest.raises(cs.UsageError, match=r"example_inputs: one is on meta"):
        optimize(copy.deepcopy(model).to("meta"), x.to("meta"))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("keep_faster", [False, True])
def test_outputs_require_no_gradients_whoever_computes_them(keep_faster: bool) -> None:
    """Functions do for sizes of the example and for others, and PyTorch does for no batch, and where it is faster."""
    x, model = torch.randn(2, 4, 6, 6), nn.Sequential(nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 1)).eval()
    made = optimize(model, x, threads=1, keep_faster=keep_faster)
    assert model(x).requires_grad and not any(p.requires_grad for p in made.parameters())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch computes no batch
        assert not any(made(x[:n]).requires_grad for n in (2, 1, 0))
    with pytest.raises(RuntimeError, match="does not require grad"):
        made(x).sum().backward()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"threads": 0}, "threads=0 is not legal: expected 1 to 1024"),
        ({"threads": 1.5}, r"threads=1\.5 is not a whole number"),
        ({"threads": "two"}, "threads='two' is not a whole number"),
        ({"example_kwargs": [1]}, r"example_kwargs=\[1\] is not legal: expected a dict"),
    ],
)
def test_illegal_options_are_no_reason_to_leave_layers_to_torch(options: dict[str, Any], words: str) -> None:
    with pytest.raises(cs.UsageError, match=words):
        optimize(nn.Conv2d(4, 4, 1).eval(), torch.ones(1, 4, 5, 5), **options)


@pytest.mark.parametrize(("name", "error"), [("nothing", cs.UsageError), ("aarch64", cs.UnsupportedError)])
def test_a_target_that_runs_nothing_is_refused(name: str, error: type[Exception]) -> None:
    if name in {t.name for t in host_targets()}:
        name = "avx2"
    with cs.settings.scope(target=name), pytest.raises(error, match=f"target '{name}'"):
        optimize(nn.Conv2d(4, 4, 1).eval(), torch.ones(1, 4, 5, 5))


def test_a_network_that_cannot_be_traced_is_optimized_in_parts() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.blocks = nn.Conv2d(3, 4, 1), nn.ModuleList([block(4, 8, True), block(4, 8, True)])

        def forward(self, x: Tensor) -> Tensor:
            y = self.first(x)
            for layer in self.blocks:
                y = layer(y) if y.sum() != 12345 else y
            return y

    made = check(Net(), whole(1, 3, 5, 5), ours=7)
    report = made.convsmith_report
    assert "The network is not one graph (TraceError: symbolically traced" in report.note and "3 parts" in report.note
    assert "blocks.0.main.0" in {name for row in report.rows for name in row.names}


def test_threads_may_call_at_once_and_copies_compute_the_same() -> None:
    model = exact(nn.Sequential(block(8, 32, True), block(8, 32, True)))
    inputs = [whole(1, 8, 24, 24) for _ in range(4)]
    made = optimize(model, inputs[0], threads=1, keep_faster=False)
    expected = [model(x) for x in inputs]

    def work(n: int) -> None:
        for _ in range(50):
            assert torch.equal(made(inputs[n]), expected[n])

    on_threads(work, range(4))
    for again in (copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert torch.equal(again(inputs[0]), expected[0])


@pytest.fixture
def measurements(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Iterator[list[float]]:
    """Make our functions take 1 s and PyTorch 2 s, or the seconds in the list, and note how often they are measured."""
    seconds: list[float] = [2.0]

    def measured(*_: object, **options: object) -> choice.LeastTimes:
        seconds.append(seconds[0])
        return choice.LeastTimes(1.0, seconds[0], True)

    monkeypatch.setattr(native, "least_seconds", measured)
    with cs.settings.scope(cache=str(tmp_path / "cache")):
        yield seconds


@pytest.mark.parametrize("seconds", [0.5, 2.0])
def test_parts_that_torch_runs_faster_stay_torchs_and_are_measured_once(
    seconds: float, measurements: list[float]
) -> None:
    measurements[0] = seconds
    model, x = exact(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 1))), whole(1, 3, 9, 9)
    for _ in range(2):
        made = optimize(model, x, threads=1)
        assert torch.equal(made(x), model(x)) and measurements == [seconds] * 2
    rows = {row.names: (row.runner, row.why) for row in made.convsmith_report.rows}
    why = "PyTorch takes 500.00 ms instead of 1000.00 ms" if seconds < 1 else ""
    assert rows == dict.fromkeys((("0",), ("2",)), ("torch" if why else "convsmith", why))
    text = str(made.convsmith_report)
    assert ("0 of 2 convolutions run on convsmith" in text) == (seconds < 1) and len(functions(made)) == (not why)


@pytest.mark.parametrize("progress", [True, False, None])
def test_a_bar_on_stderr_counts_the_kernels(
    progress: bool | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Any
) -> None:
    monkeypatch.setattr("rich.console.Console", lambda stderr: Console(stderr=stderr, force_terminal=True, width=100))
    model = exact(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 1)))
    with cs.settings.scope(cache=str(tmp_path / "cache")):
        optimize(model, whole(1, 3, 9, 9), threads=1, keep_faster=False, progress=progress)
    out, err = capsys.readouterr()
    assert out == "" and bool(err) is (progress is True), "by default a bar needs a terminal"
    if progress:
        assert all(words in err for words in ("compile Sequential", "1/1", "functions"))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("width", [80, 100, 120])
def test_the_report_fits_the_page(width: int, measurements: list[float]) -> None:
    report = optimize(exact(nn.Sequential(block(64, 384, True))), whole(1, 64, 14, 14), threads=1).convsmith_report
    page = io.StringIO()
    Console(file=page, width=width).print(report)
    lines = [line.rstrip() for line in page.getvalue().splitlines()]
    assert max(map(len, lines)) <= width
    assert lines[0].split() == ["layers", "problem", "folded", "runs", "on"]
    assert any("norm" in line and line.endswith("  convsmith") for line in lines)
    assert str(report).splitlines() == lines or width != 120
