"""Copies of networks that share the memory of their parameters."""

from __future__ import annotations

import copy
from typing import Any

from torch import fx, nn
from torch.nn.parameter import is_lazy

from convsmith.diag.errors import UsageError
from convsmith.torch.tracing import WEIGHT_HOOKS
from convsmith.torch.trees import tensors_of

__all__ = ["GraphNetwork", "copied"]


class GraphNetwork(nn.Module):
    """A module that runs a graph, such as the graph of an exported program, and keeps its attributes when it is copied.
    """

    def __init__(self, program: fx.GraphModule) -> None:
        super().__init__()
        self.program = program

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the result of the graph."""
        return self.program(*args, **kwargs)


def copied(model: nn.Module, frozen: bool) -> nn.Module:
    """Return a copy of a model with the same hooks.

    A graph becomes a `GraphNetwork`. Parameters of a `frozen` copy share memory with the model's parameters and require
    no gradients. An attribute that cannot be copied is the same object in the copy.
    """
    memo: dict[int, Any] = {}
    for name, x in model.named_parameters():
        if is_lazy(x):
            raise UsageError(
                f"model: {name} has no shape yet, because its module is lazy; legal is a model that was called once, "
                "as model(*example_inputs)",
                code="lazy",
            )
        if frozen:
            memo[id(x)] = nn.Parameter(x.detach(), requires_grad=False)
    for m in model.modules():
        for hook in (*m._forward_hooks.values(), *m._forward_pre_hooks.values()):
            if not isinstance(getattr(hook, "__self__", None), nn.Module):
                memo[id(hook)] = hook
        # Torch refuses to copy tensors that are computed from other tensors, such as weights with a norm.
        memo |= {id(x): x.detach().clone() for x in tensors_of(vars(m)) if not x.is_leaf and id(x) not in memo}
    try:
        made = copy.deepcopy(model, dict(memo))
    except Exception:  # the objects' own code may raise any error
        made = _piecewise(model, memo)
    if isinstance(made, fx.GraphModule):
        made = GraphNetwork(made)
        made.training = made.program.training
    for m in made.modules():
        for hook in m._forward_pre_hooks.values():
            if isinstance(hook, WEIGHT_HOOKS) and not m.training:
                hook(m, ())  # before its first call, a module may have weights that this hook has not computed
    return made


def _piecewise(model: nn.Module, memo: dict[int, Any]) -> nn.Module:
    """Return a copy that is made attribute by attribute; attributes that cannot be copied are shared."""
    modules = list(model.modules())
    for m in modules:
        memo[id(m)] = type(m).__new__(type(m))
    for m in modules:
        for name, value in vars(m).items():
            trial = dict(memo)
            try:
                vars(memo[id(m)])[name] = copy.deepcopy(value, trial)
            except Exception:  # the object's own code may raise any error
                vars(memo[id(m)])[name] = value
            else:
                memo = trial
    made: nn.Module = memo[id(model)]
    return made
