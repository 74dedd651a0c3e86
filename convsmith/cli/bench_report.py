"""A report of `convsmith bench` as one text file that a person can send: machine, versions, layers, ratios."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from textwrap import fill
from typing import Any

from convsmith.cli.bench_json import RowData
from convsmith.cli.table import Column, fitted

__all__ = ["LAYERS", "report"]

LAYERS = """
mb1ic3ih224oc64oh112kh7sh2ph3
mb1ic64ih56oc64oh56kh3ph1
mb1ic256ih56oc64oh56kh1ph0
mb1ic256ih14oc1024oh14kh1ph0
mb1ic512ih7oc512oh7kh3ph1
g144mb1ic144ih56oc144oh56kh3ph1
mb1ic96ih56oc24oh56kh1ph0
--dt=bf16
mb1ic64ih56oc64oh56kh3ph1
mb1ic256ih14oc1024oh14kh1ph0
--dt=f16
mb1ic64ih56oc64oh56kh3ph1
mb1ic256ih14oc1024oh14kh1ph0
--dt=u8:s8:s32
mb1ic64ih56oc64oh56kh3ph1
mb1ic256ih14oc1024oh14kh1ph0
g144mb1ic144ih56oc144oh56kh3ph1
"""
"""The layers of a report that names none: dense, pointwise and depthwise ones of ResNet-50 and MobileNetV2, in f32, the
types of 16 bits, and bytes."""
_WIDTH = 120
_NAME = 20
"""Characters of the column of names of facts."""
_BUSY = 0.95
"""Share of the CPU time below which a row says that other processes took it."""


def report(heading: str, content: Mapping[str, Any]) -> str:
    """Return the text of a report: ``content`` is that of the JSON."""
    machine: Mapping[str, Any] = content["machine"]
    facts = {"convsmith": f"{content['convsmith']}, sources {content['sources'][:12]}", **machine}
    facts |= {name: version or "not installed" for name, version in content["libraries"].items()}
    lines = [f"convsmith bench: {heading}", ""]
    lines += [_fact(name, _text(value)) for name, value in facts.items()]
    rows: Sequence[RowData] = content["rows"]
    libraries = [name for name, version in content["libraries"].items() if version is not None]
    implied = "--stag={0} --dtag={0} ".format(content["layout"])
    lines += ["", *_table(rows, libraries, implied), ""]
    cannot = Counter(item for row in rows for item in row["cannot"].items())
    lines += [f"{name} cannot do {count} of the problems: {why}" for (name, why), count in cannot.items()]
    lines += [f"{row['problem']}: {row['error']['class']}: {row['error']['message']}" for row in rows if row["error"]]
    lines.append(
        "Ratios are a library's time divided by convsmith's, medians of rounds in turns; +- is half the distance of "
        "the quartiles of the share of the peak, in percent. The rate is in GFLOP/s or GOP/s. A row is busy if other "
        "processes used the CPU. The peak of scalable vectors is that of one unit of them."
    )
    if not content["complete"]:
        lines.append("The run was ended before all layers were measured.")
    return "\n".join(lines)


def _table(rows: Sequence[RowData], libraries: Sequence[str], implied: str) -> Iterator[str]:
    """Yield the lines of the table of problems, without the options that are ``implied``."""
    longest = max((len(row["problem"].replace(implied, "")) for row in rows), default=0)
    titles = ["time us", "rate", "% peak", "+-", "verified", "CPU", *(f"vs {name}" for name in libraries)]
    table = fitted([Column("problem", longest, left=True), *(Column(x, max(len(x), 7)) for x in titles),
                    Column("config", 1, left=True)], None)  # fmt: skip
    yield table.head
    for row in rows:
        yield table.line({**_cells(row), "problem": row["problem"].replace(implied, "")})


def _cells(row: RowData) -> dict[str, str]:
    """Return the texts of a row by the titles of their columns."""
    cells = {"verified": {True: "yes", False: "NO"}.get(row["verified"], "none")}
    if row["seconds"] is None:
        return cells
    cells |= {"time us": f"{row['seconds']['median'] * 1e6:.1f}", "rate": f"{row['gflops']['median']:.1f}"}
    if peak := row["of_peak"]:
        cells |= {"% peak": f"{peak['median'] * 100:.1f}", "+-": f"{(peak['high'] - peak['low']) * 50:.1f}"}
    share = row["cpu_share"]
    cells["CPU"] = "" if share is None else "busy" if share < _BUSY else "ok"
    cells |= {f"vs {name}": f"{x['speedup']['median']:.2f}" for name, x in row["libraries"].items()}
    return cells | {"config": str(row["config"])}


def _text(value: object) -> str:
    """Return a fact of a machine as text."""
    if isinstance(value, str) and value.startswith("/"):
        return value.rpartition("/")[2]  # folders may name a person
    if isinstance(value, Mapping):
        return "; ".join(f"{name} {text}" for name, text in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _fact(name: str, text: str) -> str:
    return fill(f"{name:{_NAME}}{text}", _WIDTH, subsequent_indent=" " * _NAME, break_long_words=False,
                break_on_hyphens=False)  # fmt: skip
