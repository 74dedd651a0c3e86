"""`recorded`: a run of a function on tensors, as a graph of the operators of ATen that it calls.

Operators are recorded before autocast and before composite operators fall apart. The function sees tensors that show no
elements, so that no branch of its code depends on them, and no operator that it calls reads them for a size.

`make_fx` of `torch.fx` records the same graph, but imports `torch._dynamo`, as any computation on tensors without data
does: that takes longer than all other work until a network is stated.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx import traceback
from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode
from torch.utils import _pytree as trees
from torch.utils._python_dispatch import TorchDispatchMode

from convsmith.diag.errors import UnsupportedError
from convsmith.torch.autocast import cast_type
from convsmith.torch.whole_layers import LAYERS

__all__ = ["recorded"]

_READING = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
"""Tags of operators whose results have numbers or sizes that depend on elements."""
_LITERALS = (torch.ops.aten.lift_fresh, torch.ops.aten.lift_fresh_copy)
"""Operators whose results are tensors that the code states as numbers."""


def recorded(
    function: Callable[..., Any], names: Sequence[tuple[str, str]], tensors: Sequence[Tensor]
) -> tuple[fx.Graph, Mapping[str, Tensor]]:  # fmt: skip
    """Return the graph of a call of `function`, with a placeholder for each of `tensors`, and the other tensors that
    the function reads, by the names of their nodes. `names` has the name of each placeholder, and its name in errors.

    A node has a tensor on the device meta for its value, `meta["val"]`, and numbers of the memories of its results,
    `meta["memories"]`. Raises what the function raises on tensors whose elements cannot be read; UnsupportedError if it
    overwrites `tensors`, or others that it did not make.
    """
    recorder = _OperatorRecorder()
    given = [recorder.placeholder(name, why, x) for (name, why), x in zip(names, tensors, strict=True)]
    with torch.no_grad(), torch.random.fork_rng([]), torch._C._EnablePythonDispatcher(), recorder:
        results = function(*given)
    recorder.graph.output(trees.tree_leaves(trees.tree_map_only(Tensor, recorder.node_of, results)))
    return recorder.graph, recorder.constants


class _HiddenTensor(Tensor):
    """A tensor whose elements, those of `elements`, only operators read; `node` computes it, in the memory `memory`."""

    elements: Tensor
    memory: int
    node: fx.Node
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, x: Tensor) -> _HiddenTensor:
        made: _HiddenTensor = Tensor._make_wrapper_subclass(
            cls, x.shape, x.stride(), x.storage_offset(), dtype=x.dtype, layout=x.layout, device=x.device
        )
        made.elements = x
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Refuse an operator that the recorder does not see."""
        raise UnsupportedError(f"{func} is called outside of the trace", code="trace")

    def __dlpack__(self, **options: Any) -> Any:
        """Refuse to show the elements to another library."""
        raise UnsupportedError("its code gives a tensor to another library", code="trace")


