"""Checks of the accumulation mode, the post-ops, the scales and the zero points of a problem."""

from __future__ import annotations

from typing import TYPE_CHECKING

from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.problem.attributes import ZERO_POINTS, Kind, Quantity, check_quantity
from convsmith.problem.post_ops import Depthwise, Integer, SumPostOp, print_post_ops
from convsmith.problem.types import TYPES, check_types, is_integer, print_types

if TYPE_CHECKING:
    from convsmith.problem.problem import Problem

__all__ = ["ACC_MODES", "check_acc_mode", "check_post_ops", "checked_quantities"]

ACC_MODES = ("strict", "relaxed", "any", "f32", "s32", "f16")
"""Accumulation modes of oneDNN; see `Problem`."""


def check_acc_mode(problem: Problem) -> None:
    """Raise UsageError if the factors of `problem` have no sums in its `acc_mode`."""
    types = [problem.acc, "f16"] if problem.factors == ("f16", "f16") else [problem.acc]
    legal = [mode for mode in ACC_MODES if mode in ("strict", "relaxed", "any", *types)]
    if problem.acc_mode not in legal:
        raise UsageError(
            f"--attr-acc-mode={problem.acc_mode} with --dt={print_types(problem.dt)} and --dir={problem.dir}: products "
            f"of {' and '.join(dict.fromkeys(problem.factors))} have no sums in {problem.acc_mode}; legal are "
            f"{', '.join(legal)}",
            code="bad-option",
        )


def check_post_ops(problem: Problem) -> None:
    """Raise UsageError if a post-op of `problem` is not legal there."""
    if problem.post_ops and not problem.forward:
        raise UsageError(
            f"--attr-post-ops={print_post_ops(problem.post_ops)} with --dir={problem.dir}: legal are FWD_B, FWD_D, "
            "FWD_I",
            code="bad-post-op",
        )
    for n, op in enumerate(problem.post_ops):
        op.check_operand(len(problem.product_shape))
        if isinstance(op, SumPostOp) and problem.depthwise is not None and n < problem.depthwise:
            raise UsageError(
                "post-op sum before dw: the array between the two convolutions is internal and holds no addend; "
                "legal is sum behind dw",
                code="bad-post-op",
            )
        resized = isinstance(op, SumPostOp) and not op.array and op.dtype
        if resized and TYPES[resized].bits != TYPES[problem.dst_type].bits:
            same = ", ".join(row.name for row in TYPES.values() if row.bits == TYPES[problem.dst_type].bits)
            raise UsageError(
                f"post-op {op}: {resized} and the destination's {problem.dst_type} differ in size; legal are {same}",
                code="bad-post-op",
            )
        if isinstance(op, Depthwise):
            _check_depthwise(problem, n, op)
        if isinstance(op, Integer):
            _check_integer_alone(problem, op)


def _check_depthwise(problem: Problem, n: int, op: Depthwise) -> None:
    if n != problem.depthwise or not problem.is_pointwise:
        raise UsageError(
            f"post-op {op}: legal is one dw, behind a convolution with a 1x1 kernel in two dimensions",
            code="bad-post-op",
        )
    check_types((problem.dt[2], problem.dt[1], op.dtype), problem.dir)
    op.check_extents(problem.product_shape[2:])


def _check_integer_alone(problem: Problem, op: Integer) -> None:
    others = [f"sums of type {problem.acc}"] if problem.acc != "s32" else []
    others += [str(other) for other in problem.post_ops if not isinstance(other, Integer)]
    others += [f"scale of {q.argument}" for q in problem.scales] + ["bias"] * problem.bias
    others += ["zero point of dst"] * (problem.quantity(ZERO_POINTS, "dst") is not None)
    if others:
        raise UsageError(
            f"post-op {op} with {others[0]}: legal is s32 arithmetic alone, on sums of type s32", code="bad-post-op"
        )


def checked_quantities(problem: Problem, kind: Kind, quantities: tuple[Quantity, ...]) -> tuple[Quantity, ...]:
    """Return the `quantities` of a `kind` of `problem` in their checked form.

    UsageError names one that is not legal, UnsupportedError one that is not available.
    """
    checked = tuple(check_quantity(kind, quantity) for quantity in quantities)
    types = dict(zip(("src", "wei", "dst"), problem.dt, strict=True))
    for quantity in checked:
        fused = quantity.argument.startswith("attr_post_op_dw")
        if fused and problem.depthwise is None:
            raise UsageError(f"--{kind.option}={quantity}: there is no post-op dw", code=f"bad-{kind.code}")
        legal = problem.legal_policies(kind, quantity.argument)
        if not legal and not problem.forward:
            raise UsageError(
                f"--{kind.option}={quantity} with --dir={problem.dir}: gradients have no quantisation; legal with "
                "them are scales of BWD_D",
                code=f"bad-{kind.code}",
            )
        if quantity.policy not in legal:
            raise UnsupportedError(
                f"--{kind.option}={quantity} with --dir={problem.dir} is not available; available for "
                f"{quantity.argument}: {', '.join(legal) or 'none'}",
                code=f"unsupported-{kind.code}",
            )
        if kind is ZERO_POINTS and quantity.argument in ("src", "wei") and not is_integer(types[quantity.argument]):
            raise UsageError(
                f"--{kind.option}={quantity}: {types[quantity.argument]} has no zero point; legal are u8 and s8",
                code="bad-zero-point",
            )
        if kind is ZERO_POINTS and quantity.argument in ("src", "wei") and problem.acc != "s32":
            raise UnsupportedError(
                f"--{kind.option}={quantity}: zero points of {quantity.argument} beside sums of type {problem.acc} are "
                "not available; available where source and weights are both integers",
                code="unsupported-zero-point",
            )
        before = kind is ZERO_POINTS and quantity.argument == "dst" and problem.depthwise is not None
        if before and not is_integer(problem.dt[2]):
            raise UsageError(
                f"--{kind.option}={quantity}: {problem.dt[2]}, which post-op dw reads, has no zero point; legal are "
                "u8 and s8",
                code="bad-zero-point",
            )
        if len(quantity.values) not in (0, 1, legal[quantity.policy]):
            raise UsageError(
                f"--{kind.option}={quantity}: {len(quantity.values)} values; legal are 1 or "
                f"{legal[quantity.policy]}",
                code=f"bad-{kind.code}",
            )
    return checked
