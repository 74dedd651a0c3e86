"""`Chain`: a sequence of convolutions or matrix products, each of which reads the result of its predecessor.

    mb1ic32ih56oc192oh56kh1 -> --attr-post-ops=relu g192mb1ic192ih56oc192oh56kh3ph1 -> mb1ic192ih56oc32oh56kh1

Each stage is a problem with options of its own. Stages are counted from 1; the names of arrays of stage 2 end in that
number (`wei_2`, `post_op_0_2`). The chain's source is `src`, its destination is `dst`; the results between them are no
arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from itertools import pairwise
from typing import Any, Self, TypeVar

from convsmith.diag.errors import UsageError
from convsmith.diag.forking import cached_property
from convsmith.diag.record import record
from convsmith.diag.settings import SIZES
from convsmith.layout.tags import ANY
from convsmith.problem.attributes import Kind
from convsmith.problem.conv import Conv
from convsmith.problem.descriptor import STAGES
from convsmith.problem.post_ops import SOURCE, SumPostOp
from convsmith.problem.problem import Problem
from convsmith.problem.tensor import Tensor

__all__ = ["Chain"]

T = TypeVar("T")

MAX_STAGES = 64
"""Maximum number of stages; the time to choose which ones to fuse grows with its square."""
_OF_STAGES = ("bia_dt", "wtag", "acc_mode", "accuracy", "scales", "zero_points", "post_ops", "name")
"""Fields of a problem that only stages have."""


@record(frozen=True, kw_only=True)
class Chain(Problem):
    """Forward problems in sequence; the destination of each stage is the source of the next one.

    `workspace` bounds the memory of the whole chain; no stage has a bound of its own.

    `stag` and `dtag` are the layouts of the chain's source and destination. The layout between two stages is free
    where both leave it open.
    """

    stages: tuple[Problem, ...]

    def __post_init__(self) -> None:
        self._check_fields()
        stages = self.stages
        if not 2 <= len(stages) <= MAX_STAGES or any(isinstance(stage, Chain) for stage in stages):
            raise _fail(f"it has {len(stages)} stages: legal are 2 to {MAX_STAGES} convolutions and matrix products")
        for field in fields(Problem):
            if field.name in _OF_STAGES and getattr(self, field.name) != field.default:
                raise _fail(f"{field.name}={getattr(self, field.name)!r} is that of a stage; legal is to give it there")
        if self.workspace is not None and self.workspace < 0:
            raise _fail(f"workspace={self.workspace} is not legal: expected {SIZES}")
        if own := next((stage for stage in stages if stage.workspace is not None), None):
            raise _fail(f"--workspace={own.workspace} of a stage; legal is one of the whole chain")
        first = _with_tag(stages[0], "stag", self.stag)
        stages = (first, *stages[1:])
        stages = (*stages[:-1], _with_tag(stages[-1], "dtag", self.dtag))
        for n, stage in enumerate(stages, start=1):
            _check_stage(n, stage, n == len(stages))
        for n, (one, two) in enumerate(pairwise(stages), start=1):
            _check_joint(n, one, two)
        _check_residuals(stages)
        derived = {
            "stages": stages, "stag": stages[0].stag, "dtag": stages[-1].dtag,
            "dt": (stages[0].dt[0], stages[-1].dt[1], stages[-1].dst_type),
        }  # fmt: skip
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    # -- text -------------------------------------------------------------------------------------------------------

    def options(self) -> tuple[str, ...]:
        """Return the bound of the workspace: each stage has its other options, in the descriptor."""
        return tuple(self._bound())

    def descriptor(self) -> str:
        """Return the stages with their options, joined by arrows."""
        return f" {STAGES} ".join(map(str, self.stages))

    def _own_options(self) -> tuple[str, ...]:
        return ()

    def with_accuracy(self, accuracy: str) -> Self:
        """Return the same computation with `accuracy` of every stage."""
        return replace(self, stages=tuple(stage.with_accuracy(accuracy) for stage in self.stages))

    def _canonical_form(self) -> Self:
        stages = tuple(stage.canonical() for stage in self.stages)
        return self._changed(dict(stages=stages, stag=stages[0].stag, dtag=stages[-1].dtag))

    # -- arrays -----------------------------------------------------------------------------------------------------

    def names(self, n: int) -> dict[str, str]:
        """Return the names that the arrays of stage `n` (from 0) have in the chain.

        The result of a stage but the last is called `dst_` and the number of the stage.
        """
        last = len(self.stages) - 1
        found = {t.name: f"{t.name}_{n + 1}" for t in self.stages[n].tensors}
        found["src"] = "src" if n == 0 else f"dst_{n}"
        found["dst"] = "dst" if n == last else f"dst_{n + 1}"
        return found | dict.fromkeys(_residuals(self.stages[n]), "src")

    @cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        """Every array that a kernel takes or returns: the source, the arrays of each stage, the destination."""
        source, *_ = (t for t in self.stages[0].tensors if t.name == "src")
        found = [source]
        for n, stage in enumerate(self.stages):
            names, between = self.names(n), {"src", "dst", *_residuals(stage)}
            found += [replace(t, name=names[t.name]) for t in stage.tensors if t.name not in between]
        (result,) = self.stages[-1].outputs
        return (*found, result)

    def arrays_of(self, n: int, arrays: Mapping[str, T]) -> dict[str, T]:
        """Return the subset of `arrays`, named as in the chain, that stage `n` (from 0) reads, under the stage's own
        names.
        """
        return {own: arrays[name] for own, name in self.names(n).items() if name in arrays}

    # -- derived ----------------------------------------------------------------------------------------------------

    @property
    def _heaviest(self) -> Problem:
        """The stage with the most operations: the machine's level is chosen for its types."""
        return max(self.stages, key=lambda stage: stage.flops_dense)

    @property
    def dir(self) -> str:
        """FWD_D: biases belong to stages."""
        return "FWD_D"

    @property
    def rank(self) -> int:
        """Number of spatial axes of the last stage."""
        return self.stages[-1].rank

    @property
    def src_shape(self) -> tuple[int, ...]:
        """Logical shape of the first stage's source."""
        return self.stages[0].src_shape

    @property
    def wei_shape(self) -> tuple[int, ...]:
        """Logical shape of the last stage's weights."""
        return self.stages[-1].wei_shape

    @property
    def product_shape(self) -> tuple[int, ...]:
        """Logical shape of the last stage's destination."""
        return self.stages[-1].dst_shape

    @property
    def bias_shape(self) -> tuple[int, ...]:
        """Logical shape of the last stage's bias."""
        return self.stages[-1].bias_shape

    @property
    def channels(self) -> int:
        """Index of the output-channel axis in the result."""
        return self.stages[-1].channels

    @property
    def source_channels(self) -> int:
        """Index of the input-channel axis in the source."""
        return self.stages[0].source_channels

    @property
    def factors(self) -> tuple[str, str]:
        """Types of the arrays that the stage with the most operations multiplies."""
        return self._heaviest.factors

    @property
    def acc(self) -> str:
        """Type of the sums of the stage with the most operations."""
        return self._heaviest.acc

    @cached_property
    def dims(self) -> Mapping[str, int]:
        """Every size by name, with the number of its stage."""
        stages = enumerate(self.stages, start=1)
        return {f"{dim}_{n}": size for n, stage in stages for dim, size in stage.dims.items()}

    @property
    def flops_dense(self) -> int:
        """Two operations per multiplication of each stage, including multiplications with padding."""
        return sum(stage.flops_dense for stage in self.stages)

    @property
    def flops_real(self) -> int:
        """Two operations per multiplication of each stage with elements that exist."""
        return sum(stage.flops_real for stage in self.stages)

    def _dim_names(self) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
        return self.stages[-1]._dim_names()

    def legal_policies(self, kind: Kind, argument: str) -> dict[str, int]:
        return {}


