"""Finds the convolutions of a traced network, with the nodes that can be folded into each."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from convsmith.torch import devices
from convsmith.torch.layers import DTYPES, RESIDUAL, ConvLayer, FoldedStep
from convsmith.torch.linear import LinearLayer
from convsmith.torch.tracing import has_hooks

__all__ = [
    "CONVOLUTIONS", "Folded", "Form", "Refused", "class_of", "convolutions", "form_of", "is_product", "module_of",
    "without_identities",
]  # fmt: skip


class Form(NamedTuple):
    """The form of the tensor that a node returns."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


class Refused(NamedTuple):
    """A convolution that stays as it is, and the reason."""

    name: str
    why: str


@dataclass(eq=False)
class Folded:
    """A convolution of a graph: `layer` computes the result of the last of `nodes` from `source`, and from `residual`
    if it adds one.
    """

    layer: ConvLayer
    source: fx.Node
    residual: fx.Node | None
    nodes: list[fx.Node] = field(default_factory=list)

    @property
    def last(self) -> fx.Node:
        """The node whose value is the layer's result."""
        return self.nodes[-1]


def form_of(node: object) -> Form | None:
    """Return the form of the tensor that `node` returned when shapes were recorded; None if it returned no tensor."""
    form = node.meta.get("form") if isinstance(node, fx.Node) else None
    return form if isinstance(form, Form) else None


# -- activations ------------------------------------------------------------------------------------------------------

_Reading = Callable[[Any], FoldedStep]

_MODULES: dict[type[nn.Module], _Reading] = {
    nn.ReLU: lambda _: ("relu",),
    nn.ReLU6: lambda _: ("clip", 0.0, 6.0),
    nn.Hardtanh: lambda m: ("clip", float(m.min_val), float(m.max_val)),
    nn.Hardswish: lambda _: ("hardswish",),
    nn.Hardsigmoid: lambda _: ("hardsigmoid",),
    nn.SiLU: lambda _: ("silu",),
    nn.GELU: lambda m: ("gelu_tanh" if m.approximate == "tanh" else "gelu",),
    nn.Sigmoid: lambda _: ("sigmoid",),
    nn.Tanh: lambda _: ("tanh",),
    nn.Mish: lambda _: ("mish",),
    nn.LeakyReLU: lambda m: ("leaky_relu", float(m.negative_slope)),
    nn.ELU: lambda m: ("elu", float(m.alpha)),
}
"""Modules that can be folded into a preceding convolution."""


class _Arguments(NamedTuple):
    """The arguments of a call by name, with the defaults of torch."""

    values: Mapping[str, Any]

    def __getattr__(self, name: str) -> Any:
        return self.values[name]


_FUNCTIONS: dict[Any, tuple[tuple[tuple[str, Any], ...], _Reading]] = {
    functional.relu: ((("inplace", False),), _MODULES[nn.ReLU]),
    torch.relu: ((), _MODULES[nn.ReLU]),
    "relu": ((), _MODULES[nn.ReLU]),
    functional.relu6: ((("inplace", False),), _MODULES[nn.ReLU6]),
    functional.hardtanh: ((("min_val", -1.0), ("max_val", 1.0), ("inplace", False)), _MODULES[nn.Hardtanh]),
    functional.hardswish: ((("inplace", False),), _MODULES[nn.Hardswish]),
    functional.hardsigmoid: ((("inplace", False),), _MODULES[nn.Hardsigmoid]),
    functional.silu: ((("inplace", False),), _MODULES[nn.SiLU]),
    functional.mish: ((("inplace", False),), _MODULES[nn.Mish]),
    functional.gelu: ((("approximate", "none"),), _MODULES[nn.GELU]),
    torch.sigmoid: ((), _MODULES[nn.Sigmoid]),
    functional.sigmoid: ((), _MODULES[nn.Sigmoid]),
    "sigmoid": ((), _MODULES[nn.Sigmoid]),
    torch.tanh: ((), _MODULES[nn.Tanh]),
    "tanh": ((), _MODULES[nn.Tanh]),
    functional.leaky_relu: ((("negative_slope", 0.01), ("inplace", False)), _MODULES[nn.LeakyReLU]),
    functional.elu: ((("alpha", 1.0), ("inplace", False)), _MODULES[nn.ELU]),
}
"""Functions, and names of methods, that can be folded: their arguments after the tensor, and how the arguments are
read.
"""

