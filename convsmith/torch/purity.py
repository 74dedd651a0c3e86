"""Runs of a module without side effects: its writes are detected and undone, and its inputs are copied.

A run may write to attributes and buffers of the module, to its inputs, and to the states of random generators.
"""

from __future__ import annotations

import copy
import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from convsmith.torch.trees import tensors_of

__all__ = ["fresh", "undone", "version_of"]

_CONTAINERS = (dict, list, set, deque)


def fresh(value: Any) -> Any:
    """Return a copy of a value, whose tensors have their own memory; a tensor that occurs twice is copied once.

    An object that cannot be copied is the same object in the copy.
    """
    memo: dict[int, Any] = {}
    for x in tensors_of(value):
        if id(x) not in memo:
            memo[id(x)] = x.detach().clone().requires_grad_(x.requires_grad)
    try:
        return copy.deepcopy(value, dict(memo))
    except Exception:  # the objects' own code may raise any error
        return pytree.tree_map(lambda x: memo.get(id(x), x), value)


class _Generators:
    """The states of the random generators of torch, numpy and Python."""

    def __init__(self) -> None:
        self._torch, self._numpy, self._python = torch.get_rng_state(), np.random.get_state(), random.getstate()

    def changed(self) -> bool:
        """Return whether a random number has been drawn since."""
        other: Any = np.random.get_state()
        mine: Any = self._numpy
        same = mine[2:] == other[2:] and np.array_equal(mine[1], other[1]) and self._python == random.getstate()
        return not (same and torch.equal(self._torch, torch.get_rng_state()))

    def restore(self) -> None:
        """Restore the recorded states of the generators."""
        torch.set_rng_state(self._torch)
        np.random.set_state(self._numpy)
        random.setstate(self._python)


class _ModuleState:
    """The attributes of a module and of the modules inside it, their tensors' elements, and the random generators."""

    def __init__(self, module: nn.Module) -> None:
        self._names = {id(m): f"{name}." if name else "" for name, m in module.named_modules()}
        # Attributes of modules that torch.jit.script has compiled are not attributes in Python.
        self._attributes = [(m, dict(vars(m))) for m in module.modules() if not isinstance(m, torch.jit.ScriptModule)]
        self._containers: list[tuple[int, str, Any, Any]] = []
        written: dict[int, Tensor] = {}
        parameters = {id(x) for x in module.parameters()}
        for m, attributes in self._attributes:
            owner = id(m)
            for name, value in attributes.items():
                if isinstance(value, _CONTAINERS):
                    self._containers.append((owner, name, value, _content(value)))
                    if value and isinstance(value, dict | list):
                        parts = value.values() if isinstance(value, dict) else value
                        written |= {id(x): x for x in parts if isinstance(x, Tensor)}
                elif isinstance(value, Tensor):
                    written[id(value)] = value
        # The elements of parameters are not copied: a write to a parameter is detected, but not undone.
        self._tensors = [
            (x, None if id(x) in parameters else x.detach().clone(), version_of(x)) for x in written.values()
        ]
        self._generators = _Generators()

    def change(self) -> str:
        """Return what has changed since the state was recorded, as the end of a sentence; empty if nothing has changed.
        """
        for m, before in self._attributes:
            now = vars(m)
            for name in before.keys() | now.keys():
                if not _same(before.get(name), now.get(name)):
                    return f"it writes its attribute {self._names[id(m)]}{name}"
        for owner, name, value, before in self._containers:
            if (before or value) and not _same_parts(before, value):
                return f"it writes its attribute {self._names[owner]}{name}"
        if any(version_of(x) != version for x, _, version in self._tensors):
            return "it writes its parameters or buffers"
        return "it draws random numbers" if self._generators.changed() else ""

    def restore(self) -> None:
        """Undo the changes."""
        for m, before in self._attributes:
            vars(m).clear()
            vars(m).update(before)
        for _, _, value, before in self._containers:
            if (before or value) and not _same_parts(before, value):
                value.clear()
                (value.extend if isinstance(value, list | deque) else value.update)(before)
        with torch.no_grad():
            for x, elements, version in self._tensors:
                if elements is not None and version_of(x) != version:
                    x.copy_(elements)
        self._generators.restore()


def _content(value: Any) -> Any:
    """Return the content of a container, as a plain dict, set or list."""
    return dict(value) if isinstance(value, dict) else set(value) if isinstance(value, set) else list(value)


def version_of(x: Tensor) -> int:
    """Return torch's count of writes to a tensor, or -1 for a tensor that has none."""
    return -1 if x.is_inference() else x._version


def _same(one: object, other: object) -> bool:
    """Return whether two attributes are one object, or tensors or plain values that are equal, or tuples of such."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.dtype == other.dtype and one.device == other.device and torch.equal(one, other)
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    return isinstance(one, bool | int | float | str) and one == other


def _same_parts(one: Any, other: Any) -> bool:
    if len(one) != len(other):
        return False
    if isinstance(one, set):
        return bool(one == other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(map(_same, one.values(), other.values()))
    return all(map(_same, one, other))


@contextmanager
def undone(module: nn.Module) -> Iterator[Callable[[], str]]:
    """Undo, at the end, the changes that the body makes to a module and to the random generators.

    The value is a function that returns the changes that the body has made, as the end of a sentence.
    """
    state = _ModuleState(module)
    try:
        yield state.change
    finally:
        state.restore()
