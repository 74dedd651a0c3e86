"""The profile of a model: its convolutions beside the kernels of the framework that runs it, and a summary.

Names of nodes come from the model. They may hold any character, so every line and label is made printable.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, field
from typing import Any

from convsmith.diag.printable import printable
from convsmith.diag.record import record
from convsmith.measure.doubts import DOUBTFUL, Figures, contradicts, doubts, half_range, is_unsteady
from convsmith.measure.timing import Spread
from convsmith.problem.problem import Problem

__all__ = ["TEXTS", "LeftNode", "ModelProfile", "ProfiledNode", "heading", "node_cells"]

TEXTS = ("node", "operator", "problem")
"""Columns that hold text; the other columns hold numbers."""
WORST = 3
"""Number of nodes that a summary names."""
_MILLISECONDS, _MICROSECONDS = 1e3, 1e6


@record(frozen=True)
class ProfiledNode:
    """Nodes of a model with one problem: the time of our kernel, and of the `host` framework's kernel.

    ``speedup`` is the host's time divided by ours. ``error`` is the greatest difference of the results, relative to the
    greatest result; ``agrees`` states whether rounding explains it. ``cpu_share`` is the ratio of CPU time to wall time
    of our samples, per thread; None on a device.
    """

    names: tuple[str, ...]
    operator: str
    problem: Problem
    config: str
    seconds: Spread
    host: Spread
    speedup: Spread
    error: float
    agrees: bool
    cpu_share: float | None = None

    @property
    def label(self) -> str:
        """The name of the node; for several nodes, the name of the first and their number."""
        others = len(self.names) - 1
        return printable(f"{self.names[0]} and {others} more" if others else self.names[0])

    @property
    def figures(self) -> Figures:
        """The figures that may give a reason to distrust the row."""
        return Figures((self.seconds, self.host, self.speedup), self.cpu_share)

    @property
    def is_doubtful(self) -> bool:
        """Whether a series varies, or the median ratio contradicts the ratio of the times."""
        return self.figures.is_unsteady or contradicts(self.speedup, self.host, self.seconds)

    @property
    def host_seconds(self) -> float:
        """Seconds that the host framework takes for all of the nodes."""
        return self.host.median * len(self.names)

    @property
    def gain(self) -> float:
        """Seconds that our kernel saves for all of the nodes; 0 if the host is as fast."""
        return max(self.host.median - self.seconds.median, 0.0) * len(self.names)


@record(frozen=True)
class LeftNode:
    """A node that stays with the host framework, and why."""

    name: str
    operator: str
    reason: str


@record(frozen=True)
class ModelProfile:
    """The profile of the model ``model``, which `host` ran with ``threads`` threads in ``seconds``.

    ``left`` are convolution-like nodes that no kernel serves, ``others`` maps all other operators to their number of
    nodes.
    """

    model: str
    host: str
    threads: int
    seconds: Spread
    nodes: tuple[ProfiledNode, ...]
    left: tuple[LeftNode, ...] = ()
    others: Mapping[str, int] = field(default_factory=dict)

    @property
    def host_seconds(self) -> float:
        """Seconds of the host framework in the nodes, timed one by one."""
        return sum(node.host_seconds for node in self.nodes)

    @property
    def gain(self) -> float:
        """Seconds that our kernels would save in the nodes where they are faster."""
        return sum(node.gain for node in self.nodes)

    def worst(self, count: int = WORST) -> list[ProfiledNode]:
        """Return the nodes at which most time could be won, at most ``count``."""
        return sorted((n for n in self.nodes if n.gain), key=lambda node: -node.gain)[:count]

    def summary(self) -> Iterator[str]:
        """Return the lines below the table."""
        return map(printable, self._lines())

    def _lines(self) -> Iterator[str]:
        count, whole = sum(len(node.names) for node in self.nodes), self.seconds.median
        if self.nodes:
            subject = f"{count} convolutions and products take" if count > 1 else "1 convolution or product takes"
            alone = f"{subject} {self.host} {self.host_seconds * _MILLISECONDS:.2f} ms, each on its own"
            yield alone + (f", {self._share}" if whole else "")
            yield f"could be won: {self.gain * _MILLISECONDS:.2f} ms, {self.gain / self.host_seconds:.0%} of that"
        elif not self.left:
            yield f"{self.model} has no convolution and no product of bytes"
        yield from self._doubts()
        for node in self.worst():
            yield f"    {node.gain * _MILLISECONDS:.2f} ms at {', '.join(node.names)}: {node.problem}"
        for left in self.left:
            yield f"left to {self.host}: {left.name} ({left.operator}): {left.reason}"
        if self.others:
            listed = ", ".join(f"{name} {count}" for name, count in sorted(self.others.items()))
            yield f"other operators stay with {self.host}: {listed}"

    @property
    def _share(self) -> str:
        """The share of the nodes in the time of the model; unknown if they take longer than the model."""
        whole = f"the model's {self.seconds.median * _MILLISECONDS:.2f} ms"
        share = self.host_seconds / self.seconds.median
        if share <= 1:
            return f"{share:.0%} of {whole}"
        return f"more than {whole}, of which their share is not known"

    def _doubts(self) -> Iterator[str]:
        """Yield reasons to distrust the figures: the reasons that `bench` gives, and reasons specific to a model."""
        yield from doubts([node.figures for node in self.nodes], len(self.nodes), f"{DOUBTFUL} behind the ratio")
        odd = [node for node in self.nodes if contradicts(node.speedup, node.host, node.seconds)]
        if odd:
            node, of_times = odd[0], odd[0].host.median / odd[0].seconds.median
            yield (
                f"{len(odd)} of {len(self.nodes)} rows have a ratio that is not that of their times ({node.label}: "
                f"{node.speedup.median:.2f} is the median of the rounds, {of_times:.2f} the ratio of the medians): the "
                "machine was busy in some rounds"
            )
        if is_unsteady(self.seconds):
            yield f"the whole model's time varies by {half_range(self.seconds):.0%}: is something else running?"

    def as_data(self) -> dict[str, Any]:
        """Return everything as values that JSON can hold."""
        rows = [
            {
                "names": list(n.names), "operator": n.operator, "problem": str(n.problem), "config": n.config,
                "seconds": asdict(n.seconds), "host": asdict(n.host), "speedup": asdict(n.speedup), "error": n.error,
                "agrees": n.agrees, "gain": n.gain, "cpu_share": n.cpu_share,
            }
            for n in self.nodes
        ]  # fmt: skip
        return {
            "model": self.model, "host": self.host, "threads": self.threads, "seconds": asdict(self.seconds),
            "host_seconds": self.host_seconds, "gain": self.gain, "nodes": rows,
            "left": [asdict(left) for left in self.left], "others": dict(self.others),
        }  # fmt: skip

    def __str__(self) -> str:
        rows = [node_cells(node, self.host) for node in self.nodes]
        return "\n".join([heading(self.model, self.host, self.threads), *_table(rows), *self.summary()])


def heading(model: str, host: str, threads: int) -> str:
    """Return a one-line heading of the table of a profile."""
    return printable(f"{model}, {threads} thread{'s' * (threads > 1)}; ratio is {host}'s time / ours")


def node_cells(node: ProfiledNode, host: str) -> dict[str, str]:
    """Return the texts of a row, by column; ``host`` names the framework."""
    return {
        "node": node.label, "operator": node.operator, "problem": str(node.problem),
        "time us": _time(node.seconds.median), f"{host} us": _time(node.host.median),
        "ratio": f"{node.speedup.median:.2f}{DOUBTFUL * node.is_doubtful}", "could win us": _time(node.gain),
        "agrees": "yes" if node.agrees else f"NO: {node.error:.0e}",
    }  # fmt: skip


def _time(seconds: float) -> str:
    return f"{seconds * _MICROSECONDS:.1f}"


def _table(rows: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """Yield a line of titles and a line for each of ``rows``; texts are flush left, and numbers flush right."""
    if not rows:
        return
    widths = {title: max(len(title), *(len(row[title]) for row in rows)) for title in rows[0]}
    for row in ({title: title for title in widths}, *rows):
        cells = (row[t].ljust(width) if t in TEXTS else row[t].rjust(width) for t, width in widths.items())
        yield "  ".join(cells).rstrip()
