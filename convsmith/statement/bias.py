"""The gradient of the bias: the destination's gradient summed over all dims except the channels."""

from __future__ import annotations

from convsmith.ir.index import Var, true
from convsmith.problem.problem import Problem
from convsmith.problem.tensor import Tensor
from convsmith.statement.statement import Dim, Statement, View


def bias_gradient(problem: Problem) -> Statement | None:
    """Return the statement, for a problem that asks for the gradient of its bias."""
    if problem.dir != "BWD_WB":
        return None
    given = problem.tensor("diff_dst")
    image, channel, *pixels = (Dim(name, size, "k") for name, size in zip(given.dims, given.shape))
    dims = (Dim(channel.name, channel.size, "m"), image, *pixels)
    a, c = _view(given, given.dims), _view(problem.tensor("diff_bia"), (channel.name,))
    order = (image.name, *(d.name for d in pixels))
    return Statement(dims, (a,), c, order, problem.acc, name="bias", when="after", finish="sum")


def _view(t: Tensor, names: tuple[str, ...]) -> View:
    return View(t.name, t.dtype, t.layout, tuple(map(Var, names)), (true(),) * len(names))
