"""`convsmith machine`: what this machine is, and its measured ceilings."""

from __future__ import annotations

import json
from typing import Any

import click

from convsmith.cli.output import note, print_table
from convsmith.diag.settings import MOST_THREADS
from convsmith.frontend.peak import ceilings
from convsmith.runtime.machine import describe
from convsmith.tune.measure import ROUNDS

__all__ = ["machine"]

_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


@click.command()
@click.option("--threads", type=click.IntRange(1, MOST_THREADS), metavar="N", help="Threads to measure beside one.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def machine(threads: int | None, as_json: bool) -> None:
    """Describe this machine, and measure its ceilings: multiply-adds per second, and reads from each cache level."""
    facts: dict[str, Any] = describe()
    counts = sorted({1, threads or facts["threads"]})
    measured: dict[str, Any] = ceilings(counts, ROUNDS)
    if as_json:
        note(json.dumps({"schema": 1, "machine": facts, "ceilings": measured}, indent=1))
        return
    for name, value in facts.items():
        if name == "caches":
            value = ", ".join(f"{level} {_size(nbytes)}" for level, nbytes in value.items())
        note(f"{name:12}{', '.join(value) if isinstance(value, list) else value}")
    headings = [f"{n} thread{'s' * (n > 1)}" for n in counts]
    products = {f"{isa} {types}": row for isa, rows in measured["fma_gflops"].items() for types, row in rows.items()}
    for title, table in (("GFLOP/s", products), ("read GB/s", measured["read_gbs"])):
        note("")
        lines = [[name, *(f"{by_threads[str(n)]:.1f}" for n in counts)] for name, by_threads in table.items()]
        print_table([title, *headings], lines)


def _size(nbytes: int) -> str:
    for unit, name in _UNITS:
        if nbytes >= unit:
            return f"{nbytes / unit:g} {name}"
    return f"{nbytes} bytes"