_ADDITIONS = (operator.add, operator.iadd, torch.add, "add", "add_")
_PRODUCTS = (operator.mul, torch.mul, "mul")
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_DROPOUTS = (
    nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout,
)  # fmt: skip
_DROPPING = {"dropout": 2, "stochastic_depth": 3}
"""Functions that drop elements, and the position of their argument `training`."""
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, *_TRANSPOSED)
"""Modules that are convolutions."""
_ARGUMENTS = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_ARGUMENTS_OF_TRANSPOSED = ("input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation")
_CALLS_OF_CONVS: dict[Any, tuple[str, ...]] = {
    functional.conv1d: _ARGUMENTS, functional.conv2d: _ARGUMENTS, functional.conv3d: _ARGUMENTS,
    functional.conv_transpose1d: _ARGUMENTS_OF_TRANSPOSED, functional.conv_transpose2d: _ARGUMENTS_OF_TRANSPOSED,
    functional.conv_transpose3d: _ARGUMENTS_OF_TRANSPOSED,
}  # fmt: skip
"""Functions that are convolutions, with their arguments; `torch.conv2d` is `functional.conv2d`."""
_MAKING = (*_CALLS_OF_CONVS, functional.batch_norm, operator.add, torch.add)
"""Functions whose results are in new memory."""


