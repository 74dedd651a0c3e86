"""`PartForward`: the forward of a module whose calls of known signatures run as graphs with our kernels."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from types import CodeType
from typing import Any

import torch
from torch import Tensor, nn

from convsmith.diag.errors import UnsupportedError
from convsmith.diag.warning import ConvsmithWarning, warn
from convsmith.torch.autocast import cast_type
from convsmith.torch.tracing import Traced, leaves_of

__all__ = ["OtherCallsWarning", "PartForward", "torchscript_error"]


class OtherCallsWarning(ConvsmithWarning):
    """A module is called with arguments that differ from the example, so PyTorch computes."""


class PartForward:
    """Calls of the module `own`: `parts` compute calls of their signatures, and the module's own code computes all
    others.

    The module keeps its class, its attributes and its hooks. `name` is its name in the network. Results of convolutions
    are channels last in memory, or contiguous if `is_contiguous` is set.
    """

    def __init__(self, own: nn.Module, name: str, parts: Sequence[Traced]) -> None:
        self._own, self._name, self._parts = own, name, tuple(parts)
        self._before = vars(own).get("forward")
        self._warned = False
        self.is_contiguous = False
        self._prepare()

    def _prepare(self) -> None:
        """Collect the parts that take only tensors, which a call finds by their number."""
        self._plain: dict[tuple[torch.dtype | type | None, ...], Traced] = {}
        for part in self._parts:
            count, cast = len(part.signature.types), part.signature.cast
            if part.signature.inputs(*leaves_of([Tensor()] * count, {}), cast) is not None:
                self._plain[(cast, *[Tensor] * count)] = part

    def install(self) -> None:
        """Make this object the forward of the module."""
        vars(self._own)["forward"] = self
        vars(self._own)["__prepare_scriptable__"] = _refuse_script

    def remove(self) -> None:
        """Give the module its own forward again."""
        del vars(self._own)["__prepare_scriptable__"]
        if self._before is None:
            del vars(self._own)["forward"]
        else:
            vars(self._own)["forward"] = self._before

    @property
    def graphs(self) -> list[Any]:
        """The graphs of the parts, of class `torch.fx.GraphModule`."""
        return [part.graph for part in self._parts]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        cast = cast_type()
        if not kwargs and (part := self._plain.get((cast, *map(type, args)))) is not None:
            return self._value(part, part.graph.forward(*args))
        leaves, tree = leaves_of(args, kwargs)
        for part in self._parts:
            inputs = part.signature.inputs(leaves, tree, cast)
            if inputs is not None:
                return self._value(part, part.graph.forward(*inputs))
        how = "with other arguments than in the example"
        if all(part.signature.cast is not cast for part in self._parts):
            how = f"under torch.autocast to {cast}" if cast else "without the torch.autocast"
            how += ", with which optimize was not called" if cast else " with which optimize was called"
        return self._by_own_code(how, args, kwargs)

    def _value(self, part: Traced, results: Any) -> Any:
        """Return the result of a part, built from these leaves."""
        if part.result.is_leaf:
            return _contiguous(results) if self.is_contiguous else results
        return part.result.value(map(_contiguous, results) if self.is_contiguous else results)

    def _by_own_code(self, how: str, args: Any, kwargs: Any) -> Any:
        if not self._warned:
            self._warned = True
            warn(f"{self._name or type(self._own).__name__} is called {how}; PyTorch computes", OtherCallsWarning)
        return self._forward(*args, **kwargs)

    @property
    def _forward(self) -> Callable[..., Any]:
        forward: Callable[..., Any] = self._before or type(self._own).forward.__get__(self._own)
        return forward

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self._forward)

    @property
    def __code__(self) -> CodeType:
        return self._forward.__code__  # torch.export inspects the code of a forward

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_plain"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._prepare()


def _contiguous(leaf: Any) -> Any:
    return leaf.contiguous() if isinstance(leaf, Tensor) and leaf.layout is torch.strided else leaf


def torchscript_error(function: str) -> UnsupportedError:
    """Return the error for a graph of TorchScript, which would contain addresses of this process instead of weights."""
    return UnsupportedError(
        f"{function}: an optimized network runs on kernels of this process, which a graph of TorchScript cannot hold; "
        f"available are torch.compile of the optimized network, and {function} of the network that it was made of",
        code="torchscript",
    )


def _refuse_script() -> None:
    """Refuse `torch.jit.script`, which asks every module for the form to compile."""
    raise torchscript_error("torch.jit.script")
