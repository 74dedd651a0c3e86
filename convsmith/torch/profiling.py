"""The profile of a PyTorch model: each convolution that it calls, next to PyTorch's own kernel.

One run of the model records the convolutions that PyTorch dispatches, with their tensors, whether a module calls them
or a function. PyTorch's kernel then runs on these tensors, in the layout that the model gives them or channels last,
whichever is faster.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from convsmith.diag.errors import ConvsmithError, UsageError
from convsmith.diag.expect import integer
from convsmith.measure.profile import LeftNode, ModelProfile
from convsmith.measure.timing import ROUNDS, Sampler
from convsmith.onnx.calls import node_call
from convsmith.onnx.node_profiler import LAYOUT, HostNode, NodeProfiler
from convsmith.runtime.arrays import as_array
from convsmith.runtime.threads import default_threads

__all__ = ["profile", "torch_profiler", "with_function"]

_HOST = "torch"
_CONVOLUTIONS = (torch.ops.aten.convolution.default, torch.ops.aten._convolution.default)
_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
_TRIAL_SECONDS, _TRIALS = 1e-3, 3
"""Seconds of a sample of each layout, and the number of samples; the fastest sample decides."""


def profile(
    model: Any, inputs: Any, *, threads: int | None = None, rounds: int = ROUNDS, target: str | None = None,
    layout: str = LAYOUT,
) -> ModelProfile:  # fmt: skip
    """Return the times of the convolutions that `model(*inputs)` calls, next to the times of PyTorch's kernels.

    `inputs` is a tensor or a tuple of arguments. Print the result for a table with a summary. Both sides use `threads`
    threads; `layout` applies to convolutions of this project.
    """
    profiler = torch_profiler(model, inputs, threads=threads, rounds=rounds, target=target, layout=layout)
    for _ in profiler.rows():
        pass
    return profiler.result


def torch_profiler(
    model: Any, inputs: Any, *, name: str = "", threads: int | None = None, rounds: int = ROUNDS,
    target: str | None = None, layout: str = LAYOUT,
) -> NodeProfiler:  # fmt: skip
    """Return the profiler of a model, which messages call ``name``; the other arguments are as in `profile`."""
    if not callable(model):
        raise UsageError(f"model: expected a torch.nn.Module or a function, got {type(model).__name__}", code="model")
    arguments = inputs if isinstance(inputs, tuple) else (inputs,)
    count = default_threads() if threads is None else integer("threads", threads)
    torch.set_num_threads(count)
    recorder = _Recorder()
    name = name or type(model).__name__
    with torch.no_grad(), _named(model, recorder), recorder:
        try:
            model(*arguments)
        except ConvsmithError:
            raise
        except Exception as error:
            raise UsageError(f"{name} does not run on these inputs: {_message(error)}", code="inputs") from error
    parameters = set()
    if isinstance(model, torch.nn.Module):
        parameters = {x.data_ptr() for x in (*model.parameters(), *model.buffers())}
    nodes, left = [], []
    for label, call, result in recorder.calls:
        x, w, bias, stride, padding, dilation, transposed, extra, groups = call[:9]
        operator = "ConvTranspose" if transposed else "Conv"
        given = {"strides": stride, "pads": [*padding, *padding], "dilations": dilation, "group": groups}
        try:
            arrays = [None if t is None else as_array(n, t.detach()) for n, t in zip("XWB", (x, w, bias), strict=True)]
            made = node_call(operator, arrays, given | ({"output_padding": extra} if transposed else {}))
        except ConvsmithError as error:
            left.append(LeftNode(label, operator, str(error)))
            continue
        computed = as_array("Y", result.detach())
        nodes.append(HostNode(label, operator, made, w.data_ptr() in parameters, computed, partial(_fastest, call)))

    def whole() -> object:
        with torch.inference_mode():
            return model(*arguments)

    return NodeProfiler(
        name, _HOST, nodes, whole, threads=count, rounds=integer("rounds", rounds),
        target=target, layout=layout, left=left,
    )  # fmt: skip


def with_function(source: str) -> tuple[Any, Any]:
    """Return the model and the inputs that ``source``, "module:function", returns. UsageError if there is no such
    function.
    """
    module, colon, function = source.partition(":")
    if not (colon and module and function):
        raise UsageError(f"--torch={source}: legal is module:function, such as models:resnet", code="torch")
    sys.path.insert(0, "")
    try:
        found = getattr(import_module(module), function, None)
    except Exception as error:
        raise UsageError(f"--torch={source}: {module} cannot be imported: {_message(error)}", code="torch") from error
    finally:
        sys.path.remove("")
    if not callable(found):
        raise UsageError(f"--torch={source}: {module} has no function {function}", code="torch")
    try:
        made = found()
    except Exception as error:
        raise UsageError(f"--torch={source}: {function}() raised {_message(error)}", code="torch") from error
    if not (isinstance(made, tuple) and len(made) == 2 and callable(made[0])):
        raise UsageError(f"--torch={source}: legal is a function that returns (model, inputs)", code="torch")
    return made


def _message(error: Exception) -> str:
    """Return the class and the first line of an error."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the convolutions of a run: their names, arguments and results."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[tuple[str, tuple[Any, ...], Any]] = []
        self.around: list[str] = []
        """Names of the modules that are running, outermost first."""
        self._labels: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in _CONVOLUTIONS:
            label = self.around[-1] if self.around and self.around[-1] else "convolution"
            self._labels[label] += 1
            count = self._labels[label]
            self.calls.append((label if count == 1 else f"{label}#{count}", tuple(args), result))
        return result


@contextmanager
def _named(model: Any, recorder: _Recorder) -> Iterator[None]:
    """Tell ``recorder`` which module runs."""
    handles = []
    for name, module in model.named_modules() if isinstance(model, torch.nn.Module) else ():

        def enter(_module: Any, _inputs: Any, name: str = name) -> None:
            recorder.around.append(name)

        def leave(_module: Any, _inputs: Any, _outputs: Any) -> None:
            recorder.around.pop()

        handles += [module.register_forward_pre_hook(enter), module.register_forward_hook(leave)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _fastest(call: Sequence[Any]) -> Callable[[], object]:
    """Return PyTorch's call of a convolution, in the layout of its tensors or channels last."""
    x, w, *others = call[:9]
    forms = [(x, w)]
    if x.ndim in _LAST:
        forms.append(tuple(t.contiguous(memory_format=_LAST[x.ndim]) for t in (x, w)))
    calls = [partial(_convolve, *form, *others) for form in forms]
    samplers = [Sampler(one, _TRIAL_SECONDS) for one in calls]
    times = [min(sampler() for _ in range(_TRIALS)) for sampler in samplers]
    return calls[times.index(min(times))]


def _convolve(*arguments: Any) -> Any:
    with torch.inference_mode():
        return torch.ops.aten.convolution(*arguments)