def without_identities(graph_module: fx.GraphModule) -> None:
    """Remove the nodes that are identities in eval mode: dropout, stochastic depth and identities."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        module: Any = module_of(graph_module, node)
        kind = class_of(module)
        is_identity = kind is nn.Identity or (kind in _DROPOUTS and not module.training)
        place = _DROPPING.get(getattr(node.target, "__name__", "")) if node.op == "call_function" else None
        if place is not None:
            is_identity = node.kwargs.get("training", node.args[place] if len(node.args) > place else True) is False
        if is_identity:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)


def convolutions(graph_module: fx.GraphModule) -> Iterator[Folded | Refused]:
    """Yield the convolutions of a graph whose forms are known, in order; a node is folded into at most one convolution.
    """
    taken: set[fx.Node] = set()
    place = {node: n for n, node in enumerate(graph_module.graph.nodes)}
    for node in graph_module.graph.nodes:
        found = _conv(graph_module, node)
        if isinstance(found, Folded):
            _extend(graph_module, found, taken, place)
            taken.update(found.nodes)
        if found is not None:
            yield found


def module_of(graph_module: fx.GraphModule, node: fx.Node) -> nn.Module | None:
    """Return the module that a node calls; None if it calls no module."""
    return graph_module.get_submodule(str(node.target)) if node.op == "call_module" else None


def class_of(module: nn.Module | None) -> type[nn.Module] | None:
    """Return the class of a module whose calls run only the code of the class; None if they run other code."""
    if module is None or has_hooks(module) or module._forward_pre_hooks or "forward" in vars(module):
        return None
    return type(module)


def is_product(graph_module: fx.GraphModule, node: fx.Node) -> bool:
    """Return whether a node is a convolution or a linear layer, whose first argument is the source."""
    if node.op == "call_function":
        return node.target in _CALLS_OF_CONVS or node.target is functional.linear
    return class_of(module_of(graph_module, node)) in (*CONVOLUTIONS, nn.Linear)


class _Given(NamedTuple):
    """The parameters of a convolution, as its module or its call gives them."""

    source: Any
    weight: Tensor
    bias: Tensor | None
    stride: Any
    padding: Any
    dilation: Any
    groups: int
    output_padding: Any = None


def _conv(graph_module: fx.GraphModule, node: fx.Node) -> Folded | Refused | None:
    """Return the layer of a node that is a convolution, with nothing folded into it; None for other nodes."""
    module: Any = module_of(graph_module, node)
    name = node.meta["layer"]
    kind = class_of(module)
    if kind is nn.Linear or (node.op == "call_function" and node.target is functional.linear):
        return _linear(graph_module, name, node, module)
    if kind in CONVOLUTIONS:
        given = _of_module(node, module)
    elif node.op == "call_function" and node.target in _CALLS_OF_CONVS:
        given = _of_call(graph_module, node, _CALLS_OF_CONVS[node.target])
    else:
        return None
    if isinstance(given, str):
        return Refused(name, given)
    form, result = form_of(given.source), form_of(node)
    if form is None or result is None:
        return Refused(name, "its source has no batch" if form is None else "its result is no tensor")
    weight, bias = _cast(given.weight, result), None if given.bias is None else _cast(given.bias, result)
    why = _obstacle(form, weight, bias)
    if why:
        return Refused(name, why)
    rank = weight.dim() - 2
    dilation = _per_axis(given.dilation, rank)
    padding = _pairs(given.padding, tuple(weight.shape[2:]), dilation)
    more = None if given.output_padding is None else _per_axis(given.output_padding, rank)
    layer = ConvLayer(name, weight, bias, _per_axis(given.stride, rank), padding, dilation, given.groups, more, ())
    if 0 in result.shape or layer.problem(form.shape, True).o != result.shape[2:]:
        return Refused(name, f"no source reaches the end of its result, {result.shape}")
    return Folded(layer, given.source, None, [node])


def _linear(graph_module: fx.GraphModule, name: str, node: fx.Node, module: nn.Linear | None) -> Folded | None:
    """Return the layer of a node that calls a linear layer; None if no kernel of ours supports it."""
    source: Any = node.args[0] if node.args else node.kwargs["input"]
    given = {**dict(zip(_ARGUMENTS, node.args)), **node.kwargs}
    parameters: list[Tensor | None] = [_parameter(graph_module, given.get(x)) for x in ("weight", "bias")]
    if module is not None:
        parameters = [module.weight, module.bias]
    elif parameters[1] is None and given.get("bias") is not None:
        return None
    form, result, matrix = form_of(source), form_of(node), parameters[0]
    if form is None or result is None or len(form.shape) < 2 or matrix is None or matrix.dim() != 2:
        return None
    weight, bias = _cast(matrix, result).unsqueeze(2), None if parameters[1] is None else _cast(parameters[1], result)
    if _obstacle(form._replace(shape=(1, form.shape[-1], math.prod(form.shape[:-1]))), weight, bias):
        return None
    return Folded(LinearLayer(name, weight, bias, (1,), ((0, 0),), (1,), 1, None, ()), source, None, [node])


def _of_module(node: fx.Node, module: Any) -> _Given | str:
    """Return the convolution of a module, or the reason why torch keeps it."""
    if module.padding_mode != "zeros":
        return f"padding_mode={module.padding_mode!r} is not zeros"
    if len(node.args) + len(node.kwargs) != 1:
        return "the call gives the output size"
    source = node.args[0] if node.args else node.kwargs["input"]
    more = module.output_padding if type(module) in _TRANSPOSED else None
    options = (module.stride, module.padding, module.dilation, module.groups, more)
    return _Given(source, module.weight, module.bias, *options)


def _of_call(graph_module: fx.GraphModule, node: fx.Node, names: tuple[str, ...]) -> _Given | str:
    """Return the convolution of a call of a function with these arguments, or the reason why torch keeps it."""
    given: dict[str, Any] = {"bias": None, "stride": 1, "padding": 0, "dilation": 1, "groups": 1}
    given |= {"output_padding": 0} if "output_padding" in names else {"output_padding": None}
    given |= {**dict(zip(names, node.args)), **node.kwargs}
    weight, bias = (_parameter(graph_module, given[name]) for name in ("weight", "bias"))
    if weight is None or (bias is None and given["bias"] is not None):
        return "the network computes its weights"
    options = (given[name] for name in ("stride", "padding", "dilation", "groups", "output_padding"))
    return _Given(given["input"], weight, bias, *options)


def _cast(parameter: Tensor, result: Form) -> Tensor:
    """Return a parameter as torch multiplies it: under autocast, in the type of the result."""
    return parameter.detach().to(result.dtype)


def _obstacle(form: Form, weight: Tensor, bias: Tensor | None) -> str:
    """Return the reason why no kernel of ours supports these weights and a source of this form; empty if one does."""
    if len(form.shape) != weight.dim():
        return "its source has no batch"
    if not devices.runs_kernels(form.device):
        return f"its source is on {form.device}"
    if any(devices.device_of(x) != form.device for x in (weight, bias) if x is not None):
        return f"its source is on {form.device}, its weights are elsewhere"
    if form.dtype not in DTYPES or any(x.dtype != form.dtype for x in (weight, bias) if x is not None):
        return f"its data types are {form.dtype} and {weight.dtype}"
    if not all(map(_is_finite, (weight, bias))):
        return "its weights hold infinities or NaN"
    return "its source is empty" if 0 in form.shape else ""


def _is_finite(x: Tensor | None) -> bool:
    """Return whether all elements are finite. A finite sum implies it without a look at each element."""
    return x is None or bool(x.sum().isfinite()) or bool(torch.isfinite(x).all())


def _parameter(graph_module: fx.GraphModule, given: object) -> Tensor | None:
    """Return the tensor of the network that a node reads; None if the node computes it."""
    if not isinstance(given, fx.Node) or given.op != "get_attr":
        return None
    found = operator.attrgetter(str(given.target))(graph_module)
    return found if isinstance(found, Tensor) else None


def _per_axis(given: Any, rank: int) -> tuple[int, ...]:
    return (given,) * rank if isinstance(given, int) else tuple(given) * (rank if len(given) == 1 else 1)


def _pairs(given: Any, kernel: tuple[int, ...], dilation: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    if given == "valid":
        return ((0, 0),) * len(kernel)
    if given == "same":
        reach = [(k - 1) * d for k, d in zip(kernel, dilation)]
        return tuple((total // 2, total - total // 2) for total in reach)
    return tuple((pad, pad) for pad in _per_axis(given, len(kernel)))


# -- nodes that follow a convolution ----------------------------------------------------------------------------------


def _extend(
    graph_module: fx.GraphModule, folded: Folded, taken: set[fx.Node], place: Mapping[fx.Node, int]
) -> None:
    """Fold the nodes that follow a convolution into it, as long as each is the only reader of its predecessor."""
    while len(folded.last.users) == 1:
        (node,) = folded.last.users
        step = _next(graph_module, folded, node)
        if node in taken or step is None or _writes_between(graph_module, folded, node, place):
            return
        if isinstance(step, ConvLayer):
            folded.layer = step
        else:
            layer = folded.layer
            if step == RESIDUAL:
                folded.residual = _other(folded.last, node)
            folded.layer = replace(layer, steps=(*layer.steps, step))
        folded.nodes.append(node)


def _next(graph_module: fx.GraphModule, folded: Folded, node: fx.Node) -> FoldedStep | ConvLayer | None:
    """Return the step that `node` adds to the layer, or the layer with the node's norm; None if `node` is neither."""
    module = module_of(graph_module, node)
    kind = class_of(module)
    if kind in _NORMS:
        return None if folded.layer.steps or folded.layer.has_norm else _with_norm(folded.layer, module)
    if kind in _MODULES:
        return _MODULES[kind](module)
    if node.op == "call_function" and node.target is functional.batch_norm:
        norm = _norm_of_call(graph_module, node, folded.last)
        return None if norm is None or folded.layer.steps or folded.layer.has_norm else _with_norm(folded.layer, norm)
    if node.op not in ("call_function", "call_method"):
        return None
    layer = folded.layer
    if isinstance(layer, LinearLayer) and not layer.moved and RESIDUAL not in layer.steps and _moves(folded.last, node):
        return replace(layer, moved=True)
    if node.target in _PRODUCTS and not layer.steps:
        factor = _parameter(graph_module, _other(folded.last, node))
        return None if factor is None else _times(layer, factor, form_of(node))
    if node.target in _ADDITIONS:
        other = _other(folded.last, node)
        fits = other is not None and form_of(other) == form_of(folded.last)
        own = node.args[0] is folded.last or node.target not in (operator.iadd, "add_")
        return RESIDUAL if fits and own and folded.residual is None else None
    if node.target in _FUNCTIONS and node.args and node.args[0] is folded.last:
        names, read = _FUNCTIONS[node.target]
        given = dict(names) | dict(zip((name for name, _ in names), node.args[1:])) | node.kwargs
        return read(_Arguments(given))
    return None