def _fail(why: str) -> UsageError:
    return UsageError(f"chain: {why}", code="bad-chain")


def _residuals(stage: Problem) -> list[str]:
    """Return the names of the arrays of `stage` by which it adds the chain's source."""
    return [f"post_op_{n}" for n, op in enumerate(stage.post_ops) if isinstance(op, SumPostOp) and op.array == SOURCE]


def _with_tag(stage: Problem, field: str, tag: str) -> Problem:
    """Return `stage` with the layout `tag` of the chain, unless that is open."""
    own = getattr(stage, field)
    if tag not in (ANY, own) and own != ANY:
        raise _fail(f"--{field}={own} in {stage.descriptor()}, and {field}={tag} of the chain; legal is one of them")
    given: dict[str, Any] = {field: tag}
    return stage if tag in (ANY, own) else replace(stage, **given)


def _check_stage(n: int, stage: Problem, last: bool) -> None:
    if not stage.forward or (isinstance(stage, Conv) and stage.deconv):
        raise _fail(f"stage {n} is {stage}: legal are forward convolutions and matrix products")
    if not last and any(isinstance(op, SumPostOp) for op in stage.post_ops):
        raise _fail(f"post-op sum in stage {n}, {stage}: its result holds no addend; legal is sum in the last stage")


def _check_joint(n: int, one: Problem, two: Problem) -> None:
    """Raise UsageError if stage `two`, which follows stage `n`, does not read the array that stage `one` computes."""
    if one.dst_shape != two.src_shape:
        raise _fail(
            f"stage {n} computes {_shape(one.dst_shape)} ({one.descriptor()}), and stage {n + 1} reads "
            f"{_shape(two.src_shape)} ({two.descriptor()}); legal is the same shape"
        )
    if one.dst_type != two.dt[0]:
        raise _fail(f"stage {n} computes {one.dst_type}, and stage {n + 1} reads {two.dt[0]}; legal is the same type")
    if ANY not in (one.dtag, two.stag) and one.dst_layout != two.src_layout:
        raise _fail(
            f"stage {n} has --dtag={one.dtag}, and stage {n + 1} has --stag={two.stag}; legal is the same layout, or "
            "to leave it open"
        )


def _check_residuals(stages: tuple[Problem, ...]) -> None:
    """Raise UsageError if a `sum` of the last stage cannot add the chain's source."""
    first, last = stages[0], stages[-1]
    for op in last.post_ops:
        if not isinstance(op, SumPostOp) or op.array != SOURCE:
            continue
        if first.src_shape != last.dst_shape:
            raise _fail(
                f"post-op {op} adds the source, {_shape(first.src_shape)}, to the destination, "
                f"{_shape(last.dst_shape)}; legal is the same shape"
            )
        if first.dt[0] != (op.dtype or last.dst_type):
            raise _fail(
                f"post-op {op} reads {op.dtype or last.dst_type}, and the source is {first.dt[0]}; legal is "
                f"sum:{op.scale:g}:{op.zero_point}:{first.dt[0]}:src"
            )


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
