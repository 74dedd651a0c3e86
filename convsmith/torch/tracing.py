"""Graphs of modules for the arguments of a call: tensors and numbers are inputs, all other arguments are constants.

Weights that a module computes only from its parameters, as a parametrization does, are constants of the graph.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from operator import attrgetter
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.utils import parametrize
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm
from torch.utils import _pytree as pytree

from convsmith.diag.errors import UnsupportedError
from convsmith.diag.record import record
from convsmith.torch.autocast import cast_type
from convsmith.torch.purity import undone
from convsmith.torch.trees import Tree, flattened

__all__ = [
    "WEIGHT_HOOKS", "ModuleCall", "Signature", "Traced", "exported", "has_code", "has_hooks", "leaves_of",
    "own_forward", "signature_of", "traced",
]  # fmt: skip

FREE = ...
"""Value that a signature has, in place of a constant, for a leaf that is an input of the graph."""
_CONSTANTS = (
    type(None), bool, int, float, complex, str, bytes, enum.Enum, slice, type, FunctionType, BuiltinFunctionType,
    torch.dtype, torch.device, torch.memory_format, torch.layout,
)  # fmt: skip
"""Classes of immutable arguments and results, which may be constants."""
WEIGHT_HOOKS = (WeightNorm, SpectralNorm, BasePruningMethod)
"""Hooks that only compute the weights of their module from its parameters."""


@record(frozen=True)
class ModuleCall:
    """The arguments of a call of a module, and the type to which autocast casts the factors of products in it, if any.

    `region` is the reason why torch keeps the module there, or empty.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    region: str = ""
    cast: torch.dtype | None = None


@record(frozen=True)
class Signature:
    """The calls that a graph computes: the structure of their arguments, the types of its leaves, and for each leaf a
    constant or `FREE`; the type to which autocast casts, if any.
    """

    tree: Tree
    types: tuple[type, ...]
    constants: tuple[Any, ...]
    cast: torch.dtype | None

    def inputs(self, leaves: Sequence[Any], tree: Tree, cast: torch.dtype | None) -> list[Any] | None:
        """Return the inputs of the graph for a call with these leaves; None if the call has another signature."""
        if cast is not self.cast or len(leaves) != len(self.types) or tree != self.tree:
            return None
        inputs = []
        for leaf, kind, constant in zip(leaves, self.types, self.constants):
            if not isinstance(leaf, Tensor) if kind is Tensor else type(leaf) is not kind:
                return None
            if constant is FREE:
                inputs.append(leaf)
            elif leaf != constant:
                return None
        return inputs


def leaves_of(args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[list[Any], Tree]:
    """Return the leaves and the structure of arguments; the order of keyword arguments does not matter."""
    return flattened((tuple(args), dict(sorted(kwargs.items()))))


def signature_of(call: ModuleCall, free_numbers: bool) -> Signature:
    """Return the signature of a call; numbers are inputs or constants. UnsupportedError if an argument is a mutable
    object.
    """
    leaves, tree = leaves_of(call.args, call.kwargs)
    types, constants = list[type](), list[Any]()
    for leaf in leaves:
        is_input = isinstance(leaf, Tensor) or (free_numbers and type(leaf) in (int, float))
        if not is_input and not isinstance(leaf, _CONSTANTS):
            raise UnsupportedError(f"an argument is an object of class {type(leaf).__name__}", code="trace")
        types.append(Tensor if isinstance(leaf, Tensor) else type(leaf))
        constants.append(FREE if is_input else leaf)
    return Signature(tree, tuple(types), tuple(constants), call.cast)


def own_forward(module: nn.Module) -> Callable[..., Any]:
    """Return the function that a call of the module runs between its hooks."""
    forward: Callable[..., Any] = vars(module).get("forward") or type(module).forward.__get__(module)
    return forward


def has_hooks(module: nn.Module | None) -> bool:
    """Return whether calls of a module run code besides its `forward` and hooks that compute its weights."""
    if module is None:
        return False
    others = any(not isinstance(hook, WEIGHT_HOOKS) for hook in module._forward_pre_hooks.values())
    return others or bool(module._forward_hooks)


def has_code(module: nn.Module) -> bool:
    """Return whether calls of a module run code that is not its class's: hooks, another forward, or a script."""
    return has_hooks(module) or "forward" in vars(module) or isinstance(module, torch.jit.ScriptModule)


def _computes_weights(module: nn.Module) -> bool:
    """Return whether a convolution or a linear layer computes its weights from parameters, in each call."""
    if not isinstance(module, _ConvNd | nn.Linear) or has_hooks(module):
        return False
    return bool(module._forward_pre_hooks) or parametrize.is_parametrized(module)


class _Tracer(fx.Tracer):
    """Traces calls with symbols; a module whose arguments hold no symbol is computed."""

    def __init__(self, own: type[nn.Module] = nn.Module, name: str = "") -> None:
        super().__init__()
        self._own, self._name, self._autocast = own, name, cast_type()

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if _computes_weights(m):
            return False
        if has_code(m):
            return True
        return super().is_leaf_module(m, module_qualified_name)

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        symbols = any(isinstance(x, fx.Proxy) for x in pytree.tree_leaves((args, kwargs)))
        if not symbols and not has_hooks(m):
            return forward(*args, **kwargs)
        return super().call_module(m, forward, args, kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, fx.Proxy]) -> Any:
        return attr_val  # parameters are tensors, so values computed from them are constants

    def create_arg(self, a: Any) -> Any:
        if isinstance(a, nn.Parameter) and not any(a is x for x in self.root.parameters()):
            a = a.detach()
        return super().create_arg(a)

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        if cast_type() is not self._autocast:
            raise UnsupportedError("it enters or leaves torch.autocast", code="trace")
        node = super().create_node(*args, **kwargs)
        node.meta["layer"] = self._layer(node)
        return node

    def _layer(self, node: fx.Node) -> str:
        """Return the name of a node in the network: the name of the module that it calls or that computes it, followed
        by the node's own name if that module is no convolution or linear layer.
        """
        parts = [self._name]
        if node.op == "call_module":
            parts.append(_inner(str(node.target)))
        else:
            path, owner = next(reversed(self.module_stack.values()), ("own", self._own))
            parts += [_inner(path)] if issubclass(owner, _ConvNd | nn.Linear) else [_inner(path), node.name]
        return ".".join(filter(None, parts))