def _norm_of_call(graph_module: fx.GraphModule, node: fx.Node, source: fx.Node) -> SimpleNamespace | None:
    """Return the norm by which a call of `functional.batch_norm` changes `source`, with the attributes of a module.

    The result is None if its parameters are not constants.
    """
    names = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
    given = {"weight": None, "bias": None, "training": False, "eps": 1e-5, **dict(zip(names, node.args)), **node.kwargs}
    tensors = {name: _parameter(graph_module, given[name]) for name in names[1:5]}
    if given["input"] is not source or any(tensors[name] is None and given[name] is not None for name in tensors):
        return None
    return SimpleNamespace(**tensors, training=given["training"], eps=given["eps"])


def _moves(one: fx.Node, node: fx.Node) -> bool:
    """Return whether a node moves the last dim of the value of `one` to the second position."""
    form = form_of(one)
    if form is None or len(form.shape) < 3 or node.args[0] is not one or node.kwargs:
        return False
    dims = node.args[1] if len(node.args) == 2 and isinstance(node.args[1], tuple | list) else node.args[1:]
    last = len(form.shape) - 1
    return node.target in ("permute", torch.permute) and tuple(dims) == (0, last, *range(1, last))


def _times(layer: ConvLayer, factor: Tensor, form: Form | None) -> ConvLayer | None:
    """Return the layer with its sums multiplied by a factor per channel; None if `factor` is of another kind."""
    channels, last = layer.weight.shape[0], layer.orders[1]
    if form is None or layer.output_padding is not None or factor.dtype != layer.dtype or not _is_finite(factor):
        return None
    pixels = len(form.shape) - 2 if last else 0
    shape = tuple(factor.shape)
    while len(shape) > 1 + pixels and shape[0] == 1:
        shape = shape[1:]
    if shape != (channels, *[1] * pixels):
        return None
    with torch.no_grad():
        scale = factor.detach().reshape(channels)
        weight = layer.weight * scale.reshape(-1, *[1] * (layer.weight.dim() - 1))
        bias = None if layer.bias is None else layer.bias * scale
    return replace(layer, weight=weight, bias=bias, has_norm=True)


