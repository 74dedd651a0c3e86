"""`Problem`: the types, layouts, attributes and arrays that convolutions and matrix products have in common.

Every instance is legal and available: the constructor raises UsageError or UnsupportedError otherwise. A problem is
pure data and knows neither IR nor target.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import cache
from typing import Any, Self

from convsmith.diag.choices import choices
from convsmith.diag.errors import UsageError
from convsmith.diag.expect import check_fields
from convsmith.diag.forking import cached_property
from convsmith.diag.record import record
from convsmith.diag.settings import SIZES
from convsmith.layout.layout import Layout
from convsmith.layout.tags import ANY
from convsmith.problem.attributes import SCALES, ZERO_POINTS, Kind, Quantity, print_quantities
from convsmith.problem.checks import ACC_MODES, check_acc_mode, check_post_ops, checked_quantities
from convsmith.problem.post_ops import BinaryPostOp, Depthwise, Integer, PostOp, Prelu, SumPostOp, print_post_ops
from convsmith.problem.tensor import Tensor
from convsmith.problem.types import check_types, checked_bias_type, factor_type, is_integer, print_types

__all__ = ["ACCURACIES", "ACC_MODES", "DIRECTIONS", "Problem"]

ACCURACIES = ("strict", "relaxed", "any")
"""Errors that a problem permits; see `Problem`."""

DIRECTIONS = {
    "FWD_B": "forward with bias",
    "FWD_D": "forward",
    "FWD_I": "forward, inference",
    "BWD_D": "gradient of the source",
    "BWD_W": "gradient of the weights",
    "BWD_WB": "gradients of weights and bias",
}


@cache
def _field_names(kind: type[Problem]) -> tuple[str, ...]:
    return tuple(f.name for f in fields(kind))


@record(frozen=True, kw_only=True)
class Problem(ABC):
    """One convolution or matrix product.

    `dt` holds the types of source, weights and destination (of their gradients if the problem computes gradients).
    `bia_dt` is the bias's type; empty stands for the default, f32 (f64 if a type in `dt` is f64). `stag`, `wtag` and
    `dtag` are layout tags as written; `any` leaves the layout open.

    `acc_mode` is one of `ACC_MODES`. `any` and `f16` permit sums in f16 if both factors are f16; the kernel uses f16
    sums only if the target has instructions for them. Sums in f16 lose precision with their length, and overflow at
    65504. The other modes change nothing: `relaxed` permits rounding of partial sums in memory, and kernels never round
    them.

    `accuracy` is one of `ACCURACIES`. `strict` permits sums of products of the given numbers only. `relaxed` admits
    transforms in f32, forward and by data, of products with sums in f32, whose expected error is at most a few times
    that of these sums (`statement/winograd.py`); `any` admits every transform, and factors rounded to tf32.

    `workspace` bounds the bytes that a kernel may need beside its tensors: packed copies of operands, and the memory of
    a call or of packing (`codegen/memory.py`). None is no bound.
    """

    dt: tuple[str, str, str] = ("f32", "f32", "f32")
    bia_dt: str = ""
    stag: str = ANY
    wtag: str = ANY
    dtag: str = ANY
    acc_mode: str = "strict"
    accuracy: str = "relaxed"
    workspace: int | None = None
    scales: tuple[Quantity, ...] = ()
    zero_points: tuple[Quantity, ...] = ()
    post_ops: tuple[PostOp, ...] = ()
    name: str | None = None

    # -- defined by each kind of problem ----------------------------------------------------------------------------

    @property
    @abstractmethod
    def dir(self) -> str:
        """Direction, a key of `DIRECTIONS`."""

    @property
    @abstractmethod
    def rank(self) -> int:
        """Number of spatial axes of a convolution; number of all axes of a matrix product."""

    @property
    @abstractmethod
    def src_shape(self) -> tuple[int, ...]:
        """Logical shape of the source."""

    @property
    @abstractmethod
    def wei_shape(self) -> tuple[int, ...]:
        """Logical shape of the weights."""

    @property
    @abstractmethod
    def product_shape(self) -> tuple[int, ...]:
        """Logical shape of the result before post-ops; differs from `dst_shape` only with a fused depthwise
        convolution.
        """

    @property
    @abstractmethod
    def bias_shape(self) -> tuple[int, ...]:
        """Logical shape of the bias."""

    @property
    @abstractmethod
    def channels(self) -> int:
        """Index of the output-channel axis in the result."""

    @property
    @abstractmethod
    def source_channels(self) -> int:
        """Index of the input-channel axis in the source."""

    @property
    def grouped(self) -> bool:
        """Whether the weights have a group dim."""
        return False

    @property
    @abstractmethod
    def dims(self) -> Mapping[str, int]:
        """Every size by name."""

    @property
    @abstractmethod
    def flops_dense(self) -> int:
        """Two operations per multiplication, including multiplications with padding."""

    @property
    @abstractmethod
    def flops_real(self) -> int:
        """Two operations per multiplication with elements that exist."""

    @abstractmethod
    def descriptor(self) -> str:
        """Return the problem without its options."""

    @abstractmethod
    def _dim_names(self) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
        """Return the dim names of source, weights, destination and bias."""

    @abstractmethod
    def legal_policies(self, kind: Kind, argument: str) -> dict[str, int]:
        """Return the legal policies for the `kind` of `argument`, each with the number of values that it needs."""

    @abstractmethod
    def _own_options(self) -> tuple[str, ...]:
        """Return the options that only this kind of problem has; they come first in a line."""

    # -- text -------------------------------------------------------------------------------------------------------

    def options(self) -> tuple[str, ...]:
        """Return the options that differ from their defaults, such as `--dir=FWD_B`."""
        words = list(self._own_options())
        if self.dt != ("f32", "f32", "f32"):
            words.append(f"--dt={print_types(self.dt)}")
        if self.bia_dt:
            words.append(f"--bia-dt={self.bia_dt}")
        words += [f"--{option}={tag}" for option in ("stag", "wtag", "dtag") if (tag := getattr(self, option)) != ANY]
        if self.acc_mode != "strict":
            words.append(f"--attr-acc-mode={self.acc_mode}")
        if self.accuracy != "relaxed":
            words.append(f"--accuracy={self.accuracy}")
        words += self._bound()
        for kind, quantities in ((SCALES, self.scales), (ZERO_POINTS, self.zero_points)):
            if quantities:
                words.append(f"--{kind.option}={print_quantities(quantities)}")
        if self.post_ops:
            words.append(f"--attr-post-ops={print_post_ops(self.post_ops)}")
        return tuple(words)

    def _bound(self) -> list[str]:
        """Return the option of the `workspace`, if there is one."""
        return [] if self.workspace is None else [f"--workspace={self.workspace}"]

    def __str__(self) -> str:
        return " ".join((*self.options(), self.descriptor()))

    def unbounded(self) -> Self:
        """Return the same computation without a bound of the `workspace`."""
        return self._changed({"workspace": None})

    def with_accuracy(self, accuracy: str) -> Self:
        """Return the same computation with another `accuracy`."""
        return replace(self, accuracy=accuracy)

    def without_transforms(self) -> Self:
        """Return the same computation for kernels that add up products alone."""
        return self.with_accuracy("strict")

    def canonical(self) -> Self:
        """Return the canonical form of the problem, which all problems with the same kernel share: without names, with
        tags in `aBcd16b` form, and FWD_D for FWD_I.
        """
        made: Self | None = self.__dict__.get("_canonical")
        if made is None:
            made = self._canonical_form()
            if made is not self:  # no reference to itself, which only the garbage collector would free
                self.__dict__["_canonical"] = made
        return made

    def _canonical_form(self) -> Self:
        tags: dict[str, Any] = {
            tag: layout.tag()
            for tag, layout in (("stag", self.src_layout), ("wtag", self.wei_layout), ("dtag", self.dst_layout))
            if getattr(self, tag) != ANY
        }
        if not self.bias and self.dir != "BWD_WB":
            tags["bia_dt"] = ""
        post_ops = tuple(op.canonical(len(self.product_shape)) for op in self.post_ops)
        acc_mode = "f16" if self.half_sums else "strict"
        accuracy = self.accuracy if self.has_transforms or self.accuracy == "any" else "relaxed"
        return self._changed({"name": None, "post_ops": post_ops, "acc_mode": acc_mode, "accuracy": accuracy, **tags})

    def _changed(self, values: Mapping[str, Any]) -> Self:
        """Return the problem with other, legal values of fields; itself if it has them already.

        The checks of a new problem take longer than all else that a kernel from the cache needs of it.
        """
        if all(getattr(self, name) == value for name, value in values.items()):
            return self
        made = object.__new__(type(self))
        made.__dict__.update({**{name: getattr(self, name) for name in _field_names(type(self))}, **values})
        return made

    # -- derived ----------------------------------------------------------------------------------------------------

    @property
    def forward(self) -> bool:
        """Whether the problem computes the destination, not a gradient."""
        return self.dir.startswith("FWD")

    @property
    def bias(self) -> bool:
        """Whether the problem adds a bias of shape `bias_shape`."""
        return self.dir == "FWD_B"

    @property
    def bias_type(self) -> str:
        """Type of the bias or of its gradient."""
        return self.bia_dt or ("f64" if "f64" in self.dt else "f32")

    @cached_property
    def factors(self) -> tuple[str, str]:
        """Types of the two arrays that are multiplied."""
        src, wei, dst = map(factor_type, self.dt)
        return (src, wei) if self.forward else (wei, dst) if self.dir == "BWD_D" else (src, dst)

    @property
    def is_pointwise(self) -> bool:
        """Whether a depthwise convolution may be fused behind this problem."""
        return False

    @property
    def half_sums(self) -> bool:
        """Whether `acc_mode` permits sums in f16."""
        return self.factors == ("f16", "f16") and self.acc_mode in ("any", "f16")

    @property
    def has_transforms(self) -> bool:
        """Whether `accuracy` admits transforms: with sums in f32 or s32, except for gradients of the weights."""
        return False

    @property
    def acc(self) -> str:
        """Default type of the sums; a kernel may hold them in f16 if `half_sums` is true."""
        if all(map(is_integer, self.factors)):
            return "s32"
        return "f64" if "f64" in self.dt else "f32"

    @property
    def types(self) -> tuple[str, str, str]:
        """Types of the activations and of the other factor, and the narrowest permitted type of their sums."""
        a, b = self.factors
        acc = "f16" if self.half_sums else self.acc
        return (b, a, acc) if self.dir == "BWD_D" else (a, b, acc)

    @property
    def integer_steps(self) -> bool:
        """Whether post-ops in s32 arithmetic finish the sums."""
        return any(isinstance(op, Integer) for op in self.post_ops)

    @property
    def depthwise(self) -> int | None:
        """Position of the fused depthwise convolution among the post-ops, or None."""
        return next((n for n, op in enumerate(self.post_ops) if isinstance(op, Depthwise)), None)

    @property
    def dst_shape(self) -> tuple[int, ...]:
        """Logical shape of the destination."""
        if self.depthwise is None:
            return self.product_shape
        post_op = self.post_ops[self.depthwise]
        assert isinstance(post_op, Depthwise)
        return (*self.product_shape[:2], *(-(-size // post_op.s) for size in self.product_shape[2:]))

    @property
    def dst_type(self) -> str:
        """Type of the destination; with a fused depthwise convolution, the type of its result."""
        post_op = None if self.depthwise is None else self.post_ops[self.depthwise]
        return post_op.dtype if isinstance(post_op, Depthwise) else self.dt[2]

    @cached_property
    def src_layout(self) -> Layout:
        """Layout of the source; `any` is row-major."""
        return Layout.parse(self.stag, self.src_shape)

    @cached_property
    def wei_layout(self) -> Layout:
        """Layout of the weights as the caller passes them; `any` is row-major."""
        return Layout.parse(self.wtag, self.wei_shape)

    @cached_property
    def dst_layout(self) -> Layout:
        """Layout of the destination; `any` is row-major."""
        return Layout.parse(self.dtag, self.dst_shape)

    @cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        """Every array that a kernel takes or returns, in the order of its arguments."""
        src_dims, wei_dims, dst_dims, bias_dims = self._dim_names()
        out = {"BWD_D": ("src",), "BWD_W": ("wei",), "BWD_WB": ("wei", "bia")}.get(self.dir, ("dst",))

        def tensor(name: str, dtype: str, shape: tuple[int, ...], dims: tuple[str, ...], tag: str = ANY) -> Tensor:
            if name in out:
                summed = any(isinstance(op, SumPostOp) and not op.array for op in self.post_ops)
                return Tensor(name if self.forward else f"diff_{name}", "inout" if summed else "out", dtype, shape,
                              dims, tag, holds=name)  # fmt: skip
            gradient = name == "dst" and not self.forward
            return Tensor(f"diff_{name}" if gradient else name, "in", dtype, shape, dims, tag, holds=name)

        main = {
            "src": tensor("src", self.dt[0], self.src_shape, src_dims, self.stag),
            "wei": tensor("wei", self.dt[1], self.wei_shape, wei_dims, self.wtag),
            "dst": tensor("dst", self.dst_type, self.dst_shape, dst_dims, self.dtag),
        }
        if self.bias or "bia" in out:
            main["bia"] = tensor("bia", self.bias_type, self.bias_shape, bias_dims)
        given = [main[name] for name in ("src", "wei", "bia", "dst") if name in main and name not in out]
        return (*given, *self._attribute_tensors(), *self._post_op_tensors(), *(main[name] for name in out))

    def tensor(self, name: str) -> Tensor:
        """Return the array called `name`. UsageError if the problem has none."""
        for tensor in self.tensors:
            if tensor.name == name:
                return tensor
        names = ", ".join(tensor.name for tensor in self.tensors)
        raise UsageError(f"{self} has no array {name!r}; it has {names}", code="bad-tensor")

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The arrays that a kernel reads."""
        return tuple(tensor for tensor in self.tensors if tensor.role != "out")

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """The arrays that a kernel writes."""
        return tuple(tensor for tensor in self.tensors if tensor.role != "in")

    def quantity(self, kind: Kind, argument: str) -> Quantity | None:
        """Return the scale or zero point of `argument`, or None."""
        quantities = self.scales if kind is SCALES else self.zero_points
        return next((quantity for quantity in quantities if quantity.argument == argument), None)

    def attribute_name(self, kind: Kind, argument: str) -> str:
        """Return the tensor name of the scale or zero point of `argument`."""
        fused = argument.removeprefix("attr_post_op_dw_")
        return f"{kind.name}_{argument if fused == argument else f'post_op_{self.depthwise}_{fused}'}"

    def _attribute_tensors(self) -> list[Tensor]:
        tensors = []
        for kind, quantities in ((SCALES, self.scales), (ZERO_POINTS, self.zero_points)):
            for quantity in quantities:
                count = self.legal_policies(kind, quantity.argument)[quantity.policy]
                name = self.attribute_name(kind, quantity.argument)
                dim = "one" if quantity.policy == "common" else "channel"
                values = quantity.values or None
                tensors.append(Tensor(name, "in", quantity.dtype, (count,), (dim,), ANY, values, kind.name))
        return tensors

    def _post_op_tensors(self) -> list[Tensor]:
        tensors = []
        shape, dims = self.product_shape, self._dim_names()[2]
        for n, op in enumerate(self.post_ops):
            name = f"post_op_{n}"
            if isinstance(op, Depthwise):
                kernel = (op.k,) * (len(shape) - 2)
                names = ("g", "oc", "ic", *(f"k{dim[-1]}" for dim in dims[2:]))
                weights = (shape[1], 1, 1, *kernel)
                tensors.append(Tensor(name, "in", self.dt[1], weights, names, holds="operand", post_op=n))
                shape = self.dst_shape
            elif isinstance(op, BinaryPostOp | Prelu):
                operand = tuple(size if op.mask >> axis & 1 else 1 for axis, size in enumerate(shape))
                dtype, tag = (op.dtype, op.tag) if isinstance(op, BinaryPostOp) else ("f32", ANY)
                tensors.append(Tensor(name, "in", dtype, operand, dims, tag, holds="operand", post_op=n))
            elif isinstance(op, SumPostOp) and op.array:
                tensors.append(Tensor(name, "in", op.dtype or self.dst_type, shape, dims, holds="operand", post_op=n))
            elif isinstance(op, Integer) and op.takes_operand:
                operand = tuple(size if op.mask >> axis & 1 else 1 for axis, size in enumerate(shape))
                tensors.append(Tensor(name, "in", op.dtype, operand, dims, holds="operand", post_op=n))
        return tensors

    # -- checks -----------------------------------------------------------------------------------------------------

    def _check_fields(self) -> None:
        # `check_types` and `Matmul._check_bits` check these two, with better messages.
        check_fields(self, lambda message: UsageError(message, code="bad-option"), skip=("dt", "bits"))

    def _check_options(self) -> None:
        for option, legal in (("dir", tuple(DIRECTIONS)), ("acc_mode", ACC_MODES), ("accuracy", ACCURACIES)):
            if (word := getattr(self, option)) not in legal:
                name = "attr-acc-mode" if option == "acc_mode" else option
                raise UsageError(f"--{name}: {word!r} is unknown; legal: {choices(word, legal)}", code="bad-option")
        if self.workspace is not None and self.workspace < 0:
            raise UsageError(f"--workspace={self.workspace} is not legal: expected {SIZES}", code="bad-option")
        check_types(self.dt, self.dir)
        check_acc_mode(self)
        object.__setattr__(self, "bia_dt", checked_bias_type(self.bia_dt, self.dt, self.acc))
        for option, layout in (("stag", "src_layout"), ("wtag", "wei_layout"), ("dtag", "dst_layout")):
            try:
                getattr(self, layout)
            except UsageError as error:
                raise UsageError(f"--{option}={getattr(self, option)}: {error}", code=error.code) from None
        if self.name is not None and (not self.name or not self.name.isprintable() or '"' in self.name):
            raise UsageError(
                f"name {self.name!r} is not legal: expected printable text without quotes", code="bad-name"
            )
        check_post_ops(self)
        object.__setattr__(self, "scales", checked_quantities(self, SCALES, self.scales))
        object.__setattr__(self, "zero_points", checked_quantities(self, ZERO_POINTS, self.zero_points))
        for name, shape in (("src", self.src_shape), ("wei", self.wei_shape), ("dst", self.product_shape)):
            if math.prod(shape) >= 2**60:
                raise UsageError(
                    f"{name} of shape {shape} in {self}: too large; legal are fewer than 2**60 elements",
                    code="too-large",
                )
