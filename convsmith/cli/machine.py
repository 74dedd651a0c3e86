"""`convsmith machine`: facts about this machine, and its stored ceilings; `--measure` measures them."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from textwrap import fill
from typing import Any

import click

from convsmith.cli.output import Progress, Rows, error_line, note, progress, width_of
from convsmith.cli.table import Column
from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.machine.host import Cache, caches
from convsmith.machine.micro_architectures import MICRO_ARCHITECTURES
from convsmith.machine.registry import device_targets, host_target
from convsmith.measure.ceilings import Ceiling, Figure, known_ceilings
from convsmith.measure.description import describe
from convsmith.measure.timing import ROUNDS
from convsmith.runtime.threads import available_cpus, default_threads
from convsmith.runtime.threads import describe as describe_runtime

__all__ = ["machine"]

_TABLES = {"multiply-adds": ("fma_gflops", "GFLOP/s, GOP/s"), "reads": ("read_gbs", "read GB/s")}
"""Kinds of ceilings: the key in the JSON, and the heading of the table."""
_NAME = 20
"""Characters of the column of names."""
BUSY = "busy"
"""Text shown in place of a rate that was measured while other processes used the CPU; such a rate is not stored."""
_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


@click.command(epilog="Example: convsmith machine --measure")
@click.option("--threads", metavar="N[,N...]", help="Numbers of threads; by default one, and all CPUs.")
@click.option("--target", metavar="NAME", help="Instruction set whose multiply-adds to show or to measure.")
@click.option(
    "--measure", type=click.Choice(["all", *_TABLES]), is_flag=False, flag_value="all",
    help="Measure ceilings, by default all, and keep them; with --target, of its multiply-adds only.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def machine(threads: str | None, target: str | None, measure: str | None, as_json: bool) -> None:
    """Describe this machine and print its ceilings, multiply-adds per second and reads from each cache level.

    The ceilings are stored figures with their dates. --measure measures them and stores the new figures, except those
    marked busy: other processes took the CPU meanwhile.
    """
    facts: dict[str, Any] = {**describe(), "openmp": describe_runtime()}
    counts = _counts(threads)
    chosen = _chosen(target, measure)
    if not as_json:
        for name, value in facts.items():
            if name == "caches":
                value = ", ".join(map(_cache_words, caches()))
            if name == "levels":
                value = "; ".join(f"{level} tiles in {held}" if held else level for level, held in value.items())
            _fact(name, ", ".join(value) if isinstance(value, list) else str(value))
        _fact("micro_architectures", ", ".join(row.name for row in MICRO_ARCHITECTURES))
        _fact("device targets", ", ".join(t.name for t in device_targets()))
    found: dict[str, Any] = {}
    with progress(len(chosen) if measure is not None else 0) as bar:
        for table, unit in _TABLES.values():
            here = [ceiling for ceiling in chosen if ceiling.table == table]
            if measure is None:
                here = [ceiling for ceiling in here if any(map(ceiling.kept, counts))]
            if here:
                found[table] = {}
                _print(here, counts, unit, found[table], bar, as_json, measure is not None)
    if as_json:
        note(json.dumps({"schema": 2, "machine": facts, "ceilings": found}, indent=1))
    elif not found:
        note("\nNo ceiling is stored: `convsmith machine --measure` measures and stores them.")


def _fact(name: str, text: str) -> None:
    """Print a fact; where the width is known, a long one continues below its beginning."""
    width = width_of(sys.stdout)
    wrapped = fill(
        text, width or _NAME + len(text), initial_indent=f"{name:{_NAME}}", subsequent_indent=" " * _NAME,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    note(wrapped)


def _print(
    chosen: Sequence[Ceiling], counts: Sequence[int], unit: str, found: dict[str, Any], bar: Progress, as_json: bool,
    measured: bool,
) -> None:  # fmt: skip
    """Print a table of the ceilings row by row, and collect the figures, measured or stored, in `found`."""
    names = [f"{ceiling.name} {ceiling.types}".rstrip() for ceiling in chosen]
    headings = {n: f"{n} thread{'s' * (n > 1)}" for n in counts}
    columns = [Column(unit, max(len(unit), *map(len, names)), left=True)]
    columns += [Column(heading, 10) for heading in headings.values()]
    rows = Rows([*columns, Column("measured", 10, left=True)], data_only=as_json)
    with bar.aside():
        rows.text("")
        rows.head()

    for name, ceiling in zip(names, chosen):
        bar.start(name)
        figures_by_threads = {n: ceiling.measure(n, ROUNDS) if measured else ceiling.kept(n) for n in counts}
        figures = {n: figure for n, figure in figures_by_threads.items() if figure is not None}
        by_threads = {str(n): figure._asdict() for n, figure in figures.items()}
        if ceiling.types:
            found.setdefault(ceiling.name, {})[ceiling.types] = by_threads
        else:
            found[ceiling.name] = by_threads
        dates = " and ".join(sorted({figure.date for figure in figures.values() if figure.is_steady}))
        with bar.aside():
            rates = {headings[n]: _rate(figures.get(n)) for n in counts}
            rows.row({unit: name, "measured": dates} | rates)
        bar.advance()


def _counts(text: str | None) -> list[int]:
    """The numbers of threads to measure, none of them above the number of CPUs."""
    cpus = available_cpus()
    words = text.split(",") if text is not None else ["1", str(default_threads())]
    if not all(word.strip().isdecimal() and int(word) for word in words):
        raise UsageError(f"--threads={text}: expected whole numbers of at least 1, such as 1,2", code="threads")
    counts = sorted({int(word) for word in words})
    if counts[-1] > cpus:
        error_line(f"{counts[-1]} threads: this process has {cpus} CPU{'s' * (cpus > 1)}, and more measure no more")
    return sorted({min(count, cpus) for count in counts})


def _chosen(target: str | None, measure: str | None) -> list[Ceiling]:
    """The requested ceilings."""
    name = measure or ("all" if target is None else "multiply-adds")
    tables = [table for key, (table, _) in _TABLES.items() if name in (key, "all")]
    if target is not None:
        target = host_target(target).name
    ceilings = [c for c in known_ceilings() if c.table in tables]
    ceilings = [c for c in ceilings if target is None or not c.types or c.name == target]
    if target is not None and "fma_gflops" in tables and not any(c.types for c in ceilings):
        raise UnsupportedError(f"target {target!r} does not run on this machine", code="target")
    return ceilings


def _rate(figure: Figure | None) -> str:
    """Return the rate as text, or a word if there is no rate or the threads did not get their CPU time."""
    if figure is None:
        return "-"
    return f"{figure.rate:.1f}" if figure.is_steady else BUSY


def _cache_words(cache: Cache) -> str:
    """Describe a cache: its size, its sets, and the number of cores that share it."""
    sets = f" in {cache.ways} ways of {cache.line}-byte lines" if cache.ways and cache.line else ""
    shared = f", shared by {cache.cores} cores" if cache.cores > 1 else ""
    return f"{cache.name} {_size(cache.bytes)}{sets}{shared}"


def _size(nbytes: int) -> str:
    for unit, name in _UNITS:
        if nbytes >= unit:
            return f"{nbytes / unit:g} {name}"
    return f"{nbytes} bytes"