def _other(one: fx.Node, node: fx.Node) -> fx.Node | None:
    """Return the other operand of an addition without a factor; None if there is no other operand."""
    if node.kwargs or len(node.args) != 2:
        return None
    others = [x for x in node.args if isinstance(x, fx.Node) and x is not one]
    return others[0] if len(others) == 1 else None


def _with_norm(layer: ConvLayer, norm: Any) -> ConvLayer | None:
    """Return the layer with a norm in eval mode folded into weights and bias; None if the norm uses statistics of the
    data.
    """
    if norm.training or norm.running_mean is None:
        return None
    with torch.no_grad():
        scale = (norm.running_var.double() + norm.eps).rsqrt()
        if norm.weight is not None:
            scale = scale * norm.weight.double()
        before = 0.0 if layer.bias is None else layer.bias.double()
        bias = (before - norm.running_mean.double()) * scale + (0.0 if norm.bias is None else norm.bias.double())
        exact = torch.promote_types(layer.dtype, torch.float32)
        weight, scale = layer.weight.to(exact), scale.to(exact)
        if layer.output_padding is None:
            weight = weight * scale.reshape(-1, *[1] * (weight.dim() - 1))
        else:
            g, (ic, ocg, *k) = layer.groups, weight.shape
            parts = weight.reshape(g, ic // g, ocg, *k)
            weight = (parts * scale.reshape(g, 1, ocg, *[1] * len(k))).reshape(ic, ocg, *k)
        return replace(layer, weight=weight.to(layer.dtype), bias=bias.to(layer.dtype), has_norm=True)


def _writes_between(
    graph_module: fx.GraphModule, folded: Folded, node: fx.Node, place: Mapping[fx.Node, int]
) -> bool:
    """Return whether a node between the convolution and `node`, the place of the folded layer, writes to a tensor."""
    first, last = place[folded.nodes[0]], place[node]
    between = (n for n, at in place.items() if first < at < last and n not in folded.nodes)
    return any(_writes(graph_module, n) for n in between)


def _writes(graph_module: fx.GraphModule, node: fx.Node) -> bool:
    """Return whether a node may write to one of its tensors, which other nodes may read."""
    module = module_of(graph_module, node)
    in_place = getattr(module, "inplace", False) or node.kwargs.get("inplace", False)
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    by_name = module is None and node.op.startswith("call") and (name.endswith("_") or name in ("iadd", "setitem"))
    if not (in_place or by_name or node.kwargs.get("out") is not None):
        return False
    # A tensor that a module or function has just created, and only this node reads, may be overwritten.
    given = node.args[0] if node.args else None
    return not (isinstance(given, fx.Node) and len(given.users) == 1 and _makes(graph_module, given))


def _makes(graph_module: fx.GraphModule, node: fx.Node) -> bool:
    """Return whether the value of a node is in new memory, not a view of another value."""
    return type(module_of(graph_module, node)) in (*CONVOLUTIONS, *_NORMS) or node.target in _MAKING
