"""Arguments and results of modules as trees: their tensors, other leaves, and the difference of two results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import is_dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from convsmith.diag.record import record

__all__ = ["Tree", "difference", "flattened", "tensors_of"]


@record(frozen=True)
class Tree:
    """The structure of a value: torch's tree and, for each leaf that is an object of a dataclass, its class and the
    tree of its attributes, otherwise None.
    """

    spec: pytree.TreeSpec
    objects: tuple[tuple[type, Tree] | None, ...]

    @property
    def is_leaf(self) -> bool:
        """Whether the value consists of a single leaf."""
        return self.spec.is_leaf() and self.objects == (None,)

    @property
    def count(self) -> int:
        """The number of leaves."""
        return sum(1 if x is None else x[1].count for x in self.objects)

    def __reduce__(self) -> Any:
        # A plain value that represents the structure, because torch warns when its own class is copied.
        return _tree_of, (self.value([0] * self.count),)

    def value(self, leaves: Iterable[Any]) -> Any:
        """Return the value of this structure with the given leaves."""
        return self._next(iter(leaves))

    def _next(self, leaves: Iterator[Any]) -> Any:
        return pytree.tree_unflatten([_object(x, leaves) for x in self.objects], self.spec)


def _object(of: tuple[type, Tree] | None, leaves: Iterator[Any]) -> Any:
    """Return the next leaf, or a dataclass object whose attributes are the next leaves."""
    if of is None:
        return next(leaves)
    made: Any = object.__new__(of[0])
    made.__dict__.update(of[1]._next(leaves))
    return made


def flattened(value: object) -> tuple[list[Any], Tree]:
    """Return the leaves of a value, and its structure."""
    outer, spec = pytree.tree_flatten(value)
    leaves, objects = list[Any](), list[tuple[type, Tree] | None]()
    for leaf in outer:
        if is_dataclass(leaf) and not isinstance(leaf, type) and hasattr(leaf, "__dict__"):
            parts, tree = flattened(vars(leaf))
            leaves += parts
            objects.append((type(leaf), tree))
        else:
            leaves.append(leaf)
            objects.append(None)
    return leaves, Tree(spec, tuple(objects))


def _tree_of(value: object) -> Tree:
    return flattened(value)[1]


def tensors_of(value: object) -> Iterator[Tensor]:
    """Yield the tensors of a value: in containers of torch's trees, and in attributes of objects."""
    yield from _tensors(value, set())


def _tensors(value: object, seen: set[int]) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
        return
    if id(value) in seen:
        return
    seen.add(id(value))
    for leaf in pytree.tree_leaves(value):
        if leaf is not value:
            yield from _tensors(leaf, seen)
        elif not isinstance(leaf, type | nn.Module) and hasattr(leaf, "__dict__"):
            for part in vars(leaf).values():
                yield from _tensors(part, seen)


def difference(made: Any, expected: Any) -> float:
    """Return the largest difference of tensors of two results, relative to the largest finite element of the second's.

    The difference is infinite if structures, types, shapes or positions of infinities differ; NaN equals NaN.
    """
    (ours, one), (theirs, other) = flattened(made), flattened(expected)
    if one != other or len(ours) != len(theirs):
        return float("inf")
    most = 0.0
    for a, b in zip(ours, theirs):
        if not (isinstance(a, Tensor) and isinstance(b, Tensor)):
            if not _alike(a, b):
                return float("inf")
            continue
        if (a.shape, a.dtype, a.device, a.layout) != (b.shape, b.dtype, b.device, b.layout):
            return float("inf")
        wide = torch.complex128 if b.is_complex() else torch.float64
        a, b = (_plain(x).to(wide) for x in (a, b))
        if b.numel():
            apart = torch.where((a == b) | (a.isnan() & b.isnan()), 0.0, (a - b).abs())
            largest = float(b.abs().nan_to_num(0.0, 0.0, 0.0).max())
            most = max(most, float(apart.nan_to_num(nan=float("inf")).max()) / (largest or 1.0))
    return most


def _plain(x: Tensor) -> Tensor:
    x = x.detach()
    return x.dequantize() if x.is_quantized else x if x.layout is torch.strided else x.to_dense()


def _alike(a: object, b: object) -> bool:
    """Return whether two leaves that are no tensors are equal, as far as their class says."""
    if type(a) is not type(b):
        return False
    plain = isinstance(a, bool | int | float | complex | str | bytes | torch.dtype | torch.device)
    return not plain or bool(a == b or a != a)