class _RefusingReads(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses operators, among those that a composite operator calls, that read elements for a number or a size."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing in here is compiled, so `torch._dynamo` is not asked to leave it alone."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Return the results of an operator."""
        if any(tag in func.tags for tag in _READING) and not _selects_by_numbers(func, args):
            raise UnsupportedError(f"{func} depends on elements", code="trace")
        return func(*args, **(kwargs or {}))


def _selects_by_numbers(func: Any, args: Sequence[Any]) -> bool:
    """Return whether an operator reads elements at places that are given as numbers, whose count is that of results."""
    is_selection = func.overloadpacket in (torch.ops.aten.index, torch.ops.aten._unsafe_index)
    return is_selection and all(x is None or x.dtype not in (torch.bool, torch.uint8) for x in args[1])


class _OperatorRecorder(ProxyTorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the operators that are called; `constants` are the other tensors that they read.

    Torch admits only modes of this class before autocast; of the class, it uses the two attributes that are set here.
    """

    def __init__(self) -> None:
        TorchDispatchMode.__init__(self, torch._C.DispatchKey.PreDispatch)  # type: ignore[no-untyped-call]
        self._mode_key, self.enter_stack = torch._C._TorchDispatchModeKey.PROXY, []
        self.graph, self.constants = fx.Graph(), dict[str, Tensor]()
        self._fixed: dict[int, str] = {}
        self._others: dict[int, tuple[Tensor, _HiddenTensor]] = {}
        self._memories, self._casts = count(), _casts()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing in here is compiled, so `torch._dynamo` is not asked to leave it alone."""
        return False

    def placeholder(self, name: str, why: str, x: Tensor) -> Tensor:
        """Return a hidden tensor for an input of the graph, of which errors speak as `why`."""
        made = self._made(x, {})
        self._fixed[made.memory] = why
        _name(made, self.graph.placeholder(name))
        return made

    def node_of(self, x: Tensor) -> fx.Node:
        """Return the node of a tensor; one that no operator has computed is a constant."""
        return self._taken(x).node

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Record the call of an operator, and return its results."""
        if _casts() != self._casts:
            raise UnsupportedError("it enters or leaves torch.autocast", code="trace")
        if func.overloadpacket in _LITERALS:
            return self._constant(args[0])
        taken: dict[int, _HiddenTensor] = {}

        def take(x: Tensor) -> _HiddenTensor:
            hidden = self._taken(x)
            taken[id(hidden.elements)] = hidden
            return hidden

        args, kwargs = _mapped(take, (args, kwargs or {}))
        if func in LAYERS:
            with self:
                return LAYERS[func](*args, **kwargs)
        self._check_writes(func, args, kwargs)
        given, named = _mapped(lambda x: x.elements, (args, kwargs))
        with torch._C._DisablePythonDispatcher(), _RefusingReads():  # type: ignore[no-untyped-call]
            made = func(*given, **named)
        if any(x.shape != x.elements.shape for x in taken.values()):
            raise UnsupportedError(f"{func} changes the shape of a tensor in place", code="trace")
        given, named = _mapped(lambda x: x.node, (args, kwargs))
        node = self.graph.create_node("call_function", func, given, named, func.overloadpacket.__name__)
        node.meta["from_node"] = traceback.get_current_meta().get("from_node", [])
        memories = {x.elements.untyped_storage()._cdata: x.memory for x in taken.values()}
        found = trees.tree_map_only(Tensor, lambda x: taken[id(x)] if id(x) in taken else self._made(x, memories), made)
        if isinstance(found, _HiddenTensor):
            _name(found, node)
            return found
        parts = [x for x in trees.tree_leaves(found) if isinstance(x, _HiddenTensor)]
        node.meta["val"] = trees.tree_map_only(_HiddenTensor, lambda x: _form_of(x.elements), found)
        node.meta["memories"] = {x.memory for x in parts}
        for n, x in enumerate(found if isinstance(found, list | tuple) else ()):
            if isinstance(x, _HiddenTensor):
                _name(x, self.graph.call_function(operator.getitem, (node, n)))
        return found

    def _check_writes(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Raise UnsupportedError if an operator overwrites what it may not."""
        for n, parameter in enumerate(func._schema.arguments if func._schema.is_mutable else ()):
            if parameter.alias_info is not None and parameter.alias_info.is_write:
                for x in trees.tree_leaves(args[n] if n < len(args) else kwargs.get(parameter.name)):
                    if isinstance(x, _HiddenTensor) and x.memory in self._fixed:
                        raise UnsupportedError(f"it changes {self._fixed[x.memory]}", code="effects")

    def _made(self, x: Tensor, memories: dict[int, int]) -> _HiddenTensor:
        """Return a tensor as a hidden one, in one of `memories`, by their addresses, or in a new one."""
        made, place = _HiddenTensor(x), x.untyped_storage()._cdata
        if place not in memories:
            memories[place] = next(self._memories)
        made.memory = memories[place]
        return made

    def _taken(self, x: Tensor) -> _HiddenTensor:
        """Return a tensor as a hidden one."""
        if isinstance(x, _HiddenTensor):
            return x
        if id(x) not in self._others:
            self._others[id(x)] = x, self._constant(x.detach())
            made = self._others[id(x)][1]
            self._fixed[made.memory] = made.node.name
        return self._others[id(x)][1]

    def _constant(self, x: Tensor) -> _HiddenTensor:
        """Return a constant of the graph as a hidden tensor, which operators may overwrite."""
        made = self._made(x, {})
        node = self.graph.get_attr(f"constant_{len(self.constants)}")
        self.constants[node.name] = x.clone()
        _name(made, node)
        return made


def _mapped(function: Callable[[Any], Any], arguments: Any) -> Any:
    """Return arguments of an operator, which are tuples, lists and dicts, with `function` of each tensor; `tree_map` of
    torch, which takes any class, needs ten times as long.
    """
    if isinstance(arguments, Tensor):
        return function(arguments)
    if isinstance(arguments, tuple | list):
        return type(arguments)([_mapped(function, x) for x in arguments])
    if isinstance(arguments, dict):
        return {name: _mapped(function, x) for name, x in arguments.items()}
    return arguments


def _casts() -> tuple[object, ...]:
    """Return the types to which torch casts on the CPU and on GPUs now."""
    return cast_type(), torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda")


def _name(x: _HiddenTensor, node: fx.Node) -> None:
    """Let a node be the one that computes a tensor."""
    x.node = node
    node.meta["val"], node.meta["memories"] = _form_of(x.elements), {x.memory}


def _form_of(x: Tensor) -> Tensor:
    """Return a tensor on the device meta with the sizes, strides and type of a tensor."""
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")
