"""`convsmith machine`: what this machine is, and its measured ceilings."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click

from convsmith.cli.output import Progress, Rows, error_line, note, progress
from convsmith.cli.table import Column
from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.machine.registry import target
from convsmith.measure.ceilings import Ceiling, known_ceilings
from convsmith.measure.description import describe
from convsmith.measure.timing import ROUNDS
from convsmith.runtime.threads import available_cpus, default_threads

__all__ = ["machine"]

_TABLES = {"multiply-adds": ("fma_gflops", "GFLOP/s, GOP/s"), "reads": ("read_gbs", "read GB/s")}
"""Kinds of ceilings: the key in the JSON, and the heading of the table."""
_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


@click.command()
@click.option("--threads", metavar="N[,N...]", help="Threads to measure with; by default one, and all CPUs.")
@click.option("--isa", metavar="NAME", help="Instruction set whose multiply-adds to measure; by default all.")
@click.option("--measure", type=click.Choice(["all", *_TABLES, "nothing"]), help="By default all; with --isa, those.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def machine(threads: str | None, isa: str | None, measure: str | None, as_json: bool) -> None:
    """Describe this machine, and measure its ceilings: multiply-adds per second, and reads from each cache level."""
    facts: dict[str, Any] = describe()
    counts = _counts(threads)
    chosen = _chosen(isa, measure)
    if not as_json:
        for name, value in facts.items():
            if name == "caches":
                value = ", ".join(f"{level} {_size(nbytes)}" for level, nbytes in value.items())
            note(f"{name:12}{', '.join(value) if isinstance(value, list) else value}")
    measured: dict[str, Any] = {}
    with progress(len(chosen)) as bar:
        for table, unit in _TABLES.values():
            here = [ceiling for ceiling in chosen if ceiling.table == table]
            if here:
                measured[table] = {}
                _measure(here, counts, unit, measured[table], bar, as_json)
    if as_json:
        note(json.dumps({"schema": 1, "machine": facts, "ceilings": measured}, indent=1))


def _measure(
    chosen: Sequence[Ceiling], counts: Sequence[int], unit: str, measured: dict[str, Any], bar: Progress, as_json: bool
) -> None:
    """Print a table of the ceilings row by row, and note the figures in `measured`."""
    names = [f"{ceiling.name} {ceiling.types}".rstrip() for ceiling in chosen]
    headings = {n: f"{n} thread{'s' * (n > 1)}" for n in counts}
    columns = [Column(unit, max(len(unit), *map(len, names)), left=True)]
    rows = Rows([*columns, *(Column(heading, 10) for heading in headings.values())], data_only=as_json)
    with bar.aside():
        rows.text("")
        rows.head()

    for name, ceiling in zip(names, chosen):
        bar.start(name)
        figures = {n: ceiling.measure(n, ROUNDS) for n in counts}
        by_threads = {str(n): figure.rate for n, figure in figures.items()}
        if ceiling.types:
            measured.setdefault(ceiling.name, {})[ceiling.types] = by_threads
        else:
            measured[ceiling.name] = by_threads
        with bar.aside():
            rows.row({unit: name} | {headings[n]: f"{figure.rate:.1f}" for n, figure in figures.items()})
        bar.advance()


def _counts(text: str | None) -> list[int]:
    """Numbers of threads, none above the CPUs."""
    cpus = available_cpus()
    words = text.split(",") if text is not None else ["1", str(default_threads())]
    if not all(word.strip().isdecimal() and int(word) for word in words):
        raise UsageError(f"--threads={text}: expected whole numbers of at least 1, such as 1,2", code="threads")
    counts = sorted({int(word) for word in words})
    if counts[-1] > cpus:
        error_line(f"{counts[-1]} threads: this process has {cpus} CPU{'s' * (cpus > 1)}, and more measure no more")
    return sorted({min(count, cpus) for count in counts})


def _chosen(isa: str | None, measure: str | None) -> list[Ceiling]:
    """The ceilings that are asked for."""
    name = measure or ("all" if isa is None else "multiply-adds")
    tables = [table for key, (table, _) in _TABLES.items() if name in (key, "all")]
    if isa is not None:
        isa = target(isa).isa
    found = [c for c in known_ceilings() if c.table in tables]
    found = [c for c in found if isa is None or not c.types or c.name == isa]
    if isa is not None and "fma_gflops" in tables and not any(c.types for c in found):
        raise UnsupportedError(f"isa {isa!r} does not run on this machine", code="isa")
    return found


def _size(nbytes: int) -> str:
    for unit, name in _UNITS:
        if nbytes >= unit:
            return f"{nbytes / unit:g} {name}"
    return f"{nbytes} bytes"