def _inner(name: str) -> str:
    """Return the name in the traced module of a name in `_Root`."""
    return name.removeprefix("own").removeprefix(".")


class _Root(nn.Module):
    """The module that is traced: it runs the forward of `own` on inputs of a graph, without the hooks of `own`."""

    def __init__(self, own: nn.Module, signature: Signature) -> None:
        super().__init__()
        self.own, self.signature, self.before = own, signature, vars(own).get("forward")
        self.result: Tree

    def __reduce__(self) -> Any:
        count = sum(x is FREE for x in self.signature.constants)
        return _empty_root, (type(self).__name__, count), self.__dict__  # the class is of this process

    def run(self, *inputs: Any) -> Any:
        given = iter(inputs)
        leaves = [next(given) if x is FREE else x for x in self.signature.constants]
        args, kwargs = self.signature.tree.value(leaves)
        forward = self.before or type(self.own).forward.__get__(self.own)  # the module may have another one by now
        results, tree = flattened(forward(*args, **kwargs))
        for x in results:
            if not isinstance(x, (fx.Proxy, Tensor, *_CONSTANTS)):
                raise UnsupportedError(f"its result has an object of class {type(x).__name__}", code="trace")
        self.result = tree
        return results[0] if tree.is_leaf else tuple(results)


def _root_of(own: nn.Module, signature: Signature) -> _Root:
    """Return the module that is traced, whose forward takes as many inputs as the signature has."""
    made = _empty_root(f"{type(own).__name__}ModuleCall", sum(x is FREE for x in signature.constants))
    made.__init__(own, signature)  # type: ignore[misc]
    return made


def _empty_root(name: str, count: int) -> _Root:
    """Return an object of a class `name`, whose forward takes `count` inputs, without attributes."""
    names = [f"input_{n}" for n in range(count)]
    # fx derives the inputs from the code of the function.
    forward = eval(f"lambda self, {', '.join(names)}: self.run({', '.join(names)})")
    made: _Root = object.__new__(type(name, (_Root,), {"forward": forward}))
    return made


@record(frozen=True)
class Traced:
    """The graph of a module for the calls of a signature, and the structure of its result.

    Its modules are the modules of the traced module, under the same names.
    """

    graph: fx.GraphModule
    signature: Signature
    result: Tree


def traced(own: nn.Module, signature: Signature, name: str) -> Traced:
    """Return the graph of a module, which has a name in the network.

    Raises the errors that the module's code raises on symbols; UnsupportedError if a run of the module has effects that
    the graph lacks.
    """
    root = _root_of(own, signature)
    with undone(own) as changes:
        graph = _Tracer(type(own), name).trace(root)
        change = changes()
    _refuse_effects(change)
    targets: dict[str, Any] = {}
    for node in graph.nodes:
        if node.op in ("call_module", "get_attr"):
            found = attrgetter(node.target)(root)
            node.target = _inner(node.target)
            targets[node.target] = found
    graph.owning_module = None
    return Traced(fx.GraphModule(targets, graph, class_name=type(own).__name__), signature, root.result)


def _refuse_effects(change: str) -> None:
    """Raise UnsupportedError if a run of a module has made a change."""
    if change:
        raise UnsupportedError(change, code="trace")


def exported(
    own: nn.Module, signature: Signature, graph_of: Callable[[nn.Module], fx.GraphModule | None]
) -> Traced | None:
    """Return the graph that `graph_of` makes of a module's calls of a signature: of a module that takes the inputs of
    the signature, and returns a tuple of the leaves of the result, or a single one.

    The result is None if there is no graph, and if hooks inside of the module would not be called. UnsupportedError if
    a run of the module has effects.
    """
    if any(has_code(m) for m in own.modules() if m is not own):
        return None
    root = _root_of(own, signature)
    with undone(own) as changes:
        graph = graph_of(root)
        change = changes()
    _refuse_effects(change)
    return None if graph is None else Traced(graph, signature, root.result)
